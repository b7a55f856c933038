# SPDX-License-Identifier: GPL-3.0-or-later
"""Events of a run as rows: lines of JSON, compressed together. Row by row they would take ten times the space."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

from forkless.core.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["MOST_BYTES", "MOST_EVENTS", "pack", "unpack"]

# A batch has at most so many events, and about so many bytes: it is the unit that a reader fetches.
MOST_EVENTS = 1000
MOST_BYTES = 4 << 20


def pack(lines: Iterable[bytes]) -> tuple[bytes, int]:
    """The lines compressed, and their size before."""
    whole = b"".join(lines)
    return zlib.compress(whole, 1), len(whole)


def unpack(packed: bytes, root_last: int, after: int = 0) -> Iterator[Event]:
    """
    The events of a batch whose last one has the position `root_last` in the stream, from position `after` + 1 on.

    The counter of each event is its position in the stream of the run: it grows over slices and attempts.
    """
    lines = zlib.decompress(packed).splitlines()
    position = root_last - len(lines)
    for line in lines:
        position += 1
        if position > after:
            found = json.loads(line)
            found["counter"] = position
            yield Event.from_dict(found)
