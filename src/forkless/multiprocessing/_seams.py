# SPDX-License-Identifier: GPL-3.0-or-later
"""A seam is a name in somebody else's module that we replace: where, with what, why, and how to put it back."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Seam", "Undo", "sew"]

_ABSENT = object()


@dataclass(frozen=True)
class Seam:
    """One name of one owner: an attribute of a module, class or function, or a key of a mapping."""

    owner: Any
    name: str
    stand_in: Any
    why: str


class Undo:
    """What was replaced, and with what. Taken out newest first."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []

    def replace(self, seam: Seam) -> None:
        was = _get(seam.owner, seam.name)
        _set(seam.owner, seam.name, seam.stand_in)
        self._done.append((seam.owner, seam.name, was))

    def undo(self) -> None:
        while self._done:
            _set(*self._done.pop())


def sew(seams: list[Seam]) -> Undo:
    """Put all of them in, or none."""
    undo = Undo()
    try:
        for seam in seams:
            undo.replace(seam)
    except BaseException:  # Ctrl-C too: half of the seams is worse than none
        undo.undo()
        raise
    return undo


def _get(owner: Any, name: str) -> Any:
    if isinstance(owner, MutableMapping):
        return owner.get(name, _ABSENT)
    if isinstance(owner, type):
        # As it stands in the class, not as the descriptor makes it look from outside; nothing inherited.
        return vars(owner).get(name, _ABSENT)
    return getattr(owner, name, _ABSENT)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, MutableMapping):
        if value is _ABSENT:
            owner.pop(name, None)
        else:
            owner[name] = value
    elif value is _ABSENT:
        if name in vars(owner):
            delattr(owner, name)
    else:
        setattr(owner, name, value)
