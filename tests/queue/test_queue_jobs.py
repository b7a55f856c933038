# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that outlive the play, in a queue: a run that begins again adopts them, wherever it begins."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading

import psycopg
import pytest

from forkless import jobs
from forkless.cli import main
from forkless.core.errors import StoreError
from forkless.queue import DatabaseError, job_store, schema
from queue_support import PATIENCE, launch, lines, playbook, wait_until

pytestmark = pytest.mark.spawns

# Without a claim and a folder of its own on the host the job is found by its record alone.
DURABLE = """\
- include_role: {{name: forkless.core.async_job_load}}
  vars: {{async_job_load_job_name: rebuild}}
- block:
    - command: sh -c 'echo started >> {counter}; while [ ! -e {end} ]; do sleep 0.2; done'
      async: 600
      poll: 0
      register: started
      when: not async_job_load_found
    - include_role: {{name: forkless.core.async_job_save}}
      vars: {{async_job_save_job_name: rebuild, async_job_save_ansible_job_id: "{{{{ started.ansible_job_id }}}}"}}
      when: started.ansible_job_id is defined
- debug: msg=found-{{{{ async_job_load_found }}}}
- raw: echo there >> {there}; while [ ! -e {end} ]; do sleep 0.2; done
"""


def test_a_run_that_begins_again_adopts_its_job(url, database, workers, project, tmp_path):
    counter, there, end = (tmp_path / name for name in ("counter", "there", "end"))
    (project / "hosts.ini").write_text(
        (project / "hosts.ini").read_text().rstrip() + f" ansible_async_dir={tmp_path / 'async'}\n"
    )
    text = DURABLE.format(counter=counter, there=there, end=end)
    (project / "site.yml").write_text("- hosts: all\n  gather_facts: false\n  tasks:\n" + _indented(text))
    try:
        number = launch(url, project, retries=1)
        victim = workers.start(lost_after=4, name="victim")
        wait_until(lambda: lines(there), "the first attempt's last task")
        victim.kill()
        victim.wait()
        workers.start(lost_after=4, name="heir")
        wait_until(lambda: len(lines(there)) == 2, "the second attempt's last task")
    finally:
        end.touch()  # ends the job and both plays' last tasks
    assert database.wait_for(number, "successful", "failed", "lost") == "successful"
    assert database.one("SELECT attempt, worker_name FROM forkless.run WHERE id = %s", number) == (2, "heir")
    said = [event.stdout for event in database.stream(number) if "found-" in event.stdout]
    assert "found-True" in said[-1]  # the first attempt may have been killed before it could store what it said
    assert lines(counter) == ["started"]
    # Whoever stands in the folder of the launch sees the records.
    before = list(job_store._ADDRESS)
    job_store.use_database(url)
    try:
        store = jobs.open_store("queue:" + job_store.scope_of_folder(str(project)))
        found = jobs.JobRegistry(store).jobs()
        store.close()
    finally:
        job_store._ADDRESS[:] = before
    assert [record.key.job_name for record in found] == ["rebuild"]


def test_a_database_that_does_not_answer_is_an_error_of_the_store(url, monkeypatch):
    monkeypatch.setattr(job_store, "_STATEMENT", 0.5)
    monkeypatch.setattr(job_store, "_PATIENCE", 0.0)
    monkeypatch.setattr(job_store, "_ADDRESS", [url])
    with psycopg.connect(url) as silent, contextlib.closing(job_store.QueueJobStore("here")) as store:
        silent.execute("LOCK TABLE forkless.job_record")
        late = threading.Timer(PATIENCE, silent.rollback)
        late.start()
        try:
            with pytest.raises(StoreError, match="could not be listed"):
                store.revisions()
        finally:
            late.cancel()
            late.join()


