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
from typing import cast

__all__ = ["CAN_BE_CLEARED", "FreshThread"]

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


class FreshThread:
    """What a thread is like when it has not carried out a task yet: its attributes, trace functions and signal mask. Made on such a thread."""

    def __init__(self) -> None:
        self._attributes = set(vars(threading.current_thread()))
        self._trace, self._profile = sys.gettrace(), sys.getprofile()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ()) if hasattr(signal, "pthread_sigmask") else None

    def restore(self, name: str) -> None:
        """Make the calling thread like that again, under this name, and without thread-local values (see CAN_BE_CLEARED)."""
        thread = threading.current_thread()
        if sys.gettrace() is not self._trace:
            sys.settrace(self._trace)
        if sys.getprofile() is not self._profile:
            sys.setprofile(self._profile)
        if self._mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if len(vars(thread)) > len(self._attributes):
            for added in set(vars(thread)) - self._attributes:
                vars(thread).pop(added, None)
        if thread.name != name:
            thread.name = name
        if CAN_BE_CLEARED:
            _forget_thread_locals()
