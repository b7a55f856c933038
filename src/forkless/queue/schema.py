# SPDX-License-Identifier: GPL-3.0-or-later
"""
The schema `forkless`, with a version: created, upgraded and checked.

The tables change by numbered files in sql/migrations, the functions are replaced as a whole. Tables are only added to within a major
version, and a function keeps its arguments, so workers of an older release go on while a database is upgraded.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.resources
import re
from dataclasses import dataclass

import psycopg
from psycopg import sql as composed

from forkless.queue.database import Connection, connect, translated
from forkless.queue.errors import DatabaseError, SchemaError

__all__ = [
    "VERSION",
    "SchemaState",
    "apply_roles",
    "check",
    "create",
    "describe_sizes",
    "incomplete_roles",
    "prepare_embedded",
    "state",
    "upgrade",
]


def _read(*path: str) -> str:
    place = importlib.resources.files("forkless.queue").joinpath("sql", *path)
    return place.read_text(encoding="utf-8")


def _migrations() -> dict[int, str]:
    folder = importlib.resources.files("forkless.queue").joinpath("sql", "migrations")
    return {int(file.name[:4]): file.name for file in folder.iterdir() if re.fullmatch(r"\d{4}_\w+\.sql", file.name)}


VERSION = max(_migrations())
# The arguments of the advisory lock under which a schema is changed.
_UPGRADE_LOCK = "SELECT pg_advisory_xact_lock(718281828, 2)"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """What a database has. `version` is 0 without a schema; `functions` is the hash of the functions' text."""

    version: int
    functions: str
    procrastinate: str

    @property
    def current(self) -> bool:
        return self.version == VERSION and self.functions == functions_hash()


def functions_hash() -> str:
    return hashlib.sha256(_read("functions.sql").encode()).hexdigest()[:16]


def state(connection: Connection) -> SchemaState:
    found = connection.execute("SELECT to_regclass('forkless.schema_version') IS NOT NULL").fetchone()
    if not found or not found[0]:
        return SchemaState(0, "", "")
    version = connection.execute("SELECT coalesce(max(version), 0) FROM forkless.schema_version").fetchone()
    settings: dict[str, str] = dict(connection.execute("SELECT name, value FROM forkless.setting").fetchall())
    return SchemaState(version[0] if version else 0, settings.get("functions", ""), settings.get("procrastinate", ""))


def check(url: str) -> SchemaState:
    """Raise SchemaError with what to do if the database's schema is missing, older or newer."""
    with connect(url) as connection, translated(url):
        return _fitting(state(connection))


def _fitting(found: SchemaState) -> SchemaState:
    if found.version == 0:
        raise SchemaError("the database has no tables of forkless; run `forkless queue init`")
    if found.version < VERSION:
        raise SchemaError(
            f"the database has version {found.version} of forkless's tables, and this forkless needs {VERSION}; "
            "run `forkless queue upgrade`"
        )
    # A newer schema is accepted: tables are only added to, so that old and new workers run side by side during an upgrade.
    return found


def create(url: str) -> bool:
    """Create the schema; False if it is there already. Two that do so at once end with one schema."""
    with connect(url) as connection, translated(url):
        if state(connection).version:
            return False
        _apply(connection)
        return True


def upgrade(url: str) -> tuple[int, int]:
    """Bring the schema to this release's version. Returns the versions before and after."""
    with connect(url) as connection, translated(url):
        before = state(connection)
        if before.version == 0:
            raise SchemaError("the database has no tables of forkless; run `forkless queue init`")
        if before.version > VERSION:
            raise SchemaError(
                f"the database has version {before.version}, which is newer than this forkless ({VERSION})"
            )
        if not before.current or before.procrastinate != importlib.metadata.version("procrastinate"):
            _apply(connection)
        return before.version, VERSION


def _apply(connection: Connection) -> None:
    """Everything in one transaction: a failure leaves the schema as it was."""
    with connection.transaction():
        connection.execute(_UPGRADE_LOCK)
        found = state(connection)
        if not found.version:  # the owner of a schema may not create another one
            connection.execute("CREATE SCHEMA IF NOT EXISTS forkless")
        connection.execute("SET LOCAL search_path = forkless, pg_temp")
        _apply_procrastinate(connection, found)
        for number, name in sorted(_migrations().items()):
            if number > found.version:
                _run_file(connection, _read("migrations", name))
                connection.execute("INSERT INTO schema_version (version) VALUES (%s)", (number,))
        _run_file(connection, _read("functions.sql"))
        if _has_roles(connection):
            # PostgreSQL lets everybody call a new function, and nobody read a new table.
            _run_file(connection, _read("roles.sql"))
        for key, value in (
            ("functions", functions_hash()),
            ("procrastinate", importlib.metadata.version("procrastinate")),
        ):
            connection.execute(
                "INSERT INTO setting (name, value) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (key, value),
            )


