# SPDX-License-Identifier: GPL-3.0-or-later
"""One thread with one event loop carries every SSH connection of this process; it is there only while there is one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["Loop"]

T = TypeVar("T")

# How often a blocked worker looks up: an exception that was set on its thread from outside (a task's time limit, a
# cancelled run) is only raised between two bytecodes, and a wait without end has none.
LOOK_UP = 0.2
GRACE = 5.0


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="forkless-ssh", daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    @property
    def here(self) -> bool:
        """Whether the caller is on the loop's own thread, which must never wait for itself."""
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` on the loop and wait for it. Whatever interrupts the wait cancels the work."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while True:
                try:
                    return future.result(LOOK_UP)
                except concurrent.futures.TimeoutError:
                    if future.done():
                        raise
        except BaseException:  # a stopped worker and Ctrl-C are no Exceptions, and nobody waits for the work any more
            if not future.done():
                future.cancel()
            raise

    def end(self) -> None:
        """Stop the loop, cancel what is left in it, and wait for its thread."""

        async def wind_up() -> None:
            rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        done = asyncio.run_coroutine_threadsafe(wind_up(), self._loop)
        with contextlib.suppress(concurrent.futures.TimeoutError):
            done.result(GRACE)  # a task that swallows its cancellation ends with the loop
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GRACE)
