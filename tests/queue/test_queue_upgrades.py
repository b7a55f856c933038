# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema's versions: each older one is refused with a sentence, and upgraded with all that is in it."""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import json
import pathlib

import psycopg
import pytest

import forkless.queue
from forkless.queue import schema
from queue_support import launch, playbook

# Of each version that databases may have: its functions, without their bodies.
OLDER = {int(file.stem[-1]): file for file in pathlib.Path(__file__).with_name("older_schemas").glob("*.sql")}


def test_functions_that_change_have_a_new_version():
    """A client must not meet functions that are older than itself: only the version, not the text, says which is older."""
    told = "functions.sql changed: add a migration with the next number, write the older functions to older_schemas, and change this line"
    assert (schema.VERSION, schema.functions_hash()) == (5, "adf8bf23b3b0572e"), told
    assert sorted(OLDER) == list(range(1, schema.VERSION)), told


def make_older(url, version):
    """The schema as that version created it."""
    with psycopg.connect(url) as connection:
        connection.execute("DROP SCHEMA forkless CASCADE")
        connection.execute("CREATE SCHEMA forkless")
        connection.execute("SET LOCAL search_path = forkless, pg_temp")
        schema._apply_procrastinate(connection, schema.SchemaState(0, "", ""))
        for number, name in sorted(schema._migrations().items()):
            if number <= version:
                schema._run_file(connection, schema._read("migrations", name))
                connection.execute("INSERT INTO schema_version (version) VALUES (%s)", (number,))
        schema._run_file(connection, OLDER[version].read_text())
        connection.execute(
            "INSERT INTO setting (name, value) VALUES ('functions', 'older'), ('procrastinate', %s), ('worker_key', 'kept')",
            (importlib.metadata.version("procrastinate"),),
        )


@pytest.mark.parametrize("version", sorted(OLDER))
def test_an_older_schema_is_refused_and_then_upgraded_with_all_that_is_in_it(url, database, project, version):
    playbook(project, tasks=["- debug:"])
    number = launch(url, project, lock="site")
    row = database.one("SELECT to_jsonb(r) FROM forkless.run r WHERE id = %s", number)
    bundle = database.one("SELECT to_jsonb(b) FROM forkless.bundle b")
    make_older(url, version)
    for table, values in (("bundle", bundle), ("run", row | {"queue_job": None, "holds_lock": False})):
        database.all(
            f"INSERT INTO forkless.{table} OVERRIDING SYSTEM VALUE SELECT * FROM jsonb_populate_record(NULL::forkless.{table}, %s)",
            json.dumps(values),
        )
    database.all("SELECT setval(pg_get_serial_sequence('forkless.run', 'id'), %s)", number)
    sentence = f"has version {version} of forkless's tables, and this forkless needs {schema.VERSION}; run `forkless queue upgrade`"
    with pytest.raises(forkless.queue.SchemaError, match=sentence):
        launch(url, project)
    assert database.one("SELECT count(*) FROM forkless.run") == 1
    # Two machines upgrade at once: one waits for the other, and finds nothing left to do.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(schema.upgrade, [url] * 4))
    assert (version, schema.VERSION) in ended
    assert all(after == schema.VERSION for _, after in ended)
    assert schema.check(url).current
    assert database.one("SELECT array_agg(version ORDER BY version) FROM forkless.schema_version") == list(
        range(1, schema.VERSION + 1)
    )
    assert database.one("SELECT value FROM forkless.setting WHERE name = 'worker_key'") == "kept"
    database.one("SELECT forkless.dispatch_due()")
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    claimed = database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 5)", number, job)
    assert (claimed["spec"], claimed["project"]) == (row["spec"], row["project"])
    database.one("SELECT forkless.finish(%s, 1, 'successful', 0, '', '{}')", number)
    assert database.status(number) == "successful"
    assert launch(url, project) > number


def test_an_upgrade_that_fails_leaves_the_schema_as_it_was(url, database, monkeypatch):
    make_older(url, 2)
    read = schema._read
    with monkeypatch.context() as broken:
        broken.setattr(
            schema, "_read", lambda *path: read(*path) + ("SELECT 1/0;" if path == ("functions.sql",) else "")
        )
        with pytest.raises(forkless.queue.DatabaseError, match="division by zero"):
            schema.upgrade(url)
    with psycopg.connect(url) as connection:
        assert schema.state(connection).version == 2
    assert database.one("SELECT to_regclass('forkless.page_user') IS NULL")
    assert schema.upgrade(url) == (2, schema.VERSION)
