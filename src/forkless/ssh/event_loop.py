# SPDX-License-Identifier: GPL-3.0-or-later
"""The thread whose event loop carries all SSH connections of the process; it exists only while there are any."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import threading
from typing import TYPE_CHECKING, TypeVar

from forkless.core.thread_stack import OwnThread
from forkless.ssh.errors import SSHError

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["EventLoopThread"]

T = TypeVar("T")

# Seconds between two wake-ups of a waiting worker. An exception set on its thread from outside (task timeout, cancelled
# run) is raised only between two bytecodes, so never during an unlimited wait.
LOOK_UP = 0.2
GRACE = 5.0


class EventLoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = OwnThread(target=self._turn, name="forkless-ssh", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as err:
            self._loop.close()
            raise SSHError(f"no thread could be started for SSH connections: {err}") from err

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    @property
    def here(self) -> bool:
        """Whether the caller is on the loop's thread, where `call` would deadlock."""
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[object, object, T]) -> T:
        """
        Run `work` on the loop and wait for its result. Any thread but the loop's own may call this.

        An exception that interrupts the wait cancels `work`, but does not wait until it has ended.
        """
        # In an empty context: the connection outlives the worker that opens it, and code on the loop works for no run.
        future = contextvars.Context().run(asyncio.run_coroutine_threadsafe, work, self._loop)
        try:
            while True:
                try:
                    return future.result(LOOK_UP)
                except concurrent.futures.TimeoutError:
                    if future.done():
                        raise
        except BaseException:  # an interrupted worker or KeyboardInterrupt: the result is not needed any more
            if not future.done():
                future.cancel()
            raise

    def end(self) -> None:
        """
        Cancel the remaining tasks, stop the loop and join its thread, GRACE seconds for each. Not from the loop's
        thread.
        """

        async def wind_up() -> None:
            rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        done = asyncio.run_coroutine_threadsafe(wind_up(), self._loop)
        with contextlib.suppress(concurrent.futures.TimeoutError):
            done.result(GRACE)  # a task that swallows its cancellation stops with the loop
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GRACE)
