# SPDX-License-Identifier: GPL-3.0-or-later
"""The types of the HTTP API's requests and answers. Nothing here holds a secret or a path of a machine of ours."""

# Evaluated at run time by pydantic: no `from __future__ import annotations`.
import datetime as dt
import functools
import os
import re
import shlex
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from forkless.core.events import Event, item_failed
from forkless.queue import HostRecap, RunRecord
from forkless.web import diffs

__all__ = [
    "ErrorAnswer",
    "FoundLine",
    "FoundLinesAnswer",
    "HookAnswer",
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
    "what_matters",
]

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)|[\x00-\x08\x0b-\x1f\x7f]")
# Where a worker unpacks a project (queue/attempt.py): the folder is named by the first 32 digits of its hash or commit. A word is looked at
# from its beginning only: from each slash of a long one would take quadratic time.
_UNPACKED = re.compile(r"(?<![^\s\"'\\:,])([^\s\"'\\:,/]*)/[^\s\"'\\:,]*/[0-9a-f]{32}/project(?:/|(?![\w.-]))")
_MOST_TEXT = 20_000
_MOST_NAME = 200
_RESULTS = {
    "runner_on_ok": "ok", "runner_on_failed": "failed", "runner_on_unreachable": "unreachable", "runner_on_skipped": "skipped",
    "runner_on_start": "running",
}  # fmt: skip


# What of a failed result is shown, in this order.
_SAYS_WHY = ("msg", "reason", "censored", "stderr", "stdout", "module_stderr", "module_stdout", "exception")
_WITH_A_TASK = frozenset({*_RESULTS, "runner_on_output", "runner_on_file_diff"})


def plain(text: str, project: Mapping[str, object] | None = None) -> str:
    """Text without escape sequences and without the folder that the project lay in on a worker."""
    root = str(project["path"]).rstrip("/") if project is not None and project.get("kind") == "folder" else ""
    return _plain_name(text, root) if len(text) <= _MOST_NAME else _plain(text, root)


def _plain(text: str, root: str) -> str:
    text = _UNPACKED.sub(r"\1", _ESCAPES.sub("", text))
    if root:
        text = text.replace(root + "/", "")
        text = re.sub(re.escape(root) + r"(?![\w.-]*[\w-])", lambda _: os.path.basename(root), text)
    return text


# Names of hosts and tasks come again with each event.
_plain_name = functools.lru_cache(maxsize=8192)(_plain)


class ErrorAnswer(BaseModel):
    error: str = Field(description="One sentence: what is wrong, and what to do")


class RunAnswer(BaseModel):
    """One run."""

    id: int
    status: str
    title: str
    created_by: str
    limit: str
    inventory: list[str]
    tags: list[str]
    skip_tags: list[str]
    check: bool
    diff: bool
    project: str = Field(description="The folder or repository that the run's files are of")
    commit: str = Field(description="The commit of those files, if they were a git checkout")
    given: list[str] = Field(
        description="Names of variables, passwords and options that were given; their values are in no answer"
    )
    labels: list[str]
    lock: str
    priority: int
    note: str
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
    silent_since: dt.datetime | None = Field(
        description="The last sign of its worker, if that is longer ago than it should be: the worker may have been killed"
    )
    lost_at: dt.datetime | None = Field(description="When the run is given up, if no sign follows")
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
        silent_since = _silent_since(record, now)
        return cls(
            id=record.id, status=record.status, title=plain(record.title, record.project), created_by=record.created_by,
            limit=str(record.spec.get("limit") or ""), inventory=[plain(str(one), record.project) for one in record.spec.get("inventory", [])],
            tags=_texts(record, "tags"), skip_tags=_texts(record, "skip_tags"), check=bool(record.spec.get("check")),
            diff=bool(record.spec.get("diff")), project=os.path.basename(str(record.project.get("name", "")).rstrip("/")),
            commit=str(record.project.get("commit") or ""), given=_texts(record, "names"), labels=list(record.labels),
            lock=plain(record.lock or "", record.project), priority=record.priority, note=plain(record.note or "", record.project),
            hosts=counts["hosts"], tasks=counts["tasks"], ok=counts["ok"], changed=counts["changed"],
            failures=counts["failed"] + counts["unreachable"], at="" if record.over else plain(record.place or "", record.project),
            created=record.created, started=record.started, ended=record.ended,
            seconds=max(0.0, (until - record.started).total_seconds()) if record.started else None, now=now, rc=record.rc,
            sentence=plain(record.sentence or "", record.project), worker=record.worker_name or "", attempt=record.attempt,
            slices=record.slices, relaunch_of=record.relaunch_of, stopping=not record.over and record.cancel_requested is not None,
            silent_since=silent_since, lost_at=silent_since and silent_since + dt.timedelta(seconds=record.lost_after or 0.0),
            counter=record.counter, command=_command(record), versions=dict(record.worker_versions or record.versions),
        )  # fmt: skip


def _silent_since(record: RunRecord, now: dt.datetime) -> dt.datetime | None:
    # A worker gives a sign at least every quarter of that time. A run in slices has several workers, and each slice tells of its own.
    if record.status != "running" or record.slices or record.renewed is None or record.lost_after is None:
        return None
    return record.renewed if (now - record.renewed).total_seconds() > record.lost_after * 0.4 else None


