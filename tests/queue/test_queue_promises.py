# SPDX-License-Identifier: GPL-3.0-or-later
"""More promises: roles, labels, shutdown, messages at the end, the engine, outages of the database."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import http.server
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psycopg
import pytest

import forkless
import forkless.queue
from forkless.queue import attempt as attempts
from forkless.queue import database as database_module
from forkless.queue import event_batches, schema, webhooks
from forkless.queue import lease as leases
from forkless.queue.attempt import Attempt, AttemptPlace
from forkless.queue.database import connect_async, conninfo
from forkless.queue.errors import DatabaseError
from forkless.queue.lease import Lease, Observation, clock
from queue_support import acting, in_make_faults, launch, lines, playbook, wait_until

pytestmark = pytest.mark.spawns


def test_a_message_is_taken_together_with_its_run_and_not_without(url, database, project):
    playbook(project, tasks=["- debug:"])
    with pytest.raises(psycopg.errors.NotNullViolation):  # no spec: the run cannot be stored
        database.all("""SELECT forkless.launch('{"delivery": ["deploy", "1"]}', NULL, gen_random_uuid())""")
    number = launch(url, project, delivery=("deploy", "1"))
    with pytest.raises(forkless.queue.DeliveredError, match="was received before"):
        launch(url, project, delivery=("deploy", "1"))
    others = [launch(url, project, delivery=delivery) for delivery in (("deploy", "2"), ("other", "1"), None, None)]
    assert database.all("SELECT id FROM forkless.run ORDER BY id") == [(one,) for one in (number, *others)]


def test_a_launcher_cannot_read_secrets_and_a_reader_cannot_launch(url, database, workers, project):
    schema.apply_roles(url)
    workers.make_key(url)
    playbook(project, tasks=["- debug:"])
    as_role = {name: f"{url}&options=-c%20role%3Dforkless_{name}" for name in ("launcher", "worker", "reader")}
    number = launch(as_role["launcher"], project, spec={"extra_vars": {"token": "tr0ub4dor"}})
    with pytest.raises(forkless.queue.DatabaseError, match="may not do that"):
        launch(as_role["reader"], project)

    def refused(role, statement):
        with (
            psycopg.connect(as_role[role], autocommit=True) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute(statement)

    for role in ("launcher", "reader"):
        refused(role, "SELECT sealed FROM forkless.run")
        refused(role, "SELECT secrets FROM forkless.run")
        refused(role, "SELECT content FROM forkless.bundle")
        refused(role, "SELECT * FROM forkless.procrastinate_jobs")
        refused(role, f"SELECT forkless.claim({number}, 1, 1, 'w', '{{}}', 5)")
        refused(role, "SELECT forkless.offer_worker_key('mine')")
        refused(role, "UPDATE forkless.run SET status = 'successful'")
    refused("reader", f"SELECT forkless.cancel({number}, 'me')")
    refused("worker", "SELECT forkless.launch('{}', NULL, gen_random_uuid())")

    async def read():
        async with forkless.queue.connect(as_role["reader"]) as queue:
            return [run.id for run in await queue.runs()], await queue.workers(), await queue.schedules()

    assert asyncio.run(read())[0] == [number]
    workers._url = as_role["worker"]
    workers.start()  # with a worker's rights alone
    assert database.wait_for(number, "successful", "failed") == "successful"


# What each role may, and no more: calls, and rights on tables by their first letters (Select, Insert, Update, Delete).
SHOWN = dict.fromkeys(
    ("run_view", "schedule_view", "event_batch", "host", "worker", "label_limit", "schema_version", "setting"), "S"
)
ASKED = {"waits_for", "worker_key"}
LAUNCHING = {
    "launch", "relaunch", "ask_about_job", "cancel", "put_bundle", "keep_bundle", "put_schedule", "remove_schedule", "enable_schedule",
}  # fmt: skip
NOT_A_WORKERS = {"launch", "relaunch", "ask_about_job", "put_bundle", "set_retention", "prune", "limit_label"}
PROCRASTINATE = dict.fromkeys(
    (f"procrastinate_{name}" for name in ("jobs", "workers", "events", "periodic_defers")), "SIUD"
)
PAGE = dict.fromkeys(("page_user", "page_session", "page_token", "page_delivery"), "SIUD") | {"page_audit": "SI"}
MAY = {
    "reader": (ASKED, SHOWN),
    "launcher": (ASKED | LAUNCHING, SHOWN | {"job_record": "SID"}),
    "worker": (
        None,  # every function but those above
        SHOWN | PROCRASTINATE | dict.fromkeys(("run", "bundle", "schedule", "webhook"), "S") | {"job_record": "SID"},
    ),
    "page": (ASKED | LAUNCHING, SHOWN | PAGE | {"job_record": "SID"}),
}


@pytest.mark.parametrize("role", MAY)
def test_a_role_may_do_what_is_its_business_and_nothing_else(url, database, role):
    schema.apply_roles(url)
    calls, tables = MAY[role]
    known = database.all(
        "SELECT p.proname, has_function_privilege(%s, p.oid, 'EXECUTE'), p.proname LIKE 'procrastinate%%' FROM pg_proc p "
        "WHERE p.pronamespace = 'forkless'::regnamespace",
        f"forkless_{role}",
    )
    ours = {name for name, _, foreign in known if not foreign}
    assert len(ours) > 20
    found = {name for name, may, foreign in known if may and not foreign}
    assert found == (ours - NOT_A_WORKERS if calls is None else calls)
    assert (role == "worker") == any(may for _, may, foreign in known if foreign)
    rights = database.all(
        "SELECT c.relname, string_agg(left(p, 1), '' ORDER BY n) FROM pg_class c, "
        "unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) WITH ORDINALITY AS one(p, n) "
        "WHERE c.relnamespace = 'forkless'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p') "
        "AND (has_table_privilege(%s, c.oid, p) OR (p IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES') "
        "AND has_any_column_privilege(%s, c.oid, p))) GROUP BY c.relname",
        f"forkless_{role}",
        f"forkless_{role}",
    )
    assert dict(rights) == tables
    assert not database.one("SELECT has_schema_privilege(%s, 'forkless', 'CREATE')", f"forkless_{role}")


def test_who_has_no_role_of_the_queue_sees_and_calls_nothing_of_it(url, database):
    schema.apply_roles(url)
    assert not database.one("SELECT has_schema_privilege('public', 'forkless', 'USAGE')")
    assert not database.all(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'forkless'::regnamespace AND has_function_privilege('public', oid, 'EXECUTE')"
    )


def test_a_run_whose_label_nobody_has_any_more_gives_its_lock_back(url, database, project):
    playbook(project, tasks=["- debug:"])
    here = database.one("SELECT forkless.register_worker('w', 'h', 1, '{site=fra}', '{}')")
    with pytest.raises(forkless.queue.QueueRequestError, match="has the label 'site=ber'; workers have site=fra"):
        launch(url, project, labels=["site=ber"])
    labelled, other = launch(url, project, labels=["site=fra"]), launch(url, project)
    job = "SELECT queue_job IS NOT NULL FROM forkless.run WHERE id = %s"
    assert (database.one(job, labelled), database.one(job, other)) == (True, False)
    database.one("SELECT forkless.remove_worker(%s)", here)
    database.one("SELECT forkless.dispatch_due()")
    assert (database.one(job, labelled), database.one(job, other)) == (False, True)
    database.one("SELECT forkless.cancel(%s, 'me')", other)
    assert database.one("SELECT forkless.waits_for(%s)", labelled) == "no worker has the label site=fra"


def test_a_limit_of_a_label_is_kept(url, database, project):
    playbook(project, tasks=["- debug:"])
    database.one("SELECT forkless.register_worker('w', 'h', 1, '{db}', '{}')")
    database.one("SELECT forkless.limit_label('db', 2)")
    numbers = [launch(url, project, labels=["db"], lock=None) for _ in range(4)]
    queued = "SELECT count(*) FROM forkless.run WHERE queue_job IS NOT NULL AND status = 'waiting'"
    assert database.one(queued) == 2
    database.one("SELECT forkless.cancel(%s, 'me')", numbers[0])
    database.one("SELECT forkless.dispatch_due()")
    assert database.one(queued) == 2
    assert "as the limit allows" in database.one("SELECT forkless.waits_for(%s)", numbers[3])


def test_a_run_for_later_begins_later_and_blocks_nobody(url, database, project):
    import datetime as dt

    playbook(project, tasks=["- debug:"])
    later = launch(url, project, at=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    now = launch(url, project)  # of the same lock
    job = "SELECT queue_job IS NOT NULL FROM forkless.run WHERE id = %s"
    assert (database.one(job, later), database.one(job, now)) == (False, True)
    database.one("SELECT forkless.cancel(%s, 'me')", now)
    database.all("UPDATE forkless.run SET not_before = now() WHERE id = %s", later)
    database.one("SELECT forkless.dispatch_due()")
    assert database.one(job, later)


@in_make_faults
def test_sigterm_lets_the_run_finish_and_a_second_one_hands_it_back(url, database, workers, project, tmp_path):
    acts = tmp_path / "acts"
    playbook(project, tasks=[acting(acts, times=30)])
    number = launch(url, project)
    patient = workers.start()
    wait_until(lambda: lines(acts), "the first act")
    patient.send_signal(signal.SIGTERM)
    assert patient.wait(timeout=240) == 0
    assert database.status(number) == "successful"
    assert len(lines(acts)) == 30
    hasty_run = launch(url, project, retries=1, lock=None)
    hasty = workers.start()
    wait_until(lambda: len(lines(acts)) > 31, "the next acts")
    hasty.send_signal(signal.SIGTERM)
    wait_until(lambda: "no more runs are taken" in workers.log(1), "the first signal's effect")
    hasty.send_signal(signal.SIGTERM)
    assert hasty.wait(timeout=240) == 0
    assert database.one("SELECT status, attempt FROM forkless.run WHERE id = %s", hasty_run) == ("waiting", 1)
    assert "was shut down" in database.one("SELECT note FROM forkless.run WHERE id = %s", hasty_run)
    assert "Traceback" not in workers.log(1)


STUBBORN = """\
import os
from ansible.plugins.lookup import LookupBase

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **options):
        open(terms[0], "w").close()
        os.open(terms[0] + ".pipe", os.O_RDONLY)  # until somebody writes: no interrupt reaches a thread in here
        return []
