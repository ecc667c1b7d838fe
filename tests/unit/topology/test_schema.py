"""The JSON Schema and the parser agree, since both come from one table; here they are asked the same questions."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from cascade.topology import fields, json_schema
from cascade.topology.parse import read
from tests.fixtures.topologies import Document, documents, write

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
CHECKED = {"type", "enum", "pattern", "minimum", "maximum", "minItems", "items"}
CHECKED |= {"properties", "required", "additionalProperties", "propertyNames"}
WORDS = {"$schema", "title", "description", "examples"}


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value fits a schema: as much of JSON Schema as ours uses."""
    assert set(schema) <= CHECKED | WORDS, "a keyword that is not checked here"
    if "type" in schema and not is_of(schema["type"], value):
        return False
    if value not in schema.get("enum", [value]):
        return False
    match value:
        case str():
            return bool(re.search(schema.get("pattern", ""), value))
        case bool():
            return True
        case int() | float():
            return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
        case list():
            return len(value) >= schema.get("minItems", 0) and all(accepts(schema["items"], item) for item in value)
        case dict():
            return accepts_object(schema, value)
    return True


def is_of(types: str | list[str], value: Any) -> bool:
    names = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, TYPES[name]) for name in names)


def accepts_object(schema: dict[str, Any], value: dict[Any, Any]) -> bool:
    known, more = schema.get("properties", {}), schema["additionalProperties"]
    if not all(key in value for key in schema.get("required", [])):
        return False
    for key, item in value.items():
        if not accepts(schema.get("propertyNames", {}), str(key)):
            return False
        if key not in known and more is False:
            return False
        if not accepts(known.get(key, more), item):
            return False
    return True


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all that a document holds."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in paths(item, (*path, key)))]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**60)
    | st.sampled_from([1.5, "", "a", "5 s", "now", "root", "a b", "-"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["dsn", "a", "a b", "-"]), inner),
    max_leaves=3,
)


@st.composite
def changed(draw: Any) -> Any:
    """Return a document with a value replaced, a key removed or a key added, somewhere."""
    document = copy.deepcopy(draw(documents()))
    path = draw(st.sampled_from(paths(document)))
    if not path:
        return draw(VALUES)
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    match draw(st.sampled_from(["replace", "remove", "add"])):
        case "replace":
            holder[path[-1]] = draw(VALUES)
        case "remove":
            del holder[path[-1]]
        case "add" if isinstance(holder, dict):
            names = ["dsn", "role", "start", "into", "slots", "revision", "x y", "new"]
            holder[draw(st.sampled_from(names))] = draw(VALUES)
    return document


@given(document=documents())
def test_the_schema_accepts_what_the_parser_does(document: Document) -> None:
    assert accepts(json_schema(), document)
    assert read(write(document)[0], source="t")[1] == []


@given(document=changed())
def test_the_schema_refuses_the_forms_that_the_parser_refuses(document: Any) -> None:
    text = write(document)[0]
    _, problems = read(text, source="t")
    assert accepts(json_schema(), yaml.safe_load(text)) == (problems == []), problems


def test_the_schema_can_be_printed() -> None:
    assert json.loads(json.dumps(json_schema())) == json_schema()


def test_every_field_is_explained() -> None:
    def explained(kind: fields.Kind) -> None:
        match kind:
            case fields.Record():
                for field in kind.fields:
                    assert field.help.endswith(".")
                    explained(field.kind)
            case fields.MapOf():
                explained(kind.values)

    explained(fields.TOPOLOGY)
