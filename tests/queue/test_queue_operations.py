# SPDX-License-Identifier: GPL-3.0-or-later
"""What operators need: metrics, retention and sizes, poolers, projects from git, an older worker beside a newer one."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request

import psycopg
import pytest

import forkless
import forkless.queue
from forkless.cli import main
from forkless.queue import database as databases
from forkless.queue import metrics, schema
from queue_support import in_make_faults, launch, lines, playbook, wait_until

pytestmark = pytest.mark.spawns


def test_metrics_say_what_the_queue_has_and_whether_the_database_is_there(url, database, project):
    playbook(project, tasks=["- debug:"])
    launch(url, project)
    waiting = launch(url, project)
    database.one("SELECT forkless.cancel(%s, 'me')", waiting)
    database.one("SELECT forkless.register_worker('w', 'h', 1, '{}', '{}')")

    def read(port, path="/metrics"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.read().decode()

    with metrics.served("127.0.0.1:0", url, lambda: {"forkless_worker_processes": 2}) as port:
        text = read(port)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(port, "/")
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert samples['forkless_runs{state="waiting"}'] == samples['forkless_runs{state="canceled"}'] == "1"
    assert samples['forkless_runs{state="lost"}'] == "0"
    assert samples["forkless_workers"] == "1"
    assert samples["forkless_worker_processes"] == "2"
    assert float(samples["forkless_runs_waiting_seconds"]) >= 0
    assert float(samples["forkless_event_bytes"]) > 0
    for name in {re.match(r"\w+", sample)[0] for sample in samples}:
        assert text.count(f"# TYPE {name} ") == text.count(f"# HELP {name} ") == 1
    with metrics.served("127.0.0.1:0", "postgresql://x@127.0.0.1:1/x", dict) as port:
        assert "\nforkless_database_up 0\n" in read(port)


def test_metrics_count_each_thing_once_and_only_what_they_say(url, database, project):
    """A run in slices is one run; who waits for a lock waits for no worker; who was not seen for long is no worker."""
    (project / "hosts.ini").write_text("h1\nh2\nh3\n")
    playbook(project, tasks=["- debug:"])
    sliced = launch(url, project, slices=3, lock="one")
    locked = launch(url, project, lock="one")
    later = launch(url, project, lock=None, at=dt.datetime.now(dt.UTC) + dt.timedelta(days=1))

    def samples():
        return metrics.metrics_of_queue(url)

    assert database.one("SELECT count(*) FROM forkless.run") == 6
    assert samples()['forkless_runs{state="waiting"}'] == 3
    # The oldest run of all waits for another one's lock, and the other for its time: only the slices wait for a worker.
    database.all("UPDATE forkless.run SET created = now() - interval '1 hour' WHERE id = %s", locked)
    database.all("UPDATE forkless.run SET created = now() - interval '1 hour' WHERE id = %s", later)
    assert 0 <= samples()["forkless_runs_waiting_seconds"] < 3000
    # Since its time has come, that one waits for a worker as well, and has not done so before.
    database.all("UPDATE forkless.run SET not_before = now() WHERE id = %s", later)
    database.one("SELECT forkless.dispatch_due()")
    assert database.one("SELECT queue_job FROM forkless.run WHERE id = %s", later)
    assert 0 <= samples()["forkless_runs_waiting_seconds"] < 3000
    database.all("UPDATE forkless.run SET created = now() - interval '2 hours' WHERE parent_id = %s", sliced)
    assert 7200 <= samples()["forkless_runs_waiting_seconds"] < 10000
    for name in ("here", "away"):
        database.one("SELECT forkless.register_worker(%s, 'h', 1, '{}', '{}')", name)
    database.all("UPDATE forkless.worker SET seen = now() - interval '2 minutes' WHERE name = 'away'")
    assert samples()["forkless_workers"] == 1
    hook = "INSERT INTO forkless.webhook (run_id, url, delivered, given_up) VALUES (%s, 'http://x', %s, %s)"
    for number, (delivered, given_up) in zip(
        (sliced, locked, later), ((None, False), (dt.datetime.now(dt.UTC), False), (None, True)), strict=True
    ):
        database.all(hook, number, delivered, given_up)
    assert samples()["forkless_webhooks_waiting"] == 1
    assert "# TYPE forkless_worker_process_failures_total counter\n" in metrics._text(
        {"forkless_worker_process_failures_total": 1.0}
    )
    assert "# TYPE forkless_workers gauge\n" in metrics._text({"forkless_workers": 1.0})


def test_events_are_deleted_after_the_time_that_is_set_and_by_the_sweep(
    url, database, workers, project, monkeypatch, capsys
):
    monkeypatch.setenv("FORKLESS_DATABASE", url)
    playbook(project, tasks=["- debug:"])
    old, fresh = launch(url, project), launch(url, project)
    for number in (old, fresh):
        job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
        database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 5)", number, job)
        database.one("SELECT forkless.append_events(%s, 1, 1, 3, 'x', 1, NULL, NULL)", number)
        database.one("SELECT forkless.finish(%s, 1, 'successful', 0, '', '{}')", number)
    database.all("UPDATE forkless.run SET ended = now() - interval '40 days' WHERE id = %s", old)
    stored = "SELECT array_agg(run_id ORDER BY run_id) FROM forkless.event_batch"
    database.one("SELECT forkless.apply_retention()")
    assert database.one(stored) == [old, fresh]  # for ever, unless a time is set
    assert main(["queue", "keep", "--events", "30"]) == 0
    assert "events for 30 days, runs for ever" in capsys.readouterr().out
    workers.start()
    wait_until(lambda: database.one(stored) == [fresh], "the sweep")
    assert database.status(old) == "successful"  # the run and its recap stay
    assert main(["runs", "follow", str(old)]) == 0
    assert "were deleted after the time" in capsys.readouterr().err
    assert main(["queue", "keep", "--runs", "35"]) == 0
    database.one("SELECT forkless.apply_retention()")
    assert database.all("SELECT id FROM forkless.run") == [(fresh,)]
    assert main(["queue", "check"]) == 0
    assert re.search(r"1 runs; events: .* in 1 batches; projects: ", capsys.readouterr().out)


def test_a_run_from_git_uses_the_commit_of_its_launch_also_when_it_is_launched_again(
    url, database, workers, project, tmp_path
):
    acts, bare = tmp_path / "acts", tmp_path / "infra.git"

    def git(*arguments):
        settings = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "init.defaultBranch=main"]
        done = subprocess.run(
            ["git", *settings, "-C", str(project), *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(text):
        playbook(project, tasks=[f"- raw: echo {text} >> {acts}"])
        git("add", ".")
        git("commit", "-qm", text)
        git("push", "-q", str(bare), "main")

    git("init", "-q")
    git("init", "-q", "--bare", str(bare))
    commit("first")

    async def go():
        async with forkless.queue.connect(url) as queue:
            spec = forkless.RunSpec(playbook="site.yml", inventory="hosts.ini", cwd=tmp_path)
            run = await queue.launch(spec, git=f"file://{bare}", commit="main")
            await asyncio.to_thread(commit, "second")
            assert (await run.wait()).ok
            assert (await (await queue.relaunch(run.number)).wait()).ok
            assert (await (await queue.launch(spec, git=str(bare))).wait()).ok
            with pytest.raises(forkless.queue.QueueRequestError, match="no branch, tag or full commit 'gone'"):
                await queue.launch(spec, git=str(bare), commit="gone")
            lost = await (await queue.launch(spec, git=str(bare), commit="0" * 40)).wait()
            return lost.sentence

    workers.start()
    sentence = asyncio.run(go())
    assert lines(acts) == ["first", "first", "second"]
    assert sentence.startswith("git fetch failed: ")
    assert database.one("SELECT count(*) FROM forkless.bundle") == 0


@pytest.fixture
def pgbouncer(server):
    """pgbouncer in front of the server, in a mode that the test chooses: its address for a database."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert program, "this test needs pgbouncer: apt-get install pgbouncer"
    folder = tempfile.mkdtemp(prefix="forkless-pgbouncer-")
    os.chmod(folder, 0o755)
    account = pwd.getpwnam("postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name)
    started = []

    def start(mode, url):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with psycopg.connect(url, autocommit=True) as connection:
            # The server knows its clients by their user, and pgbouncer is another one than this.
            rules = connection.execute("SHOW hba_file").fetchone()[0]
            with open(rules, "w") as file:
                file.write("local all all trust\n")
            connection.execute("SELECT pg_reload_conf()")
        with open(f"{folder}/{mode}.ini", "w") as file:
            file.write(
                f"[databases]\n* = host={server._socket} user=forkless\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\n"
                f"unix_socket_dir=\nauth_type=any\npool_mode={mode}\nlogfile=\npidfile=\nignore_startup_parameters=extra_float_digits\n"
            )
        process = subprocess.Popen(
            [program, "-q", f"{folder}/{mode}.ini"],
            user=account.pw_uid if os.geteuid() == 0 else None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        address = url.partition("?")[0].replace("@/", f"@127.0.0.1:{port}/")

        def answers():
            try:
                psycopg.connect(address).close()
            except psycopg.OperationalError:
                return False
            return True

        wait_until(answers, "pgbouncer's first answer")
        return address

    yield start
    for process in started:
        process.terminate()
        process.wait()
    shutil.rmtree(folder)


@in_make_faults
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_is_recognised_and_refused_to_workers_in_transaction_mode(
    url, database, workers, project, pgbouncer, monkeypatch, capsys, mode, tmp_path
):
    address = pgbouncer(mode, url)
    assert databases.pooling(url) == "none"
    assert databases.pooling(address) == mode
    playbook(project, tasks=["- debug: msg=hello"])
    monkeypatch.setenv("FORKLESS_DATABASE", address)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if mode == "transaction":
        assert main(["worker"]) == 1
        assert "is a connection pooler in transaction mode" in capsys.readouterr().err
        workers._url = url
    else:
        workers._url = address
    workers.start()
    number = launch(address, project)  # launching and following go through it
    assert database.wait_for(number, "successful", "failed") == "successful"
    databases_seen = type(database)(address).stream(number)
    assert any("hello" in event.stdout for event in databases_seen)


def test_a_worker_of_the_first_version_goes_on_with_newer_tables(url, database, project):
    """What the first release calls is still there, with the same arguments and answers."""
    playbook(project, tasks=["- debug:"])
    database.all("INSERT INTO forkless.schema_version (version) VALUES (%s)", schema.VERSION + 1)
    assert schema.check(url).version == schema.VERSION + 1
    number = launch(url, project, retries=1)
    worker = database.one("SELECT forkless.register_worker('old', 'h', 1, '{}', '{}')")
    database.one("SELECT forkless.worker_seen(%s, true)", worker)
    assert database.one("SELECT stopping FROM forkless.worker WHERE id = %s", worker)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    row = database.one("SELECT forkless.claim(%s, %s, %s, 'old', '{}', 5)", number, job, worker)
    assert {"id", "attempt", "lost_after", "project", "hosts", "sealed", "origin", "spec", "secrets", "sliced"} <= set(
        row
    )
    assert database.one("SELECT forkless.append_events(%s, 1, 1, 1, 'x', 1, NULL, NULL)", number) == "ok"
    assert database.one("SELECT forkless.give_up(%s, 1, NULL, 'why')", number) == "waiting"
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    assert database.one("SELECT forkless.requeue(%s, %s)", number, job)
    database.one("SELECT forkless.dispatch_due()")
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    database.one("SELECT forkless.claim(%s, %s, %s, 'old', '{}', 5)", number, job, worker)
    assert database.one("SELECT forkless.finish(%s, 2, 'successful', 0, '', '{}')", number) == "ok"
    assert not database.one("SELECT forkless.drop_leftover_job(%s)", -1)
    assert database.one("SELECT forkless.take_webhook()") is None
    database.one("SELECT forkless.webhook_done(%s, NULL, 3)", -1)
    database.one("SELECT forkless.remove_worker(%s)", worker)