"""


@in_make_faults
def test_a_worker_process_is_replaced_if_a_canceled_run_leaves_a_thread_behind(
    url, database, workers, project, tmp_path
):
    (project / "lookup_plugins").mkdir()
    (project / "lookup_plugins/stubborn.py").write_text(STUBBORN)
    began = tmp_path / "began"
    os.mkfifo(f"{began}.pipe")
    playbook(project, tasks=[f"- debug: msg={{{{ lookup('stubborn', '{began}') }}}}"])
    playbook(project, "next.yml", tasks=["- debug:"])
    number, behind = launch(url, project), launch(url, project, "next.yml")
    log = workers.start_supervised()
    wait_until(began.exists, "the task that does not end")
    database.one("SELECT forkless.cancel(%s, 'me')", number)
    assert database.wait_for(number, "canceled", "failed", "lost") == "canceled"
    assert "has not ended" in database.one("SELECT sentence FROM forkless.run WHERE id = %s", number)
    assert database.wait_for(behind, "successful", "failed", "lost") == "successful"
    assert "a worker process ended with 75; another takes its place" in workers.log(log)
    assert len(database.all("SELECT DISTINCT worker_id FROM forkless.run")) == 2


def test_a_run_whose_lease_has_ended_has_a_part_of_the_margin_to_stop(tmp_path, monkeypatch):
    """An urgent request leaves threads behind that need a moment to end, so it does not follow the first one at once."""
    row = {"id": 1, "attempt": 1, "lost_after": 8}
    attempt = Attempt(AttemptPlace("postgresql:///nowhere", str(tmp_path), ""), row, 0.0)
    seen = []

    class Stops:
        asked = 0

        def cancel(self):
            self.asked += 1

    class Over:
        """In place of the event: each wait is a look at the lease, at the next of these times. The lease ends at 6, its margin is 2."""

        times = iter([5.9, 6.0, 6.7, 6.9, 7.3])

        def wait(self, _seconds):
            seen.append((run.asked, now[0]))
            now[0] = next(self.times, None)
            return now[0] is None

    now = [0.0]
    attempt._run = run = Stops()
    attempt._over = Over()
    for module in (attempts, leases):
        monkeypatch.setattr(module, "clock", lambda: now[0])
    monkeypatch.setattr(attempts, "end_process", lambda: seen.append("ended"))
    attempt._watch()
    assert seen == [(0, 0.0), (0, 5.9), (1, 6.0), (1, 6.7), (2, 6.9), "ended", (2, 7.3)]
    os.close(attempt._wake_in)
    os.close(attempt._wake_out)


def test_a_run_is_asked_to_stop_once_and_again_only_if_it_is_urgent(tmp_path):
    """A run that is asked twice leaves its threads behind at once, and its result would be an error in place of "canceled"."""

    class Stops:
        asked = 0

        def cancel(self):
            self.asked += 1

    row = {"id": 1, "attempt": 1, "lost_after": 600}
    attempt = Attempt(AttemptPlace("postgresql:///nowhere", str(tmp_path), ""), row, clock())
    attempt._run = run = Stops()
    attempt.cancel()
    attempt.hand_back("its worker was shut down")
    attempt._stop_run()
    assert run.asked == 1
    attempt._stop_run(urgent=True)
    attempt._stop_run(urgent=True)
    assert run.asked == 2
    os.close(attempt._wake_in)
    os.close(attempt._wake_out)


def test_the_engine_queue_has_the_results_of_any_other(url, database, workers, project, monkeypatch):
    monkeypatch.setenv("FORKLESS_DATABASE", url)
    playbook(project, tasks=["- debug: msg=through-the-queue"])
    workers.start()
    result = forkless.run("site.yml", inventory="hosts.ini", cwd=project, engine="queue")
    assert result.ok
    assert "through-the-queue" in result.stdout
    assert result.hosts["web1"]["ok"] == 1
    playbook(project, "long.yml", tasks=["- raw: sleep 600"])
    run = forkless.start("long.yml", inventory="hosts.ini", cwd=project, engine="queue")
    wait_until(lambda: database.all("SELECT 1 FROM forkless.run WHERE status = 'running'"), "the long run")
    run.cancel()
    assert run.wait(240).status == forkless.Status.CANCELED
    assert database.one("SELECT status FROM forkless.run ORDER BY id DESC LIMIT 1") == "canceled"


def slow_receiver(listener, *, context):
    """Sends a byte of an answer's head now and then, for ever."""
    with contextlib.suppress(OSError):
        while True:
            accepted, _ = listener.accept()
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(accepted, server_side=True) if context else accepted as one,
            ):
                one.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while True:
                    one.sendall(b"x")
                    time.sleep(0.05)


