# SPDX-License-Identifier: GPL-3.0-or-later
"""
Text of others for a terminal: hosts, people who name jobs and runs, and errors that quote them.

A terminal obeys what it is sent: an escape sequence moves the cursor, changes the title or fills the clipboard, and a character that
turns the direction of writing shows another text than the one that is there. What Ansible prints is not changed, except by the
commands that show a run of another process.
"""

from __future__ import annotations

import json
import re

__all__ = ["as_json", "coloured", "escaped", "lines", "printable", "without_sequences"]

# CSI with its parameters, OSC and other strings with their end, and what is a single character after ESC.
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
# Of the characters that json.dumps leaves as they are: DEL, C1 controls, and those without a shape of their own.
_ODD = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def without_sequences(text: str) -> str:
    return _SEQUENCES.sub("", text)


def printable(text: str) -> str:
    """The text in one line, with every character that is not shown as itself written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escaped(text: str) -> str:
    """A sentence, which may have several lines: colours are left out, newlines and tabs stay, other such characters are written as escapes."""
    text = _COLOUR.sub("", text)
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def lines(text: str) -> str:
    """What a program printed: as `escaped`, without its escape sequences. One that has no end hides the rest of its line."""
    return escaped(without_sequences(text).replace("\r\n", "\n"))


def coloured(text: str) -> str:
    """Text of Ansible, which may be coloured: as `lines`, but colours stay."""
    if text.isprintable():
        return text
    parts = _COLOUR.split(text)
    return "".join(part if at % 2 else lines(part) for at, part in enumerate(parts))


def as_json(thing: object, *, ascii_only: bool = False, indent: int | None = None) -> str:
    """JSON that is safe at a terminal, and equal for every program that reads it. Text that is not Unicode is written as an escape."""
    text = json.dumps(thing, ensure_ascii=ascii_only, indent=indent)
    text = _ODD.sub(lambda found: json.dumps(found[0])[1:-1], text)
    return text.encode(errors="backslashreplace").decode()
