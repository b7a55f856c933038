# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a thread keeps between two tasks, and a forked worker did not.

Libraries keep sessions, connections and clients in `threading.local`, because two threads must not share them. With forked workers every task
had its own; a thread that carries out one task after another would answer for the next host with the session of the last one.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CAN_BE_CLEARED", "restorer"]

CAN_BE_CLEARED = sys.version_info < (3, 13)
"""
Whether the thread-local values of a thread can be removed.

Up to Python 3.12 they hang in the dict of the thread state. From 3.13 on they hang in the thread state itself, which no code can reach, and go with the thread.
"""

# What the keys of `threading.local` and its subclasses in a thread state's dict begin with. Other keys are asyncio's and the interpreter's.
_KEY = "thread.local."


def _thread_state() -> dict[object, object]:
    """The dict of the calling thread's state."""
    get = ctypes.pythonapi.PyThreadState_GetDict
    get.restype = ctypes.c_void_p  # a borrowed reference: ctypes would take an object for a new one
    address = get()
    return cast("dict[object, object]", ctypes.cast(address, ctypes.py_object).value) if address else {}


def _forget_thread_locals() -> None:
    state = _thread_state()
    for key in [key for key in state if isinstance(key, str) and key.startswith(_KEY)]:
        # As when the thread ends: each `threading.local` drops the values of this thread, and would make them anew. With pop, because what is dropped
        # may execute code that uses another one.
        state.pop(key, None)


def restorer() -> Callable[[], None]:
    """
    A function that makes the calling thread as it is now: without thread-local values (see CAN_BE_CLEARED), with the same name, attributes,
    trace functions and signal mask. To be called on this thread.
    """
    thread = threading.current_thread()
    attributes = set(vars(thread))
    name = thread.name
    trace, profile = sys.gettrace(), sys.getprofile()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ()) if hasattr(signal, "pthread_sigmask") else None

    def restore() -> None:
        if sys.gettrace() is not trace:
            sys.settrace(trace)
        if sys.getprofile() is not profile:
            sys.setprofile(profile)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if len(vars(thread)) > len(attributes):
            for added in set(vars(thread)) - attributes:
                vars(thread).pop(added, None)
        if thread.name != name:
            thread.name = name
        if CAN_BE_CLEARED:
            _forget_thread_locals()

    return restore
