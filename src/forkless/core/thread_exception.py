# SPDX-License-Identifier: GPL-3.0-or-later
"""
An exception that is sent to another thread: the only way to interrupt one.

It is raised when the thread next executes Python code. A thread that is blocked in C does not see it before the call returns.
"""

from __future__ import annotations

import ctypes
import threading

__all__ = ["send", "take_back"]


def send(thread: int, error: type[BaseException]) -> bool:
    """
    Raise `error` in the thread with this ident at its next Python instruction; False if there is no such thread. Any thread may call it.

    The caller sees to it that the thread has not ended: the system gives idents to new threads again.
    """
    return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error)))


class _NoException(BaseException):
    """Replaces an error that must not be raised."""


def take_back() -> None:
    """
    Cancel an error that was sent to the calling thread and has not been raised yet.

    Sending NULL, the C API's way, is not used: up to Python 3.12 it leaves the eval breaker set, so that every call and every loop
    iteration in the process takes the interpreter's slow path, and a profiler never leaves its first function. Only raising an
    error clears the flag, so another error is sent and caught here.
    """
    try:
        if not send(threading.get_ident(), _NoException):
            return
        while True:
            pass
    except _NoException:
        pass
