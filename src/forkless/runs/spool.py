# SPDX-License-Identifier: GPL-3.0-or-later
"""A run's output and events: in memory while they are small, in a file beyond that. Any number of threads may read."""

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

from forkless.core.bulk import json_pieces
from forkless.core.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Events", "Spool"]

# The number of bytes of a run's output, and of its events, that are kept in memory.
IN_MEMORY = 4 << 20


class Spool:
    """
    Bytes that are only appended to, and can be read from any offset at any time, on any thread.

    The file is unlinked as soon as it is opened, so nothing is left if the program is killed. It is created in the artifact
    folder if the run has one. If the disk is full, the bytes stay in memory; none are lost.
    """

    def __init__(self, folder: str | None = None, in_memory: int = IN_MEMORY) -> None:
        self._folder = folder
        self._in_memory = in_memory
        # Guards the fields below only. Held while a few megabytes are written to disk.
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
            # The disk is full. The bytes stay in memory, and the next attempt is made after IN_MEMORY more bytes. The file is
            # truncated to what was written before, because the run's artifacts and other programs need the space.
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


def _line(event: Event) -> Iterable[bytes]:
    """The event as JSON, in pieces. An in-process plugin may put values into an event that JSON cannot hold; that must not end the run."""
    whole = event.as_dict()
    try:
        return json_pieces(whole)
    except (TypeError, ValueError):  # keys that are not strings, or a circular reference
        return json_pieces(whole | {"event_data": {"text": repr(event.event_data)}})


class Events(Sequence[Event]):
    """Every event of a run in order, as an immutable sequence for its readers. One thread at a time may append; any may read."""

    def __init__(self, folder: str | None = None, in_memory: int = IN_MEMORY) -> None:
        self._lines = Spool(folder, in_memory)
        self._ends = array("Q")
        # The Event objects, until their lines have been written to disk.
        self._whole: list[Event] | None = []

    def append(self, event: Event) -> None:
        for piece in _line(event):
            self._lines.append(piece)
        self._lines.append(b"\n")
        if self._whole is not None:
            if self._lines.spilled:
                self._whole = None
            else:
                self._whole.append(event)
        # Appended last, so that a reader that sees the new length finds the event.
        self._ends.append(len(self._lines))

    def __len__(self) -> int:
        return len(self._ends)

    def lines(self, start: int, stop: int) -> list[bytes]:
        """Events `start` to `stop` as they were serialized, each a line of JSON."""
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
