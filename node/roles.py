"""The behaviour table of the cascade, as a table: which services a node of each role runs.

|                                | root | branch | leaf | c-root | c-branch | m-leaf at c-root | m-leaf at c-branch |
|--------------------------------|------|--------|------|--------|----------|------------------|--------------------|
| read from queue                |      |  yes   | yes  |        |   yes    |       yes        |        yes         |
| copy events to queue           |      |  yes   |      |        |   yes    |       yes        |                    |
| process events                 |      |  yes   | yes  |        |   yes    |                  |                    |
| send tick id to queue          |      |        |      |        |          |       yes        |                    |
| send global watermark to queue | yes  |        |      |  yes   |          |                  |                    |
| send local watermark upwards   |      |  yes   | yes  |        |   yes    |       yes        |        yes         |
| wait behind the combined set   |      |        |      |        |          |                  |        yes         |
| ask whether its term is over   | yes  |        |      |  yes   |          |                  |                    |

c- is combined-, m- is merge-.  A merge-leaf reads the queue of its part and copies into the combined one.  In which of
the last two columns it is, is not a matter of its role: it asks its database, with every turn, whether the combined
set has its root there (see merge.py).

Every node runs the heir, which takes the reign when a branch is offered it, and reports what the node had beyond a
fork: a root may have lost something before it was one.  What every database
needs is done for all its queues at once: ticks, rotation, and what makes messages ready for consumers in work mode and
takes them back (dispatcher.py, janitor.py).  On a copy the ticker has nothing to do; the others have.  A leaf has no
log and so no such consumers: its handler may insert what it processes into another queue of its database, which has.
"""

from __future__ import annotations

from collections.abc import Callable

from cascade.node.copier import Copier
from cascade.node.dispatcher import Dispatcher
from cascade.node.handler import Handler
from cascade.node.heir import Heir
from cascade.node.home import Home
from cascade.node.janitor import Janitor
from cascade.node.leaf import LeafCopier
from cascade.node.merge import MergeLeaf, MergeTeller
from cascade.node.processor import Processor
from cascade.node.rotator import Rotator
from cascade.node.sentinel import Sentinel
from cascade.node.service import Service
from cascade.node.ticker import Ticker
from cascade.node.watermark import WatermarkPublisher, WatermarkTeller
from cascade.topology import Role

Services = Callable[[Home, Handler | None], list[Service]]


def _processing(home: Home, handler: Handler | None) -> list[Service]:
    return [] if handler is None else [Processor(home, handler)]


SERVICES: dict[Role, tuple[Services, ...]] = {
    Role.ROOT: (lambda home, _: [WatermarkPublisher(home), Sentinel(home), Heir(home)],),
    Role.BRANCH: (lambda home, _: [Copier(home)], _processing, lambda home, _: [WatermarkTeller(home), Heir(home)]),
    Role.COMBINED_ROOT: (lambda home, _: [WatermarkPublisher(home), Sentinel(home), Heir(home)],),
    Role.MERGE_LEAF: (lambda home, _: [MergeLeaf(home), MergeTeller(home), Heir(home)],),
    Role.LEAF: (lambda home, handler: [LeafCopier(home, handler)], lambda home, _: [WatermarkTeller(home), Heir(home)]),
}


def services_of(role: Role, home: Home, handler: Handler | None) -> list[Service]:
    """Return what a node of this role runs."""
    return [service for make in SERVICES[role] for service in make(home, handler)]


def services_of_database(dsn: str, *, link_s: float, rotate_every_s: float) -> list[Service]:
    """Return what a database needs, whatever nodes are in it."""
    return [
        Ticker(dsn, timeout_s=link_s * 2),
        Rotator(dsn, interval_s=rotate_every_s, timeout_s=link_s * 4),
        Dispatcher(dsn, timeout_s=link_s * 4),
        Janitor(dsn, timeout_s=link_s * 4),
    ]