@pytest.mark.parametrize("tls", [False, True])
def test_a_message_to_a_receiver_that_never_ends_its_answer_is_given_up(
    url, database, project, monkeypatch, tmp_path, tls
):
    monkeypatch.setattr(webhooks, "_PATIENCE_IN_ALL", 1.0)
    context = None
    if tls:
        key, made = tmp_path / "key.pem", tmp_path / "made.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
             "-keyout", key, "-out", made], check=True, capture_output=True,
        )  # fmt: skip
        monkeypatch.setenv("SSL_CERT_FILE", str(made))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made, key)
    playbook(project, tasks=["- debug:"])
    number = launch(url, project)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=slow_receiver, args=(listener,), kwargs={"context": context})
        thread.start()
        address = f"{'https' if tls else 'http'}://localhost:{listener.getsockname()[1]}/"
        database.all("INSERT INTO forkless.webhook (run_id, url) VALUES (%s, %s)", number, address)

        async def deliver():
            async with await connect_async(url) as connection:
                await webhooks.deliver_due(connection)

        asyncio.run(deliver())
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert database.all("SELECT problem FROM forkless.webhook") == [("it took longer than 1 s",)]


@in_make_faults
def test_the_message_at_the_end_is_signed_and_tried_again(url, database, workers, project, monkeypatch):
    got = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((body, self.headers["X-Forkless-Signature"]))
            self.send_response(500 if len(got) == 1 else 204)
            self.end_headers()

        def log_message(self, *_):
            pass

    monkeypatch.setenv("HOOK_SECRET", "s3cr3t")
    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        playbook(project, tasks=["- debug:"])
        address = f"http://127.0.0.1:{server.server_port}/hook"
        number = launch(url, project, webhook=address, webhook_secret="env:HOOK_SECRET")
        workers.start()
        wait_until(
            lambda: database.all("SELECT 1 FROM forkless.webhook WHERE problem = 'it answered 500'"), "the first try"
        )
        database.all("UPDATE forkless.webhook SET next_try = now()")
        wait_until(lambda: database.all("SELECT 1 FROM forkless.webhook WHERE delivered IS NOT NULL"), "the second try")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    body, signature = got[-1]
    assert json.loads(body)["run"]["id"] == number
    assert json.loads(body)["run"]["status"] == "successful"
    assert signature == "sha256=" + hmac.new(b"s3cr3t", body, hashlib.sha256).hexdigest()


