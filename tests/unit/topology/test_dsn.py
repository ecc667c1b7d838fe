"""DSNs: variables are replaced, secrets are never shown, and what we read is what libpq reads."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from cascade.topology import Database, TopologyError, expand, redact
from cascade.topology import dsn as dsns
from tests.fixtures.topologies import SECRET


@pytest.mark.parametrize(
    ("dsn", "expanded"),
    [
        ("host=${H} port=5432", "host=db1 port=5432"),
        ("host=${X:-other} dbname=${H}", "host=other dbname=db1"),
        ("host=${EMPTY:-other}${EMPTY}", "host=other"),
        ("host=${X:-}", "host="),
        ("host=$H {H}", "host=$H {H}"),
    ],
)
def test_variables_are_replaced(dsn: str, expanded: str) -> None:
    assert expand(dsn, {"H": "db1", "EMPTY": ""}) == expanded


def test_every_missing_variable_is_named() -> None:
    with pytest.raises(TopologyError, match=r"no environment variable A and B, which .*\nhint: .*\$\{A:-"):
        expand("host=${A} port=${B} user=${A} dbname=${C:-x}", {"OTHER": SECRET})


@pytest.mark.parametrize("dsn", ["host=${", "host=${1A}", "host=${A B}", "${A:-${B}}"])
def test_what_begins_no_variable_is_refused(dsn: str) -> None:
    with pytest.raises(TopologyError, match="begins no variable"):
        expand(dsn, {"A": "x", "B": "y"})


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("service=ams1", "service=ams1"),
        ("host=${H:-x} dbname=app", "host=${H:-x} dbname=app"),
        (f"host=h password={SECRET} dbname=d", "host=h password=*** dbname=d"),
        (f"host=h password = '{SECRET} \\' x' dbname=d", "host=h password = *** dbname=d"),
        (f"host=${{H}} password=${{PW:-{SECRET}}}", "host=${...} password=***"),
        (f"postgresql://me:{SECRET}@h:1/db", "postgresql://me:***@h:1/db"),
        (f"postgresql://h/db?sslpassword={SECRET}&user=u", "postgresql://h/db?sslpassword=***&user=u"),
        (f"postgresql://me:x@{SECRET}@h/db", "***"),
        (f"nonsense {SECRET}", "***"),
        ("passfile=/etc/pgpass", "passfile=/etc/pgpass"),
    ],
)
def test_a_secret_is_never_shown(dsn: str, shown: str) -> None:
    assert redact(dsn) == shown
    assert SECRET not in repr(Database(name="x", dsn=dsn))


@given(
    before=st.text(" abhost=dnm'\\${}:/@?&", max_size=12),
    after=st.text(" abhost=dnm'\\${}:/@?&", max_size=12),
    form=st.sampled_from(["password={}", "password='{}'", "postgresql://u:{}@", "sslpassword = {}"]),
)
def test_a_secret_is_not_shown_whatever_stands_around_it(before: str, after: str, form: str) -> None:
    """It may be taken for the value of another parameter, but then libpq takes it for that too."""
    dsn = f"{before} {form.format(SECRET)} {after}"
    if SECRET in redact(dsn):
        assert SECRET not in dsns.read(dsn).get("password", "")
        with_values = dsn.replace("${", "x{")
        try:
            found = conninfo_to_dict(with_values)
        except psycopg.Error:
            return
        assert SECRET not in str(found.get("password", "")) + str(found.get("sslpassword", ""))


VALUES = st.sampled_from(["a", "", "a b", "it's", "back\\slash", "é", "x=y", "/run/pg", "a%b"])


@given(parameters=st.dictionaries(st.sampled_from(["host", "dbname", "user", "application_name", "service"]), VALUES))
def test_what_libpq_reads_is_read_alike(parameters: dict[str, str]) -> None:
    dsn = psycopg.conninfo.make_conninfo(**{**parameters, "sslmode": "require"})
    assert set(dsns.read(dsn)) == set(conninfo_to_dict(dsn))
    assert not dsns.holds_secret(dsn)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://",
        "postgresql://localhost",
        "postgresql://u@h:5433/db",
        "postgresql://h1:1,h2:2/db?target_session_attrs=read-write",
        "postgresql://[::1]:5432/db",
        "postgresql://%2Frun%2Fpg/db",
        "postgres:///db?host=/run&port=5",
        "host = h  dbname='a b'user=x",
        "password= host=h",
    ],
)
def test_the_forms_of_libpq_are_read(dsn: str) -> None:
    assert set(conninfo_to_dict(dsn)) - {"port"} <= set(dsns.read(dsn))


@pytest.mark.parametrize("dsn", ["nonsense", "hots=x", "host='x", "postgresql://h/db?x", "postgresql://h/db?nons=1"])
def test_what_libpq_refuses_is_refused(dsn: str) -> None:
    with pytest.raises(psycopg.Error):
        conninfo_to_dict(dsn)
    with pytest.raises(dsns.UnreadableError):
        dsns.read(dsn)


def test_every_parameter_of_libpq_is_known() -> None:
    names = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    assert names - dsns.PARAMETERS - {"authtype", "tty", "sslcompression"} == set()
