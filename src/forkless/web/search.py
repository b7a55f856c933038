# SPDX-License-Identifier: GPL-3.0-or-later
"""Search in what a run printed: a part of its events at a time, so that a long run holds up neither the server nor the reader."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forkless.web.answers import FoundLine, FoundLinesAnswer, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from forkless.core.events import Event
    from forkless.queue import Queue, RunRecord

__all__ = ["find_lines"]

# In one answer, and of one event.
_MOST_LINES = 200
# Rows of up to 1000 events that one answer looks through, some at a time.
_ROWS = 20
_AT_A_TIME = 4
_MOST_TEXT = 1000


async def find_lines(queue: Queue, record: RunRecord, text: str, after: int) -> FoundLinesAnswer:
    """Lines that contain the text, in any case, in events after the position."""
    found: list[FoundLine] = []
    for _ in range(_ROWS // _AT_A_TIME):
        events = await queue.events(record.id, after=after, batches=_AT_A_TIME)
        if not events:
            return FoundLinesAnswer(lines=found, next=None)
        found, after = await asyncio.to_thread(_look, events, record.project, text.casefold(), found)
        if len(found) >= _MOST_LINES:
            break
    return FoundLinesAnswer(lines=found, next=after)


def _look(
    events: Iterable[Event], project: Mapping[str, object], wanted: str, found: list[FoundLine]
) -> tuple[list[FoundLine], int]:
    """The lines so far with those of these events, at most _MOST_LINES of one, and the position of the last event that was looked at."""
    found, last = list(found), 0
    for event in events:
        last = event.counter
        most = len(found) + _MOST_LINES
        is_live = event.event == "runner_on_output"
        printed = str(event.event_data.get("text") or "") if is_live else event.stdout
        for line in plain(printed, project).splitlines():
            if wanted in line.casefold():
                at = line.casefold().index(wanted)
                short = (
                    line
                    if len(line) <= _MOST_TEXT
                    else "…" + line[max(0, at - _MOST_TEXT // 2) : at + _MOST_TEXT // 2] + "…"
                )
                found.append(
                    FoundLine(n=event.counter, text=short, host=plain(event.host or ""), task=plain(event.task or ""))
                )
                if len(found) == most:
                    break
        if len(found) >= _MOST_LINES:
            break
    return found, last
