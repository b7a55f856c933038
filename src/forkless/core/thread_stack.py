# SPDX-License-Identifier: GPL-3.0-or-later
"""Threads that have begun when they are started, with a stack that is deep enough for Ansible, whatever the program did to `threading`; a stack as text."""

from __future__ import annotations

import sys
import threading
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OwnThread", "stack_as_text", "start_with_deep_stack"]

# A template that refers to itself recurses through C until Python's recursion limit; with 128 KiB the process ends by SIGSEGV before that.
_DEEP_ENOUGH = 1024 * 1024
# `threading.stack_size` is one setting for the process: two threads that raise it and put it back must not interleave.
_raised = threading.Lock()


class OwnThread(threading.Thread):
    """
    A thread of forkless. When `start` returns, its target has begun; if it cannot begin, `start` raises RuntimeError, as where the system allows no more threads.

    Debuggers and tracers replace `threading.Thread.run` and `start`, and set trace functions for all threads. If one of these raises, the
    thread ends before its target begins, and nobody would release those who wait for it.
    """

    def __init__(
        self, *, target: Callable[..., object], name: str, args: tuple[object, ...] = (), daemon: bool = True
    ) -> None:
        super().__init__(target=self._begin, args=(target, *args), name=name, daemon=daemon)
        self._begun = threading.Event()

    def _begin(self, target: Callable[..., object], *args: object) -> None:
        self._begun.set()
        target(*args)

    def start(self) -> None:
        try:
            super().start()
        except Exception as err:
            if self.ident is None:
                if isinstance(err, RuntimeError):
                    raise
                raise RuntimeError(f"threading.Thread.start raised {type(err).__name__}: {err}") from err
            # What replaces `start` has started the thread and raised afterwards: the target must not be taken for one that does not run.
        while not self._begun.wait(0.05):  # set already, but for a thread that has ended or will do so
            if not self.is_alive() and not self._begun.is_set():
                raise RuntimeError(
                    "the thread ended before it began its work, as threading.Thread.run or a function given to "
                    "threading.settrace or setprofile raised an error"
                )


def start_with_deep_stack(thread: threading.Thread) -> None:
    """
    `thread.start()`, with a stack of at least 1 MiB if the program has set `threading.stack_size` to less. The setting is put back.

    May be called by any thread. Where the program left the size to the platform, so does this. A thread that the program starts at the
    same moment may get the deeper stack too.
    """
    with _raised:
        size = threading.stack_size()
        if 0 < size < _DEEP_ENOUGH:
            threading.stack_size(_DEEP_ENOUGH)
            try:
                thread.start()
            finally:
                threading.stack_size(size)
            return
    thread.start()


def stack_as_text(thread: int | None, *, last: int | None = None) -> str:
    """
    The calls that a thread, given by its `ident`, is in: all or the last ones, innermost last; "" if the thread does not run.

    May be called by any thread. The lines come from the files. `traceback.format_stack` asks the loader of each module as well, and since
    Python 3.15 this warns of a module whose `__loader__` is not that of its `__spec__`, as in ansible-core's packages of plugins. In a
    program that turns warnings into errors, it would raise in the thread that reports a stuck worker, and nothing would be reported.
    """
    frame = sys._current_frames().get(thread or 0)
    calls: list[traceback.FrameSummary] = []
    while frame is not None and (last is None or len(calls) < last):
        calls.append(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return "".join(traceback.format_list(reversed(calls)))
