"""Every exception Cascade raises, and the SQLSTATE each comes from.

CascadeError
├── ConfigError            settings, arguments or a topology file are wrong
│   ├── TopologyError
│   ├── NameRefusedError     a queue or consumer name cannot be used           QC001
│   ├── OptionError          an unknown option, or a value out of range        QC002
│   ├── ArgumentError        an argument is null or makes no sense             QC003
│   ├── PostOptionError      an option of a message makes no sense             QC230
│   ├── DependencyError      a message would wait for one that cannot be       QC231
│   └── SelectorError        a selector is no jsonpath                         QC232
├── NotFoundError          no such queue, consumer, tick, batch, node or member
│   ├── QueueNotFoundError                                                     QC101
│   ├── ConsumerNotFoundError                                                  QC102
│   ├── TickNotFoundError                                                      QC103
│   ├── EventNotFoundError                                                     QC104
│   ├── NodeNotFoundError    this database has no node in the set              QC105
│   └── MemberNotFoundError  the set has no such member                        QC106
├── ConflictError          someone else did it, or has it
│   ├── QueueExistsError                                                       QC201
│   ├── QueueInUseError      it still has consumers                            QC202
│   ├── BatchLostError       the batch is somebody else's, or no longer open   QC203
│   ├── BatchFinishedError   finished before, and `once` was asked for         QC204
│   ├── ReservationError     the id was not reserved, or is used already       QC205
│   ├── NotRootError         only the root decides this                        QC206
│   ├── NodeExistsError      the database is another node already              QC207
│   ├── RoleError            a node of this role cannot do that                QC208
│   ├── MovedOnError         the node was changed meanwhile                    QC209
│   ├── OperationError       another operation is open on the set              QC210
│   ├── BallotError          another promotion is under way                    QC212
│   ├── ConsumerMovedError   the consumer is at another node                   QC213
│   ├── ConsumerBusyError    somebody holds its batches                        QC214
│   ├── ConsumerExistsError  the other node has one of that name               QC215
│   ├── ForeignSetError      the database belongs to another set of this name  QC216
│   ├── ClaimLostError       the claim is over, or holds no such message        QC217
│   ├── ConsumerModeError    it reads batches, or it takes messages: not both   QC218
│   ├── MessageBusyError     somebody has the message                           QC219
│   └── ConsumerOptionsError it exists with other options                       QC220
├── ForbiddenError         the role may not do this                            QC301
├── PayloadError           not JSON, or larger than the queue takes            QC302, QC303
├── FencedError            the queue takes no inserts here; says where it does QC401
├── CombinedError          the queue takes no inserts: its parts do           QC403
├── ExpiredError           the events asked for were removed by rotation       QC402
├── UnsuitableError        not in this isolation level or transaction          QC501
├── SchemaError            the installed schema does not fit this code         QC601
├── JoinError              a provider does not serve this node as it stands
│   ├── DroppedError         it is no member: add it again                     QC701
│   ├── DirtyError           it has events outside its last tick               QC702
│   ├── TermConflictError    two terms exclude one another                     QC703
│   ├── StaleError           the provider's term is over                       QC704
│   ├── RewoundError         the root lost its tail                            QC705
│   ├── DivergedError        they went different ways                          QC706
│   ├── LeftBehindError      the events it needs are gone                      QC707
│   ├── BehindError          the provider has to catch up first                QC708
│   └── RejoinError          the provider changed: ask it again                QC709
├── UnsafeError            refused: it could lose something that was not accepted
├── TransientError         try again: a connection was lost, a lock not had
├── ServerError            an embedded server could not be started or reached
└── CorruptionError        what only a bug or damaged storage could cause      QC901
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar


class CascadeError(Exception):
    """The root of the tree; `hint` says what to do about it, when that is known."""

    sqlstate: ClassVar[str | None] = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed in a moment, here or where the error says."""
        return False

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\nhint: {self.hint}" if self.hint else message


