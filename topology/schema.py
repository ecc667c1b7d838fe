"""The JSON Schema of a topology file, for editors; printed from the table that the parser reads by."""

from __future__ import annotations

from typing import Any, assert_never

from cascade.topology import fields as f

DRAFT = "http://json-schema.org/draft-07/schema#"


def json_schema() -> dict[str, Any]:
    """Return the schema.  It knows the form of a file; `cascade topology check` also knows its sense."""
    return {"$schema": DRAFT, "title": "Cascade topology", **schema_of(f.TOPOLOGY)}


def schema_of(kind: f.Kind) -> dict[str, Any]:
    """Return the schema of one kind of value."""
    match kind:
        case f.Text():
            types = ["string", "integer"] if kind.takes_number else "string"
            limits = {"minimum": 0, "maximum": 10**19 - 1} if kind.takes_number else {}
            return {"type": types, "pattern": whole(kind.pattern), **limits, "examples": [kind.example]}
        case f.Number():
            return {"type": "integer", "minimum": kind.least, "maximum": kind.most}
        case f.Choice():
            return {"type": "string", "enum": list(kind.words)}
        case f.Scalar():
            return {"type": ["string", "number", "boolean"]}
        case f.ListOf():
            return {"type": "array", "items": schema_of(kind.items), "minItems": 1}
        case f.MapOf():
            keys = {"pattern": whole(kind.keys.pattern)}
            return {"type": "object", "propertyNames": keys, "additionalProperties": schema_of(kind.values)}
        case f.Record():
            return {
                "type": "object",
                "properties": {
                    field.name: {"description": field.help, **schema_of(field.kind)} for field in kind.fields
                },
                "required": [field.name for field in kind.fields if field.is_required],
                "additionalProperties": False,
            }
    assert_never(kind)


def whole(pattern: str) -> str:
    """Return a pattern that matches the whole of a text; JSON Schema's match anywhere."""
    return f"^(?:{pattern})$"
