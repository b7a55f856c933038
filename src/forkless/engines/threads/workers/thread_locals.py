# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a thread keeps between two tasks, and a forked worker did not.

Libraries keep sessions, connections and clients in `threading.local`, because two threads must not share them. With forked workers every task
had its own; a thread that carries out one task after another would answer for the next host with the session of the last one.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from typing import cast

from forkless.core import own_thread_locals, trace_functions
from forkless.engines.threads.patches import event_loops

__all__ = ["CAN_BE_CLEARED", "FreshThread", "ThreadLocals"]

CAN_BE_CLEARED = sys.version_info < (3, 13)
"""
Whether the thread-local values of a thread can be removed.

Up to Python 3.12 they hang in the dict of the thread state. From 3.13 on they hang in each `threading.local`, by an object of the thread state. No code
can reach them without looking at every object of the process, and they go with the thread.
"""

# What the keys of `threading.local` and its subclasses in a thread state's dict begin with. Other keys are asyncio's and the interpreter's.
_KEY = "thread.local."


def _thread_state() -> dict[object, object]:
    """The dict of the calling thread's state."""
    address = _get_thread_state()
    return cast("dict[object, object]", ctypes.cast(address, ctypes.py_object).value) if address else {}


# The result is a borrowed reference: ctypes would take an object for a new one.
_get_thread_state = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_GetDict", ctypes.pythonapi))


def _forget_thread_locals() -> None:
    state = _thread_state()
    for key in [key for key in state if isinstance(key, str) and key.startswith(_KEY)]:
        # As when the thread ends: each `threading.local` drops the values of this thread, and would make them anew. With pop, because what is dropped
        # may execute code that uses another one.
        state.pop(key, None)


class ThreadLocals:
    """
    The values that libraries, and the kernel, keep for one thread. Made on the thread, before its first task; used by this thread only.

    From Python 3.13 on each `threading.local` that has a value of the thread refers to one object, which stands for the thread. So the number of
    references to this object tells whether a task has left a value. Nothing that is counted here before the first task may go: its place in the
    count could be taken by a value of a library.
    """

    def __init__(self) -> None:
        self._kernel = _of_kernel()
        self._mark: object = None
        if CAN_BE_CLEARED:
            return
        self._forget_own()
        self._counted = event_loops.policy_values()  # a plugin may drop the policy, which refers to it
        self._here = threading.local()
        values = vars(self._here)
        for found in gc.get_referents(self._here):
            if type(found) is dict and len(found) == 1 and next(iter(found.values())) is values:
                self._mark = next(iter(found))
        self._references = self._count()
        self._in_state = {*_thread_state(), "Py_Repr"}  # the interpreter's, empty between two calls of repr()
        another = threading.local()
        if self._count() == self._references:  # another Python, in which this tells nothing
            self._mark = None
        del another

    def forget(self) -> bool:
        """Remove the values of the task that has ended. False: there are some, or may be, that cannot be removed."""
        if CAN_BE_CLEARED:
            _forget_thread_locals()
            return _of_kernel() == self._kernel
        self._forget_own()
        return (
            self._mark is not None
            and self._count() == self._references
            and self._in_state.issuperset(_thread_state())
            and not event_loops.is_loop_left_running()
            and _of_kernel() == self._kernel
        )

    def _count(self) -> int:
        return sys.getrefcount(self._mark)

    def _forget_own(self) -> None:
        own_thread_locals.forget()
        event_loops.close_of_this_thread()  # asyncio's is known, too


def _of_kernel() -> tuple[object, ...]:
    """
    What Linux keeps for each thread, not for the process, and what a thread without privileges cannot always take back: priority, scheduler, cores.

    The cores by the thread's number: of itself a slice of a playbook is told all of them.
    """
    if sys.platform != "linux":
        return ()
    me = threading.get_native_id()
    try:
        return os.getpriority(os.PRIO_PROCESS, me), os.sched_getscheduler(me), os.sched_getaffinity(me)
    except OSError:  # a sandbox forbids the question, and thereby the change
        return ()


class FreshThread:
    """
    What a thread is like when it has not carried out a task yet: its attributes, trace functions, asynchronous generators' hooks and signal mask.
    Made on such a thread.
    """

    def __init__(self) -> None:
        self._attributes = set(vars(threading.current_thread()))
        self._trace, self._profile = sys.gettrace(), sys.getprofile()
        self._hooks, self._depth = sys.get_asyncgen_hooks(), sys.get_coroutine_origin_tracking_depth()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ()) if hasattr(signal, "pthread_sigmask") else None

    def restore(self, name: str) -> None:
        """Make the calling thread like that again, under this name."""
        thread = threading.current_thread()
        if sys.gettrace() is not self._trace:
            trace_functions.set_trace(self._trace)
        if sys.getprofile() is not self._profile:
            trace_functions.set_profile(self._profile)
        if sys.get_asyncgen_hooks() != self._hooks:
            sys.set_asyncgen_hooks(*self._hooks)
        if sys.get_coroutine_origin_tracking_depth() != self._depth:
            sys.set_coroutine_origin_tracking_depth(self._depth)
        if self._mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if len(vars(thread)) > len(self._attributes):
            for added in set(vars(thread)) - self._attributes:
                vars(thread).pop(added, None)
        if thread.name != name:
            thread.name = name
