# SPDX-License-Identifier: GPL-3.0-or-later
"""
Results as a picture: for each row and measure how many times less forkless needs, on a logarithmic scale, a bar for each contender, a mark at the goal.

Hand-made SVG, no library, and the same text for the same results. Colours follow the reader's light or dark setting; a contender has one colour in all pictures.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench._results import Row

WIDTH, LEFT, BAR, GAP = 860, 330, 14, 5
LOW = 0.125
# name -> colour in light, colour in dark; others share the last one
COLOURS = {
    "stock": ("#2f6f9f", "#6cb0e0"),
    "Mitogen": ("#b5651d", "#e0a060"),
    "pyinfra": ("#6b7f3a", "#a9c070"),
    "forkless.core.ssh": ("#7b4f9d", "#c099e0"),
    "": ("#6e7781", "#9da7b1"),
}
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600 } .small { font-size: 11px; fill: #57606a }
.line { stroke: #8c959f } .goal { stroke: #1a7f37; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
 text { fill: #e6edf3 } .small { fill: #9da7b1 } .line { stroke: #6e7681 } .goal { stroke: #3fb950 }
}"""


def _colour(name: str) -> int:
    names = list(COLOURS)
    return names.index(name) if name in names else len(names) - 1


def _styles() -> str:
    light = "".join(f".bar{at} {{ fill: {pair[0]} }} " for at, pair in enumerate(COLOURS.values()))
    dark = "".join(f".bar{at} {{ fill: {pair[1]} }} " for at, pair in enumerate(COLOURS.values()))
    return f"{STYLE}\n{light}\n@media (prefers-color-scheme: dark) {{ {dark}}}"


def svg(made: dict[str, object], rows: Iterable[Row], words: tuple[str, ...] = ("wall", "cpu", "peak", "task")) -> str:
    """The picture of all measures that begin with one of the words; rows without such a measure, or without ratios, are left out."""
    chosen = [
        (row, [m for m in row.measures if m.split()[0] in words and row.ratios(m)])
        for row in rows
    ]  # fmt: skip
    chosen = [(row, measures) for row, measures in chosen if measures]
    most = 2.0
    for row, measures in chosen:
        for measure in measures:
            for name, ratio in row.ratios(measure).items():
                most = max(most, ratio, row.goal(measure, name) or 0)

    def x(ratio: float) -> float:
        span = math.log(most * 1.15) - math.log(LOW)
        return LEFT + (WIDTH - LEFT - 60) * (math.log(max(ratio, LOW)) - math.log(LOW)) / span

    drawn: list[str] = []
    others = list(dict.fromkeys(name for row, measures in chosen for m in measures for name in row.ratios(m)))
    at = 12
    for name in others:
        drawn += [
            f'<rect class="bar{_colour(name)}" x="{at}" y="26" width="10" height="10"/>',
            f'<text class="small" x="{at + 14}" y="35">{html.escape(name)}</text>',
        ]
        at += 34 + 7 * len(name)
    y = 62
    for row, measures in chosen:
        drawn.append(f'<text class="title" x="12" y="{y}">{html.escape(row.title)}</text>')
        y += 10
        for measure in measures:
            for name, ratio in row.ratios(measure).items():
                drawn += _bar(f"{measure}, against {name}", name, y, x(1.0), x(ratio), ratio)
                goal = row.goal(measure, name)
                if goal is not None:
                    drawn.append(
                        f'<line class="goal" x1="{x(goal):.1f}" x2="{x(goal):.1f}" y1="{y - 2}" y2="{y + BAR + 2}"/>'
                    )
                y += BAR + GAP
        y += 22
    foot = ", ".join(f"{key.replace('_', '-')} {value}" for key, value in made.items() if value is not None)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 14}" role="img" aria-label="How many times less forkless needs">',
        f"<style>{_styles()}</style>",
        '<text x="12" y="18">How many times less forkless needs than each (logarithmic; left of the line: more; green: the goal)</text>',
        f'<line class="line" x1="{x(1.0):.1f}" x2="{x(1.0):.1f}" y1="42" y2="{y - 16}"/>',
        *drawn,
        f'<text class="small" x="12" y="{y + 4}">{html.escape(foot)}</text>',
        "</svg>\n",
    ])  # fmt: skip


def _bar(label: str, name: str, y: int, one: float, end: float, ratio: float) -> list[str]:
    left, right = sorted((one, end))
    return [
        f'<text class="small" x="{LEFT - 8}" y="{y + BAR - 3}" text-anchor="end">{html.escape(label)}</text>',
        f'<rect class="bar{_colour(name)}" x="{left:.1f}" y="{y}" width="{max(right - left, 1):.1f}" height="{BAR}"/>',
        f'<text class="small" x="{right + 5:.1f}" y="{y + BAR - 3}">{ratio:.2f}x</text>',
    ]
