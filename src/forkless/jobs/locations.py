# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths: of a record in a store (in forkless's layout, or in that of a hand-written role), and of a job on its host."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkless.jobs.record import Key

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Unreadable", "key_of", "slot_of", "stems", "unreadable"]


@dataclass(frozen=True)
class Unreadable:
    """A record that cannot be parsed: the names that its path gives, its location, and the reason."""

    host: str
    playbook_name: str
    job_name: str
    place: str
    why: str

    def __str__(self) -> str:
        return self.why


def slot_of(base: str, key: Key, token: str = "") -> str:
    """The async folder on the target: of one claim, or, without a token, of jobs that are started without a claim."""
    return posixpath.join(base, key.slots, f"c-{token}" if token else "open")


def stems(key: Key) -> list[str]:
    """
    The paths at which a record may be: forkless's own, and that of a hand-written role. The latter is left out if it
    would be outside the state folder, hidden, or too long.
    """
    parts: Sequence[str] = [part for part in (key.host, key.playbook_name, key.job_name) if part]
    if any(part.startswith(".") or os.sep in part or len(part.encode()) > 200 for part in parts):
        return [key.stem]
    return list(dict.fromkeys([key.stem, "/".join(parts)]))


def key_of(stem: str) -> Key:
    """The key that the path of a record gives."""
    host, playbook_name, job_name = _names_of(stem)
    return Key(host, job_name, playbook_name)


def _names_of(stem: str) -> tuple[str, str, str]:
    parts = stem.split("/")
    return parts[0], parts[1] if len(parts) == 3 else "", parts[-1]


def unreadable(stem: str, place: str, why: str) -> Unreadable:
    # File names may contain bytes that are not UTF-8; messages must not.
    return Unreadable(*(text.encode(errors="backslashreplace").decode() for text in (*_names_of(stem), place, why)))