def test_a_message_is_tried_again_and_never_follows_a_redirect(url, database, project, monkeypatch):
    got = []
    answers = [500, 302, 204]

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, body, self.headers["X-Forkless-Signature"]))
            self.send_response(answers[len(got) - 1])
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_):
            pass

    async def deliver():
        async with await connect_async(url) as connection:
            await webhooks.deliver_due(connection)

    playbook(project, tasks=["- debug:"])
    monkeypatch.setenv("HOOK_SECRET", "s3cr3t")
    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/hook"
        number = launch(url, project, webhook=address, webhook_secret="env:HOOK_SECRET")
        job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
        database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 5)", number, job)
        asyncio.run(deliver())
        assert got == []  # the run has not ended
        database.one("SELECT forkless.finish(%s, 1, 'successful', 0, '', '{}')", number)
        problems = []
        for _ in answers:
            asyncio.run(deliver())
            problems.append(database.one("SELECT problem FROM forkless.webhook WHERE run_id = %s", number))
            asyncio.run(deliver())  # not before its time
            database.all("UPDATE forkless.webhook SET next_try = now()")
        asyncio.run(deliver())  # and not once it was taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert problems[:2] == ["it answered 500", "it answered 302"]
    assert [path for path, _, _ in got] == ["/hook"] * 3
    for _, body, signature in got:
        assert json.loads(body)["run"]["id"] == number
        assert signature == "sha256=" + hmac.new(b"s3cr3t", body, hashlib.sha256).hexdigest()
    assert database.one("SELECT delivered IS NOT NULL FROM forkless.webhook WHERE run_id = %s", number)