def test_an_owner_who_may_not_create_roles_upgrades_and_is_told_what_is_missing(
    server, url, database, capsys, monkeypatch
):
    schema.apply_roles(url)
    for statement in (
        "CREATE ROLE queue_owner NOLOGIN", "DROP SCHEMA forkless CASCADE", "ALTER DATABASE {} OWNER TO queue_owner",
    ):  # fmt: skip
        database.all(statement.format(database.one("SELECT current_database()")))
    owner = f"{url}&options=-c%20role%3Dqueue_owner"
    monkeypatch.setenv("FORKLESS_DATABASE", owner)
    try:
        assert schema.create(owner)
        schema.apply_roles(url)
        database.all("ALTER ROLE forkless_page RENAME TO forkless_page_away")
        try:
            database.all("UPDATE forkless.setting SET value = 'older' WHERE name = 'functions'")
            assert main(["queue", "upgrade"]) == 0
            assert "may not create the database role forkless_page: let a superuser run" in capsys.readouterr().out
            with pytest.raises(DatabaseError, match="may not create the database role forkless_page"):
                schema.apply_roles(owner)
        finally:
            database.all("ALTER ROLE forkless_page_away RENAME TO forkless_page")
        database.all("UPDATE forkless.setting SET value = 'older' WHERE name = 'functions'")
        assert main(["queue", "upgrade"]) == 0
        assert "superuser" not in capsys.readouterr().out
        assert database.one(
            "SELECT has_function_privilege('forkless_page', 'forkless.launch(jsonb, bytea, uuid)', 'EXECUTE')"
        )
    finally:
        database.all("DROP OWNED BY queue_owner CASCADE")
        database.all(f"ALTER DATABASE {database.one('SELECT current_database()')} OWNER TO CURRENT_USER")
        database.all("DROP ROLE queue_owner")


def test_the_database_lets_a_host_be_asked_the_one_thing_only(url, database, project):
    playbook(project, tasks=["- debug:"])
    number = launch(url, project)
    database.all(
        "INSERT INTO forkless.job_record (scope, stem, revision, body) VALUES ('/srv/site', 'web1/site/rebuild', 1, %s)",
        json.dumps({"host": "web1", "job_name": "rebuild"}).encode(),
    )
    about = {
        "op": "status",
        "id": hashlib.sha256(b"/srv/site\0web1/site/rebuild").hexdigest()[:16],
        "job_name": "rebuild",
        "playbook_name": "site",
        "backend": "queue:/srv/site",
    }

    def ask(host="web1", **more):
        told = json.dumps({**about, **more})
        return database.one("SELECT forkless.ask_about_job(%s, %s, %s::jsonb, 'me')", number, host, told)

    for wrong in (
        {"host": "web1:web2"}, {"host": "web*"}, {"host": "{{ x }}"}, {"host": "-evil"}, {"host": "web1\nweb2"}, {"host": None},
        {"op": "cleanup"}, {"op": None}, {"id": "{{ x }}"}, {"job_name": "{{ x }}"}, {"job_name": {"x": "{% x %}"}}, {"job_name": None},
        {"playbook_name": "{{ x }}"}, {"backend": "queue:{{ x }}"}, {"backend": "file:/tmp"}, {"backend": None},
    ):  # fmt: skip
        with pytest.raises(psycopg.errors.DataException, match="a host cannot be asked that"):
            ask(**wrong)
    for wrong in ({"host": "web"}, {"host": "all"}, {"id": "0" * 16}):  # a group, or no job of this host
        with pytest.raises(psycopg.errors.NoDataFound, match="there is no such job on"):
            ask(**wrong)
    assert database.one("SELECT count(*) FROM forkless.run") == 1
    asked = database.one("SELECT spec FROM forkless.run WHERE id = %s", ask(lines=1000))
    assert (asked["module"], asked["hosts"], asked["job"]) == ("forkless.core.async_job", "web1", about)


def _indented(text):
    return "".join(f"    {line}\n" for line in text.splitlines())


def test_an_upgrade_grants_the_roles_what_is_new_and_lets_nobody_else_call_it(url, database):
    schema.apply_roles(url)
    database.all("DROP FUNCTION forkless.worker_here(bigint, text, text, int, text[], jsonb, boolean)")
    database.all("DROP TABLE forkless.job_record")
    database.all("DROP INDEX forkless.run_about_job")
    for name in ("session", "token", "user", "audit", "delivery"):
        database.all(f"DROP TABLE forkless.page_{name}")
    database.all("DELETE FROM forkless.schema_version WHERE version > 1")
    assert schema.upgrade(url) == (1, schema.VERSION)
    call = "forkless.worker_here(bigint, text, text, int, text[], jsonb, boolean)"
    may = "SELECT has_function_privilege(%s, %s, 'EXECUTE')"
    assert [database.one(may, f"forkless_{role}", call) for role in ("worker", "launcher", "reader")] == [
        True,
        False,
        False,
    ]
    assert database.one("SELECT has_table_privilege('forkless_worker', 'forkless.job_record', 'INSERT')")
