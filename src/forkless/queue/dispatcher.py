# SPDX-License-Identifier: GPL-3.0-or-later
"""
procrastinate as dispatcher: it fetches the next job by priority and is woken by NOTIFY. Nothing else of it is used.

Its heartbeat, retries, locks and periodic tasks would begin healthy runs twice, or block for ever; forkless has its own of these. A job holds the
number of a run and nothing else, because procrastinate logs a job's arguments.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, TypeVar

import procrastinate
import psycopg
import psycopg_pool
from procrastinate import exceptions

from forkless.queue.database import conninfo, is_outage, readable_style, sentence_of
from forkless.queue.requests import MOST_LABELS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from procrastinate import connector as connectors

__all__ = ["PatientConnector", "make_app", "queues_for"]

Answer = TypeVar("Answer")
log = logging.getLogger("forkless.worker")

_WORKER_AGAIN = (
    "INSERT INTO procrastinate_workers (id) OVERRIDING SYSTEM VALUE VALUES (%(worker_id)s) ON CONFLICT DO NOTHING"
)
# A statement that takes longer than this is on a dead connection.
_PATIENCE = 15.0


class PatientConnector(procrastinate.PsycopgConnector):
    """A connector that tries again while the database is away. Without it procrastinate's loops end silently, one by one."""

    _place = ""

    async def _patiently(self, what: Callable[[], Awaitable[Answer]], limit: float | None = _PATIENCE) -> Answer:
        pause, said = 0.1, False
        while True:
            try:
                async with asyncio.timeout(limit):
                    return await what()
            except exceptions.ConnectorException as err:
                trouble: BaseException = err.__cause__ or err
                if not isinstance(
                    trouble, psycopg.OperationalError | psycopg.InterfaceError | psycopg_pool.PoolTimeout
                ) and not is_outage(trouble):
                    raise
            except (
                psycopg.OperationalError,
                psycopg.InterfaceError,
                psycopg_pool.PoolTimeout,
                TimeoutError,
                OSError,
            ) as err:
                trouble = err
            if not said:
                log.warning("no run can be fetched: %s", sentence_of(trouble, self._place))
                said = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def execute_query_async(self, query: str, **arguments: object) -> None:
        try:
            await self._patiently(lambda: super(PatientConnector, self).execute_query_async(query, **arguments))
        except exceptions.ConnectorException as err:
            # The job of a run that was given up, or handed back, is no longer there when procrastinate ends it.
            if "finish_job" not in query or not isinstance(err.__cause__, psycopg.errors.RaiseException):
                raise

    async def execute_query_one_async(self, query: str, **arguments: object) -> dict[str, object]:
        try:
            return await self._patiently(
                lambda: super(PatientConnector, self).execute_query_one_async(query, **arguments)
            )
        except exceptions.ConnectorException as err:
            if "worker_id" not in arguments or not isinstance(err.__cause__, psycopg.errors.ForeignKeyViolation):
                raise
        # A failover has lost procrastinate's row of this worker. No decision depends on these rows, but a fetch refers to it.
        await self.execute_query_async(_WORKER_AGAIN, worker_id=arguments["worker_id"])
        return await self._patiently(lambda: super(PatientConnector, self).execute_query_one_async(query, **arguments))

    async def execute_query_all_async(self, query: str, **arguments: object) -> list[dict[str, object]]:
        return await self._patiently(lambda: super(PatientConnector, self).execute_query_all_async(query, **arguments))

    async def listen_notify(self, on_notification: connectors.Notify, channels: Iterable[str]) -> None:
        names = list(channels)
        await self._patiently(lambda: super(PatientConnector, self).listen_notify(on_notification, names), limit=None)


async def _configure(connection: psycopg.AsyncConnection[object]) -> None:
    # A worker that is stopped, or cut off, between a fetch and its commit would keep the job locked for as long as its session lives.
    await connection.set_autocommit(True)
    # Not as a setting of the connection itself: pgbouncer refuses that.
    await connection.execute("SET search_path = forkless")
    if setting := readable_style(connection.info):
        await connection.execute(setting)


def make_app(url: str, play: Callable[[int, int], Awaitable[None]]) -> procrastinate.App:
    """An app with the one task: `play(run, job)`."""
    connector = PatientConnector(
        conninfo=conninfo(url),
        configure=_configure,
        min_size=1,
        max_size=3,
        timeout=5.0,
        kwargs={"prepare_threshold": None},
    )
    connector._place = url
    app = procrastinate.App(connector=connector)

    @app.task(name="forkless.run", pass_context=True)
    async def forkless_run(context: procrastinate.JobContext, run: int) -> None:
        await play(run, context.job.id or 0)

    return app


def queues_for(labels: Sequence[str]) -> list[str]:
    """
    The queues that a worker with these labels serves: one for each set of labels that a run may ask for.

    The names are those of the SQL function `queue_for`.
    """
    import hashlib

    wanted = sorted(set(labels))[:MOST_LABELS]
    names = ["forkless"]
    for many in range(1, len(wanted) + 1):
        sets = ("\n".join(sorted(chosen)) for chosen in itertools.combinations(wanted, many))
        names += ["forkless:" + hashlib.sha256(chosen.encode()).hexdigest()[:16] for chosen in sets]
    return names
