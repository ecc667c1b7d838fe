"""Conditions: what must be so of a node before something is done to it, or for a plan to be fresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from cascade.topology.observe import Observed, View

IDS = ("tick_id", "at_least")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What must be so of one node; what is None is not asked."""

    node: str
    role: str | None = None
    provider: str | None = None
    term_uid: str | None = None
    generation: int | None = None
    tick_id: int | None = None
    at_least: int | None = None

    @classmethod
    def of(cls, view: View, *names: str) -> Self:
        """Return that some things about a node are as they are now."""
        known = {
            "role": str(view.role),
            "provider": view.provider,
            "term_uid": view.term_uid,
            "generation": view.generation,
            "tick_id": view.tick.tick_id,
            "at_least": view.tick.tick_id,
        }
        return cls(node=view.node, **{name: known[name] for name in names})  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """Return it for people, on one line; of a uid as much as tells terms apart."""
        role = {None: "", "root": "the root", "combined-root": "the combined-root"}.get(self.role, f"a {self.role}")
        what = f"{role} of {self.provider}" if role and self.provider else role
        where = [
            f"in term {self.term_uid.partition('-')[0]}" if self.term_uid else None,
            f"at tick {self.tick_id}" if self.tick_id is not None else None,
            f"at tick {self.at_least} or beyond" if self.at_least is not None else None,
            f"in generation {self.generation}" if self.generation is not None else None,
        ]
        return f"{self.node} is {' '.join(filter(None, [what, ', '.join(filter(None, where))]))}"

    def objections(self, observed: Observed) -> list[str]:
        """Return what is otherwise now."""
        view = observed.views.get(self.node)
        if view is None:
            return [f"{self.node} does not answer: {observed.silent.get(self.node, 'it has no node of the set')}"]
        asked = {
            "role": (self.role, str(view.role)),
            "provider": (self.provider, view.provider),
            "term": (self.term_uid, view.term_uid),
            "generation": (self.generation, view.generation),
            "tick": (self.tick_id, view.tick.tick_id),
        }
        found = [
            f"{self.node}: {name} is {now}, was {then}"
            for name, (then, now) in asked.items()
            if then is not None and then != now
        ]
        if self.at_least is not None and view.tick.tick_id < self.at_least:
            found.append(f"{self.node}: tick is {view.tick.tick_id}, was {self.at_least}")
        return found

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values; ids are text, since they may exceed what JSON's readers hold."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}
        return {key: str(value) if key in IDS else value for key, value in found.items()}

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> Self:
        """Read what as_json() returned."""
        values: dict[str, Any] = {key: int(value) if key in IDS else value for key, value in row.items()}
        return cls(**values)
