# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTML file about a run. Everything is drawn here; the page loads nothing, and reads without scripts as well."""

from __future__ import annotations

import datetime as dt
import html
import importlib.metadata
import importlib.resources
import json
import platform
from typing import TYPE_CHECKING, Any

from forkless.cli._profile import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forkless.cli._timeline import Failure, Host, Span, Timeline

__all__ = ["page"]

# Rows and failures beyond these are counted, not drawn: a page that cannot be scrolled helps nobody.
MOST_ROWS = 200
MOST_FAILURES = 200
ROW = 18
# Narrower than a pixel of a wide screen: neighbours of one colour are drawn as one.
_THIN = 0.05

_BAD = ("failed", "unreachable")
_WORDS = {
    "successful": "succeeded",
    "failed": "failed",
    "canceled": "was stopped",
    "timeout": "ran out of time",
    "error": "could not be carried out",
}


def _text(value: object) -> str:
    # Not every character that a program prints may stand in a page.
    return html.escape("".join(one if one.isprintable() or one in "\n\t" else "�" for one in str(value)))


def page(line: Timeline, *, status: str, rc: int, facts: Mapping[str, str], recap: Mapping[str, Any]) -> str:
    """The whole file."""
    with line.lock:
        whole = max(line.elapsed(), 0.001)
        bad = sum(not one.ignored for one in line.failures)
        parts = {
            "title": _text(f"{facts.get('playbook') or facts.get('module') or 'run'}: {_WORDS.get(status, status)}"),
            "status": _text(status),
            "headline": _headline(line, status, rc, bad),
            "tiles": _tiles(line, whole),
            "failures": _failures(line),
            "by_host": _chart(line, whole, _hosts_to_draw(line), lambda span: span.host, len(line.hosts), "hosts"),
            "by_worker": _chart(line, whole, [(n, f"worker {n + 1}") for n in range(line.lanes)][:MOST_ROWS], lambda span: span.lane, line.lanes, "workers"),
            "tasks": _tasks(line),
            "hosts": _hosts(line, recap),
            "facts": _facts(line, rc, facts),
            "spans": _table_of_spans(line),
        }  # fmt: skip
    made = importlib.resources.files("forkless.cli").joinpath("report.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        made = made.replace(f"<!--{name}-->", part, 1)
    return made


def _headline(line: Timeline, status: str, rc: int, bad: int) -> str:
    said = f"The run {_WORDS.get(status, status)} after {seconds(line.elapsed())}"
    if bad:
        hosts = len({one.host for one in line.failures if not one.ignored})
        said += f", with {bad} failure{'s' if bad > 1 else ''} on {hosts} host{'s' if hosts > 1 else ''}"
    return _text(f"{said}. Exit code {rc}.")


def _tiles(line: Timeline, whole: float) -> str:
    busy = sum(span.seconds for span in line.spans)
    tiles = [
        ("hosts", str(len(line.hosts)), ""),
        ("tasks", str(len(line.tasks)), ""),
        *((state, str(line.total(state)), state) for state in ("ok", "changed", "skipped", "ignored", "failed", "unreachable")),
        ("took", seconds(whole), ""),
        ("work done", seconds(busy), ""),
    ]  # fmt: skip
    return "".join(
        f'<div class="tile {kind if value != "0" else ""}"><b>{_text(value)}</b><span>{_text(name)}</span></div>'
        for name, value, kind in tiles
    )


def _failures(line: Timeline) -> str:
    if not line.failures:
        return '<p class="quiet">Nothing failed.</p>'
    found = sorted(line.failures, key=lambda one: one.ignored)
    made = [_failure(line, one, opened=number < 10) for number, one in enumerate(found[:MOST_FAILURES])]
    if len(found) > MOST_FAILURES:
        made.append(f'<p class="quiet">and {len(found) - MOST_FAILURES} more, not shown here.</p>')
    return "".join(made)


def _failure(line: Timeline, one: Failure, *, opened: bool) -> str:
    task = line.tasks[one.task]
    kind = "ignored" if one.ignored else one.state
    said = "".join(f"<dt>{_text(name)}</dt><dd><pre>{_text(text)}</pre></dd>" for name, text in one.said.items())
    where = f'<p class="quiet">{_text(task.path)}</p>' if task.path else ""
    opening = " open" if opened and not one.ignored else ""
    return (
        f'<details class="failure"{opening}><summary><i class="{kind}"></i><b>{_text(one.host)}</b> {_text(task.name)} '
        f'<em>{kind}</em><span class="why">{_text(one.sentence[:200])}</span></summary>{where}<dl>{said}</dl></details>'
    )


# -- charts --------------------------------------------------------------------------------------------------------


def _hosts_to_draw(line: Timeline) -> list[tuple[object, str]]:
    """In the order of their names; where there are too many, those that failed and then the slowest."""
    hosts = list(line.hosts.values())
    if len(hosts) > MOST_ROWS:
        hosts = sorted(hosts, key=lambda host: (not _is_bad(host), -host.busy))[:MOST_ROWS]
    return [(host.name, host.name) for host in sorted(hosts, key=lambda host: host.name)]


def _is_bad(host: Host) -> bool:
    return any(host.counts.get(state) for state in _BAD)


def _chart(
    line: Timeline, whole: float, rows: Iterable[tuple[object, str]], row_of: Callable[[Span], object], all_rows: int, what: str
) -> str:  # fmt: skip
    rows = list(rows)
    if not rows or not line.spans:
        return '<p class="quiet">No task was given to a worker.</p>'
    place = {key: number for number, (key, _) in enumerate(rows)}
    by_row: dict[int, list[tuple[int, Span]]] = {}
    for index, span in enumerate(line.spans):
        number = place.get(row_of(span))
        if number is not None:
            by_row.setdefault(number, []).append((index, span))
    bars = "".join(_bars(line, whole, number, spans) for number, spans in sorted(by_row.items()))
    labels = "".join(f'<div title="{_text(name)}">{_text(name)}</div>' for _, name in rows)
    ticks = "".join(f'<span style="left:{at:.2f}%">{_text(label)}</span>' for at, label in _ticks(whole))
    grid = "".join(f'<line x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="100%"/>' for at, _ in _ticks(whole))
    note = f'<p class="quiet">{len(rows)} of {all_rows} {what} are drawn: those that failed, then the slowest.</p>' if len(rows) < all_rows else ""  # fmt: skip
    return (
        f'{note}<div class="chart"><div class="axis">{ticks}</div><div class="rows"><div class="names">{labels}</div>'
        f'<svg role="img" aria-label="timeline by {what}" height="{len(rows) * ROW}"><g class="grid">{grid}</g>{bars}</svg></div></div>'
    )


def _bars(line: Timeline, whole: float, row: int, spans: list[tuple[int, Span]]) -> str:
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
    return "".join(
        f'<rect class="{state}" data-i="{index}" x="{max(0.0, left):.2f}%" y="{row * ROW + 2}" '
        f'width="{max(right - left, 0.12):.2f}%" height="{ROW - 4}"/>'
        for index, state, left, right in made
    )


def _ticks(whole: float) -> list[tuple[float, str]]:
    for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400):
        if whole / step <= 8:
            break
    count = int(whole / step)
    return [(100 * n * step / whole, seconds(n * step) if n else "0") for n in range(count + 1)]


