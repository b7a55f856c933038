# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines that tasks print while they run, as text for a terminal: what stands before a line, colours, and cutting by width."""

from __future__ import annotations

import hashlib
import os
import unicodedata
import zlib
from typing import TYPE_CHECKING, TextIO

from forkless.cli.terminal_text import without_sequences

if TYPE_CHECKING:
    from forkless.core.events import Event

__all__ = ["OutputPrinter", "ShownOutput", "cells", "cut", "last_line", "plain"]

# Of the 16 colours those that can be read on a dark and on a light ground.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_WIDEST = 24  # columns of the name of a host or task


def plain(line: str) -> str:
    """The line as a terminal shows it in the end: without escape sequences, and after the last carriage return."""
    line = without_sequences(line).rstrip("\r").rpartition("\r")[2].expandtabs()
    return "".join(one if one.isprintable() or unicodedata.combining(one) else "\ufffd" for one in line)


def _width(one: str) -> int:
    if unicodedata.combining(one) or unicodedata.category(one) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def cut(text: str, width: int, more: str = "\u2026") -> str:
    """The text in at most `width` columns. A wide character is not divided, and a combining one stays with its base."""
    if cells(text) <= width:
        return text
    kept, used = [], 0
    for one in text:
        used += _width(one)
        if used > width - len(more):
            break
        kept.append(one)
    return "".join(kept) + more


def last_line(text: str) -> str:
    return plain(text.rstrip("\n").rpartition("\n")[2])


class OutputPrinter:
    """Makes the text of `--live-output`. The name of a host always has the same colour."""

    def __init__(self, stream: TextIO) -> None:
        coloured = stream.isatty() and not (os.environ.get("NO_COLOR") or os.environ.get("ANSIBLE_NOCOLOR"))
        self._coloured = coloured or os.environ.get("ANSIBLE_FORCE_COLOR", "").lower() in ("1", "true", "yes", "on")
        self._more = "\u2026" if (stream.encoding or "").lower().startswith("utf") else "~"
        self._hosts = 0
        self._tasks = 0

    def lines(self, event: Event) -> str:
        """The lines of an event `runner_on_output`, each with its host and task before it."""
        about = event.event_data
        before = self._before(str(about["host"]), _named(about.get("task"), about.get("item")))
        made = [f"{before}{plain(line)}\n" for line in str(about["text"]).split("\n")]
        if about.get("dropped"):
            made.insert(0, f"{before}({about['dropped']} lines are not shown: they came too fast)\n")
        return "".join(made)

    def _before(self, host: str, task: str) -> str:
        host, task = (cut(plain(one), _WIDEST, self._more) for one in (host, task))
        self._hosts, self._tasks = max(self._hosts, cells(host)), max(self._tasks, cells(task))
        text = f"{host}{' ' * (self._hosts - cells(host))} | {task}{' ' * (self._tasks - cells(task))} | "
        if not self._coloured:
            return text
        colour = _COLOURS[zlib.crc32(host.encode("utf-8", "replace")) % len(_COLOURS)]
        return f"\x1b[{colour}m{text}\x1b[0m"


class ShownOutput:
    """
    Knows which streams of tasks were shown as a whole, so that their results need not show them again.

    `add` is called before the result of that task on that host is printed; what belongs to other hosts may be added meanwhile.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], dict[tuple[str, str], _Stream]] = {}

    def add(self, event: Event, *, shown: bool = True) -> None:
        about = event.event_data
        streams = self._tasks.setdefault((str(about["host"]), str(about.get("task_uuid"))), {})
        key = (str(about["stream"]), repr(about.get("item")))
        if about["line"] == 1 or key not in streams:  # another program of the task begins to count anew
            streams[key] = _Stream()
        stream = streams[key]
        stream.whole = stream.whole and shown and not about["dropped"]
        stream.add(str(about["text"]) + "\n")

    def remove_from(self, host: str, task: str, result: dict[str, object]) -> None:
        streams = dict(self._tasks.get((host, task), {}))
        for name in ("stdout", "stderr"):
            shown = [one for key, one in streams.items() if key[0] == name and one.whole]
            # A text of which lines were dropped may be very large: no copy is made of it.
            text = result.get(name) if shown else None
            if isinstance(text, str) and text.strip():
                wanted = _Stream()
                wanted.add(text.replace("\r\n", "\n"))
                if any(one.same_as(wanted) for one in shown):
                    del result[name]
                    result.pop(f"{name}_lines", None)

    def forget(self, event: Event) -> None:
        self._tasks.pop((str(event.event_data.get("host")), str(event.event_data.get("task_uuid"))), None)


class _Stream:
    """The digest of a text without the newlines at its end, which the modules remove."""

    def __init__(self) -> None:
        self.whole = True
        self._digest = hashlib.sha256()
        self._newlines = ""

    def add(self, text: str) -> None:
        kept = text.rstrip("\n")
        if kept:
            self._digest.update((self._newlines + kept).encode("utf-8", "surrogatepass"))
            self._newlines = ""
        self._newlines += text[len(kept) :]

    def same_as(self, other: _Stream) -> bool:
        return self._digest.digest() == other._digest.digest()


def _named(task: object, item: object) -> str:
    return f"{task}" if item is None else f"{task} ({item})"
