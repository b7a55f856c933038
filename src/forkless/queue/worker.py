# SPDX-License-Identifier: GPL-3.0-or-later
"""
A worker process: takes one run at a time, carries it out in this process, and ends after some runs.

Started by `forkless worker` (supervisor.py) as `python -m forkless.queue.worker OPTIONS`, never forked. If the supervisor dies, the
worker finishes its run and leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Self

import psycopg
from procrastinate.worker import Worker as ProcrastinateWorker

from forkless.core.errors import ForklessError
from forkless.queue import database, embedded, job_store, requests, schedules, schema, secrets, webhooks
from forkless.queue.attempt import Attempt, AttemptPlace, end_process
from forkless.queue.dispatcher import make_app, queues_for
from forkless.queue.lease import clock
from forkless.queue.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["WorkerOptions", "main"]

log = logging.getLogger("forkless.worker")


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of a worker process. The address of the database is not one of them: it may hold a password, and is passed in the environment."""

    folder: str
    folder_lock: int = -1
    """The descriptor of a lock that says that the folder is in use, for as long as this process runs; -1 if the folder needs none."""
    name: str = ""
    labels: list[str] = field(default_factory=list)
    lost_after: float = 120.0
    runs: int = 50
    """The process ends after so many runs, and another takes its place."""
    shutdown_after: float = 600.0
    """Seconds that a run may still take after SIGTERM, before it is handed back."""
    key_path: str = ""
    embedded: str = ""
    """The folder of the embedded server, if that is the database: each process keeps it running, also if the supervisor is killed."""

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


