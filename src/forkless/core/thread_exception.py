# SPDX-License-Identifier: GPL-3.0-or-later
"""
An exception that is sent to another thread: the only way to interrupt one.

It is raised when the thread next executes Python code. A thread that is blocked in C does not see it before the call returns.

No exception reaches a thread that is starting another one (`starting`). Before Python 3.12 the new thread has the ident of its starter until the
system first runs it, so the exception would hit the new thread: it would end before it says that it has begun, and its starter would wait for
that for ever. On every version an exception inside `Thread.start` can leave a lock locked that the new thread needs.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_starting", "send", "starting", "take_back"]

# Guards the two below, and that a thread does not begin to start another one while an exception is sent to it. Re-entrant: a signal
# handler may interrupt the thread that holds it, and send an exception.
_lock = threading.RLock()
_starting: dict[int, int] = {}  # idents of threads that are starting another, with the number of nested calls
_held_back: dict[int, type[BaseException]] = {}  # what was sent to them meanwhile

_Started = TypeVar("_Started")


def send(thread: int, error: type[BaseException]) -> bool:
    """
    Raise `error` in the thread with this ident at its next Python instruction; False if there is no such thread. Any thread may call it.

    The caller sees to it that the thread has not ended: the system gives idents to new threads again. If the thread is starting another one,
    the error is raised when that has begun.
    """
    with _lock:
        if thread in _starting:
            _held_back[thread] = error
            return True
        return _set(thread, error)


def _set(thread: int, error: type[BaseException]) -> bool:
    return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error)))


def is_starting(thread: int) -> bool:
    """Whether the thread with this ident is starting another one: its wait for that one must not be ended."""
    return thread in _starting


def starting(start: Callable[[], _Started]) -> _Started:
    """
    Call `start`, which starts a thread and returns when that has begun. An error that is sent to the calling thread meanwhile is raised
    afterwards.
    """
    me = threading.get_ident()
    outer = _starting.get(me, 0)
    held_back = None
    try:
        # Inside of `try`: an error that was sent before may be raised as soon as the lock is released.
        with _lock:
            _starting[me] = outer + 1
        _raise_what_was_sent()
        return start()
    finally:
        with _lock:
            if outer:
                _starting[me] = outer
            else:
                _starting.pop(me, None)
                held_back = _held_back.pop(me, None)
        if held_back is not None:
            raise held_back


def _raise_what_was_sent() -> None:
    """Does nothing, but an error that was sent to the calling thread is raised when a function begins."""


class _NoException(BaseException):
    """Replaces an error that must not be raised."""


def take_back() -> None:
    """
    Cancel an error that was sent to the calling thread and has not been raised yet.

    Sending NULL, the C API's way, is not used: up to Python 3.12 it leaves the eval breaker set, so that every call and every loop
    iteration in the process takes the interpreter's slow path, and a profiler never leaves its first function. Only raising an
    error clears the flag, so another error is sent and caught here.
    """
    with _lock:
        _held_back.pop(threading.get_ident(), None)
    try:
        if not _set(threading.get_ident(), _NoException):
            return
        while True:
            pass
    except _NoException:
        pass
