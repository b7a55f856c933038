# SPDX-License-Identifier: GPL-3.0-or-later
"""
Results as a picture: for each row and measure how many times less forkless needs, a bar for each contender, a mark at the goal.

Hand-made SVG, no library. Colours follow the reader's light or dark setting.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench._results import Row

WIDTH, LEFT, BAR, GAP = 860, 330, 14, 5
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600 } .small { font-size: 11px; fill: #57606a }
.bar0 { fill: #2f6f9f } .bar1 { fill: #b5651d } .bar2 { fill: #6b7f3a } .line { stroke: #8c959f } .goal { stroke: #1a7f37; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
 text { fill: #e6edf3 } .small { fill: #9da7b1 } .bar0 { fill: #6cb0e0 } .bar1 { fill: #e0a060 } .bar2 { fill: #a9c070 } .line { stroke: #6e7681 } .goal { stroke: #3fb950 }
}"""


def svg(made: dict[str, object], rows: list[Row]) -> str:
    most = max(
        [2.0] + [max([*row.ratios(m).values(), *row.goals.values()], default=1) for row in rows for m in row.measures]
    )
    low = 0.25

    def x(ratio: float) -> float:
        span = math.log(most * 1.15) - math.log(low)
        return LEFT + (WIDTH - LEFT - 60) * (math.log(max(ratio, low)) - math.log(low)) / span

    others = list(dict.fromkeys(name for row in rows for m in row.measures for name in row.ratios(m)))
    drawn: list[str] = []
    y = 46
    for row in rows:
        drawn.append(f'<text class="title" x="12" y="{y}">{html.escape(row.title)}</text>')
        y += 10
        for measure in row.measures:
            for name, ratio in row.ratios(measure).items():
                start, end = sorted((x(1.0), x(ratio)))
                label = f"{measure}, against {name}"
                drawn += [
                    f'<text class="small" x="{LEFT - 8}" y="{y + BAR - 3}" text-anchor="end">{html.escape(label)}</text>',
                    f'<rect class="bar{others.index(name) % 3}" x="{start:.1f}" y="{y}" width="{max(end - start, 1):.1f}" height="{BAR}"/>',
                    f'<text class="small" x="{end + 5:.1f}" y="{y + BAR - 3}">{ratio:.2f}x</text>',
                ]
                if name in row.goals:
                    goal = x(row.goals[name])
                    drawn.append(
                        f'<line class="goal" x1="{goal:.1f}" x2="{goal:.1f}" y1="{y - 2}" y2="{y + BAR + 2}"/>'
                    )
                y += BAR + GAP
        y += 22
    foot = ", ".join(f"{key.replace('_', '-')} {value}" for key, value in made.items() if value is not None)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 14}" role="img" aria-label="How many times less forkless needs">',
        f"<style>{STYLE}</style>",
        '<text x="12" y="18">How many times less forkless needs (logarithmic; green: the goal)</text>',
        f'<line class="line" x1="{x(1.0):.1f}" x2="{x(1.0):.1f}" y1="26" y2="{y - 16}"/>',
        *drawn,
        f'<text class="small" x="12" y="{y + 4}">{html.escape(foot)}</text>',
        "</svg>\n",
    ])  # fmt: skip
