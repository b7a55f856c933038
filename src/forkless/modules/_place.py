# SPDX-License-Identifier: GPL-3.0-or-later
"""A current folder and a umask for one thread, and an os.environ too."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["environ", "folder", "has_own_folder"]

_CLONE_FS = 0x200
# Where a thread cannot have a folder of its own, those who need another than the process's take turns.
_one_at_a_time = threading.RLock()


def has_own_folder() -> bool:
    """
    Give the calling thread a current folder and umask of its own, for the rest of its life. Linux can.

    Never for the main thread: its folder is the program's, and threads that it starts later would not follow a change.
    """
    if not sys.platform.startswith("linux") or threading.current_thread() is threading.main_thread():
        return False
    try:
        done: int = ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FS)
    except (OSError, AttributeError):
        return False
    return done == 0


@contextlib.contextmanager
def folder(wanted: str | None) -> Iterator[None]:
    """Be in that folder for the length of the block; afterwards folder and umask are as they were."""
    turn: Any = contextlib.nullcontext() if has_own_folder() else _one_at_a_time
    with turn:
        before = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if os.path.isdir(".") else -1
        mask = os.umask(0o077)
        os.umask(mask)
        try:
            if wanted:
                os.chdir(wanted)
            yield
        finally:
            os.umask(mask)
            if before >= 0:
                os.fchdir(before)
                os.close(before)


# -- environ ------------------------------------------------------------------------------------------------------


class _Mine(threading.local):
    variables: dict[bytes, bytes] | None = None


_mine = _Mine()
_swap = threading.Lock()
_users = 0

_Real: Any = type(os.environ)


class _PerThread(_Real):  # type: ignore[misc]
    """
    The class that os.environ has while a module runs here: a thread with variables of its own sees those.

    It is the same object, so `from os import environ` of long ago sees them too. Every other thread sees what it always saw.
    """

    @property
    def _data(self) -> Any:
        mine = _mine.variables
        return self.__dict__["_data"] if mine is None else mine

    @_data.setter
    def _data(self, value: Any) -> None:
        self.__dict__["_data"] = value

    def __setitem__(self, key: Any, value: Any) -> None:
        if _mine.variables is None:
            super().__setitem__(key, value)
        else:
            # No putenv: the C library has one environment, and it is the program's.
            _mine.variables[self.encodekey(key)] = self.encodevalue(value)

    def __delitem__(self, key: Any) -> None:
        if _mine.variables is None:
            super().__delitem__(key)
            return
        try:
            del _mine.variables[self.encodekey(key)]
        except KeyError:
            raise KeyError(key) from None


@contextlib.contextmanager
def environ(variables: dict[str, str]) -> Iterator[None]:
    """os.environ is `variables` for this thread, for the length of the block; what is changed in it is forgotten."""
    global _users  # noqa: PLW0603  # how many threads are in here
    with _swap:
        _users += 1
        if _users == 1:
            for one in (os.environ, getattr(os, "environb", None)):
                if one is not None:
                    one.__class__ = _PerThread
    outer = _mine.variables
    _mine.variables = {os.fsencode(key): os.fsencode(value) for key, value in variables.items()}
    try:
        yield
    finally:
        _mine.variables = outer
        with _swap:
            _users -= 1
            if _users == 0:
                for one in (os.environ, getattr(os, "environb", None)):
                    if one is not None:
                        one.__class__ = _Real
