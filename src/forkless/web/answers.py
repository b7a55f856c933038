# SPDX-License-Identifier: GPL-3.0-or-later
"""The types of the HTTP API's requests and answers. Nothing here holds a secret or a path of a machine of ours."""

# Evaluated at run time by pydantic: no `from __future__ import annotations`.
import datetime as dt
import re
import shlex
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from forkless.core.events import Event
from forkless.queue import HostRecap, RunRecord

__all__ = [
    "HostRecapAnswer",
    "HostsAnswer",
    "ProjectAnswer",
    "RelaunchRequest",
    "RunAnswer",
    "RunEvent",
    "RunEventsAnswer",
    "RunsAnswer",
    "StartRequest",
    "plain",
]

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)|[\x00-\x08\x0b-\x1f\x7f]")
# Where a worker unpacks a project (queue/attempt.py): the folder is named by the first 32 digits of its hash or commit.
_UNPACKED = re.compile(r"/[^\s\"'\\:,]*/[0-9a-f]{32}/project(?:/|(?![\w.-]))")
_MOST_TEXT = 20_000
_RESULTS = {
    "runner_on_ok": "ok", "runner_on_failed": "failed", "runner_on_unreachable": "unreachable", "runner_on_skipped": "skipped",
    "runner_on_start": "running",
}  # fmt: skip


def plain(text: str, project: Mapping[str, object] | None = None) -> str:
    """Text without escape sequences and without the folder that the project lay in on a worker."""
    text = _UNPACKED.sub("", _ESCAPES.sub("", text))
    if project is not None and project.get("kind") == "folder":
        text = text.replace(str(project["path"]).rstrip("/") + "/", "")
    return text


class RunAnswer(BaseModel):
    """One run."""

    id: int
    status: str
    title: str
    created_by: str
    limit: str
    inventory: list[str]
    tags: list[str]
    check: bool
    hosts: int
    tasks: int
    ok: int
    changed: int
    failures: int
    at: str = Field(description="The task that is being carried out")
    created: dt.datetime
    started: dt.datetime | None
    ended: dt.datetime | None
    seconds: float | None = Field(description="How long it took, or has taken until `now`")
    now: dt.datetime
    rc: int | None
    sentence: str
    worker: str
    attempt: int
    slices: int
    relaunch_of: int | None
    stopping: bool = Field(description="Its end was asked for")
    counter: int = Field(description="The position of its last event")
    command: str = Field(description="The same run as a command line; values that may be secret are not in it")
    versions: dict[str, str]

    @classmethod
    def of(cls, record: RunRecord) -> "RunAnswer":
        now = dt.datetime.now(dt.UTC)
        counts = {
            name: int(record.progress.get(name) or 0)
            for name in ("hosts", "tasks", "ok", "changed", "failed", "unreachable")
        }
        until = record.ended or now
        return cls(
            id=record.id, status=record.status, title=plain(record.title, record.project), created_by=record.created_by,
            limit=str(record.spec.get("limit") or ""), inventory=[plain(str(one), record.project) for one in record.spec.get("inventory", [])],
            tags=[str(one) for one in record.spec.get("tags", [])], check=bool(record.spec.get("check")),
            hosts=counts["hosts"], tasks=counts["tasks"], ok=counts["ok"], changed=counts["changed"],
            failures=counts["failed"] + counts["unreachable"], at="" if record.over else plain(record.place or "", record.project),
            created=record.created, started=record.started, ended=record.ended,
            seconds=max(0.0, (until - record.started).total_seconds()) if record.started else None, now=now, rc=record.rc,
            sentence=plain(record.sentence or "", record.project), worker=record.worker_name or "", attempt=record.attempt,
            slices=record.slices, relaunch_of=record.relaunch_of, stopping=not record.over and record.cancel_requested is not None,
            counter=record.counter, command=_command(record), versions=dict(record.worker_versions or record.versions),
        )  # fmt: skip