def _texts(record: RunRecord, name: str) -> list[str]:
    return [str(one) for one in record.spec.get(name, [])]


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
    if record.slices:
        words += ["--slices", str(record.slices)]
    if record.retries:
        words += ["--retries", str(record.retries)]
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
    text: str = Field("", description="What Ansible printed; for runner_on_output what the task printed")
    host: str = ""
    task: str = ""
    key: str = Field("", description="Names the task: two tasks may have one name")
    state: str = Field(
        "", description="running, ok, changed, failed, ignored, unreachable or skipped, for an event of a host"
    )
    path: str = Field("", description="file:line of the task")
    output: str = Field("", description="For a failure: what matters of the result")
    diff: str = Field("", description="What changed, as a unified diff")
    at: float = Field(0, description="When, in seconds since 1970")
    took: float = Field(0, description="For a result: how many seconds the task took on the host")

    @classmethod
    def of(cls, event: Event, project: Mapping[str, object] | None, *, brief: bool = False) -> "RunEvent":
        """With `brief` without the text of the log: a page that is far behind shows only the end of it."""
        data = event.event_data
        state = _RESULTS.get(event.event, "")
        res = data.get("res")
        if state == "failed" and data.get("ignore_errors"):
            state = "ignored"
        elif state == "ok" and isinstance(res, Mapping) and res.get("changed"):
            state = "changed"
        output = ""
        if state in ("failed", "ignored", "unreachable") and isinstance(res, Mapping):
            output = plain(what_matters(res), project)
        text = event.stdout if event.event != "runner_on_output" else str(data.get("text") or "")
        about = event.event in _WITH_A_TASK
        return cls(
            n=event.counter, event=event.event, text="" if brief else plain(text, project)[:_MOST_TEXT], host=plain(event.host or ""),
            task=plain(event.task or "") if about else "", key=str(data.get("task_uuid") or "") if about else "", state=state,
            path=plain(str(data.get("task_path") or ""), project) if about else "", output=output,
            diff=plain(diffs.of_result(data), project) if event.event == "runner_on_file_diff" else "",
            at=_epoch(event.created), took=_number(data.get("duration")),
        )  # fmt: skip


def _number(value: object) -> float:
    return round(value, 3) if isinstance(value, (int, float)) else 0.0


def _epoch(created: str) -> float:
    try:
        when = dt.datetime.fromisoformat(created)
    except ValueError:
        return 0.0
    return round((when if when.tzinfo else when.replace(tzinfo=dt.UTC)).timestamp(), 3)


def what_matters(res: Mapping[str, object]) -> str:
    """The text of a failed result that says why: the message first, then what the program printed."""
    parts = [str(res[name]) for name in _SAYS_WHY if res.get(name) and res[name] != "(traceback unavailable)"]
    if res.get("rc") not in (None, 0):
        parts.insert(1, f"exit status {res['rc']}")
    results = res.get("results")
    if isinstance(results, list):
        failed = (one for one in results if isinstance(one, Mapping) and item_failed(one))
        parts += [f"item {one.get('_ansible_item_label', one.get('item'))!r}: {what_matters(one)}" for one in failed]
    text = "\n".join(dict.fromkeys(part.strip() for part in parts if part.strip()))
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "\n... the events have all of it"


class RunEventsAnswer(BaseModel):
    """The next events after a position, in order and without gaps. Empty: there are none yet."""

    events: list[RunEvent]
    behind: int = Field(description="How many events follow that are not in this answer")


class FoundLine(BaseModel):
    n: int = Field(description="The position of its event")
    text: str
    host: str
    task: str


class FoundLinesAnswer(BaseModel):
    """Lines of the output that contain a text. `next` is `after` for the events behind them; null if all were looked at."""

    lines: list[FoundLine]
    next: int | None


class ProjectAnswer(BaseModel):
    """What can be started of one project."""

    name: str
    playbooks: list[str]
    inventories: list[str]
    trouble: str = Field("", description="Why its files may be old: the repository could not be fetched")


class ProjectsAnswer(BaseModel):
    """Empty if none is configured."""

    projects: list[ProjectAnswer]


class StartRequest(BaseModel):
    """A run to queue. Files are named relative to the project."""

    model_config = ConfigDict(extra="forbid")

    project: str = Field("", max_length=100, description="The first one if it is not given")
    playbook: str = Field(min_length=1, max_length=500)
    inventory: str = Field("", max_length=500)
    limit: str = Field("", max_length=2000)
    tags: str = Field("", max_length=1000, description="Separated by commas")
    skip_tags: str = Field(default="", max_length=1000, description="Separated by commas")
    check: bool = False
    diff: bool = False
    slices: int | Literal["auto"] = Field(
        default=1, description="Split the hosts over so many runs; auto: as many as there are workers"
    )
    retries: int = Field(default=0, ge=0, le=10, description="How often it may begin again after its worker was lost")
    variables: dict[str, str] = Field(
        default_factory=dict,
        max_length=200,
        description="Values by name, as text; they are stored sealed and are in no answer",
    )


class PreviewAnswer(BaseModel):
    hosts: list[str] = Field(description="At most 1000 of them")
    count: int


class VariableAnswer(BaseModel):
    name: str
    label: str
    type: str
    required: bool
    secret: bool
    default: str
    choices: list[str]
    source: str


class VariablesAnswer(BaseModel):
    variables: list[VariableAnswer]


class ScheduleRequest(BaseModel):
    """A run to start again and again. Its files are packed now: a schedule runs the same files each time."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    cron: str = Field(min_length=9, max_length=100, description="Minute, hour, day, month, weekday: 0 3 * * *")
    time_zone: str = Field("UTC", max_length=60)
    if_running: Literal["skip", "queue"] = "skip"
    run: StartRequest


class HookAnswer(BaseModel):
    run: int | None
    why: str = Field(description="Why no run was started")


class RelaunchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    failed: bool = Field(default=False, description="Only on hosts that failed or were not reached")
