"""The tree of errors: drawn in the docstring, complete, and reached from SQLSTATEs."""

from __future__ import annotations

import psycopg
import pytest

from cascade import errors
from cascade.db import translate


def classes() -> list[type[errors.CascadeError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [cls for cls in found if issubclass(cls, errors.CascadeError)]


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_every_class_is_drawn_in_the_tree(cls: type[errors.CascadeError]) -> None:
    assert errors.__doc__ is not None
    if cls is not errors.PayloadSizeError:  # drawn together with its parent
        line = next(line for line in errors.__doc__.splitlines() if f" {cls.__name__} " in f" {line.strip('│├─└ ')} ")
        assert cls.sqlstate is None or cls.sqlstate in line


def test_codes_are_unique() -> None:
    codes = [cls.__dict__["sqlstate"] for cls in classes() if cls.__dict__.get("sqlstate")]
    assert len(codes) == len(set(codes)) == len(errors.BY_SQLSTATE)
    assert all(code.startswith("QC") for code in codes)


def test_a_hint_is_part_of_what_people_read() -> None:
    assert str(errors.ConfigError("wrong", hint="do this")) == "wrong\nhint: do this"
    assert str(errors.ConfigError("wrong")) == "wrong"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (psycopg.errors.AdminShutdown("bye"), errors.TransientError),
        (psycopg.errors.DeadlockDetected("x"), errors.TransientError),
        (psycopg.errors.SerializationFailure("x"), errors.TransientError),
        (psycopg.errors.LockNotAvailable("x"), errors.TransientError),
        (psycopg.OperationalError("connection refused"), errors.TransientError),
        (psycopg.errors.InsufficientPrivilege("x"), errors.ForbiddenError),
        (psycopg.errors.DivisionByZero("x"), None),
        (psycopg.ProgrammingError("x"), None),
    ],
)
def test_what_is_not_ours_keeps_its_meaning(error: psycopg.Error, expected: type[Exception] | None) -> None:
    found = translate(error)
    assert type(found) is (expected or type(None))