def test_events_are_sent_together_and_again_before_half_a_second_has_passed(monkeypatch):
    """By the waits that the writer makes, not by the clock of a busy machine."""
    lines, told = [], []

    class Recorded(Attempt):
        def _append(self, _connection, first, last, packed, *_):
            told.append((first, last) if packed is not None else "renewed")
            return "go on"

        def _rest(self, _connection, seconds):
            told.append(seconds)

    one = Recorded(AttemptPlace("", "", ""), {"id": 1, "attempt": 1, "lost_after": 120}, clock())
    try:
        events = SimpleNamespace(lines=lambda first, last: lines[first:last], part=lambda *_: [])
        one._run = SimpleNamespace(_events=events)
        for many in (500, 0, 3):
            lines += [b"{}\n"] * many
            assert not one._step(None)
    finally:
        os.close(one._wake_in)
        os.close(one._wake_out)
    waits = [seconds for seconds in told if isinstance(seconds, float)]
    assert [sent for sent in told if not isinstance(sent, float)] == [(1, 500), (501, 503)]
    # With the way to the database and to the reader, which a notification wakes, half a second is left.
    assert len(waits) == 3
    assert max(waits) <= 0.25


def test_a_reader_is_woken_by_the_event_and_does_not_wait_for_its_next_look(url, database, project, monkeypatch):
    monkeypatch.setattr("forkless.queue.listener.LOOK_AGAIN", 3600.0)
    playbook(project, tasks=["- debug:"])
    number = launch(url, project)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 5)", number, job)
    packed, size = event_batches.pack([b'{"event": "x", "uuid": "u", "counter": 1, "stdout": "", "event_data": {}}\n'])

    async def follow():
        async with forkless.queue.connect(url) as queue:
            seen, looks, looked_twice, events = [], [], asyncio.Event(), queue.events

            async def look(*args, **fields):
                found = await events(*args, **fields)
                looks.append(found)
                if len(looks) == 2:
                    looked_twice.set()
                return found

            queue.events = look
            reader = queue.follow(number)
            waiting = asyncio.ensure_future(anext(reader))
            # The reader has looked at first, and again when its listener was there: it has no reason of its own to look a third time.
            await looked_twice.wait()
            await asyncio.to_thread(
                database.one, "SELECT forkless.append_events(%s, 1, 1, 1, %s, %s, NULL, '{}')", number, packed, size
            )
            async with asyncio.timeout(120):
                seen.append((await waiting).event)
            await reader.aclose()
            return seen

    assert asyncio.run(follow()) == ["x"]


