# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run has said so far: in memory while it is little, on disk beyond. Readers come and go, each at its own pace."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import weakref
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from forkless._events import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Events", "Spool"]

# How much of a run's output, and how much of its events, stays in memory.
IN_MEMORY = 4 << 20


class Spool:
    """
    Bytes that are only ever added to, and can be read from any place at any time.

    The file has no name, so nothing is left when the program is killed; its folder is the artifact folder if the run
    has one. A disk that is full costs memory, never bytes.
    """

    def __init__(self, folder: str | None = None, in_memory: int = IN_MEMORY) -> None:
        self._folder = folder
        self._in_memory = in_memory
        # Guards the fields below and nothing else. Held during writes of a few megabytes at a time.
        self._lock = threading.Lock()
        self._recent = bytearray()
        self._fd: int | None = None
        self._on_disk = 0

    def __len__(self) -> int:
        return self._on_disk + len(self._recent)

    @property
    def spilled(self) -> bool:
        return self._on_disk > 0

    def append(self, piece: bytes) -> None:
        with self._lock:
            self._recent += piece
            if len(self._recent) > self._in_memory:
                self._spill()

    def _spill(self) -> None:
        try:
            if self._fd is None:
                self._fd, name = tempfile.mkstemp(prefix=".forkless-", dir=self._folder)
                weakref.finalize(self, os.close, self._fd)
                os.unlink(name)
            view = memoryview(self._recent)
            done = 0
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], self._on_disk + done)
            view.release()
        except OSError:
            # No room. What is in memory stays there, and the next attempt comes when as much again has been said. The room that this
            # one took is given back: the artifacts of the run, and everybody else's files, need it.
            if self._fd is not None:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._on_disk)
            self._in_memory = len(self._recent) + IN_MEMORY
            return
        self._on_disk += len(self._recent)
        self._recent = bytearray()

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        with self._lock:
            end = len(self) if end is None else min(end, len(self))
            piece = b""
            if self._fd is not None and start < self._on_disk:
                stop = min(end, self._on_disk)
                pieces = []
                while start < stop:
                    got = os.pread(self._fd, stop - start, start)
                    pieces.append(got)
                    start += len(got)
                piece = b"".join(pieces)
            if start < end:
                piece += bytes(self._recent[start - self._on_disk : end - self._on_disk])
            return piece

    def __str__(self) -> str:
        return self.read().decode("utf-8", "replace")

    def __reduce__(self) -> Any:
        return str, (str(self),)


def _line(event: Event) -> bytes:
    """An engine in this process may hand over what JSON cannot hold; that must not end the run."""
    whole = event.as_dict()
    try:
        return json.dumps(whole, default=str).encode() + b"\n"
    except (TypeError, ValueError):  # keys that are no strings, or a circle
        return json.dumps(whole | {"event_data": {"text": repr(event.event_data)}}, default=str).encode() + b"\n"


class Events(Sequence[Event]):
    """Every event of a run, in order, to be read like a tuple."""

    def __init__(self, folder: str | None = None, in_memory: int = IN_MEMORY) -> None:
        self._lines = Spool(folder, in_memory)
        self._ends = array("Q")
        # The events themselves, for as long as their lines are few.
        self._whole: list[Event] | None = []

    def append(self, event: Event) -> None:
        self._lines.append(_line(event))
        if self._whole is not None:
            if self._lines.spilled:
                self._whole = None
            else:
                self._whole.append(event)
        # Last, so that whoever sees the new length finds the event.
        self._ends.append(len(self._lines))

    def __len__(self) -> int:
        return len(self._ends)

    def lines(self, start: int, stop: int) -> list[bytes]:
        """Events as they are written, each a line of JSON."""
        stop = min(stop, len(self._ends))
        if start >= stop:
            return []
        begin = self._ends[start - 1] if start else 0
        return self._lines.read(begin, self._ends[stop - 1]).splitlines(keepends=True)

    def part(self, start: int, stop: int) -> list[Event]:
        stop = min(stop, len(self._ends))
        whole = self._whole
        if whole is not None:
            return whole[start:stop]
        return [Event.from_dict(json.loads(line)) for line in self.lines(start, stop)]

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return tuple(self.part(start, stop)[::step]) if step > 0 else tuple(self)[index]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} events")
        return self.part(index, index + 1)[0]

    def __iter__(self) -> Iterator[Event]:
        seen = 0
        while fresh := self.part(seen, seen + 256):
            yield from fresh
            seen += len(fresh)

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)
