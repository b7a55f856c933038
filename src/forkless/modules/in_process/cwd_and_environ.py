# SPDX-License-Identifier: GPL-3.0-or-later
"""A current folder and a umask that belong to one thread."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["FOLDERS", "folder", "has_own_folder"]

_CLONE_FS = 0x200
# An engine's way to run a module in a folder on platforms without a current folder for each thread: the engine must not
# change the program's current folder.
FOLDERS: list[Callable[[str | None], contextlib.AbstractContextManager[None]]] = []
# Without an engine, threads that need another current folder than the process's run one after another.
_one_at_a_time = threading.RLock()


def has_own_folder() -> bool:
    """
    Give the calling thread a current folder and umask of its own until it ends; return whether that worked. Only Linux
    can.

    The main thread is refused: its folder is the program's, and threads started earlier would no longer follow its
    chdir.
    """
    if not sys.platform.startswith("linux") or threading.current_thread() is threading.main_thread():
        return False
    try:
        done: int = _c_library().unshare(_CLONE_FS)
    except (OSError, AttributeError):
        return False
    return done == 0


@functools.cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def folder(wanted: str | None) -> Iterator[None]:
    """
    Run the block in the folder `wanted`; restore the current folder and the umask afterwards.

    Any thread may call this. If the thread cannot have a folder of its own and no engine is installed, concurrent
    blocks are serialized.
    """
    own = has_own_folder()
    if not own and FOLDERS:
        with FOLDERS[-1](wanted):
            yield
        return
    turn: Any = contextlib.nullcontext() if own else _one_at_a_time
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
