# SPDX-License-Identifier: GPL-3.0-or-later
"""The hearths of a run: one for each place, user and interpreter, started when first needed, gone with the run."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from typing import TYPE_CHECKING, Any

from forkless.modules._hearth import Hearth, NotStartedError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

__all__ = ["KEEP", "Keep", "kept"]

# The hearths of the run that the current thread works for. An engine sets it in each of its workers; without one nothing is kept warm.
KEEP: contextvars.ContextVar[Keep | None] = contextvars.ContextVar("forkless.modules.keep", default=None)

MOST = 8  # for one place: environments that differ need one each
TRIES = 2  # an interpreter that could not be started so often is not asked for again in this run


class Keep:
    def __init__(self) -> None:
        # Guards the fields and nothing else.
        self._lock = threading.Lock()
        self._slots: dict[Hashable, _Slot] = {}
        self._closed = False

    def get(self, place: Hashable, key: Hashable, start: Callable[[], Hearth]) -> Hearth:
        """The hearth for this key. Those who come while it is being started wait for the same one."""
        with self._lock:
            if self._closed:
                raise NotStartedError("the run is over")
            slot = self._slots.setdefault((place, key), _Slot(place))
            idle = self._too_many(place, slot)
        for one in idle:
            one.close()
        with slot.lock:
            if slot.hearth is not None and not slot.hearth.lost:
                return slot.hearth
            if slot.failed >= TRIES:
                raise NotStartedError("it could not be started before")
            slot.drop()
            try:
                slot.hearth = start()
            except NotStartedError:
                slot.failed += 1
                raise
            if self._closed:
                slot.drop()
                raise NotStartedError("the run is over")
            return slot.hearth

    def _too_many(self, place: Hashable, wanted: _Slot) -> list[Hearth]:
        there = [slot for slot in self._slots.values() if slot.place == place and slot.hearth is not None]
        there = sorted((slot for slot in there if slot is not wanted and not slot.hearth.busy), key=lambda s: s.hearth.used)  # type: ignore[union-attr]
        idle: list[Hearth] = []
        for slot in there[: max(0, len(there) - MOST + 1)]:
            if slot.hearth is not None:
                idle.append(slot.hearth)
            slot.hearth = None
        return idle

    def forget(self, hearth: Hearth) -> None:
        """It is too old, or gone: the next one who asks gets another."""
        with self._lock:
            slots = [slot for slot in self._slots.values() if slot.hearth is hearth]
            for slot in slots:
                slot.hearth = None
        if not hearth.busy:
            hearth.close()
        else:
            hearth.close_when_idle()

    def leave(self, place: Hashable) -> None:
        """meta: reset_connection: what is kept for this place is ended."""
        with self._lock:
            slots = [slot for slot in self._slots.values() if slot.place == place]
        for slot in slots:
            slot.drop()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            slots = list(self._slots.values())
            self._slots.clear()
        threads = [threading.Thread(target=slot.drop, name="forkless-hearth-end", daemon=True) for slot in slots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class _Slot:
    def __init__(self, place: Hashable) -> None:
        self.place = place
        self.lock = threading.Lock()
        self.hearth: Hearth | None = None
        self.failed = 0

    def drop(self) -> None:
        hearth, self.hearth = self.hearth, None
        if hearth is not None:
            hearth.close()


@contextlib.contextmanager
def kept() -> Iterator[Any]:
    """Hearths from here to the end of the block, for whoever has `KEEP` set to what this gives."""
    keep = Keep()
    try:
        yield keep
    finally:
        keep.close()
