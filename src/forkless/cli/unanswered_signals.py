# SPDX-License-Identifier: GPL-3.0-or-later
"""
Signals whose Python handler does not get called.

A handler in Python is called when the main thread next executes Python code. While that thread is blocked in C (a name server
that does not respond, a library that waits for a lock), SIGTERM would have no effect, although a program without a handler
would end at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING

from forkless.core.thread_stack import OwnThread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

__all__ = ["answering"]

# Seconds that the main thread has to call the handler.
PATIENCE = 3.0
# If a handler ran at most so many seconds before the signal was read from the pipe, it was called for this signal.
_JUST_NOW = 1.0


@contextlib.contextmanager
def answering(numbers: Collection[int], before: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """
    Inside this context, if one of these signals is caught but its handler is not called within `PATIENCE` seconds, a thread
    calls `before()` and ends the process by the signal's default action.

    Yields a function that each handler must call as soon as it can no longer block. Main thread only, and only for a program that owns its process.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    answered = [float("-inf")]

    def watch() -> None:
        while caught := os.read(reader, 1):
            number, read_at = caught[0], time.monotonic()
            if number not in numbers:
                continue
            deadline = read_at + PATIENCE
            while answered[0] < read_at - _JUST_NOW and time.monotonic() < deadline:
                time.sleep(0.05)
            if answered[0] < read_at - _JUST_NOW:
                before()
                # signal.signal may only be called by the main thread, which is blocked.
                ctypes.pythonapi.PyOS_setsig(number, None)
                os.kill(os.getpid(), number)

    def note() -> None:
        answered[0] = time.monotonic()

    thread = OwnThread(target=watch, name="forkless-signals", daemon=True)
    outer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        with contextlib.suppress(RuntimeError):  # no thread can be started: only the handlers respond to signals
            thread.start()
        yield note
    finally:
        signal.set_wakeup_fd(outer)
        os.close(writer)
        if thread.ident is not None:
            thread.join()
        os.close(reader)
