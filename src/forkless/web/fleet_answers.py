# SPDX-License-Identifier: GPL-3.0-or-later
"""What the API says about hosts, workers, the queue, schedules, users, and two runs compared."""

# Evaluated at run time by pydantic: no `from __future__ import annotations`.
import datetime as dt
import os

from pydantic import BaseModel, ConfigDict, Field

from forkless.queue import ScheduleRecord, WorkerRecord
from forkless.queue.history import HostRun, HostSummary
from forkless.queue.host_jobs import HostJob
from forkless.queue.records import title_of
from forkless.web.answers import RunAnswer, plain

Name = Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$")


class HostSummaryAnswer(BaseModel):
    host: str
    run: int
    at: dt.datetime | None
    failures: int = Field(description="Failures in its newest run")
    failed_run: int | None
    failed_at: dt.datetime | None
    changed_run: int | None
    changed_at: dt.datetime | None

    @classmethod
    def of(cls, found: HostSummary) -> "HostSummaryAnswer":
        return cls(**{name: getattr(found, name) for name in cls.model_fields})


class HostSummariesAnswer(BaseModel):
    """Hosts by name. `after` is for the next page; null on the last one."""

    hosts: list[HostSummaryAnswer]
    after: str | None


class HostRunAnswer(BaseModel):
    run: int
    status: str
    title: str
    started: dt.datetime | None
    ended: dt.datetime | None
    ok: int
    changed: int
    unreachable: int
    failed: int
    skipped: int
    rescued: int
    ignored: int

    @classmethod
    def of(cls, found: HostRun) -> "HostRunAnswer":
        title = title_of(found.spec)
        rest = {name: getattr(found, name) for name in cls.model_fields if name != "title"}
        return cls(title=plain(title, found.project), **rest)


class HostHistoryAnswer(BaseModel):
    """The runs of one host, the newest first."""

    host: str
    runs: list[HostRunAnswer]
    older: int | None


class HostJobAnswer(BaseModel):
    """A job that outlives its run. Its state is what the host said when it was asked last."""

    id: str
    job_name: str
    playbook_name: str
    project: str
    saved: str
    state: str = Field(
        description="running, done, failed, killed, timed_out, dead, lost, claimed; empty: the host was not asked yet"
    )
    why: str
    output: str
    seen: dt.datetime | None
    run: int | None = Field(description="The run that asked the host last")
    asking: int | None = Field(description="The run that asks the host at the moment")
    asking_for: str = Field(
        description="What that run asks for: status, output or kill; its stream has the output as it comes"
    )

    @classmethod
    def of(cls, found: HostJob) -> "HostJobAnswer":
        said = found.answer
        scope = found.scope.partition("#")[0]
        return cls(
            id=found.id, job_name=plain(found.job_name), playbook_name=plain(found.playbook_name),
            project=os.path.basename(scope.rstrip("/").removesuffix(".git")), saved=found.saved,
            state=said.state if said is not None else "claimed" if found.is_claimed else "",
            why=plain(said.why) if said is not None else "", output=plain(said.output)[-20_000:] if said is not None else "",
            seen=said.at if said is not None else None, run=said.run if said is not None else None, asking=found.asking, asking_for=found.asking_for,
        )  # fmt: skip


class HostJobsAnswer(BaseModel):
    host: str
    jobs: list[HostJobAnswer]


class WorkerAnswer(BaseModel):
    """A worker process: it carries out one run at a time."""

    id: int
    name: str
    host: str
    pid: int
    labels: list[str]
    versions: dict[str, str]
    started: dt.datetime
    seen: dt.datetime
    away: float = Field(description="Seconds since its last sign")
    state: str = Field(description="busy, idle, stopping or away")
    run: int | None
    title: str = Field(description="What that run carries out")
    at: str = Field(description="The task at which it is")

    @classmethod
    def of(cls, found: WorkerRecord, run: RunAnswer | None) -> "WorkerAnswer":
        state = "away" if found.away > 60 else "stopping" if found.stopping else "busy" if found.run_id else "idle"
        return cls(
            id=found.id, name=found.name, host=found.host, pid=found.pid, labels=list(found.labels), versions=dict(found.versions),
            started=found.started, seen=found.seen, away=max(0.0, found.away), state=state, run=found.run_id,
            title=run.title if run is not None else "", at=run.at if run is not None else "",
        )  # fmt: skip


class WorkersAnswer(BaseModel):
    workers: list[WorkerAnswer]


