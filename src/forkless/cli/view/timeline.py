# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a run, computed from its events: plays, tasks, hosts and spans. The live view, profile and report read it."""

from __future__ import annotations

import collections
import datetime as dt
import heapq
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forkless.core.events import item_failed

if TYPE_CHECKING:
    from forkless.core.events import Event

__all__ = ["Failure", "HostProgress", "Running", "Span", "Task", "Timeline", "epoch"]

_ENDS = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_skipped": "skipped",
    "runner_on_unreachable": "unreachable",
}
# The fields of a failed result that are shown, most useful first. "invocation" is left out: it contains the arguments.
SAID = ("msg", "reason", "censored", "stdout", "stderr", "module_stdout", "module_stderr", "exception")
# The most characters of a field that are kept: a result can contain a whole file.
MOST = 20_000
# The most outputs of a running task that are kept.
MOST_OUTPUT = 50


@dataclass(slots=True)
class Task:
    """One task of a play, with its results on all hosts together."""

    number: int
    name: str
    action: str
    path: str
    play: int
    hosts: int = 0
    failed: int = 0
    total: float = 0.0
    longest: float = 0.0
    slowest: str = ""


@dataclass(slots=True)
class HostProgress:
    """One host: its result in each task, and how long it was busy."""

    name: str
    cells: dict[int, str] = field(default_factory=dict)
    busy: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One task on one host, from `start` for `seconds`; `lane` is the number of the worker that ran it."""

    host: str
    task: int
    start: float
    seconds: float
    state: str
    lane: int


@dataclass(slots=True)
class Running:
    """One host with the task that it is running now."""

    host: str
    task: int
    start: float
    lane: int
    note: str = ""
    said: collections.deque[tuple[float, str, str]] = field(
        default_factory=lambda: collections.deque(maxlen=MOST_OUTPUT)
    )
    """The newest outputs while it runs: when, the stream, the text."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure: the host, the task and the message."""

    host: str
    task: int
    state: str
    ignored: bool
    said: dict[str, str]
    output: tuple[tuple[float, str, str], ...] = ()
    """What the task printed before it failed: seconds after its start, the stream, the text."""

    @property
    def sentence(self) -> str:
        for text in self.said.values():
            if text.strip():
                return text.strip().splitlines()[0]
        return "it gave no reason"


