"""Repair: a plan made from a comparison, and carrying it out on the branches that differ, each from its provider.

A plan holds no events: which stretches of which node, the digests that were found there and those that are wanted, and
the ids of the events that differ.  It changes nothing once either digest has changed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cascade.db import Connection, translated
from cascade.errors import ConfigError, MovedOnError, UnsafeError
from cascade.spark.differences import sum_of
from cascade.spark.ranges import connected

if TYPE_CHECKING:
    from cascade.spark.report import Report

VERSION = 1
KIND = "cascade repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Ticks of a node after one, up to another: the digest they have there, and the one they should have."""

    from_tick: int
    to_tick: int
    found: int
    wanted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What is to be repaired at one node, from its provider."""

    node: str
    provider: str
    parts: tuple[Part, ...]
    #: The events that differ there.
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be repaired, providers before their subscribers, and what cannot be."""

    uid: str
    set: str
    made_at: datetime
    nodes: tuple[NodePlan, ...]
    refusals: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as it is saved; numbers of 64 bits are text."""
        return {
            "kind": KIND,
            "version": VERSION,
            "uid": self.uid,
            "set": self.set,
            "made_at": self.made_at.isoformat(),
            "nodes": [
                {
                    "node": one.node,
                    "provider": one.provider,
                    "stretches": [{name: str(getattr(part, name)) for name in _PART} for part in one.parts],
                    "ids": [str(id) for id in one.ids],
                }
                for one in self.nodes
            ],
            "refusals": list(self.refusals),
        }

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Self:
        """Read what as_json() made."""
        if found["kind"] != KIND or found["version"] != VERSION:
            raise ValueError(f"it is {found['kind']!r}, version {found['version']}")
        return cls(
            uid=str(uuid.UUID(found["uid"])),
            set=found["set"],
            made_at=datetime.fromisoformat(found["made_at"]),
            nodes=tuple(
                NodePlan(
                    node=one["node"],
                    provider=one["provider"],
                    parts=tuple(Part(**{name: int(part[name]) for name in _PART}) for part in one["stretches"]),
                    ids=tuple(map(int, one["ids"])),
                )
                for one in found["nodes"]
            ),
            refusals=tuple(found["refusals"]),
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a saved plan."""
        try:
            return cls.parse(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is no plan of a repair: {error}", hint="cascade spark reconcile --plan FILE makes one."
            ) from error

    def save(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n", encoding="utf-8")


_PART = ("from_tick", "to_tick", "found", "wanted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What was done at one node, or was done before."""

    node: str
    provider: str
    removed: int
    added: int
    ticks: int
    #: Consumers that had passed the ticks, and so do not see what was put in.
    consumers: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    is_repeat: bool = False


def make_plan(report: Report) -> Plan:
    """Return what would make every branch that differs equal to its provider."""
    nodes, refusals = [], []
    if report.is_truncated:
        refusals.append("more differs than is told one by one: compare a shorter range, or make the node anew")
    for node in report.nodes:
        parts = tuple(_parts(report, node.node))
        if node.is_dirty:
            refusals.append(f"{node.node} has events outside its last tick: cascade resurrect sets them aside")
        if not parts or report.is_truncated or node.node in report.silent:
            continue
        if node.provider is None:
            refusals.append(
                f"{node.node} is the root: no other node can say what its events should be;"
                " make one that has them the root, and compare again"
            )
            continue
        ids = {found.id for found in report.differences if found.node == node.node and found.id is not None}
        nodes.append(NodePlan(node=node.node, provider=node.provider, parts=parts, ids=tuple(sorted(ids))))
    return Plan(
        uid=str(uuid.uuid4()), set=report.set, made_at=report.made_at, nodes=tuple(nodes), refusals=tuple(refusals)
    )


def _parts(report: Report, node: str) -> Iterator[Part]:
    for stretch in report.stretches:
        if node in stretch.bad:
            ticks = [report.digests[tick] for tick in stretch.ticks]
            yield Part(
                from_tick=stretch.from_tick,
                to_tick=stretch.to_tick,
                found=sum_of(tick[node] for tick in ticks),
                wanted=sum_of(tick[stretch.reference] for tick in ticks),
            )


def apply_plan(
    plan: Plan, dsn_of: Callable[[str], str], tell: Callable[[Repaired], None] = lambda _: None
) -> list[Repaired]:
    """Repair node after node; each is one transaction, and a plan that was broken off may be applied again."""
    if not plan.nodes:
        reasons = "; ".join(plan.refusals) or "nothing differs"
        raise UnsafeError(f"set {plan.set}: there is nothing that can be repaired: {reasons}")
    done = []
    for one in plan.nodes:
        with (
            connected(dsn_of(one.provider), "repair") as provider,
            connected(dsn_of(one.node), "repair") as own,
            translated(),
        ):
            stretches = [_read(provider, plan.set, one, part) for part in one.parts]
            query = "select cascade.repair_log(%s, %s, %s, %s, %s)"
            arguments = (plan.set, one.provider, plan.uid, json.dumps(stretches), list(one.ids))
            found = _value(own, query, *arguments)
        repaired = Repaired(**found | {"consumers": tuple(found["consumers"])})
        tell(repaired)
        done.append(repaired)
    return done


def _read(provider: Connection, set_name: str, one: NodePlan, part: Part) -> dict[str, Any]:
    """Read from the provider what a stretch should be; it must have what the plan wants."""
    about = (set_name, part.from_tick, part.to_tick)
    digest = _value(provider, "select digest from cascade.digest_spans(%s, array[%s, %s]::bigint[])", *about)
    if digest != part.wanted:
        raise MovedOnError(
            f"node {one.provider}: ticks after {part.from_tick} up to {part.to_tick} are not what the plan wants",
            hint="Nothing was changed at its subscriber.  Compare again: cascade spark reconcile.",
        )
    events = (
        "select coalesce(json_agg(row_to_json(e)), '[]')::text"
        # In JSON a time has its zone, and no setting of the session changes how it is written.
        " from (select tick_id, id, time, txid, type, key, payload, headers, origin, origin_id"
        " from cascade.read_log(%s, %s, %s, %s)) as e"
    )
    return {name: getattr(part, name) for name in _PART} | {
        "ticks": _value(provider, "select cascade.read_ticks(%s, %s, %s)", *about),
        "events": json.loads(_value(provider, events, *about, list(one.ids))),
    }


def _value(conn: Connection, query: str, *arguments: Any) -> Any:
    row: Sequence[Any] | None = conn.execute(query.encode(), arguments).fetchone()
    assert row is not None
    return row[0]
