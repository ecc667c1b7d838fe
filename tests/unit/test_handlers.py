"""What a handler is called with is told by its parameters."""

from __future__ import annotations

import dataclasses
import datetime as dt
from datetime import timedelta
from typing import Any, NotRequired, TypedDict

import pytest

from cascade.codec import JsonCodec
from cascade.errors import ConfigError, PayloadError
from cascade.handlers import Handlers, bind
from cascade.work import Delivery

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


@dataclasses.dataclass
class Line:
    sku: str
    count: int = 1


@dataclasses.dataclass
class Order:
    id: int
    lines: list[Line]
    due: dt.date | None = None


class Parcel(TypedDict):
    id: int
    line: Line
    note: NotRequired[str]


def delivery(text: str, headers: str | None = None) -> Delivery[Any]:
    return Delivery("q", (7, "order.paid", "acme", text, headers, 2, NOW, NOW, 1), JsonCodec().decode)  # type: ignore[arg-type]


def called_with(
    function: Any, text: str = '{"id": 1, "lines": [{"sku": "A"}], "due": "2030-01-31"}'
) -> tuple[Any, ...]:
    return bind(function, JsonCodec(), None).arguments(delivery(text))


ORDER = Order(1, [Line("A")], dt.date(2030, 1, 31))


def takes_anything(payload): ...  # type: ignore[no-untyped-def]
def takes_order(order: Order) -> None: ...
def takes_list(orders: list[Order]) -> None: ...
def takes_delivery(message: Delivery[Order]) -> None: ...
def takes_untyped_delivery(delivery): ...  # type: ignore[no-untyped-def]
def takes_both(order: Order, delivery: Delivery[Any], more: int = 5) -> None: ...
def takes_parcel(parcel: Parcel) -> None: ...
def takes_three(a: int, b: int, c: int) -> None: ...
def takes_nothing() -> None: ...


async def takes_order_async(order: Order) -> None: ...


class Callable:
    async def __call__(self, order: Order) -> None: ...


def test_a_payload_comes_as_its_annotation() -> None:
    assert called_with(takes_order) == (ORDER,)
    assert called_with(takes_anything, "[1, 2]") == ([1, 2],)
    assert called_with(takes_list, '[{"id": 1, "lines": []}]') == ([Order(1, [])],)
    assert called_with(takes_parcel, '{"id": 1, "line": {"sku": "A"}, "more": 1}') == (
        {"id": 1, "line": Line("A"), "more": 1},
    )


def test_a_delivery_comes_to_who_asks_for_it() -> None:
    [found] = called_with(takes_delivery)
    assert (found.payload, found.id, found.attempt) == (ORDER, 7, 2)
    assert called_with(takes_untyped_delivery, "1")[0].payload == 1
    order, found = called_with(takes_both)
    assert order == found.payload == ORDER


@pytest.mark.parametrize("text", ['{"lines": []}', "[]", '{"id": 1, "lines": [{}]}', '{"id": 1, "lines": 5}', "null"])
def test_a_payload_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(PayloadError, match="the payload is no Order"):
        called_with(takes_order, text)


@pytest.mark.parametrize("text", ['{"id": 1}', "5", '{"id": 1, "line": {}}'])
def test_so_is_a_dict_that_lacks_what_it_must_have(text: str) -> None:
    with pytest.raises(PayloadError, match="the payload is no Parcel"):
        called_with(takes_parcel, text)


@pytest.mark.parametrize("function", [takes_three, takes_nothing])
def test_a_handler_of_another_shape_is_refused_at_once(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"takes \d arguments"):
        bind(function, JsonCodec(), None)


def test_an_annotation_that_is_nowhere_is_named() -> None:
    def lost(order: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="the annotation 'Nowhere' cannot be looked up"):
        bind(lost, JsonCodec(), None)


def test_coroutines_are_told_from_functions() -> None:
    found = [bind(function, JsonCodec(), None).is_async for function in (takes_order, takes_order_async, Callable())]
    assert found == [False, True, True]


def test_the_handler_of_a_type_comes_before_the_one_for_every_other() -> None:
    handlers = Handlers()
    assert not handlers
    handlers.add(takes_order, ("order.paid", "order.sent"), time_limit=timedelta(seconds=2))
    assert handlers.find("order.paid") is handlers.find("order.sent")
    assert handlers.find("order.lost") is None and handlers.find(None) is None
    handlers.add(takes_anything, (), time_limit=None)
    handlers.add_dead(takes_delivery, (), time_limit=None)
    assert [handlers.find(kind).call for kind in ("order.paid", "x", None)] == [  # type: ignore[union-attr]
        takes_order,
        takes_anything,
        takes_anything,
    ]
    assert handlers.find_dead("x").call is takes_delivery  # type: ignore[union-attr]
    assert handlers.types == ["order.paid", "order.sent"]
    with pytest.raises(ConfigError, match=r"type 'order\.paid' has two handlers: takes_order and takes_both"):
        handlers.add(takes_both, ("order.paid",), time_limit=None)


def test_headers_come_without_cascades_own() -> None:
    assert delivery("1").headers is None
    assert delivery("1", '{"trace": 1, "cascade.options": {"priority": 1}}').headers == {"trace": 1}
    assert delivery("1", '{"cascade.options": {"priority": 1}}').headers is None