def _has_roles(connection: Connection) -> bool:
    """Whether this database, and not only another one of the server, has granted the roles something."""
    row = connection.execute(
        "SELECT bool_or(has_schema_privilege(oid, 'forkless', 'USAGE')) FROM pg_roles WHERE rolname = 'forkless_reader'"
    ).fetchone()
    return bool(row and row[0])


def _apply_procrastinate(connection: Connection, found: SchemaState) -> None:
    """
    Procrastinate's own tables. It does not record which of its migrations were applied, so the version is kept in `setting`, and
    the files above it are applied.
    """
    package = importlib.resources.files("procrastinate").joinpath("sql")
    if not found.procrastinate:
        _run_file(connection, package.joinpath("schema.sql").read_text(encoding="utf-8"))
        return
    have = _numbers(found.procrastinate)
    for file in sorted(package.joinpath("migrations").iterdir(), key=lambda one: one.name):
        if file.name.endswith(".sql") and _numbers(file.name.split("_")[0]) > have:
            _run_file(connection, file.read_text(encoding="utf-8"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _run_file(connection: Connection, text: str) -> None:
    # The files come with the packages. Without parameters libpq takes several statements at once.
    connection.execute(text.encode())


def apply_roles(url: str) -> None:
    """Create the roles of sql/roles.sql, and grant them what each needs. Raises DatabaseError if this user may not."""
    with connect(url) as connection, translated(url), connection.transaction():
        connection.execute(_UPGRADE_LOCK)
        _fitting(state(connection))
        _run_file(connection, _read("roles.sql"))
        if said := _incomplete_roles(connection):
            raise DatabaseError(said)


def _incomplete_roles(connection: Connection) -> str:
    row = connection.execute(
        "SELECT string_agg(name, ', ') FROM unnest(%s::text[]) AS name WHERE to_regrole(name) IS NULL OR (name = 'forkless_page' "
        "AND NOT coalesce(pg_has_role(to_regrole(name), to_regrole('forkless_launcher'), 'MEMBER'), false))",
        ([f"forkless_{name}" for name in ("reader", "launcher", "worker", "page")],),
    ).fetchone()
    if not row or not row[0]:
        return ""
    return f"this user may not create the database role {row[0]}: let a superuser run `forkless queue upgrade --roles`"


def incomplete_roles(url: str) -> str:
    """One sentence about roles that an upgrade could not create; empty if none is missing, or if this database uses none."""
    with connect(url) as connection, translated(url):
        return _incomplete_roles(connection) if _has_roles(connection) else ""


def describe_sizes(url: str) -> list[str]:
    """What `forkless queue check` says about what is stored, and for how long."""
    with connect(url) as connection, translated(url):
        row = connection.execute(
            """
            SELECT (SELECT count(*) FROM forkless.run_view WHERE parent_id IS NULL), (SELECT count(*) FROM forkless.event_batch),
                   pg_size_pretty(pg_total_relation_size('forkless.event_batch')),
                   pg_size_pretty(pg_total_relation_size('forkless.bundle')),
                   pg_size_pretty(pg_database_size(current_database()))
            """
        ).fetchone()
        kept: dict[str, str] = dict(
            connection.execute("SELECT name, value FROM forkless.setting WHERE name LIKE 'keep%'").fetchall()
        )
    assert row is not None  # noqa: S101  # for the type checker: a SELECT without FROM has one row

    def days(name: str) -> str:
        return f"for {float(kept[name]):g} days" if name in kept else "for ever"

    return [
        f"{row[0]} runs; events: {row[2]} in {row[1]} batches; projects: {row[3]}; the whole database: {row[4]}",
        f"kept after the end of a run: events {days('keep_events')}, runs {days('keep_runs')} (forkless queue keep)",
    ]


def prepare_embedded(url: str) -> None:
    """Create the database of the embedded server and its schema, if they are not there; upgrade an older schema."""
    for database in ("forkless", "postgres"):
        try:
            with connect(url.replace("@/forkless?", f"@/{database}?")) as connection:
                if database == "postgres":
                    with contextlib.suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                        connection.execute(composed.SQL("CREATE DATABASE forkless"))
                else:
                    break
        except DatabaseError as err:
            if database == "postgres" or "does not exist" not in str(err):
                raise
    if not create(url):
        with connect(url) as connection:
            found = state(connection)
        # A newer one is left alone: a release goes on with the tables of a later one.
        if found.version <= VERSION and not found.current:
            upgrade(url)