@pytest.mark.parametrize(
    "address",
    [
        "me:hunter2@db/forkless", "postgres:/me:hunter2@db/x", "mysql://me:hunter2@db/x", "mysql://me:a@hunter2@db/x",
        "host=db password=a hunter2", "host=db password=a hunter2=b",
    ],
)  # fmt: skip
def test_no_sentence_about_an_address_has_a_piece_of_its_password(address):
    with pytest.raises(DatabaseError) as refused:
        conninfo(address)
    assert "hunter2" not in str(refused.value)


def test_the_owner_of_a_lease_stops_before_anybody_else_may_begin(monkeypatch):
    """Whatever the wall clock does: it takes no part."""
    now = [1000.0]
    monkeypatch.setattr("forkless.queue.lease.clock", lambda: now[0])
    lease, seen = Lease(8), Observation()
    lease.renewed(now[0])
    now[0] += 3  # the renewal was slow, and is seen late
    assert seen.unchanged({("run", 1): 7}) == {("run", 1): 0}
    now[0] += 3.1
    assert lease.expired()
    assert seen.unchanged({("run", 1): 7})[("run", 1)] < 8
    now[0] += 100
    assert seen.unchanged({("run", 1): 8}) == {("run", 1): 0}  # it was renewed meanwhile


def test_a_worker_on_another_ansible_core_says_so(url, database, project):
    playbook(project, tasks=["- debug:"])
    number = launch(url, project)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    versions = json.dumps({"ansible_core": "2.18.0", "python": "3.12.1"})
    database.one("SELECT forkless.claim(%s, %s, 1, 'w', %s::jsonb, 5)", number, job, versions)
    assert "carried out with ansible-core 2.18.0 on Python 3.12.1" in database.one(
        "SELECT note FROM forkless.run WHERE id = %s", number
    )


def test_a_project_packs_to_the_same_bytes_without_what_is_ignored(project):
    from forkless.queue import project as projects

    (project / ".git").mkdir()
    (project / ".git/config").write_text("x")
    (project / ".forklessignore").write_text("*.log\n!keep.log\n/big/\n")
    (project / "a.log").write_text("x")
    (project / "keep.log").write_text("x")
    (project / "big").mkdir()
    (project / "big/file").write_text("x")
    (project / "link").symlink_to("hosts.ini")
    first = projects.pack(str(project))
    target = project.parent / "unpacked"
    projects.unpack(first.content, first.sha256, str(target))
    assert sorted(os.listdir(target)) == [".forklessignore", "hosts.ini", "keep.log", "link"]
    assert projects.pack(str(target)).sha256 == first.sha256
    with pytest.raises(forkless.queue.QueueError, match="does not have the hash"):
        projects.unpack(first.content, "0" * 64, str(target))
    (project / "escape").symlink_to("/etc/passwd")
    with pytest.raises(forkless.queue.QueueRequestError, match="escape is a link to /etc/passwd"):
        projects.pack(str(project))
    (project / "escape").unlink()
    (project / "noise").write_bytes(os.urandom(1 << 20))
    with pytest.raises(forkless.queue.QueueRequestError, match=r"too large to travel.*noise"):
        projects.pack(str(project), most=1 << 19)