class ConfigError(CascadeError):
    """Settings, arguments or a file are wrong; nothing was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in a file: where, what, and what to do about it.

    Line 0 is no line: what was checked did not come from a file.
    """

    source: str
    line: int
    fact: str
    remedy: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return f"{place}: {self.fact}; {self.remedy}"


class TopologyError(ConfigError):
    """A topology describes something that cannot be; `problems` are all that were found in a file."""

    def __init__(self, message: str = "", *, hint: str | None = None, problems: Iterable[Problem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message or "\n".join(map(str, self.problems)), hint=hint)


class NameRefusedError(ConfigError):
    """A queue or consumer name is empty, too long or reserved."""

    sqlstate = "QC001"


class OptionError(ConfigError):
    """A queue option is unknown or its value is out of range."""

    sqlstate = "QC002"


class ArgumentError(ConfigError):
    """An argument is null, or makes no sense together with the others."""

    sqlstate = "QC003"


class PostOptionError(ConfigError):
    """An option of a message makes no sense; nothing was posted."""

    sqlstate = "QC230"


class DependencyError(ConfigError):
    """A message would wait for one that cannot be: itself, or one of no queue here, or with an id never handed out."""

    sqlstate = "QC231"


class SelectorError(ConfigError):
    """A selector is no jsonpath; the message says where it goes wrong."""

    sqlstate = "QC232"


class NotFoundError(CascadeError):
    """What was named does not exist."""


class QueueNotFoundError(NotFoundError):
    """There is no such queue in this database."""

    sqlstate = "QC101"


class ConsumerNotFoundError(NotFoundError):
    """The consumer is not subscribed to this queue."""

    sqlstate = "QC102"


class TickNotFoundError(NotFoundError):
    """The queue has no such tick."""

    sqlstate = "QC103"


class EventNotFoundError(NotFoundError):
    """The batch has no such event."""

    sqlstate = "QC104"


class NodeNotFoundError(NotFoundError):
    """This database has no node in the set."""

    sqlstate = "QC105"


class MemberNotFoundError(NotFoundError):
    """The set has no such member."""

    sqlstate = "QC106"


class ConflictError(CascadeError):
    """Someone else did it first, or has it now."""


class QueueExistsError(ConflictError):
    """There is such a queue already."""

    sqlstate = "QC201"


class QueueInUseError(ConflictError):
    """The queue still has consumers."""

    sqlstate = "QC202"


class BatchLostError(ConflictError):
    """The batch is somebody else's now, or is no longer open; its work must not count."""

    sqlstate = "QC203"


class BatchFinishedError(ConflictError):
    """The batch was finished before, and the caller asked to finish it exactly once."""

    sqlstate = "QC204"


class ReservationError(ConflictError):
    """The id was not reserved for this queue, or has been used."""

    sqlstate = "QC205"


class NotRootError(ConflictError):
    """Only the root of the set decides this, and this database is not it."""

    sqlstate = "QC206"


class NodeExistsError(ConflictError):
    """The database, or the name, is taken by another node of the set."""

    sqlstate = "QC207"


class RoleError(ConflictError):
    """A node of this role cannot do that."""

    sqlstate = "QC208"


class MovedOnError(ConflictError):
    """The node was switched, paused or dropped, or somebody else copied for it; nothing was done."""

    sqlstate = "QC209"


class OperationError(ConflictError):
    """Another operation is open on the set, or this one has expired."""

    sqlstate = "QC210"


class BallotError(ConflictError):
    """Another promotion is under way, or this one was not announced."""

    sqlstate = "QC212"


class ConsumerMovedError(ConflictError):
    """The consumer is at another node, or on its way there; the message names it."""

    sqlstate = "QC213"


class ConsumerBusyError(ConflictError):
    """The consumer cannot be moved while somebody holds batches of it."""

    sqlstate = "QC214"


class ConsumerExistsError(ConflictError):
    """The node has a consumer of that name already."""

    sqlstate = "QC215"


class ForeignSetError(ConflictError):
    """A database belongs to another set of the same name; nothing was told or learned."""

    sqlstate = "QC216"


class ClaimLostError(ConflictError):
    """The claim is over, or does not hold the message (any more); what was done with it must not count."""

    sqlstate = "QC217"


class ConsumerModeError(ConflictError):
    """The consumer reads batches and takes no messages, or takes messages and reads no batches."""

    sqlstate = "QC218"


class MessageBusyError(ConflictError):
    """Somebody has the message, and has not let go of it in time."""

    sqlstate = "QC219"


class ConsumerOptionsError(ConflictError):
    """There is such a consumer already, with another selector or other options."""

    sqlstate = "QC220"


class ForbiddenError(CascadeError):
    """The role may not do this."""

    sqlstate = "QC301"


class PayloadError(CascadeError):
    """The payload or the headers are not JSON, or larger than the queue takes."""

    sqlstate = "QC302"


class PayloadSizeError(PayloadError):
    """The payload is larger than the queue takes."""

    sqlstate = "QC303"


class FencedError(CascadeError):
    """The queue takes no inserts here; nothing was stored, so it may be published elsewhere.

    `node` refused; `root` is where the queue's root is now, `database` and `dsn` say how to get there, as far as
    that is known.  While the root is being moved, `root` is `node` itself; it is None when an operator
    must decide first.
    """

    sqlstate = "QC401"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        node: str | None = None,
        root: str | None = None,
        database: str | None = None,
        dsn: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.node, self.root, self.database, self.dsn = node, root, database, dsn

    @property
    def is_retryable(self) -> bool:
        """Whether there is a root to go to, or will be in a moment."""
        return self.root is not None


class CombinedError(CascadeError):
    """The queue belongs to a combined set: its events come from its parts, into which producers insert."""

    sqlstate = "QC403"


class ExpiredError(CascadeError):
    """The events asked for were removed by rotation."""

    sqlstate = "QC402"


class UnsuitableError(CascadeError):
    """The call cannot run in this isolation level, or after other work in this transaction."""

    sqlstate = "QC501"


class SchemaError(CascadeError):
    """The installed schema is missing, or newer or older than this code."""

    sqlstate = "QC601"


class JoinError(CascadeError):
    """A provider does not serve this node as it stands; the node stops, and nothing was copied."""


class DroppedError(JoinError):
    """The node is no member of the set, or no longer one."""

    sqlstate = "QC701"


class DirtyError(JoinError):
    """The node has events outside the snapshot of its last tick."""

    sqlstate = "QC702"


class TermConflictError(JoinError):
    """Two terms have one number or one parent: an operator keeps one."""

    sqlstate = "QC703"


class StaleError(JoinError):
    """The provider stands beyond the end of its term."""

    sqlstate = "QC704"


class RewoundError(JoinError):
    """The root's database lost ticks that the node has."""

    sqlstate = "QC705"


class DivergedError(JoinError):
    """The node and the provider went different ways."""

    sqlstate = "QC706"


class LeftBehindError(JoinError):
    """The events that the node needs next are no longer held."""

    sqlstate = "QC707"


class BehindError(JoinError):
    """The provider has not come as far as the node: wait."""

    sqlstate = "QC708"


class RejoinError(JoinError):
    """The provider changed while it was read: joining again says how."""

    sqlstate = "QC709"


class UnsafeError(CascadeError):
    """Refused: it could lose something that nobody has accepted to lose; nothing was done."""


class TransientError(CascadeError):
    """It did not work this time: a connection was lost, a lock was not to be had."""

    @property
    def is_retryable(self) -> bool:
        """Yes, if a second event, or a second effect, does no harm: the outcome may be unknown."""
        return True


class ServerError(CascadeError):
    """An embedded PostgreSQL server could not be made, started or reached."""


class CorruptionError(CascadeError):
    """What only a bug or damaged storage can cause: stop and look."""

    sqlstate = "QC901"


def _subclasses(cls: type[CascadeError]) -> list[type[CascadeError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _subclasses(child))]


BY_SQLSTATE: dict[str, type[CascadeError]] = {
    str(cls.sqlstate): cls for cls in _subclasses(CascadeError) if cls.__dict__.get("sqlstate")
}
