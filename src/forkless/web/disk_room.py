# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether there is room left on the disks that the database and the workers of this server write to."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DiskRoom"]

# PostgreSQL writes its log in files of 16 MB, and ends when there is no room for the next one.
_LEAST = 32 << 20
# Seconds for which an answer holds.
_LOOK_EVERY = 1.0


class DiskRoom:
    """Folders by the name of who needs them. For one event loop."""

    def __init__(self, folders: Mapping[str, str] | None = None) -> None:
        self._folders = folders or {}
        self._looked = float("-inf")
        self._sentence = ""

    @property
    def trouble(self) -> str:
        """A sentence about the first disk that is full; empty if none is."""
        if time.monotonic() > self._looked + _LOOK_EVERY:
            self._sentence = next(filter(None, (_look(name, folder) for name, folder in self._folders.items())), "")
            self._looked = time.monotonic()
        return self._sentence


def _look(name: str, folder: str) -> str:
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    room = found.f_bavail * found.f_frsize
    if room >= _LEAST:
        return ""
    return f"the disk of {name} is full ({room >> 20} MB are left): runs cannot go on until there is room"