class WaitingRun(BaseModel):
    run: RunAnswer
    why: str = Field(description="What it waits for")


class QueueAnswer(BaseModel):
    """What is under way, and what waits for what."""

    running: list[RunAnswer]
    waiting: list[WaitingRun]
    free_workers: int
    limits: dict[str, int] = Field(description="How many runs with a label may be under way at once")


class ScheduleAnswer(BaseModel):
    name: str
    cron: str
    time_zone: str
    enabled: bool
    due: dt.datetime | None
    if_running: str
    title: str
    limit: str
    project: str
    created: dt.datetime
    created_by: str
    last_due: dt.datetime | None
    last_run: int | None
    note: str

    @classmethod
    def of(cls, found: ScheduleRecord) -> "ScheduleAnswer":
        spec, project = found.request.get("spec", {}), found.request.get("project", {})
        title = " ".join(map(str, spec.get("playbook", []))) or f"{spec.get('module')} on {spec.get('hosts')}"
        return cls(
            name=found.name, cron=found.cron, time_zone=found.time_zone, enabled=found.enabled, due=found.due,
            if_running=found.if_running, title=plain(title, project), limit=str(spec.get("limit") or ""),
            project=os.path.basename(str(project.get("name", "")).rstrip("/")), created=found.created, created_by=found.created_by,
            last_due=found.last_due, last_run=found.last_run, note=found.note or "",
        )  # fmt: skip


class SchedulesAnswer(BaseModel):
    schedules: list[ScheduleAnswer]


class DifferenceAnswer(BaseModel):
    host: str
    task: str
    path: str
    before: str
    after: str
    output: str


class SlowerAnswer(BaseModel):
    task: str
    before: float
    after: float


class ComparisonAnswer(BaseModel):
    """What is in the second run that was not in the first."""

    first: RunAnswer
    second: RunAnswer
    failed: list[DifferenceAnswer] = Field(description="Failed now, and did not before")
    recovered: list[DifferenceAnswer] = Field(description="Failed before, and does not now")
    changed: list[DifferenceAnswer] = Field(description="Changed something now, and did not before")
    unchanged: list[DifferenceAnswer] = Field(description="Changed something before, and does not now")
    slower: list[SlowerAnswer]
    only_first: list[str] = Field(description="Hosts of the first run only")
    only_second: list[str]


# -- people ---------------------------------------------------------------------------------------------------------


class LoginRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Name
    password: str = Field(min_length=1, max_length=500)


class PasswordRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    old: str = Field(min_length=1, max_length=500)
    new: str = Field(min_length=10, max_length=500)


class MeAnswer(BaseModel):
    name: str
    role: str


class UserAnswer(BaseModel):
    name: str
    role: str
    has_password: bool = Field(description="Without one only a reverse proxy can say that somebody is this user")
    created: dt.datetime
    last_seen: dt.datetime | None


class UsersAnswer(BaseModel):
    users: list[UserAnswer]


class NewUserRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$")
    role: str = Field(pattern="^(viewer|operator|admin)$")
    password: str | None = Field(None, min_length=10, max_length=500)


class ChangeUserRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: str | None = Field(None, pattern="^(viewer|operator|admin)$")
    password: str | None = Field(None, min_length=10, max_length=500)


class SessionAnswer(BaseModel):
    id: int
    user_name: str
    about: str
    created: dt.datetime
    seen: dt.datetime
    ends: dt.datetime


class SessionsAnswer(BaseModel):
    sessions: list[SessionAnswer]


class TokenAnswer(BaseModel):
    id: int
    user_name: str
    name: str
    role: str
    created: dt.datetime
    seen: dt.datetime | None
    ends: dt.datetime


class TokensAnswer(BaseModel):
    tokens: list[TokenAnswer]


class NewTokenRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Name
    role: str = Field("viewer", pattern="^(viewer|operator|admin)$", description="What it may do, at most")
    days: int = Field(30, ge=1, le=366, description="When it ends")


class NewTokenAnswer(BaseModel):
    token: str = Field(description="It cannot be shown again")


class AuditAnswer(BaseModel):
    id: int
    at: dt.datetime
    who: str
    what: str
    run_id: int | None
    about: str


class AuditsAnswer(BaseModel):
    """What was done, the newest first."""

    entries: list[AuditAnswer]
    older: int | None


class DoneAnswer(BaseModel):
    done: bool = True
