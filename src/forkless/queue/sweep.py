# SPDX-License-Identifier: GPL-3.0-or-later
"""
What every worker does every few seconds: find runs whose worker has ended and jobs that belong to no run, and launch schedules that are due.

No worker is special. Each decides by what it saw itself, on its own clock, and the database refuses a decision that is out of date.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from forkless.queue.lease import Observation, clock

if TYPE_CHECKING:
    from forkless.queue.database import AsyncConnection

__all__ = ["Sweep"]

log = logging.getLogger("forkless.worker")

# Seconds after which a job of procrastinate that belongs to no run is removed: its worker would have done so at once.
_LEFTOVER = 30.0
# Seconds between two looks for events that were kept long enough.
_RETENTION = 60.0
# Seconds by which the clocks of the database and of a worker may differ.
_CLOCKS_DIFFER = 900.0
# Seconds after which a waiting run without a job gets a new job.
_JOB_GONE = 10.0

_RUNNING = (
    "SELECT id, attempt, renewals, lost_after, worker_name FROM forkless.run WHERE status = 'running' AND slices = 0"
)
_WAITING = """
    SELECT r.id, r.queue_job, j.status::text FROM forkless.run r LEFT JOIN forkless.procrastinate_jobs j ON j.id = r.queue_job
    WHERE r.status = 'waiting' AND r.queue_job IS NOT NULL AND j.status IS DISTINCT FROM 'todo'
"""
_LEFT_OVER = """
    SELECT j.id FROM forkless.procrastinate_jobs j WHERE j.status <> 'todo' AND j.task_name = 'forkless.run'
    AND NOT EXISTS (SELECT 1 FROM forkless.run r WHERE r.queue_job = j.id AND r.status IN ('waiting', 'running'))
"""


class Sweep:
    """For one worker process. `lost_after` is for jobs that were fetched and never claimed; a run has its own."""

    def __init__(self, lost_after: float) -> None:
        self._lost_after = lost_after
        self._next_retention = 0.0
        self._clocks_differ = False
        self._runs, self._jobs, self._left = Observation(), Observation(), Observation()

    async def once(self, connection: AsyncConnection) -> None:
        await connection.execute("SELECT forkless.dispatch_due()")
        await self._lost_runs(connection)
        await self._lost_jobs(connection)
        if clock() >= self._next_retention:
            more = await self._delete_old(connection)
            self._next_retention = clock() + (0.0 if more else _RETENTION)

    async def _delete_old(self, connection: AsyncConnection) -> bool:
        """Delete what was kept long enough; True if there may be more. One of two clocks that differ is wrong, and nothing is deleted by it."""
        row = await (await connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8")).fetchone()
        ahead = (row[0] if row else 0.0) - time.time()
        if abs(ahead) > _CLOCKS_DIFFER:
            if not self._clocks_differ:
                log.warning(
                    "the clocks of the database and of this worker differ by %.0f s; no old run is deleted", abs(ahead)
                )
            self._clocks_differ = True
            return False
        self._clocks_differ = False
        row = await (await connection.execute("SELECT forkless.apply_retention()")).fetchone()
        return bool(row and row[0])

    async def _lost_runs(self, connection: AsyncConnection) -> None:
        rows = await (await connection.execute(_RUNNING)).fetchall()
        silent = self._runs.unchanged({(number, attempt): renewals for number, attempt, renewals, _, _ in rows})
        for number, attempt, renewals, lost_after, name in rows:
            if silent[(number, attempt)] >= lost_after:
                why = f"its worker {name} gave no sign of life for {silent[(number, attempt)]:.0f} s"
                row = await (
                    await connection.execute(
                        "SELECT forkless.give_up(%s, %s, %s, %s)", (number, attempt, renewals, why)
                    )
                ).fetchone()
                if row and row[0] != "refused":
                    log.warning("run %d: %s; it is %s now", number, why, row[0])

    async def _lost_jobs(self, connection: AsyncConnection) -> None:
        rows = await (await connection.execute(_WAITING)).fetchall()
        since = self._jobs.unchanged({(number, job): status for number, job, status in rows})
        for number, job, status in rows:
            if since[(number, job)] >= (self._lost_after if status == "doing" else min(_JOB_GONE, self._lost_after)):
                await connection.execute("SELECT forkless.requeue(%s, %s)", (number, job))
                log.warning("run %d was fetched and not begun; it is queued again", number)
        left = await (await connection.execute(_LEFT_OVER)).fetchall()
        old = self._left.unchanged({job: "" for (job,) in left})
        for job, seconds in old.items():
            if seconds >= _LEFTOVER:
                await connection.execute("SELECT forkless.drop_leftover_job(%s)", (job,))
