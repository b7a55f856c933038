# SPDX-License-Identifier: GPL-3.0-or-later
"""
Thread-local values of forkless itself, apart from those of libraries.

A thread that carried out a task is used for another one only if no library has left a thread-local value there. Those made here are known, and
are emptied between two tasks.
"""

from __future__ import annotations

import threading
from typing import Self

__all__ = ["OwnThreadLocal", "forget"]

_made: list[OwnThreadLocal] = []


class OwnThreadLocal(threading.local):
    """
    The base class of forkless's thread-local values. There is one instance of each subclass, in a module, and it is never removed.

    What a thread has not set is an attribute of the class.
    """

    def __new__(cls) -> Self:
        made = super().__new__(cls)
        _made.append(made)
        return made


def forget() -> None:
    """Remove all of these values of the calling thread. A new thread calls it too, and thereby has an empty place for each."""
    for one in _made:
        vars(one).clear()
