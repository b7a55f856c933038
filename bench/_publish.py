# SPDX-License-Identifier: GPL-3.0-or-later
"""
The tables of the race and of the network devices in docs/performance.md, and the race's picture, from the results alone: the same
results give the same files.

Each table stands between two comments of the page; everything else there is written by people.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import statistics
from typing import TYPE_CHECKING

from bench import _plot

if TYPE_CHECKING:
    from bench._results import Row

# The columns of each table, by the name of the file with the results.
NAMES = {
    "race": ("stock", "Mitogen", "pyinfra", "forkless", "forkless.core.ssh"),
    "network": ("stock, libssh", "stock, paramiko", "forkless", "forkless, libssh", "forkless, paramiko", "nornir", "scrapli"),
}  # fmt: skip
COUNTED = ("round", "kB", "logins")  # measures that say themselves what they count
# What rows begin with, in the order of the table and the picture.
ORDER = (
    "race", "far", "delegate", "run-once", "throttle", "become", "start", "loop-items", "include-loop", "nested-variables", "hostvars",
    "large-facts", "long-template", "giant",
)  # fmt: skip
BUSY = 0.5  # so many cores used by others, and wall times say little


def table(rows: list[Row], names: tuple[str, ...]) -> str:
    """Every measure of every row, each goal with how far it was missed, and how busy the machine was."""
    lines = [
        f"| row | measure | {' | '.join(names)} | goals | other load |",
        f"| --- | --- | {'--- | ' * len(names)}--- | --- |",
    ]
    for row in rows:
        for measure in row.measures:
            medians = row.medians(measure)
            cells = [_cell(row, medians, name) for name in names]
            load = f"{statistics.median(row.others):.1f} cores" if row.others else "-"
            rounds = max(len(figures) for figures in row.measures[measure].values())
            what = measure if measure.startswith(COUNTED) else f"{measure}, {row.unit}"
            what += f" ({rounds} rounds)" if rounds > 1 else ""
            lines.append(f"| `{row.name}` | {what} | {' | '.join(cells)} | {_goals(row, measure)} | {load} |")
    return "\n".join(lines)


def _cell(row: Row, medians: dict[str, float], name: str) -> str:
    if name in medians:
        return f"{medians[name]:,.0f}" if medians[name] >= 100 else f"{medians[name]:.3g}"
    return "failed" if name in row.failed else "-"


def _goals(row: Row, measure: str) -> str:
    told = []
    for name, ratio in row.ratios(measure).items():
        goal = row.goal(measure, name)
        if goal is not None:
            verdict = "met" if ratio >= goal else f"missed by {goal / ratio:.1f}x"
            told.append(f"{ratio:.2g}x {name} (goal {goal:.2g}x: {verdict})")
    return "; ".join(told) or "-"


def failures(rows: list[Row]) -> str:
    return "\n".join(f"- `{row.name}`: {name} failed, {why}" for row in rows for name, why in row.failed.items())


def publish(file: pathlib.Path, made: dict[str, object], rows: list[Row], page: pathlib.Path, svg: str | None) -> None:
    """Write the table of the rows of `file` into the page and, for the race or if a file for it is named, the picture."""
    kind = file.stem
    if kind not in NAMES:
        raise SystemExit(f"{file} is the result of no bench with a table of its own: {', '.join(NAMES)}.")
    begin, end = f"<!-- {kind}: made by python -m bench publish -->", f"<!-- end of {kind} -->"
    text = page.read_text()
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{page} has no place for the table: it needs the lines {begin} and {end}, once each.")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    rows = sorted(rows, key=_place)
    failed = failures(rows)
    inner = table(rows, NAMES[kind]) + (f"\n\n{failed}" if failed else "")
    page.write_text(f"{before}{begin}\n{inner}\n{end}{after}")
    if svg is None and kind == "race":
        svg = "docs/race.svg"
    if svg is not None:
        pathlib.Path(svg).write_text(_plot.svg(made, [_drawn(row) for row in rows], ("wall", "cpu", "total", "peak")))


def _place(row: Row) -> tuple[int, bool, list[int]]:
    """Rows of one kind stand together, from the smallest to the largest."""
    kind = next((number for number, one in enumerate(ORDER) if row.name.startswith(one)), len(ORDER))
    return kind, "-forks-" in row.name, [int(number) for number in re.findall(r"\d+", row.name)]


def _drawn(row: Row) -> Row:
    """What the picture shows of a row: of a busy machine the CPU seconds, of a quiet one wall times. The table has everything."""
    busy = bool(row.others) and statistics.median(row.others) > BUSY
    shown = ("cpu", "total") if busy else ("wall", "peak")
    measures = {name: figures for name, figures in row.measures.items() if name.split()[0] in shown}
    return dataclasses.replace(
        row, title=row.title + (" (busy machine: CPU seconds only)" if busy else ""), measures=measures
    )
