"""Turn payloads into JSON text and back.

`JsonCodec` takes any JSON value.  `dataclass_codec(Order)` takes dataclasses and gives them
back, with nested ones, lists, enums, dates, decimals and UUIDs inside.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from cascade.errors import PayloadError

T = TypeVar("T")


class Codec(Protocol[T]):
    """What a queue needs to know about its payloads."""

    def encode(self, payload: T) -> str:
        """Return JSON text, or raise PayloadError."""

    def decode(self, text: str) -> T:
        """Return the payload that the text stands for, or raise PayloadError."""


def _refuse(value: object) -> None:
    raise TypeError(f"object of type {type(value).__name__} is no JSON value")


def _make_encoder(*, escape: bool) -> Callable[[Any], str]:
    """Return what writes compact JSON.

    JSONEncoder builds its C encoder anew for every value, which costs more than the encoding;
    where CPython has one, it is built once.
    """
    encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=escape)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    text = json.encoder.encode_basestring_ascii if escape else json.encoder.encode_basestring
    encode = make(None, _refuse, text, None, ":", ",", False, False, False)
    return lambda value: "".join(encode(value, 0))


class JsonCodec:
    """Any JSON value, as Python's json module writes it; NaN and infinity are not JSON."""

    _encode = staticmethod(_make_encoder(escape=False))
    _escape = staticmethod(_make_encoder(escape=True))

    def encode(self, payload: Any) -> str:
        """Return compact JSON."""
        try:
            text = self._encode(payload)
            if not text.isascii():
                text.encode()
            return text
        except UnicodeEncodeError:
            return self._escape(payload)  # No UTF-8 holds a lone surrogate; escaped, JSON does.
        except (TypeError, ValueError, RecursionError) as error:
            raise PayloadError(f"the payload is not JSON: {error}") from error

    def decode(self, text: str) -> Any:
        """Return the value."""
        return json.loads(text)


class DataclassCodec(Generic[T]):
    """Instances of one dataclass, as JSON objects."""

    def __init__(self, cls: type[T]) -> None:
        self._cls = cls
        self._json = JsonCodec()

    def encode(self, payload: T) -> str:
        """Return the instance's fields as a JSON object."""
        if not isinstance(payload, self._cls):
            raise PayloadError(f"the payload is a {type(payload).__name__}, not a {self._cls.__name__}")
        return self._json.encode(_plain(payload))

    def decode(self, text: str) -> T:
        """Return an instance; fields unknown to the class are ignored, missing ones take defaults."""
        try:
            return typing.cast(T, _build(self._cls, json.loads(text)))
        except (TypeError, ValueError, KeyError, ArithmeticError, AttributeError) as error:
            raise PayloadError(f"the payload is no {self._cls.__name__}: {error}") from error


def dataclass_codec(cls: type[T]) -> DataclassCodec[T]:
    """Return a codec for one dataclass."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise PayloadError(f"{cls!r} is no dataclass", hint="Decorate it with @dataclass.")
    return DataclassCodec(cls)


def typed(wanted: Any) -> Callable[[str], Any]:
    """Return what turns JSON text into what an annotation says: a dataclass, a TypedDict, list[Order], Order | None."""

    def decode(text: str) -> Any:
        try:
            return _build(wanted, json.loads(text))
        except (TypeError, ValueError, KeyError, ArithmeticError, AttributeError) as error:
            name = getattr(wanted, "__name__", str(wanted))
            raise PayloadError(f"the payload is no {name}: {type(error).__name__}: {error}") from error

    return decode


_TO_TEXT: dict[type, Callable[[Any], str]] = {
    dt.datetime: dt.datetime.isoformat,
    dt.date: dt.date.isoformat,
    dt.time: dt.time.isoformat,
    decimal.Decimal: str,
    uuid.UUID: str,
}
_FROM_TEXT: dict[type, Callable[[str], Any]] = {
    dt.datetime: dt.datetime.fromisoformat,
    dt.date: dt.date.fromisoformat,
    dt.time: dt.time.fromisoformat,
    decimal.Decimal: decimal.Decimal,
    uuid.UUID: uuid.UUID,
}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if type(value) in _TO_TEXT:
        return _TO_TEXT[type(value)](value)
    return value


def _build(wanted: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return _build_union(arguments, value)
    if origin in (list, set, frozenset):
        return origin(_build(arguments[0], item) for item in value)
    if origin is tuple:
        each = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        return tuple(_build(kind, item) for kind, item in zip(each, value, strict=True))
    if origin is dict:
        return {key: _build(arguments[1], item) for key, item in value.items()}
    if not isinstance(wanted, type):
        return value
    if dataclasses.is_dataclass(wanted):
        hints = typing.get_type_hints(wanted)
        known = [field.name for field in dataclasses.fields(wanted) if field.name in value]
        return wanted(**{name: _build(hints[name], value[name]) for name in known})
    if typing.is_typeddict(wanted):
        # Where annotations are text, __required_keys__ has seen neither Required nor NotRequired.
        marks = {
            key: typing.get_origin(hint) for key, hint in typing.get_type_hints(wanted, include_extras=True).items()
        }
        usual: frozenset[str] = wanted.__required_keys__  # type: ignore[attr-defined]
        required = {
            key
            for key, mark in marks.items()
            if mark is typing.Required or (mark is not typing.NotRequired and key in usual)
        }
        if missing := sorted(required - value.keys()):
            raise KeyError(", ".join(missing))
        hints = typing.get_type_hints(wanted)
        return {key: _build(hints[key], item) if key in hints else item for key, item in value.items()}
    if issubclass(wanted, enum.Enum):
        return wanted(value)
    if wanted in _FROM_TEXT:
        return _FROM_TEXT[wanted](value)
    return value


def _build_union(choices: tuple[Any, ...], value: Any) -> Any:
    if value is None:
        return None
    for choice in choices:
        if choice is type(None):
            continue
        try:
            return _build(choice, value)
        except (TypeError, ValueError, KeyError):
            continue
    raise ValueError(f"{value!r} fits none of {choices}")
