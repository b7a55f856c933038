# SPDX-License-Identifier: GPL-3.0-or-later
"""
The thread that calls ansible-core's command, and with it inventory, vault, lookups, callbacks and the strategy.

Any of these may block forever, so this thread holds nothing that another run needs. The config gate, the seams, the connections and
the run limit are held by the thread that waits in `RunThread.run()`, which releases them even if this thread has not ended.
"""

from __future__ import annotations

import contextvars
import threading
import time
from typing import TYPE_CHECKING

from forkless.core.errors import SpawnError
from forkless.core.thread_stack import OwnThread, stack_as_text, start_with_deep_stack
from forkless.engines.threads.patches.strategy import GRACE
from forkless.engines.threads.workers import threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines.threads.context import RunContext

__all__ = ["RunThread"]

# Seconds between two exceptions that are sent to the thread: a plugin may swallow the first.
_BETWEEN = 1.0
# Seconds after the stop request: workers have one grace period, then this thread has another one to clean up after them.
_PATIENCE = 2 * GRACE
# Seconds after the request became urgent.
_URGENT = 1.0


class RunThread:
    """Calls `work` on a thread that can be abandoned, and waits for it."""

    def __init__(self, run_context: RunContext, work: Callable[[], int]) -> None:
        self._run_context, self._work = run_context, work
        self._changed = threading.Event()
        self._code = 0
        self._error: BaseException | None = None
        self._over = False
        self.stuck = ""
        """The thread's stack at the time it was abandoned; "" if it was not."""
        # A daemon thread: an abandoned one must not keep the interpreter from exiting.
        self._thread = OwnThread(target=self._carry_out, name=f"forkless-{run_context.ident[:8]}-own", daemon=True)
        run_context.thread = self._thread
        self._context = contextvars.Context()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _carry_out(self) -> None:
        try:
            with threads.own_folder():
                self._code = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001  # raised again in run(), if its caller still waits
            self._error = error
        finally:
            self._over = True
            self._changed.set()

    def run(self) -> int:
        """
        Return or raise what `work` returned or raised. If a stop is requested and the thread does not end in time, the thread
        is abandoned: `stuck` is its stack, and KeyboardInterrupt is raised.
        """
        # The calling thread works for the run, and with its context so does this one.
        self._context = contextvars.copy_context()
        try:
            start_with_deep_stack(self._thread)
        except RuntimeError as err:
            raise SpawnError("the thread of a run", str(err)) from err
        forget = self._run_context.stop.listen(self._changed.set)
        try:
            self._changed.wait()
            if not self._over:
                self._insist()
        finally:
            forget()
        if self.stuck:
            raise KeyboardInterrupt
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._code

    def _insist(self) -> None:
        """After a stop request: interrupt the thread repeatedly until it ends or the deadline passes."""
        run_context, stop = self._run_context, self._run_context.stop
        asked = sent = time.monotonic()
        deadline = asked + _PATIENCE
        hurried = False
        while not self._over:
            now = time.monotonic()
            if stop.urgent and not hurried:
                hurried, deadline = True, min(deadline, now + _URGENT)
            if now >= deadline:
                self.stuck = self._stack()
                return
            # While the thread leaves by itself and waits for its workers, an exception would keep it from cleaning up.
            busy_leaving = run_context.leaving and now < run_context.leaving + GRACE + _BETWEEN
            if now >= sent + _BETWEEN and not busy_leaving:
                run_context.interrupt.trigger(KeyboardInterrupt)
                sent = now
            self._changed.clear()
            if not self._over:
                self._changed.wait(max(0.01, min(deadline, now + 0.25) - now))

    def _stack(self) -> str:
        return stack_as_text(self._thread.ident) or "(it is about to end)"
