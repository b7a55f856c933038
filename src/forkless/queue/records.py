# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of the tables as values: runs, workers, schedules, hosts, and notifications of changes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

__all__ = [
    "ENDED",
    "HostRecap",
    "Json",
    "RunChange",
    "RunRecord",
    "RunState",
    "ScheduleRecord",
    "WorkerRecord",
    "columns",
]

# What a column of type jsonb holds: the border to a package without types for it.
Json: TypeAlias = Any
RunState = Literal["waiting", "running", "successful", "failed", "canceled", "lost"]
ENDED = frozenset({"successful", "failed", "canceled", "lost"})


@dataclass(frozen=True, slots=True)
class RunRecord:
    """
    One run, as the database has it. A slice of a run has `parent_id`; a run in slices has their number in `slices`.

    `spec` has the fields of RunSpec that are not secret, `names` in it says which others were given. `counter` is the position of
    the last event in the run's stream. `progress` has counts: hosts, tasks, ok, changed, failed, unreachable, and the current task.
    """

    id: int
    parent_id: int | None
    slice: int | None
    slices: int
    status: RunState
    spec: Mapping[str, Json]
    project: Mapping[str, Json]
    hosts: list[str] | None
    lock: str | None
    holds_lock: bool
    labels: list[str]
    priority: int
    not_before: dt.datetime | None
    retries: int
    queue_job: int | None
    attempt: int
    worker_id: int | None
    worker_name: str | None
    worker_versions: Mapping[str, str] | None
    renewed: dt.datetime | None
    lost_after: float | None
    counter: int
    place: str | None
    progress: Mapping[str, Json]
    note: str | None
    cancel_requested: dt.datetime | None
    canceled_by: str | None
    created: dt.datetime
    created_by: str
    versions: Mapping[str, str]
    started: dt.datetime | None
    ended: dt.datetime | None
    rc: int | None
    sentence: str | None
    relaunch_of: int | None
    schedule_id: int | None
    has_secrets: bool

    @property
    def over(self) -> bool:
        return self.status in ENDED

    @property
    def title(self) -> str:
        return title_of(self.spec)


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker process that was seen in the last day; `run_id` is what it carries out now, `away` the seconds since its last sign."""

    id: int
    name: str
    host: str
    pid: int
    labels: list[str]
    versions: Mapping[str, str]
    started: dt.datetime
    seen: dt.datetime
    stopping: bool
    away: float
    run_id: int | None


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A playbook that is launched again and again: `due` is the next time, `last_run` the newest run, `note` why the last time was left out."""

    id: int
    name: str
    cron: str
    time_zone: str
    enabled: bool
    due: dt.datetime | None
    if_running: str
    request: Mapping[str, Json]
    created: dt.datetime
    created_by: str
    last_due: dt.datetime | None
    last_run: int | None
    note: str | None


@dataclass(frozen=True, slots=True)
class HostRecap:
    """The recap of one host in one run."""

    run_id: int
    host: str
    ok: int
    changed: int
    unreachable: int
    failed: int
    skipped: int
    rescued: int
    ignored: int


@dataclass(frozen=True, slots=True)
class RunChange:
    """
    A hint that run `run` changed: `root` is the run whose stream it belongs to, `counter` the stream's last position.

    `run` is 0 if changes may have been missed: read everything that is shown again.
    """

    run: int = 0
    root: int = 0
    counter: int = 0
    status: str = ""
    extra: Mapping[str, object] = field(default_factory=dict, repr=False)


def columns(record: type) -> str:
    """The columns of a record for a SELECT, in the order of its fields."""
    return ", ".join(one.name for one in dataclasses.fields(record))


def title_of(spec: Mapping[str, Json]) -> str:
    """What a run does: the playbook, or the module and its hosts, or what is asked about a job."""
    if spec.get("playbook"):
        return " ".join(map(str, spec["playbook"]))
    if "job" in spec:
        return f"{spec['job']['op']} of job {spec['job']['job_name']} on {spec.get('hosts')}"
    return f"{spec.get('module')} on {spec.get('hosts')}"