class WorkerProcess:
    """The loop of a worker process. Everything but `carry_out` happens on the loop's thread."""

    def __init__(self, url: str, options: WorkerOptions) -> None:
        self.url, self.options = url, options
        self.name = options.name or f"{socket.gethostname()}-{os.getpid()}"
        self.worker_id = 0
        self._about_itself = (
            self.name, socket.gethostname(), os.getpid(), options.labels, json.dumps(requests.versions()),
        )  # fmt: skip
        self._place = AttemptPlace(url, options.folder, options.key_path or secrets.key_path())
        self._attempt: Attempt | None = None
        self._done = 0
        self._playing = False
        self._stopping = False
        self._dispatcher: ProcrastinateWorker | None = None
        self._deadline: asyncio.TimerHandle | None = None

    async def main(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        self._watch_supervisor(loop)
        await self._patiently(self._register)
        app = make_app(self.url, self._play)
        async with app.open_async():
            self._dispatcher = ProcrastinateWorker(
                app,
                queues=queues_for(self.options.labels),
                name=self.name,
                concurrency=1,
                fetch_job_polling_interval=2.0,
                abort_job_polling_interval=3600.0,
                install_signal_handlers=False,
                delete_jobs="always",
                update_heartbeat_interval=60.0,
                stalled_worker_timeout=10
                * 365
                * 86400.0,  # a worker whose row is missing ends; no decision depends on these rows
            )
            if self._stopping:
                return
            ticking = asyncio.create_task(self._tick(), name="forkless tick")
            try:
                await self._dispatcher.run()  # type: ignore[no-untyped-call]
            finally:
                ticking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await ticking
                if self._deadline is not None:
                    self._deadline.cancel()
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(5), await database.connect_async(self.url) as connection:
                        await connection.execute("SELECT forkless.remove_worker(%s)", (self.worker_id,))

    async def _patiently(self, what: Callable[[], Awaitable[None]]) -> None:
        """Try again until the database can be reached. Errors that a later attempt cannot change are raised."""
        said = False
        while not self._stopping:
            try:
                async with asyncio.timeout(60):
                    await what()
            except (ForklessError, psycopg.Error, OSError) as err:
                if not database.is_outage(err.__cause__ or err):
                    raise
                if not said:
                    log.warning("%s", err)
                said = True
                await asyncio.sleep(1.0)
            else:
                return

    async def _register(self) -> None:
        await asyncio.to_thread(schema.check, self.url)
        async with await database.connect_async(self.url) as connection:
            row = await (
                await connection.execute(
                    "SELECT forkless.register_worker(%s, %s, %s, %s, %s::jsonb)", self._about_itself
                )
            ).fetchone()
            self.worker_id = int(row[0]) if row else 0
        log.info("%s waits for runs", self.name)

    # -- ending -----------------------------------------------------------------------------------------------

    def _watch_supervisor(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stdin is a pipe from the supervisor: its end means that the supervisor has ended."""

        def watch() -> None:
            with contextlib.suppress(OSError, ValueError):
                while os.read(0, 64):
                    pass
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._stop, "the supervisor has ended")

        threading.Thread(target=watch, name="forkless-supervisor-watch", daemon=True).start()

    def _on_signal(self) -> None:
        if self._stopping:
            self._hand_back()
        else:
            self._stop("asked to stop")

    def _stop(self, why: str) -> None:
        """Take no more runs; finish the current one, or hand it back at the deadline."""
        if self._stopping:
            return
        self._stopping = True
        log.info("%s: no more runs are taken", why)
        if self._dispatcher is not None:
            self._dispatcher.stop()  # type: ignore[no-untyped-call]
        self._deadline = asyncio.get_running_loop().call_later(self.options.shutdown_after, self._hand_back)

    def _hand_back(self) -> None:
        if self._attempt is not None:
            self._attempt.hand_back(f"its worker {self.name} was shut down")
        elif not self._playing:
            os._exit(0)  # no run is under way: the process can be waiting only for a database that cannot be reached

    # -- working ----------------------------------------------------------------------------------------------

    async def _play(self, number: int, job: int) -> None:
        """Procrastinate's task: returns when the result is in the database, or was refused."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._playing = True

        def work() -> None:
            try:
                self._carry_out(number, job)
            except BaseException:  # a run must not take the loop with it; the sweep of another worker finds the run
                log.exception("run %d was left", number)
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set_result, None)

        thread = threading.Thread(target=work, name=f"forkless-attempt-{number}", daemon=True)
        thread.start()
        # A cancellation must not leave the run behind: procrastinate would call the job done while the run goes on.
        while not done.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(done)
        self._playing = False
        self._done += 1
        if self._done >= self.options.runs:
            self._stop(f"{self._done} runs were carried out")

    def _carry_out(self, number: int, job: int) -> None:
        claimed = self._claim(number, job)
        if claimed is None:
            return
        row, sent = claimed
        self._attempt = Attempt(self._place, row, sent)
        log.info("run %d: attempt %d", number, self._attempt.attempt)
        try:
            verdict = self._attempt.carry_out()
            log.info("run %d: %s", number, verdict)
            if self._attempt.left_behind:
                log.error("run %d left a thread behind; this worker process ends itself", number)
                end_process()
        finally:
            self._attempt = None

    def _claim(self, number: int, job: int) -> tuple[dict[str, object], float] | None:
        pause = threading.Event()
        while True:
            sent = clock()
            try:
                with database.connect(self.url) as connection, database.limited(connection, 15.0):
                    row = connection.execute(
                        "SELECT forkless.claim(%s, %s, %s, %s, %s::jsonb, %s)",
                        (
                            number,
                            job,
                            self.worker_id,
                            self.name,
                            json.dumps(requests.versions()),
                            self.options.lost_after,
                        ),
                    ).fetchone()
                return (row[0], sent) if row and row[0] is not None else None
            except (ForklessError, psycopg.Error, OSError) as err:
                if self._stopping or not database.is_outage(err.__cause__ or err):
                    raise
                pause.wait(0.5)

    # -- the tick ---------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        sweep = Sweep(self.options.lost_after)
        every = max(0.25, min(2.0, self.options.lost_after / 8))
        said = False
        connection: database.AsyncConnection | None = None
        while True:
            try:
                async with asyncio.timeout(30):
                    if connection is None or connection.closed:
                        connection = await database.connect_async(self.url)
                    await connection.execute(
                        "SELECT forkless.worker_here(%s, %s, %s, %s, %s, %s::jsonb, %s)",
                        (self.worker_id, *self._about_itself, self._stopping),
                    )
                    await sweep.once(connection)
                    await schedules.fire_due(connection)
                    await webhooks.deliver_due(connection)
                said = False
            except Exception as err:  # noqa: BLE001  # without this error no code would notice that the tick has ended, and lost runs would stay running
                if not said:
                    log.warning("%s", err if isinstance(err, ForklessError) else database.sentence_of(err, self.url))
                said = True
                if connection is not None:
                    with contextlib.suppress(psycopg.Error, OSError):
                        await connection.close()
                    connection = None
            except asyncio.CancelledError:
                if connection is not None:
                    await connection.close()
                raise
            await asyncio.sleep(every)


def main(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    # procrastinate reports a job that the sweep has finished as an error with a traceback.
    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
    url = os.environ.pop("FORKLESS_WORKER_DATABASE")  # plugins and modules must not see the address with its password
    job_store.use_database(url)
    options = WorkerOptions.from_json(argv[0])
    if options.folder_lock >= 0:
        os.set_inheritable(options.folder_lock, False)  # what a task leaves running must not keep the folder
    try:
        with embedded.EmbeddedServer(options.embedded) if options.embedded else contextlib.nullcontext():
            asyncio.run(WorkerProcess(url, options).main())
    except ForklessError as err:
        sys.stderr.write(f"forkless worker: {err}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
