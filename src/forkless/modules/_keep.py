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
        self._notes: dict[Hashable, dict[Any, str]] = {}
        self._closed = False

    def get(
        self, place: Hashable, key: Hashable, start: Callable[[], Hearth], *, machine: Any = None, guest: bool = False
    ) -> Hearth:
        """
        The hearth for this key. Those who come while it is being started wait for the same one.

        A guest is one of a user who may be removed by the next task: it is kept as long as nobody else comes to the machine.
        """
        with self._lock:
            if self._closed:
                raise NotStartedError("the run is over")
            slot = self._slots.setdefault((place, key), _Slot(place, machine if guest else None))
            idle = self._too_many(place, slot)
        for one in idle:
            one.retire()
        self.see_off_guests(machine, slot)
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

    def of_login(self, place: Hashable) -> Hearth | None:
        """One that is already there, of whoever is logged in."""
        with self._lock:
            there = [slot.hearth for slot in self._slots.values() if slot.place == place]
        return next((one for one in there if one is not None and one.login and not one.lost), None)

    def notes(self, place: Hashable) -> dict[Any, str]:
        """What was learnt of this place, for as long as one stays connected."""
        with self._lock:
            return self._notes.setdefault(place, {})

    @property
    def has_guests(self) -> bool:
        return any(slot.guest_at is not None and slot.hearth is not None for slot in list(self._slots.values()))

    def see_off_guests(self, machine: Any, wanted: Any = None) -> None:
        """Whoever comes now may remove a user, and one that has a process cannot be removed."""
        leaving: list[Hearth] = []
        with self._lock:
            for slot in self._slots.values():
                hearth = slot.hearth
                at_home = slot is wanted or slot.guest_at is None or slot.guest_at != machine
                if not at_home and hearth is not None and not hearth.busy:
                    slot.hearth = None
                    leaving.append(hearth)
        for one in leaving:
            one.retire(and_wait=True)

    def _too_many(self, place: Hashable, wanted: _Slot) -> list[Hearth]:
        there = [slot for slot in self._slots.values() if slot.place == place and slot is not wanted]
        resting = [
            (slot.hearth.used, n) for n, slot in enumerate(there) if slot.hearth is not None and not slot.hearth.busy
        ]
        idle: list[Hearth] = []
        for _, number in sorted(resting)[: max(0, len(resting) - MOST + 1)]:
            hearth, there[number].hearth = there[number].hearth, None
            idle += [hearth] if hearth is not None else []
        return idle

    def forget(self, hearth: Hearth) -> None:
        """It is too old, or gone: the next one who asks gets another."""
        with self._lock:
            slots = [slot for slot in self._slots.values() if slot.hearth is hearth]
            for slot in slots:
                slot.hearth = None
        hearth.retire()

    def leave(self, place: Hashable) -> None:
        """meta: reset_connection: what is kept for this place is ended."""
        with self._lock:
            slots = [slot for slot in self._slots.values() if slot.place == place]
            self._notes.pop(place, None)
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
    def __init__(self, place: Hashable, guest_at: Any) -> None:
        self.place = place
        self.guest_at = guest_at
        self.lock = threading.Lock()
        self.hearth: Hearth | None = None
        self.failed = 0

    def drop(self) -> None:
        hearth, self.hearth = self.hearth, None
        if hearth is not None:
            hearth.close()


@contextlib.contextmanager
def kept() -> Iterator[Any]:
    """Hearths from here to the end of the block: for this thread, and for whoever has `KEEP` set to what this gives."""
    keep = Keep()
    token = KEEP.set(keep)
    try:
        yield keep
    finally:
        KEEP.reset(token)
        keep.close()
