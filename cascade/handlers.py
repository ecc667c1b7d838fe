"""Handlers of messages: which one takes which type, and what it is called with.

What a handler is given is told by its parameters.  One that is annotated `Delivery`, or called `delivery`, gets the
delivery; the other one gets the payload, as an instance of its annotation.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from cascade.codec import Codec, JsonCodec, typed
from cascade.errors import ConfigError
from cascade.work import Delivery

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A handler, and how to call it."""

    call: Callable[..., Any]
    is_async: bool
    #: In the order of the parameters: True for the delivery, False for the payload.
    wants: tuple[bool, ...]
    decode: Callable[[str], Any]
    time_limit_s: float | None

    def arguments(self, delivery: Delivery[Any]) -> tuple[Any, ...]:
        """Return what to call it with; PayloadError when the payload is not what it wants."""
        if self.wants == (False,):
            return (self.decode(delivery.payload_text),)
        delivery._decode = self.decode
        return tuple(delivery if wanted else self.decode(delivery.payload_text) for wanted in self.wants)


class Handlers:
    """The handlers of one worker, by type; None is the one for every other type."""

    def __init__(self, codec: Codec[Any] | None = None) -> None:
        self._codec = codec or JsonCodec()
        self._live: dict[str | None, Bound] = {}
        self._dead: dict[str | None, Bound] = {}

    def add(self, function: Callable[..., Any], types: tuple[str, ...], *, time_limit: timedelta | None) -> None:
        """Have a function called for these types, or for all that no other one takes."""
        self._add(self._live, function, types, time_limit)

    def add_dead(self, function: Callable[..., Any], types: tuple[str, ...], *, time_limit: timedelta | None) -> None:
        """Have a function called when a message dies."""
        self._add(self._dead, function, types, time_limit)

    def _add(
        self,
        found: dict[str | None, Bound],
        function: Callable[..., Any],
        types: tuple[str, ...],
        time_limit: timedelta | None,
    ) -> None:
        bound = bind(function, self._codec, time_limit)
        for kind in types or (None,):
            if kind in found:
                what = "every other type" if kind is None else f"type {kind!r}"
                raise ConfigError(f"{what} has two handlers: {_name(found[kind].call)} and {_name(function)}")
            found[kind] = bound

    def find(self, kind: str | None) -> Bound | None:
        """Return the handler of a type."""
        return self._live.get(kind) or self._live.get(None)

    def find_dead(self, kind: str | None) -> Bound | None:
        """Return the handler of the dead of a type."""
        return self._dead.get(kind) or self._dead.get(None)

    @property
    def types(self) -> list[str]:
        """The types that have a handler of their own."""
        return sorted(kind for kind in self._live if kind is not None)

    def __bool__(self) -> bool:
        return bool(self._live)


def bind(function: Callable[..., Any], codec: Codec[Any], time_limit: timedelta | None) -> Bound:
    """Look at a handler's parameters."""
    target = function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(target)
    except NameError as error:
        raise ConfigError(
            f"handler {_name(function)}: the annotation {error.name!r} cannot be looked up",
            hint="Define the class at the top of its module, or leave the annotation out.",
        ) from error
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    wants: list[bool] = []
    decode: Callable[[str], Any] = codec.decode
    for parameter in parameters:
        hint = hints.get(parameter.name, Any)
        is_delivery = hint is Delivery or typing.get_origin(hint) is Delivery or parameter.name == "delivery"
        wants.append(is_delivery)
        kind = (typing.get_args(hint) or (Any,))[0] if is_delivery else hint
        if kind is not Any and not isinstance(kind, TypeVar):
            decode = typed(kind)
    if not 1 <= len(wants) <= 2 or wants.count(True) > 1 or wants.count(False) > 1:
        raise ConfigError(
            f"handler {_name(function)} takes {len(wants)} arguments",
            hint="Write handler(payload), handler(delivery: Delivery) or handler(payload, delivery: Delivery).",
        )
    return Bound(
        call=function,
        is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(target),
        wants=tuple(wants),
        decode=decode,
        time_limit_s=None if time_limit is None else time_limit.total_seconds(),
    )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
