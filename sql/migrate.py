"""Install, upgrade and remove the schema, on a connection that is handed in.

One script serves everybody: `install` runs it, and `cascade schema sql` prints it for people
who only have psql.  It runs in one transaction, may be run again, waits for another one under
way, and refuses a database whose schema is newer than this code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import psycopg

from cascade.errors import SchemaError
from cascade.sql import VERSION, read_file, read_folder

# Two installs at once: the second waits here and then finds everything done.
_LOCK = "select pg_advisory_xact_lock(1127303507, 1)"

_CHECK = """
do $$
begin
    if current_setting('server_version_num')::integer < 140000 then
        raise exception 'Cascade needs PostgreSQL 14 or newer, this server is %', current_setting('server_version')
            using errcode = 'QC601';
    elsif current_setting('server_encoding') <> 'UTF8' then
        raise exception 'the database is encoded in %, Cascade needs UTF8', current_setting('server_encoding')
            using errcode = 'QC601', hint = 'create database ... encoding ''UTF8'' template template0';
    end if;
end
$$;
"""

_REFUSE_NEWER = f"""
do $$
declare
    v_version integer := (select max(v.version) from cascade_internal.schema_version as v);
begin
    if v_version > {VERSION} then
        raise exception 'the installed schema has version %, this is version {VERSION}', v_version
            using errcode = 'QC601', hint = 'Upgrade the cascade-queue package on this machine.';
    end if;
end
$$;
"""

_RECORD = f"""
insert into cascade_internal.schema_version (version) values ({VERSION})
on conflict on constraint schema_version_pkey do nothing;
"""

_UNINSTALL = """
do $$
declare
    v_queue text;
begin
    for v_queue in select q.name from cascade_internal.queue as q loop
        perform cascade.drop_queue(v_queue, true);
    end loop;
end
$$;
drop schema cascade cascade;
drop schema queue restrict;
drop schema cascade_internal cascade;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """What is installed in a database, beside what this code would install."""

    installed: int | None
    wanted: int = VERSION
    queues: int = 0

    @property
    def state(self) -> str:
        """Return one word: missing, current, older or newer."""
        if self.installed is None:
            return "missing"
        if self.installed == self.wanted:
            return "current"
        return "older" if self.installed < self.wanted else "newer"


def script() -> str:
    """Return the whole installation as SQL, to be run in one transaction."""
    tables = read_folder("tables")
    first, rest = tables[0], tables[1:]
    parts = [_LOCK + ";\n", _CHECK, first[1], _REFUSE_NEWER]
    parts += [text for _, text in rest]
    # What old code can live with comes before the new functions, which may need it; what only old code, and
    # old functions, needed goes after them.
    before, after = (_migrations(stage) for stage in ("pre", "post"))
    parts += before
    parts += [text for folder in ("functions", "views") for _, text in read_folder(folder)]
    parts += [*after, read_file("grants.sql"), _RECORD]
    return "set local client_min_messages = warning;\n" + "\n".join(parts)


def psql_script() -> str:
    """Return the installation for psql: stops at the first error, one transaction."""
    header = f"-- Cascade, schema version {VERSION}: psql -f this file, as the owner of the database.\n"
    return f"{header}\\set ON_ERROR_STOP on\nbegin;\n{script()}\ncommit;\n"


def status(conn: psycopg.Connection[object]) -> SchemaStatus:
    """Look at what is installed; changes nothing and works without any installation."""
    with conn.cursor(row_factory=psycopg.rows.tuple_row) as cur:
        # Not to_regclass(): it asks for a right on the schema.
        cur.execute(
            "select count(*) from pg_class as c join pg_namespace as n on n.oid = c.relnamespace"
            " where n.nspname = 'cascade_internal' and c.relname = 'schema_version'"
        )
        if not _scalar(cur):
            return SchemaStatus(installed=None)
        try:
            cur.execute("select cascade.version()")
            version = _scalar(cur)
            cur.execute("select count(*) from cascade.queues")
        except psycopg.errors.InsufficientPrivilege as error:
            raise SchemaError(
                "Cascade is installed here, but this role may not look at it",
                hint="Connect as the role that installed it, or as a member of cascade_admin or cascade_node.",
            ) from error
        return SchemaStatus(installed=version, queues=_scalar(cur) or 0)


def install(conn: psycopg.Connection[object]) -> SchemaStatus:
    """Install the schema, or bring it up to this version; all or nothing, and safe to repeat."""
    before = status(conn)
    if before.state == "newer":
        raise SchemaError(
            f"the installed schema has version {before.installed}, this is version {VERSION}",
            hint="Upgrade the cascade-queue package on this machine.",
        )
    try:
        with conn.transaction():
            conn.execute(_literal(script()))
    except psycopg.errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"this role may not install Cascade: {error.diag.message_primary}",
            hint="It needs CREATE on the database: grant create on database ... to ...",
        ) from error
    return status(conn)


def uninstall(conn: psycopg.Connection[object], *, force: bool = False) -> bool:
    """Remove the schema and, if forced, the queues in it.  False when there was none."""
    found = status(conn)
    if found.state == "missing":
        return False
    if found.queues and not force:
        raise SchemaError(
            f"there are {found.queues} queues with their events in this database",
            hint="cascade schema uninstall --force removes them too.",
        )
    with conn.transaction():
        conn.execute(_literal(f"{_LOCK};\n{_UNINSTALL}"))
    return True


def _literal(text: str) -> bytes:
    """Return a script as the driver takes it; all of it comes from this package."""
    return text.encode()


def _migrations(stage: str) -> list[str]:
    """Return the migrations of a stage, `pre` or `post`, oldest first."""
    return [_guarded(path, text) for path, text in read_folder("migrations") if path.endswith(f".{stage}.sql")]


def _guarded(path: str, text: str) -> str:
    """Return a migration that runs only where a version before its own is installed.

    On a fresh database none is: the tables were made as they are now.
    """
    number = int(path.rsplit("/", 1)[1].split("_", 1)[0])
    return f"""
do $migration$
begin
    if (select max(v.version) from cascade_internal.schema_version as v) < {number} then
        execute $sql${text}$sql$;
    end if;
end
$migration$;
"""


def _scalar(cur: psycopg.Cursor[tuple[object, ...]]) -> int | None:
    row = cur.fetchone()
    assert row is not None, "every statement above returns one row"
    return cast("int | None", row[0])
