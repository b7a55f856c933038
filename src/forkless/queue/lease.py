# SPDX-License-Identifier: GPL-3.0-or-later
"""
The lease of an attempt, and how others find out that it ended. No wall clock takes part: a clock that jumps changes nothing.

The owner counts from the moment *before* it sent a renewal. Another worker counts from the moment *after* it saw that renewal in the
database, on a clock of its own. So the owner stops first, however long the message took, as long as both clocks run equally fast.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

__all__ = ["Lease", "Observation", "clock"]

# CLOCK_MONOTONIC stands still while a machine sleeps; the database does not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds since the machine was started, including those that it slept."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """How long the owner of an attempt may act without an answer from the database. Any thread may read it; one thread renews it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        # The seconds before the end of the lease in which the run must stop, so that another worker may begin it.
        self.margin = min(seconds / 4, 15.0)
        self._until = 0.0

    def renewed(self, sent: float) -> None:
        """The database accepted a renewal that was sent at `sent`, by `clock()`."""
        self._until = sent + self.seconds - self.margin

    @property
    def until(self) -> float:
        return self._until

    def expired(self) -> bool:
        return clock() >= self._until


class Observation:
    """Since when each thing is seen unchanged, by this process's own clock. For one thread."""

    def __init__(self) -> None:
        self._since: dict[Hashable, tuple[object, float]] = {}

    def unchanged(self, seen: Mapping[Hashable, object]) -> dict[Hashable, float]:
        """Note what is seen now; for each thing the seconds since when it was seen for the first time as it is."""
        now = clock()
        kept = {}
        for thing, value in seen.items():
            before = self._since.get(thing)
            kept[thing] = before if before is not None and before[0] == value else (value, now)
        self._since = kept
        return {thing: now - since for thing, (_, since) in kept.items()}

    def forget(self, things: Iterable[Hashable]) -> None:
        for thing in things:
            self._since.pop(thing, None)