# -- tables --------------------------------------------------------------------------------------------------------


def _bar(value: float, most: float) -> str:
    return f'<td class="bar"><div style="width:{100 * value / (most or 1):.1f}%"></div></td>'


def _tasks(line: Timeline) -> str:
    walls = line.walls()
    tasks = sorted((task for task in line.tasks if task.hosts), key=lambda task: -walls[task.number])[:25]
    if not tasks:
        return ""
    most = walls[tasks[0].number]
    rows = "".join(
        f"<tr><td>{_text(task.name)}<small>{_text(task.action)}</small></td><td class=n>{task.hosts}</td>"
        f"<td class=n>{seconds(walls[task.number])}</td>{_bar(walls[task.number], most)}"
        f"<td class=n>{seconds(task.total / task.hosts)}</td><td>{_text(task.slowest)} <small>{seconds(task.longest)}</small></td></tr>"
        for task in tasks
    )
    head = "<th>task<th class=n>hosts<th class=n>took<th><th class=n>mean<th>slowest host"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _hosts(line: Timeline, recap: Mapping[str, Any]) -> str:
    hosts = sorted(line.hosts.values(), key=lambda host: -host.busy)[:25]
    if not hosts:
        return ""
    rows = "".join(
        f"<tr><td>{_text(host.name)}</td><td class=n>{seconds(host.busy)}</td>{_bar(host.busy, hosts[0].busy)}"
        + "".join(_count(recap.get(key, {}).get(host.name, 0), kind) for key, kind in _RECAP)
        + "</tr>"
        for host in hosts
    )
    head = "<th>host<th class=n>busy<th>" + "".join(f"<th class=n>{kind}" for _, kind in _RECAP)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


_RECAP = (("ok", "ok"), ("changed", "changed"), ("skipped", "skipped"), ("ignored", "ignored"), ("failures", "failed"), ("dark", "unreachable"))  # fmt: skip


def _count(value: int, kind: str) -> str:
    return f'<td class="n {kind if value else "none"}">{value}</td>'


def _facts(line: Timeline, rc: int, facts: Mapping[str, str]) -> str:
    def when(moment: float) -> str:
        return dt.datetime.fromtimestamp(moment, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    rows = {
        **facts,
        "started": when(line.began),
        "ended": when(line.ended or line.began),
        "exit code": str(rc),
        "plays": ", ".join(line.plays) or "none",
        "forkless": _version("forkless"),
        "ansible-core": _version("ansible-core"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    return "<dl class=facts>" + "".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in rows.items()) + "</dl>"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _table_of_spans(line: Timeline) -> str:
    """For the words that appear under the pointer."""
    hosts = {name: number for number, name in enumerate(line.hosts)}
    values = {
        "hosts": list(hosts),
        "tasks": [task.name for task in line.tasks],
        "spans": [
            [hosts[span.host], span.task, round(span.start - line.began, 2), round(span.seconds, 2), span.state, span.lane + 1]
            for span in line.spans
        ],
    }
    # Inside of a script element only this sequence matters; the others are for readers that are less careful.
    return json.dumps(values, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
