# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs side by side: what failed, changed or got slower in the second that did not in the first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forkless.web.answers import RunEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from forkless.core.events import Event

__all__ = ["MOST_EVENTS", "Difference", "RunOutline", "SlowerTask", "compare"]

# A run with more events is not compared: both are read as a whole.
MOST_EVENTS = 300_000
_BAD = frozenset({"failed", "unreachable"})
_MOST = 500
# A task counts as slower if it took so much longer, as a ratio and in seconds.
_RATIO, _SECONDS = 1.5, 1.0


@dataclass
class _Cell:
    state: str
    path: str
    output: str


@dataclass
class RunOutline:
    """Of one run: the last state of each task on each host, and how long each task took from the first host to the last."""

    cells: dict[tuple[str, str], _Cell] = field(default_factory=dict)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)

    def add(self, events: Iterable[Event], project: Mapping[str, object] | None) -> None:
        for event in events:
            made = RunEvent.of(event, project, brief=True)
            if not made.state or made.state == "running" or not made.host:
                continue
            task = self._task(made)
            self.cells[made.host, task] = _Cell(made.state, made.path, made.output)
            begin = made.at - made.took
            first, last = self.spans.get(task, (begin, made.at))
            self.spans[task] = min(first, begin), max(last, made.at)

    def _task(self, event: RunEvent) -> str:
        """A name that is the same in both runs: two tasks with one name are told apart by their order."""
        if event.key not in self._names:
            many = self._seen[event.task] = self._seen.get(event.task, 0) + 1
            self._names[event.key] = event.task if many == 1 else f"{event.task} ({many})"
        return self._names[event.key]

    @property
    def hosts(self) -> set[str]:
        return {host for host, _ in self.cells}

    def seconds(self, task: str) -> float:
        first, last = self.spans[task]
        return last - first


@dataclass(frozen=True)
class Difference:
    host: str
    task: str
    path: str
    before: str
    after: str
    output: str


@dataclass(frozen=True)
class SlowerTask:
    task: str
    before: float
    after: float


def compare(
    first: RunOutline, second: RunOutline
) -> tuple[dict[str, list[Difference]], list[SlowerTask], dict[str, list[str]]]:
    """Differences by kind, slower tasks, and hosts that are in one run only."""
    found: dict[str, list[Difference]] = {
        "failed": [], "recovered": [], "changed": [], "unchanged": [],
    }  # fmt: skip
    for (host, task), after in second.cells.items():
        before = first.cells.get((host, task))
        was = before.state if before is not None else "not run"
        kind = _kind(was, after.state)
        if kind and len(found[kind]) < _MOST:
            found[kind].append(Difference(host, task, after.path, was, after.state, after.output))
    common = [task for task in second.spans if task in first.spans]
    slower = [
        SlowerTask(task, first.seconds(task), second.seconds(task))
        for task in common
        if second.seconds(task) > first.seconds(task) * _RATIO and second.seconds(task) - first.seconds(task) > _SECONDS
    ]
    slower.sort(key=lambda one: one.before - one.after)
    hosts = {
        "only_first": sorted(first.hosts - second.hosts)[:_MOST],
        "only_second": sorted(second.hosts - first.hosts)[:_MOST],
    }
    return found, slower[:_MOST], hosts


def _kind(before: str, after: str) -> str:
    if after in _BAD:
        return "failed" if before not in _BAD else ""
    if before in _BAD:
        return "recovered"
    if after == "changed":
        return "changed" if before != "changed" else ""
    return "unchanged" if before == "changed" else ""
