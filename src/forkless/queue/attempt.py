# SPDX-License-Identifier: GPL-3.0-or-later
"""
One attempt at a run, from the claim to the result.

Three threads: one prepares the project and waits for the run; one talks to the database (renewals, events, result: one writer, so
that events arrive in order); one watches the lease. The lease is also looked at before each task, on the worker threads themselves.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import select
import shutil
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn

import psycopg

from forkless.core.errors import ForklessError, StuckWorkerError
from forkless.core.events import Status
from forkless.core.process_tree import ProcessTree
from forkless.queue import database, event_batches, job_store, requests, secrets
from forkless.queue import project as projects
from forkless.queue.lease import Lease, clock
from forkless.queue.programs import StoppedError
from forkless.queue.progress import Progress
from forkless.runs.run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forkless.core.result import Result
    from forkless.queue.database import Connection
    from forkless.queue.records import Json

__all__ = ["Attempt", "AttemptPlace", "end_process"]

log = logging.getLogger("forkless.worker")

# At most so many seconds pass between an event and its way to the database; a shorter time means more rows and notifications.
_BETWEEN_BATCHES = 0.2
# A statement that takes longer than this is on a dead connection. An archive of a project has its own time.
_STATEMENT = 15.0
_ARCHIVE = 300.0
# A batch of events on a slow line has at most so many bytes, unless one event has more.
_LEAST_BYTES = 32 << 10
# Seconds between the request to stop a run and the urgent one.
_GRACE = 5.0
# The parts of the lease's margin after which the stop of a run whose lease has ended is urgent, and this process ends itself.
_URGENT_AT = 0.4
_END_AT = 0.6
_REST = 0.05
# The exit status of a worker process that ended itself because its run could not be stopped in time (EX_TEMPFAIL).
GAVE_UP = 75

Verdict = Literal["finished", "refused", "given up"]


@dataclass(frozen=True)
class AttemptPlace:
    """Where attempts of one worker process are carried out."""

    url: str
    folder: str
    """For projects, emptied before each run."""
    key_path: str


class Attempt:
    """
    Carries out a run that was claimed. `carry_out()` blocks until the result is written or refused; other methods: any thread.

    `row` is what `forkless.claim` returned, `sent` the clock before the claim was sent.
    """

    def __init__(self, place: AttemptPlace, row: Mapping[str, Json], sent: float) -> None:
        self._place = place
        self._row = row
        self.run_id, self.attempt = int(str(row["id"])), int(str(row["attempt"]))
        self.lease = Lease(float(str(row["lost_after"])))
        self.lease.renewed(sent)
        self._progress = Progress()
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._result: tuple[str, int, str] | None = None
        self._canceled = threading.Event()
        self._handed_back = ""
        self._lost = ""
        self._over = threading.Event()
        self._refused = False
        self._stop_calls = 0
        self.left_behind = False
        """Whether a thread of the run did not end. It may still act on hosts, so this process must end."""
        # Numbers of events: those in the packed batch or stored, those stored, those counted in the progress.
        self._seen = self._stored = self._counted = 0
        # Bytes of events in a batch: fewer after a batch that took too long, because the line to the database may be slow.
        self._most_bytes = event_batches.MOST_BYTES
        self._wake_in, self._wake_out = os.pipe()
        self._verdict: Verdict = "finished"

    # -- asked from outside -----------------------------------------------------------------------------------

    def cancel(self) -> None:
        self._canceled.set()
        self._stop_run()

    def hand_back(self, why: str) -> None:
        """Stop the run because the worker must leave; it begins elsewhere if it may."""
        self._handed_back = why
        self._stop_run()

    def _stop_run(self, *, urgent: bool = False) -> None:
        """Ask the run to stop, once: it takes a second request as urgent, and then leaves threads behind that have not ended."""
        with self._lock:
            run = self._run
            missing = 0 if run is None else (2 if urgent else 1) - self._stop_calls
            self._stop_calls += max(0, missing)
        for _ in range(missing):
            assert run is not None  # noqa: S101  # for the type checker
            run.cancel()

    @property
    def _stopping(self) -> bool:
        return bool(self._canceled.is_set() or self._handed_back or self._lost or self._refused)

    # -- the thread that waits ---------------------------------------------------------------------------------

    def carry_out(self) -> Verdict:
        writer = threading.Thread(target=self._write, name=f"forkless-writer-{self.run_id}", daemon=True)
        watch = threading.Thread(target=self._watch, name=f"forkless-lease-{self.run_id}", daemon=True)
        writer.start()
        watch.start()
        result: tuple[str, int, str]
        try:
            ended = self._run_it()
            result = _outcome(ended)
        except StuckWorkerError as err:
            self.left_behind = True
            log.warning("run %d: %s", self.run_id, err)
            if self._stopping and not self._canceled.is_set():
                end_process()  # Others may begin the run as soon as the database knows that it was given up.
            result = ("canceled", 254, str(err)) if self._stopping else ("failed", 250, str(err))
        except ForklessError as err:
            result = ("failed", 250, str(err))
        except OSError as err:  # a full disk, for example
            log.exception("run %d could not be carried out", self.run_id)
            what = err.strerror or type(err).__name__
            result = ("failed", 250, f"the worker could not carry the run out: {what}")
        except Exception as err:  # after any error, the run must end in the database
            log.exception("run %d could not be carried out", self.run_id)
            result = ("failed", 250, f"the worker could not carry the run out: {type(err).__name__}")
        if result[0] == "canceled" and not self._stopping and self.lease.expired():
            self._note_lost()
        with self._lock:
            self._result = result
        self._over.set()
        self._wake()
        while self.left_behind and writer.is_alive():
            if self.lease.expired():
                end_process()  # The thread may still act on hosts, and others may begin the run.
            writer.join(_REST)
        writer.join()
        watch.join()
        os.close(self._wake_in)
        os.close(self._wake_out)
        return self._verdict

    def _run_it(self) -> Result | None:
        try:
            folder = self._fetch_project()
        except StoppedError:
            return None
        try:
            try:
                spec = self._spec(folder)
            except StoppedError:
                return None
            run = Run(spec, "threads")
            run._stop.expired = self.lease.expired
            with self._lock:
                self._run = run
            if self._stopping:
                return None
            run._begin()
            return run.wait()
        finally:
            if self._row["project"]["kind"] != "folder":
                shutil.rmtree(os.path.dirname(folder), ignore_errors=True)

    def _fetch_project(self) -> str:
        project: Mapping[str, str] = self._row["project"]
        if project["kind"] == "folder":
            if not os.path.isdir(project["path"]):
                raise _Failure(f"the shared folder {project['path']} is not there on the worker")
            return project["path"]
        # The path has the content's hash: the same project has the same path and so the same ansible.cfg, another one has not.
        name = project["sha256"] if project["kind"] == "bundle" else project["commit"]
        folder = os.path.join(self._place.folder, name[:32], "project")
        shutil.rmtree(self._place.folder, ignore_errors=True)
        os.makedirs(os.path.dirname(folder), mode=0o700)
        if project["kind"] == "git":
            projects.checkout(project["url"], project["commit"], folder, lambda: self._stopping)
            return folder
        while True:
            try:
                with database.connect(self._place.url) as connection, database.limited(connection, _ARCHIVE):
                    row = connection.execute(
                        "SELECT content FROM forkless.bundle WHERE sha256 = %s", (project["sha256"],)
                    ).fetchone()
                break
            except (psycopg.Error, ForklessError) as err:
                if self._stopping or not database.is_outage(err.__cause__ or err):
                    raise
                time.sleep(1.0)
        if row is None:
            raise _Failure("the project's archive is no longer in the database")
        projects.unpack(row[0], project["sha256"], folder)
        return folder

    def _spec(self, folder: str) -> requests.RunSpec:
        row = self._row
        limit = None
        if row["hosts"]:
            path = os.path.join(
                self._place.folder if row["project"]["kind"] != "folder" else self._limit_folder(), "hosts.limit"
            )
            with open(path, "w", encoding="utf-8") as file:
                file.write("".join(f"{host}\n" for host in row["hosts"]))
            limit = f"@{path}"
        literal: dict[str, object] = {}
        if row["sealed"]:
            try:
                key = secrets.load_key(self._place.key_path)
            except FileNotFoundError:
                raise _Failure(
                    f"the run's secrets are sealed for the workers' key, and this worker has none at {self._place.key_path}"
                ) from None
            literal = secrets.open_sealed(base64.b64decode(str(row["sealed"])), key, uuid.UUID(str(row["origin"])))
        return requests.rebuild(
            row["spec"],
            row["secrets"],
            literal,
            cwd=folder,
            limit=limit,
            ident=f"run-{self.run_id}-{self.attempt}",
            more_env=job_store.scope_of_project(row["project"])
            | ({"FORKLESS_SLICED": "refuse"} if row["sliced"] and not row["spec"].get("slices_anyway") else {}),
            stopping=lambda: self._stopping,
        )

    def _limit_folder(self) -> str:
        os.makedirs(self._place.folder, mode=0o700, exist_ok=True)
        return self._place.folder

    # -- the thread that watches -------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Stop the run when the lease ends, and the process when the run does not stop; make every other stop urgent after a while."""
        asked: float | None = None
        urgent = False
        while not self._over.wait(_REST):
            if self.lease.expired():
                self._note_lost()
            if not self._stopping:
                continue
            now = clock()
            if asked is None:
                asked = now
                self._stop_run()
            # The margin of the lease is there for the run to stop. An urgent request leaves threads behind that only need a moment
            # to end, and then this process ends itself.
            late = now - self.lease.until if self.lease.expired() else 0.0
            if not urgent and (self._refused or now - asked > _GRACE or late > self.lease.margin * _URGENT_AT):
                urgent = True
                self._stop_run(urgent=True)
            if late > self.lease.margin * _END_AT:
                log.error("run %d did not stop in time; this worker process ends itself", self.run_id)
                end_process()

    def _note_lost(self) -> None:
        """The lease has ended. The run looks at it as well before each step, and may have stopped before `_watch` saw it."""
        with self._lock:
            if self._lost:
                return
            self._lost = f"its worker heard nothing from the database for {self.lease.seconds - self.lease.margin:.0f} s and stopped it"
        log.error("run %d: no renewal was confirmed in time; stopping it", self.run_id)

    # -- the thread that writes --------------------------------------------------------------------------------

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_out, b".")

    def _write(self) -> None:
        connection: Connection | None = None
        trouble = False
        pause = 0.1
        while True:
            try:
                if connection is None or connection.closed:
                    connection = database.connect(self._place.url)
                    with self._limited(connection):
                        connection.execute("LISTEN forkless_cancel")
                        self._resume(connection)
                if self._step(connection):
                    break
                if trouble:
                    log.warning("run %d: the database is back", self.run_id)
                trouble, pause = False, 0.1
            except Exception as err:  # noqa: BLE001  # the lease is not renewed once this thread has ended
                if connection is not None:
                    with contextlib.suppress(psycopg.Error):
                        connection.close()
                    connection = None
                if not trouble:
                    log.warning("run %d: %s", self.run_id, database.sentence_of(err.__cause__ or err, self._place.url))
                trouble = True
                if self._refused:
                    break
                if self._over.is_set() and isinstance(err, psycopg.DataError | ValueError):
                    self._verdict = "given up"  # another attempt would fail with the same value; the sweep ends the run
                    break
                self._over.wait(pause) if not self._over.is_set() else time.sleep(pause)
                pause = min(pause * 2, 2.0)
        if connection is not None:
            connection.close()

    def _limited(self, connection: Connection) -> contextlib.AbstractContextManager[None]:
        return database.limited(connection, self._statement_limit)

    @property
    def _statement_limit(self) -> float:
        return min(_STATEMENT, self.lease.seconds / 2)

    def _resume(self, connection: Connection) -> None:
        """Ask the server behind a new connection what it has of this attempt: after a failover that may be less than was confirmed."""
        names = ("queue_job", "worker_id", "worker_name", "worker_versions", "lost_after")
        job, worker, name, versions, seconds = (self._row[column] for column in names)
        row = connection.execute(
            "SELECT forkless.resume(%s, %s, %s, %s, %s, %s::jsonb, %s)",
            (self.run_id, self.attempt, job, worker, name, json.dumps(versions), seconds),
        ).fetchone()
        if row is None or row[0] is None:
            self._refused = True
        elif row[0] != self._stored:
            if row[0] < self._stored:
                log.warning(
                    "run %d: the database lacks %d events that it had; they are sent again",
                    self.run_id,
                    self._stored - row[0],
                )
            self._seen = self._stored = row[0]

    def _step(self, connection: Connection) -> bool:
        """Send what is new or renew; True once the result is written or refused."""
        if self._refused:
            return self._end_refused()
        over = self._over.is_set()
        if self._send_batch(connection):
            if self._refused:
                return self._end_refused()
            if over:
                return False  # there may be more; the result follows the last event
        elif over:
            with self._limited(connection):
                return self._send_result(connection)
        elif clock() - (self.lease.until - self.lease.seconds + self.lease.margin) > self.lease.seconds / 4:
            self._renew(connection)
            if self._refused:
                return self._end_refused()
        self._rest(connection, _BETWEEN_BATCHES)
        return False

    def _rest(self, connection: Connection, seconds: float) -> None:
        """Wait for the next batch. A notification of a cancel, and the end of the run, end the wait."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._over.is_set():
            poll = select.poll()  # select() takes no descriptor above 1023, and a run may hold a thousand connections
            for descriptor in (connection.fileno(), self._wake_in):
                poll.register(descriptor, select.POLLIN)
            ready = [descriptor for descriptor, _ in poll.poll(left * 1000)]
            if self._wake_in in ready:
                os.read(self._wake_in, 64)
            if connection.fileno() in ready:
                for told in connection.notifies(timeout=0):
                    if told.payload == str(self.run_id):
                        self.cancel()

    def _send_batch(self, connection: Connection) -> bool:
        with self._lock:
            run = self._run
        if run is None:
            return False
        if self._seen == self._stored:
            lines = run._events.lines(self._stored, self._stored + event_batches.MOST_EVENTS)
            while len(lines) > 1 and sum(map(len, lines)) > self._most_bytes:
                lines = lines[: len(lines) // 2]
            if not lines:
                return False
            self._seen = self._stored + len(lines)
            for event in run._events.part(max(self._stored, self._counted), self._seen):
                self._progress.add(event)
            self._counted = max(self._counted, self._seen)
            self._batch = event_batches.pack(lines)
        packed, size = self._batch
        if size > self._most_bytes:
            # One event that took too long before: it is given most of the time of a lease, which begins now. The rest is for another try.
            self._renew(connection)
            if self._refused:
                return True
        limit = self._statement_limit if size <= self._most_bytes else max(1.0, (self.lease.until - clock()) * 0.75)
        sent = clock()
        try:
            answer = self._append(connection, self._stored + 1, self._seen, packed, size, limit)
        except psycopg.OperationalError:
            if clock() - sent >= limit:
                # The line is too slow for so much at once: less is packed next time, so that each batch renews the lease.
                self._most_bytes = max(_LEAST_BYTES, min(size, self._most_bytes) // 4)
                self._seen = self._stored
            raise
        if clock() - sent < limit / 8:
            self._most_bytes = min(self._most_bytes * 2, event_batches.MOST_BYTES)
        self._heed(answer, sent)
        if not self._refused:
            self._stored = self._seen
        return True

    def _renew(self, connection: Connection) -> None:
        sent = clock()
        self._heed(self._append(connection, None, 0, None, 0, self._statement_limit), sent)

    def _append(
        self, connection: Connection, first: int | None, last: int, packed: bytes | None, size: int, limit: float
    ) -> str:
        with database.limited(connection, limit):
            row = connection.execute(
                "SELECT forkless.append_events(%s, %s, %s, %s, %s, %s, %s, %s::jsonb)",
                (
                    self.run_id, self.attempt, first, last if packed is not None else None, packed, size,
                    self._progress.place and _storable(self._progress.place), _storable_json(self._progress.as_dict()),
                ),
            ).fetchone()  # fmt: skip
        return str(row[0]) if row else "refused"

    def _heed(self, answer: str, sent: float) -> None:
        if answer == "refused":
            self._refused = True
            return
        self.lease.renewed(sent)
        if answer == "cancel":
            self.cancel()

    def _end_refused(self) -> bool:
        """The database has given this attempt up: stop acting, write nothing more."""
        log.error("run %d: attempt %d was given up; stopping it", self.run_id, self.attempt)
        self._verdict = "refused"
        self._over.wait()
        return True

    def _send_result(self, connection: Connection) -> bool:
        with self._lock:
            status, rc, sentence = self._result or ("failed", 250, "")
        # A lease that ended stops the run too, and a late renewal may hide that it did.
        if self._lost or (status == "canceled" and not self._canceled.is_set()):
            row = connection.execute(
                "SELECT forkless.give_up(%s, %s, NULL, %s)",
                (
                    self.run_id,
                    self.attempt,
                    self._lost or self._handed_back or "its lease ended, and its worker stopped it",
                ),
            ).fetchone()
            self._verdict = "given up"
        else:
            if status == "canceled" and not sentence:
                sentence = "canceled"
            row = connection.execute(
                "SELECT forkless.finish(%s, %s, %s, %s, %s, %s::jsonb)",
                (self.run_id, self.attempt, status, rc, _storable(sentence), _storable_json(self._progress.recap)),
            ).fetchone()
        if row and row[0] == "refused":
            self._verdict = "refused"
            log.error("run %d: the result of attempt %d was refused; it had been given up", self.run_id, self.attempt)
        return True


def end_process() -> NoReturn:
    """End this process, and what it has started, at once: a thread of a run that has ended may still act on hosts."""
    with contextlib.suppress(Exception):
        ProcessTree(os.getpid()).kill()
    os._exit(GAVE_UP)


def _storable(text: str) -> str:
    """The text as PostgreSQL can store it: without NUL and without lone surrogates, which names of tasks and hosts may have."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _storable_json(value: object) -> str:
    return _storable(json.dumps(value, ensure_ascii=False).replace("\\u0000", "\\ufffd"))


class _Failure(ForklessError):
    """The run cannot be carried out here."""


def _outcome(result: Result | None) -> tuple[str, int, str]:
    if result is None:
        return "canceled", 254, ""
    status = {Status.SUCCESSFUL: "successful", Status.CANCELED: "canceled"}.get(result.status, "failed")
    sentence = result.sentence
    if result.status is Status.FAILED and not sentence:
        bad = [name for name, counts in result.hosts.items() if counts["failures"] or counts["dark"]]
        if bad:
            sentence = f"failed on {', '.join(bad[:5])}" + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
    return status, result.rc, sentence
