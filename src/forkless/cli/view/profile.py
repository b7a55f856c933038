# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of --profile at the end of a run: where the time went, as a few lines of text with bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkless.cli.view.timeline import Timeline

__all__ = ["profile", "seconds"]


def seconds(value: float) -> str:
    """A duration for display: 0.4 s, 12 s, 3:05, 1:02:03."""
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 60:
        return f"{value:.0f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def profile(line: Timeline, width: int, *, unicode: bool = True, most: int = 10) -> str:
    """The slowest tasks, the slowest hosts, and how busy the workers were. No line is wider than `width`."""
    width = max(40, min(width, 120))
    full, light, cut = ("█", "░", "…") if unicode else ("#", ".", "~")
    with line.lock:
        whole = max(line.elapsed(), 1e-9)
        busy = sum(span.seconds for span in line.spans)
        out = [
            "",
            f"TIMELINE {seconds(whole)}: {len(line.spans)} results, {len(line.hosts)} hosts, {line.lanes} workers at once",
        ]
        if not line.spans:
            return "\n".join([*out, "  no task was given to a worker", ""]) + "\n"
        share = busy / (whole * max(1, line.lanes))
        out.append(
            f"  workers were busy for {share:.0%} of the time; one after another it would have taken {seconds(busy)}"
        )
        out.append("")
        bar = max(8, width // 4)
        walls = line.walls()
        tasks = sorted((task for task in line.tasks if task.hosts), key=lambda task: -walls[task.number])[:most]
        longest = max(walls[task.number] for task in tasks)
        out.append("slowest tasks, by the time from the first start to the last end")
        for task in tasks:
            wall = walls[task.number]
            note = f" ({task.slowest} {seconds(task.longest)})" if task.hosts > 1 else ""
            out.append(_row(wall, longest, task.name + note, bar, width, full, light, cut))
        hosts = sorted(line.hosts.values(), key=lambda host: -host.busy)[:most]
        longest = max(host.busy for host in hosts) or 1e-9
        out += ["", "slowest hosts, by the time that workers spent on them"]
        out += [_row(host.busy, longest, host.name, bar, width, full, light, cut) for host in hosts]
        out += ["", "workers, from the start to the end"]
        out += [
            f"  {lane + 1:>3} {_lane(line, lane, width - 8, whole, full, light)}" for lane in range(min(line.lanes, 12))
        ]
        if line.lanes > 12:
            out.append(f"      and {line.lanes - 12} more")
    return "\n".join([*out, ""]) + "\n"


def _row(value: float, longest: float, name: str, bar: int, width: int, full: str, light: str, cut: str) -> str:
    length = round(bar * value / longest) if longest else 0
    name = "".join(one if one.isprintable() else " " for one in name)
    room = width - bar - 14
    name = name if len(name) <= room else name[: room - 1] + cut
    return f"  {seconds(value):>8} {full * length}{light * (bar - length)} {name}"


def _lane(line: Timeline, lane: int, width: int, whole: float, full: str, light: str) -> str:
    cells = [0.0] * width
    for span in line.spans:
        if span.lane != lane:
            continue
        first = (span.start - line.began) / whole * width
        last = (span.start + span.seconds - line.began) / whole * width
        for cell in range(max(0, int(first)), min(width - 1, int(last)) + 1):
            cells[cell] += max(0.0, min(last, cell + 1) - max(first, cell))
    return "".join(full if part >= 0.5 else light if part > 0.02 else " " for part in cells).rstrip()