def _command(record: RunRecord) -> str:
    spec = record.spec
    words = ["forkless", "launch", *map(str, spec.get("playbook", []))]
    for flag, name in (("-i", "inventory"), ("--tags", "tags"), ("--skip-tags", "skip_tags")):
        for value in spec.get(name, []):
            words += [flag, str(value)]
    if spec.get("limit"):
        words += ["--limit", str(spec["limit"])]
    words += [f"--{name}" for name in ("check", "diff", "become") if spec.get(name)]
    if spec.get("forks"):
        words += ["--forks", str(spec["forks"])]
    words += ["--label=" + label for label in record.labels]
    return " ".join(shlex.quote(plain(word, record.project)) for word in words)


class RunsAnswer(BaseModel):
    """A page of runs, the newest first."""

    runs: list[RunAnswer]
    counts: dict[str, int] = Field(
        description="How many runs are in each state, not counting the filters of the request"
    )
    older: int | None = Field(description="`before` for the next page; null on the last one")


class HostRecapAnswer(BaseModel):
    """The recap of a host in a run."""

    host: str
    ok: int
    changed: int
    unreachable: int
    failed: int
    skipped: int
    rescued: int
    ignored: int

    @classmethod
    def of(cls, recap: HostRecap) -> "HostRecapAnswer":
        return cls(**{name: getattr(recap, name) for name in cls.model_fields})


class HostsAnswer(BaseModel):
    hosts: list[HostRecapAnswer]


class RunEvent(BaseModel):
    """One event of a run, as the page needs it. `GET /api/runs/N/events.jsonl` has the whole ones."""

    n: int = Field(description="The position in the run's stream")
    event: str
    text: str = Field(description="What Ansible printed")
    host: str = ""
    task: str = ""
    key: str = Field("", description="Names the task: two tasks may have one name")
    state: str = Field(
        "", description="running, ok, changed, failed, ignored, unreachable or skipped, for an event of a host"
    )
    path: str = Field("", description="file:line of the task")
    output: str = Field("", description="For a failure: what matters of the result")

    @classmethod
    def of(cls, event: Event, project: Mapping[str, object] | None) -> "RunEvent":
        data = event.event_data
        state = _RESULTS.get(event.event, "")
        res = data.get("res")
        if state == "failed" and data.get("ignore_errors"):
            state = "ignored"
        elif state == "ok" and isinstance(res, Mapping) and res.get("changed"):
            state = "changed"
        output = ""
        if state in ("failed", "ignored", "unreachable") and isinstance(res, Mapping):
            output = plain(_what_matters(res), project)
        return cls(
            n=event.counter, event=event.event, text=plain(event.stdout, project)[:_MOST_TEXT], host=plain(event.host or ""),
            task=plain(event.task or ""), key=str(data.get("task_uuid") or ""), state=state,
            path=plain(str(data.get("task_path") or ""), project), output=output,
        )  # fmt: skip


def _what_matters(res: Mapping[str, object]) -> str:
    parts = [str(res[name]) for name in ("msg", "stderr", "stdout", "exception") if res.get(name)]
    results = res.get("results")
    if isinstance(results, list):
        failed = (one for one in results if isinstance(one, Mapping) and (one.get("failed") or one.get("unreachable")))
        parts += [f"item {one.get('item')!r}: {_what_matters(one)}" for one in failed]
    text = "\n".join(dict.fromkeys(part.strip() for part in parts))
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "\n... the events have all of it"


class RunEventsAnswer(BaseModel):
    """The next events after a position, in order and without gaps. Empty: there are none yet."""

    events: list[RunEvent]
    behind: int = Field(description="How many events follow that are not in this answer")


class ProjectAnswer(BaseModel):
    """What can be started. Empty without --project."""

    name: str
    playbooks: list[str]
    inventories: list[str]


class StartRequest(BaseModel):
    """A run to queue. Files are named relative to the project."""

    model_config = ConfigDict(extra="forbid")

    playbook: str = Field(min_length=1, max_length=500)
    inventory: str = Field("", max_length=500)
    limit: str = Field("", max_length=2000)
    tags: str = Field("", max_length=1000, description="Separated by commas")
    check: bool = False
    diff: bool = False


class RelaunchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    failed: bool = Field(default=False, description="Only on hosts that failed or were not reached")
