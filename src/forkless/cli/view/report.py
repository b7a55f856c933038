# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTML file about a run: the values are computed here, and report.html (a Jinja template) has the markup. The page loads nothing, and can be read without scripts."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import importlib.resources
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkless import __version__
from forkless.cli.view.profile import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forkless.cli.view.timeline import Failure, HostProgress, Span, Timeline

__all__ = ["page"]

# Rows and failures beyond these limits are counted, not drawn, so that browsers can still scroll the page.
MOST_ROWS = 200
MOST_FAILURES = 200
ROW = 18
# Spans narrower than this are less than a pixel on a wide screen: neighbours of the same colour are drawn as one.
_THIN = 0.05

_BAD = ("failed", "unreachable")
_WORDS = {
    "successful": "succeeded",
    "failed": "failed",
    "canceled": "was stopped",
    "timeout": "ran out of time",
    "error": "could not be carried out",
}
# The columns of Ansible's recap, and what they are called here.
_RECAP = (("ok", "ok"), ("changed", "changed"), ("skipped", "skipped"), ("ignored", "ignored"), ("failures", "failed"), ("dark", "unreachable"))  # fmt: skip


def _printable(value: object) -> object:
    """Replaces characters that are not allowed in HTML, which programs may print; what is markup already stays."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in value)


def page(
    line: Timeline, *, status: str, rc: int, facts: Mapping[str, str], recap: Mapping[str, Mapping[str, int]]
) -> str:
    """The text of the whole HTML file."""
    import jinja2  # comes with ansible-core

    with line.lock:
        whole = max(line.elapsed(), 0.001)
        values = {
            "title": f"{facts.get('playbook') or facts.get('module') or 'run'}: {_WORDS.get(status, status)}",
            "status": status,
            "headline": _headline(line, status, rc),
            "tiles": _tiles(line, whole),
            "failures": _failures(line),
            "failures_left": max(0, len(line.failures) - MOST_FAILURES),
            "row_height": ROW,
            "ticks": _ticks(whole),
            "by_host": _chart(line, whole, _hosts_to_draw(line), lambda span: span.host, len(line.hosts)),
            "by_worker": _chart(
                line, whole, {n: f"worker {n + 1}" for n in range(min(line.lanes, MOST_ROWS))}, lambda span: span.lane, line.lanes
            ),
            "tasks": _tasks(line),
            "hosts": _hosts(line, recap),
            "recap": [kind for _, kind in _RECAP],
            "facts": _facts(line, rc, facts),
            "spans": _table_of_spans(line),
        }  # fmt: skip
    text = importlib.resources.files("forkless.cli.view").joinpath("report.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, finalize=_printable, undefined=jinja2.StrictUndefined)
    return environment.from_string(text).render(values)


def _headline(line: Timeline, status: str, rc: int) -> str:
    said = f"The run {_WORDS.get(status, status)} after {seconds(line.elapsed())}"
    bad = sum(not one.ignored for one in line.failures)
    if bad:
        hosts = len({one.host for one in line.failures if not one.ignored})
        said += f", with {bad} failure{'s' if bad > 1 else ''} on {hosts} host{'s' if hosts > 1 else ''}"
    return f"{said}. Exit code {rc}."


def _tiles(line: Timeline, whole: float) -> list[tuple[str, str, str]]:
    busy = sum(span.seconds for span in line.spans)
    return [
        ("hosts", str(len(line.hosts)), ""),
        ("tasks", str(len(line.tasks)), ""),
        *((state, str(line.total(state)), state) for state in ("ok", "changed", "skipped", "ignored", "failed", "unreachable")),
        ("took", seconds(whole), ""),
        ("work done", seconds(busy), ""),
    ]  # fmt: skip


def _failures(line: Timeline) -> list[dict[str, object]]:
    found = sorted(line.failures, key=lambda one: one.ignored)[:MOST_FAILURES]
    return [_failure(line, one, opened=number < 10) for number, one in enumerate(found)]


def _failure(line: Timeline, one: Failure, *, opened: bool) -> dict[str, object]:
    task = line.tasks[one.task]
    said = dict(one.said)
    if one.output:
        said["output while it ran"] = "\n".join(
            f"{after:8.1f} s  {stream}  {row}" for after, stream, text in one.output for row in text.split("\n")
        )
    return {
        "kind": "ignored" if one.ignored else one.state,
        "host": one.host,
        "task": task.name,
        "path": task.path,
        "why": one.sentence[:200],
        "said": said,
        "opened": opened and not one.ignored,
    }


# -- charts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bar:
    row: int
    index: int
    state: str
    left: float
    width: float


@dataclass(frozen=True)
class _Chart:
    names: list[str]
    bars: list[_Bar]
    of: int
    """How many rows there would be without the limit."""


@dataclass(frozen=True)
class _Tick:
    at: float
    label: str


def _hosts_to_draw(line: Timeline) -> dict[object, str]:
    """The hosts sorted by name; if there are too many, those that failed and then the slowest."""
    hosts = list(line.hosts.values())
    if len(hosts) > MOST_ROWS:
        hosts = sorted(hosts, key=lambda host: (not _is_bad(host), -host.busy))[:MOST_ROWS]
    return {host.name: host.name for host in sorted(hosts, key=lambda host: host.name)}


def _is_bad(host: HostProgress) -> bool:
    return any(host.counts.get(state) for state in _BAD)


def _chart(
    line: Timeline, whole: float, rows: Mapping[object, str], row_of: Callable[[Span], object], all_rows: int
) -> _Chart:
    place = {key: number for number, key in enumerate(rows)}
    by_row: dict[int, list[tuple[int, Span]]] = {}
    for index, span in enumerate(line.spans):
        number = place.get(row_of(span))
        if number is not None:
            by_row.setdefault(number, []).append((index, span))
    bars = [bar for number, spans in sorted(by_row.items()) for bar in _bars(line, whole, number, spans)]
    return _Chart(list(rows.values()), bars, all_rows)


def _bars(line: Timeline, whole: float, row: int, spans: list[tuple[int, Span]]) -> list[_Bar]:
    made: list[tuple[int, str, float, float]] = []
    for index, span in sorted(spans, key=lambda one: one[1].start):
        left = 100 * (span.start - line.began) / whole
        right = 100 * (span.start + span.seconds - line.began) / whole
        if made:
            before, state, start, end = made[-1]
            if state == span.state and right - left < _THIN and left - end < _THIN:
                made[-1] = (before, state, start, max(end, right))
                continue
        made.append((index, span.state, left, right))
    return [_Bar(row, index, state, max(0.0, left), max(right - left, 0.12)) for index, state, left, right in made]


def _ticks(whole: float) -> list[_Tick]:
    for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400):
        if whole / step <= 8:
            break
    return [_Tick(100 * n * step / whole, seconds(n * step) if n else "0") for n in range(int(whole / step) + 1)]


# -- tables --------------------------------------------------------------------------------------------------------


def _tasks(line: Timeline) -> list[dict[str, object]]:
    walls = line.walls()
    tasks = sorted((task for task in line.tasks if task.hosts), key=lambda task: -walls[task.number])[:25]
    return [
        {
            "name": task.name,
            "action": task.action,
            "hosts": task.hosts,
            "took": seconds(walls[task.number]),
            "share": 100 * walls[task.number] / (walls[tasks[0].number] or 1),
            "mean": seconds(task.total / task.hosts),
            "slowest": task.slowest,
            "longest": seconds(task.longest),
        }
        for task in tasks
    ]


def _hosts(line: Timeline, recap: Mapping[str, Mapping[str, int]]) -> list[dict[str, object]]:
    hosts = sorted(line.hosts.values(), key=lambda host: -host.busy)[:25]
    return [
        {
            "name": host.name,
            "busy": seconds(host.busy),
            "share": 100 * host.busy / (hosts[0].busy or 1),
            "counts": [(kind, recap.get(key, {}).get(host.name, 0)) for key, kind in _RECAP],
        }
        for host in hosts
    ]


def _facts(line: Timeline, rc: int, facts: Mapping[str, str]) -> dict[str, str]:
    def when(moment: float) -> str:
        return dt.datetime.fromtimestamp(moment, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    return {
        **facts,
        "started": when(line.began),
        "ended": when(line.ended or line.began),
        "exit code": str(rc),
        "plays": ", ".join(line.plays) or "none",
        "forkless": __version__,
        "ansible-core": _version("ansible-core"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _table_of_spans(line: Timeline) -> dict[str, object]:
    """The data for the tooltips."""
    hosts = {name: number for number, name in enumerate(line.hosts)}
    return {
        "hosts": list(hosts),
        "tasks": [task.name for task in line.tasks],
        "spans": [
            [hosts[span.host], span.task, round(span.start - line.began, 2), round(span.seconds, 2), span.state, span.lane + 1]
            for span in line.spans
        ],
    }  # fmt: skip