class Timeline:
    """Any thread may call `feed`; other threads read the fields while they hold `lock`."""

    def __init__(self) -> None:
        # Held during one event or one drawing, never while other code is called.
        self.lock = threading.RLock()
        self.began = time.time()
        self.ended: float | None = None
        self.plays: list[str] = []
        self.tasks: list[Task] = []
        self.hosts: dict[str, HostProgress] = {}
        self.spans: list[Span] = []
        self.running: dict[tuple[str, str], Running] = {}
        self.failures: list[Failure] = []
        self.lanes = 0
        self.done_in_play = 0
        self._play_uuid = ""
        self._by_uuid: dict[str, Task] = {}
        self._free: list[int] = []

    # -- input -----------------------------------------------------------------------------------------------------

    def feed(self, event: Event, worker: int | None = None) -> None:
        """Add an event. `worker` is the number of the worker that starts a task; if it is unknown, the first free one is used."""
        about = event.event_data
        with self.lock:
            if event.event == "playbook_on_play_start":
                if event.uuid != self._play_uuid:  # with `serial` the same play starts once for each batch
                    self._play_uuid = event.uuid
                    self.plays.append(str(about.get("name") or about.get("pattern") or ""))
                    self.done_in_play = 0
            elif event.event == "playbook_on_task_start":
                self._task(about)
            elif event.event == "runner_on_start" and event.host:
                self._start(event.host, about, epoch(event.created), worker)
            elif event.event in _ENDS and event.host:
                self._end(event.host, about, _ENDS[event.event], epoch(event.created))
            elif event.event == "runner_on_output" and event.host:
                run = self.running.get((event.host, str(about.get("task_uuid", ""))))
                if run is not None:
                    run.said.append((epoch(event.created), str(about.get("stream")), str(about.get("text"))[-MOST:]))
            elif event.host:
                self._note(event.event, event.host, about)

    def close(self, when: float | None = None) -> None:
        """The run has ended, now or at `when`: tasks that are still running were stopped or abandoned."""
        with self.lock:
            self.ended = time.time() if when is None else when
            for (host, uuid), run in list(self.running.items()):
                self._span(host, uuid, self._tasks_named(uuid, {}), "stopped", run.start, self.ended)

    def _tasks_named(self, uuid: str, about: object) -> Task:
        return self._by_uuid[uuid] if uuid in self._by_uuid else self._task(about)

    def _task(self, about: Any) -> Task:
        uuid = str(about.get("task_uuid", ""))
        known = self._by_uuid.get(uuid)
        if known is None:
            name = str(about.get("task") or about.get("name") or about.get("task_action") or "")
            role = about.get("role")
            known = Task(
                number=len(self.tasks),
                name=f"{role} : {name}" if role and not name.startswith(f"{role} : ") else name,
                action=str(about.get("task_action", "")),
                path=str(about.get("task_path", "")),
                play=max(0, len(self.plays) - 1),
            )
            self.tasks.append(known)
            self._by_uuid[uuid] = known
        return known

    def _host(self, name: str) -> HostProgress:
        return self.hosts.setdefault(name, HostProgress(name))

    def _start(self, host: str, about: Any, when: float, worker: int | None) -> None:
        task = self._task(about)
        free = heapq.heappop(self._free) if worker is None and self._free else self.lanes
        lane = free if worker is None else worker
        self.lanes = max(self.lanes, lane + 1)
        self.running[host, str(about.get("task_uuid", ""))] = Running(host, task.number, when, lane)
        self._host(host).cells[task.number] = "running"

    def _end(self, host: str, about: Any, state: str, when: float) -> None:
        task, result = self._task(about), about.get("res") or {}
        ignored = bool(about.get("ignore_errors"))
        if state in ("failed", "unreachable"):
            run = self.running.get((host, str(about.get("task_uuid", ""))))
            printed = () if run is None else tuple((at - run.start, stream, text) for at, stream, text in run.said)
            self.failures.append(Failure(host, task.number, state, ignored, _said(result), printed))
            task.failed += not ignored
            state = "ignored" if ignored else state
        elif state == "ok" and result.get("changed"):
            state = "changed"
        counts = self._host(host).counts
        counts[state] = counts.get(state, 0) + 1
        self.done_in_play += 1
        uuid = str(about.get("task_uuid", ""))
        run = self.running.get((host, uuid))
        self._span(host, uuid, task, state, run.start if run else when, when)

    def _span(self, host: str, uuid: str, task: Task, state: str, start: float, end: float) -> None:
        run = self.running.pop((host, uuid), None)
        seconds = max(0.0, end - start)
        who = self._host(host)
        who.cells[task.number] = state
        if run is None:  # no worker ran it: an include, a meta task
            return
        heapq.heappush(self._free, run.lane)
        self.spans.append(Span(host, task.number, start, seconds, state, run.lane))
        who.busy += seconds
        task.hosts += 1
        task.total += seconds
        if seconds >= task.longest:
            task.longest, task.slowest = seconds, host

    def _note(self, event: str, host: str, about: Any) -> None:
        run = self.running.get((host, str(about.get("task_uuid", ""))))
        if run is None:
            return
        result = about.get("res") or {}
        if event.startswith("runner_item_on"):
            run.note = f"item {int(run.note.split()[1]) + 1}" if run.note.startswith("item ") else "item 1"
        elif event == "runner_retry":
            run.note = f"retry {result.get('attempts', '')}".strip()
        elif event == "runner_on_async_poll":
            run.note = "job runs"

    # -- output ----------------------------------------------------------------------------------------------------

    def elapsed(self) -> float:
        return (self.ended or time.time()) - self.began

    def total(self, state: str) -> int:
        return sum(host.counts.get(state, 0) for host in self.hosts.values())

    def walls(self) -> dict[int, float]:
        """For each task, the seconds from the start on the first host to the end on the last host."""
        ends: dict[int, tuple[float, float]] = {}
        for span in self.spans:
            first, last = ends.get(span.task, (span.start, 0.0))
            ends[span.task] = min(first, span.start), max(last, span.start + span.seconds)
        return {task: last - first for task, (first, last) in ends.items()}

    def slow(self, now: float) -> list[Running]:
        """Hosts that have been running their task for three times as long as it took the others, and at least 2 s."""
        found = []
        for run in self.running.values():
            task = self.tasks[run.task]
            usual = task.total / task.hosts if task.hosts else None
            if usual is not None and now - run.start > max(2.0, 3 * usual):
                found.append(run)
        return sorted(found, key=lambda run: run.start)


def epoch(created: str) -> float:
    """The time of an event, in seconds since 1970; ansible-runner writes no zone and means UTC."""
    try:
        when = dt.datetime.fromisoformat(created)
    except ValueError:
        return time.time()
    return (when if when.tzinfo else when.replace(tzinfo=dt.UTC)).timestamp()


def _said(result: Any) -> dict[str, str]:
    said = {}
    for name in SAID:
        value = result.get(name)
        if value not in (None, "", [], "(traceback unavailable)"):  # Ansible's text if tracebacks are not enabled
            text = value if isinstance(value, str) else str(value)
            said[name] = text if len(text) <= MOST else text[:MOST] + f"\n... and {len(text) - MOST} characters more"
    failed = [one for one in result.get("results") or () if isinstance(one, dict) and item_failed(one)]
    for number, one in enumerate(failed[:20], 1):
        label = one.get("_ansible_item_label", one.get("item", number))
        for name, text in _said(one).items() if "results" not in one else ():
            said[f"{name} ({number if 'censored' in one else label})"] = text
    return said
