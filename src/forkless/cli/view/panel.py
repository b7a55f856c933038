# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of the live view: a few lines about an active run, cut to the width and height of the terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from forkless.cli.view.live_output import cut, last_line
from forkless.cli.view.profile import seconds

if TYPE_CHECKING:
    from forkless.cli.view.plan import Plan
    from forkless.cli.view.timeline import HostProgress, Timeline

__all__ = ["Panel"]

_STYLES = {
    "ok": "green",
    "changed": "yellow",
    "skipped": "cyan",
    "failed": "bold red",
    "unreachable": "bold magenta",
    "ignored": "blue",
    "running": "bold white",
    "stopped": "dim",
}
_UNICODE = {"ok": "■", "changed": "◆", "skipped": "·", "failed": "✘", "unreachable": "✘", "ignored": "▲", "running": "▶", "stopped": "□"}  # fmt: skip
_ASCII = {"ok": "o", "changed": "c", "skipped": "-", "failed": "X", "unreachable": "X", "ignored": "i", "running": ">", "stopped": "_"}  # fmt: skip


class Panel:
    """Draws a timeline. `unicode` says whether the terminal can show more than ASCII."""

    def __init__(self, timeline: Timeline, plan: Plan | None = None, *, unicode: bool = True) -> None:
        self._line = timeline
        self._plan = plan
        self._marks = _UNICODE if unicode else _ASCII
        self._rule, self._full, self._empty, self._more = ("─", "━", "╌", "…") if unicode else ("-", "#", ".", "~")
        self.stopping = ""
        """Why the run is stopping; set when a stop was requested."""

    def lines(self, width: int, height: int) -> list[Text]:
        """At most `height` lines, none wider than `width`."""
        with self._line.lock:
            made = self._made(width, height)
        for line in made:
            line.no_wrap = True
            line.truncate(width, overflow="crop")
        return made[: max(1, height)]

    def _made(self, width: int, height: int) -> list[Text]:
        now = time.time()
        lines = [Text(self._rule * width, style="dim"), self._where(width), self._bar(width), self._counts(width)]
        if self.stopping:
            lines.append(Text(self._cut(self.stopping, width), style="bold yellow"))
        lines += self._failed(width, 3 if height >= 12 else 1)
        room = height - len(lines)
        slow = self._line.slow(now)
        busy = [run for run in sorted(self._line.running.values(), key=lambda run: run.start) if run not in slow]
        most = max(1, min(6, room // 2))
        shown = [*slow, *busy][:most]
        for run in shown:
            note = f" ({run.note})" if run.note else ""
            text = Text()
            text.append(f" {self._marks['running']} ", style=_STYLES["running"])
            took = f"{seconds(now - run.start):>7} "
            text.append(took, style="bold yellow" if run in slow else "")
            text.append(self._cut(f"{run.host}: {self._line.tasks[run.task].name}{note}", width - 3 - len(took)))
            if run in slow:
                usual = self._line.tasks[run.task]
                text.append(f"  slow: others took {seconds(usual.total / usual.hosts)}", style="yellow")
            if run.said:
                text.append(f"  {last_line(run.said[-1][2])}", style="dim")
            lines.append(text)
        left = len(self._line.running) - len(shown)
        if left > 0:
            lines.append(Text(f"   and {left} more at work", style="dim"))
        return lines + self._grid(width, height - len(lines))

    def _cut(self, text: str, width: int) -> str:
        text = "".join(one if one.isprintable() else " " for one in text)
        return cut(text, max(0, width), self._more)

    def _where(self, width: int) -> Text:
        line = self._line
        clock = seconds(line.elapsed())
        text = Text()
        play = line.plays[-1] if line.plays else "starting"
        plays = len(self._plan.weights) if self._plan else 0
        number = f" {len(line.plays)}/{plays}" if plays > 1 and len(line.plays) <= plays else ""
        room = width - len(clock) - 2
        head = f"play{number} "
        text.append(head, style="dim")
        text.append(self._cut(play, min(room - len(head), max(12, room // 3))), style="bold")
        if line.tasks and room - len(text) > 16:
            text.append("  task ", style="dim")
            text.append(self._cut(line.tasks[-1].name, room - len(text)), style="bold")
        text.append(" " * max(1, width - len(clock) - text.cell_len))
        text.append(clock, style="cyan")
        return text

    def _bar(self, width: int) -> Text:
        line = self._line
        done = self._plan.progress(len(line.plays) - 1, line.done_in_play) if self._plan else None
        if done is None:
            return Text(f"{sum(map(len, (host.cells for host in line.hosts.values())))} results", style="dim")
        elapsed = line.elapsed()
        guess = f" {done:4.0%}"
        if 0.05 <= done < 1 and elapsed >= 3:
            guess += f"  about {seconds(elapsed * (1 - done) / done)} left"
        room = max(4, width - len(guess))
        full = round(room * done)
        text = Text()
        text.append(self._full * full, style="green")
        text.append(self._empty * (room - full), style="dim")
        text.append(guess)
        return text

    def _counts(self, width: int) -> Text:
        line = self._line
        text = Text()
        text.append(f"{len(line.hosts)} host{'s' if len(line.hosts) != 1 else ''}", style="bold")
        for state in ("ok", "changed", "skipped", "ignored", "failed", "unreachable"):
            count = line.total(state)
            part = f"  {count} {state}"
            if (count or state in ("ok", "failed")) and text.cell_len + len(part) <= width:
                text.append(part, style=_STYLES[state] if count else "dim")
        return text

    def _failed(self, width: int, most: int) -> list[Text]:
        wrong = [one for one in self._line.failures if not one.ignored]
        lines = []
        for one in wrong[-most:]:
            task = self._line.tasks[one.task].name
            text = f" {self._marks['failed']} {one.host}: {task}: {one.sentence}"
            lines.append(Text(self._cut(text, width), style=_STYLES[one.state]))
        if len(wrong) > most:
            lines.append(Text(f"   and {len(wrong) - most} failures before", style="red"))
        return lines

    def _grid(self, width: int, room: int) -> list[Text]:
        """A row for each host and a column for each of the latest tasks: failed hosts first, then busy ones, then others."""
        hosts = sorted(self._line.hosts.values(), key=_interest)
        if room < 2 or not hosts:
            return []
        shown = hosts if len(hosts) <= room else hosts[: room - 1]
        names = min(max(len(host.name) for host in shown), max(8, width // 3))
        across = max(1, (width - names - 2) // 2)
        tasks = [task.number for task in self._line.tasks][-across:]
        lines = []
        for host in shown:
            text = Text(f" {self._cut(host.name, names):<{names}} ")
            for number in tasks:
                state = host.cells.get(number)
                text.append(self._marks[state] + " " if state else "  ", style=_STYLES.get(state or "", ""))
            lines.append(text)
        if len(shown) < len(hosts):
            rest = hosts[len(shown) :]
            bad = sum(_interest(host)[0] == 0 for host in rest)
            lines.append(Text(f" and {len(rest)} hosts more{f', {bad} of them failed' if bad else ''}", style="dim"))
        return lines


def _interest(host: HostProgress) -> tuple[int, str]:
    if host.counts.get("failed") or host.counts.get("unreachable"):
        return 0, host.name
    return (1 if "running" in host.cells.values() else 2), host.name
