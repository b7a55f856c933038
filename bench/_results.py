# SPDX-License-Identifier: GPL-3.0-or-later
"""
Results: what a bench measured, as one JSON shape that tables and plots are made of.

    {"shape": 1,
     "made": {"python": "3.13.0", "ansible_core": "2.21.5", "mitogen": "0.3.54" or null, "cores": 2, "rounds": 5},
     "rows": [
        {"name": "controller-bound",                          a short word; a row of the same name replaces an older one
         "title": "200 hosts x 8 controller-side tasks",      for people
         "unit": "s",                                         of every figure: "s", "MB", "ms per host-task", ...; less is better
         "subject": "forkless",                               whose figures the others' are divided by
         "goals": {"stock": 5.0, "wall Mitogen": 1.0},        so many times less than that contender is the goal: in every measure, or in those of one word
         "measures": {                                        what was measured: "wall", "cpu", "peak", ...; the goals hold for each
             "wall": {"stock": [20.1, ...], "Mitogen": [24.0, ...], "forkless": [3.9, ...]},
             "cpu":  {"stock": [31.0, ...], "Mitogen": [...],       "forkless": [...]}},
         "failed": {"Mitogen": "exit status 4: ..."},         why a contender has fewer figures, or none
         "others": [0.1, 0.9, ...]}]}                         cores that other programs used while each figure was measured

Every list has one figure for each round, in the order of the rounds; contenders took turns within a round. A contender that does not
apply is left out. A module of this folder that has such rows offers `rows(rounds, only) -> Iterator[Row]`, which may yield a row again when it has more
figures; `python -m bench NAME --json FILE` merges them into the file at once, `python -m bench plot FILE...` draws them.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
from dataclasses import asdict, dataclass, field

SHAPE = 1


@dataclass
class Row:
    name: str
    title: str
    unit: str = "s"
    subject: str = "forkless"
    goals: dict[str, float] = field(default_factory=dict)
    measures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)

    def add(self, measure: str, contender: str, figure: float) -> None:
        self.measures.setdefault(measure, {}).setdefault(contender, []).append(round(figure, 5))

    def medians(self, measure: str) -> dict[str, float]:
        return {name: statistics.median(figures) for name, figures in self.measures[measure].items() if figures}

    def ratios(self, measure: str) -> dict[str, float]:
        """How many times less the subject needs than each other contender."""
        medians = self.medians(measure)
        own = medians.get(self.subject)
        return {name: other / own for name, other in medians.items() if name != self.subject} if own else {}

    def goal(self, measure: str, contender: str) -> float | None:
        """How many times less than this contender the subject should need: of all measures, or of those that begin with a word."""
        return self.goals.get(f"{measure.partition(' ')[0]} {contender}", self.goals.get(contender))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def circumstances(rounds: int) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "ansible_core": _version("ansible-core"),
        "mitogen": _version("mitogen"),
        "cores": os.cpu_count(),
        "rounds": rounds,
    }


def read(*files: str) -> tuple[dict[str, object], list[Row]]:
    """The rows of all the files; where two have one of the same name, the later file's counts."""
    made: dict[str, object] = {}
    rows: dict[str, Row] = {}
    for file in files:
        content = json.loads(pathlib.Path(file).read_text())
        if content.get("shape") != SHAPE:
            raise SystemExit(
                f"{file} has shape {content.get('shape')!r}, and this bench reads shape {SHAPE}: measure again."
            )
        made.update(content["made"])
        rows.update({row["name"]: Row(**row) for row in content["rows"]})
    return made, list(rows.values())


def merge(file: str, rows: list[Row], made: dict[str, object]) -> None:
    """Put the rows into the file, in the place of those of the same names; what else it has stays. `made`: with what they were measured."""
    known = {row.name: row for row in read(file)[1]} if pathlib.Path(file).exists() else {}
    known.update({row.name: row for row in rows})
    content = {"shape": SHAPE, "made": made, "rows": [asdict(row) for row in known.values()]}
    pathlib.Path(file).write_text(json.dumps(content, indent=1) + "\n")


def table(row: Row) -> str:
    """One row for a terminal: a line for each measure."""
    lines = [row.title]
    for measure in row.measures:
        medians, ratios = row.medians(measure), row.ratios(measure)
        parts = [f"{name} {figure:.3g}" for name, figure in medians.items()]
        against = [
            f"{ratio:.2f}x against {name}"
            + ("" if goal is None else f" (goal {goal:.2g}: {'met' if ratio >= goal else 'missed'})")
            for name, ratio in ratios.items()
            for goal in [row.goal(measure, name)]
        ]
        lines.append(f"  {measure + ', ' + row.unit:<24} {' | '.join(parts)}   {'; '.join(against)}")
    lines += [f"  {name} failed: {why}" for name, why in row.failed.items()]
    return "\n".join(lines)


def markdown(rows: list[Row]) -> str:
    """The rows as a table for a page."""
    lines = ["| work | measure | medians | ratio (goal) |", "| --- | --- | --- | --- |"]
    for row in rows:
        for measure in row.measures:
            medians = ", ".join(f"{name} {figure:.3g}" for name, figure in row.medians(measure).items())
            ratios = ", ".join(
                f"{ratio:.2f}x against {name}" + ("" if goal is None else f" (goal {goal:.2g}x)")
                for name, ratio in row.ratios(measure).items()
                for goal in [row.goal(measure, name)]
            )
            lines.append(f"| {row.title} | {measure}, {row.unit} | {medians} | {ratios} |")
    return "\n".join(lines)