def test_the_playbook_command_splits_hosts_over_processes(project):
    (project / "hosts.ini").write_text("h1\nh2\nh3\n[a-b]\nh1\n[all:vars]\nansible_connection=local\n")
    playbook(
        project,
        tasks=[
            "- debug: msg={{ hostvars.h1.inventory_hostname }}",
            "- fail:\n  when: inventory_hostname == 'h2'",
            "- debug: msg=limit-{{ ansible_limit | default('none') }}",
        ],
    )
    done = subprocess.run(
        [sys.executable, "-m", "forkless", "playbook", "--slices", "2", "site.yml", "-i", "hosts.ini"],
        cwd=project, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("Invalid characters were found in group names") == 1, done.stderr  # not by each slice
    assert "limit-none" in done.stdout  # what the user has said, not the file with the hosts of the slice
    assert done.stdout.count("PLAY RECAP") == 1
    recap = done.stdout.partition("PLAY RECAP")[2].split("\n")[1:4]
    assert [line.split()[0] for line in recap] == ["h1", "h2", "h3"]
    assert "failed=1" in recap[1]
    assert all('"msg": "h1"\n}' in done.stdout and f"ok: [{host}]" in done.stdout for host in ("h1", "h2", "h3"))
    alone = subprocess.run(
        [sys.executable, "-m", "forkless", "playbook", "--slices", "2", "site.yml", "-i", "hosts.ini", "--limit", "h3"],
        cwd=project, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    assert "limit-h3" in alone.stdout
    assert alone.stdout.count("TASK [debug]") == 2  # the other process had no hosts, and ended
    assert [line.split()[0] for line in alone.stdout.partition("PLAY RECAP")[2].split("\n")[1:2]] == ["h3"]
    playbook(project, "once.yml", tasks=["- debug:\n  run_once: true"])
    (project / "hosts.ini").write_text("h1\nh2\n")
    split = subprocess.run(
        [sys.executable, "-m", "forkless", "playbook", "--slices", "2", "once.yml", "-i", "hosts.ini"],
        cwd=project, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (split.returncode, split.stdout) == (2, "")
    assert split.stderr.startswith("forkless playbook: this playbook cannot be split: once.yml:4: run_once")
    assert split.stderr.count("\n") == 1
    refused = subprocess.run(
        [sys.executable, "-m", "forkless", "playbook", "--slices=2", "site.yml", "-i", "hosts.ini", "--report", "x.html"],
        cwd=project, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (refused.returncode, refused.stderr) == (2, "forkless playbook: --report does not go with --slices\n")
    missing = subprocess.run(
        [sys.executable, "-m", "forkless", "playbook", "--slices=2", "none.yml", "-i", "hosts.ini"],
        cwd=project, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    # Ansible's own sentence, once, and its exit code.
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == "[ERROR]: the playbook: none.yml could not be found\n"


def test_a_run_whose_files_find_no_place_on_the_worker_says_so(url, database, workers, project, tmp_path):
    # A file where the worker's folder is to be: for root no folder is read-only, and a full disk takes the same way.
    (tmp_path / "work0").write_text("")
    (project / "site.yml").write_text("- hosts: all\n  gather_facts: false\n")
    number = launch(url, project)
    workers.start()
    database.wait_for(number, "failed")
    told = database.one("SELECT sentence FROM forkless.run WHERE id = %s", number)
    assert told == "the worker could not carry the run out: Not a directory"


def test_a_connection_that_the_server_ended_meanwhile_is_not_used_again(url):
    """As after a restart of the database: the first question of each kept connection would fail."""

    async def ask_twice():
        pool = database_module.ConnectionPool(url)
        try:
            async with pool.connection() as connection:
                pid = connection.info.backend_pid
            with psycopg.connect(url, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))
            async with pool.connection() as connection:
                await connection.execute("SELECT 1")
                return pid, connection.info.backend_pid
        finally:
            await pool.close()

    first, second = asyncio.run(ask_twice())
    assert first != second
