# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a slice of `forkless playbook --slices` and its parent tell each other. The parent: which hosts the slice has, and which core. The slice: a
line of JSON for each piece of Ansible's output, with its kind.

Apart from slice_process.py, so that the parent imports nothing that only a run needs: the slices start when it has.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["COLUMNS", "HEADER", "KINDS", "RECAP", "TEXT", "SliceRecords", "part", "part_in"]

# The kinds of records: the name of a play or task, other text, and what happened to each host in the end.
KINDS = HEADER, TEXT, RECAP = "header", "text", "recap"
COLUMNS = {"ok": "ok", "changed": "changed", "unreachable": "dark", "failed": "failures", "skipped": "skipped"} | {
    "rescued": "rescued",
    "ignored": "ignored",
}
"""The columns of Ansible's recap, and the names of their counts in ansible-core."""


def part(limit: str, core: int | None) -> str:
    """What the parent tells a slice that has hosts."""
    return json.dumps([limit, core])


def part_in(told: str) -> tuple[str, int | None]:
    """The limit and the core in what `part` made."""
    limit, core = json.loads(told)
    return limit, core


class SliceRecords:
    """Takes what Ansible prints to stdout, and writes it in records. Any thread may call it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._kept: list[str] = []

    def write(self, text: str, /) -> int:
        with self._lock:
            self._kept.append(text)
        return len(text)

    def flush(self) -> None:
        """Does nothing: a record is written when Ansible calls a callback, which tells what the text is about."""

    def isatty(self) -> bool:
        return False

    def put(self, kind: str) -> None:
        """Write what Ansible has printed since the last record."""
        with self._lock:
            text = "".join(self._kept)
            self._kept.clear()
            if text:
                self._write(kind, text)

    def put_recap(self, counts: dict[str, dict[str, int]]) -> None:
        """Write the counts of each host, in place of the recap that Ansible has printed."""
        with self._lock:
            self._kept.clear()
            self._write(RECAP, counts)

    def _write(self, kind: str, value: object) -> None:
        self._stream.write(json.dumps([kind, value]) + "\n")
        self._stream.flush()
