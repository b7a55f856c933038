# SPDX-License-Identifier: GPL-3.0-or-later
"""
A queue of runs on PostgreSQL: launch here, carry out there.

    async with forkless.queue.connect("postgresql://...") as queue:
        run = await queue.launch(forkless.RunSpec(playbook="site.yml", inventory="hosts.ini"), labels=["site=fra"])
        async for event in run.events():
            print(event.stdout)
        result = await run.wait()

For programs that show a queue (all methods are coroutines of one loop; a `Queue` serves any number of readers):

- `queue.runs(status=["running"], search="site", host="web1", before=NUMBER, limit=50)`: rows, the newest first, as `RunRecord`.
  `queue.runs(parent=NUMBER)`: the slices of a run. `queue.counts()`: how many are in each state. `queue.record(NUMBER)`: one row.
- `queue.events(NUMBER, after=POSITION)`: the next stored events of a run in order; `Event.counter` is the position in the run's stream
  (over slices and attempts), which never goes back: the `Last-Event-ID` of a reader. `queue.follow(NUMBER, after=POSITION)`: the same as an
  endless read until the run has ended.
- `queue.changes()` or `queue.changes(NUMBER)`: lists of `RunChange(run, root, counter, status)`. One LISTEN for all readers of a `Queue`. A hint
  only: `run == 0` means "look for yourself", and comes first, after a lost connection, and every 2 s.
- `queue.cancel(NUMBER, by=WHO)`, `queue.relaunch(NUMBER, failed=True, by=WHO)`, `queue.launch(spec, by=WHO, ...)` with LaunchOptions' fields.
- `queue.hosts(NUMBER)`, `queue.host_history(HOST)`: recaps by host. `queue.waits_for(NUMBER)`: why a run does not begin.
- `queue.workers()`, `queue.schedules()`.

Errors are `QueueError`s with one sentence; `QueueRequestError` (a SpecError) means that nothing was queued.
"""

from __future__ import annotations

from forkless.queue.client import Queue, QueuedRun, connect
from forkless.queue.errors import (
    DatabaseError,
    DatabaseFullError,
    DeliveredError,
    QueueError,
    QueueRequestError,
    SchemaError,
    UnknownRunError,
)
from forkless.queue.records import HostRecap, RunChange, RunRecord, ScheduleRecord, WorkerRecord
from forkless.queue.requests import LaunchOptions

__all__ = [
    "DatabaseError",
    "DatabaseFullError",
    "DeliveredError",
    "HostRecap",
    "LaunchOptions",
    "Queue",
    "QueueError",
    "QueueRequestError",
    "QueuedRun",
    "RunChange",
    "RunRecord",
    "ScheduleRecord",
    "SchemaError",
    "UnknownRunError",
    "WorkerRecord",
    "connect",
]
