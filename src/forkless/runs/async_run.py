# SPDX-License-Identifier: GPL-3.0-or-later
"""
The asyncio interface. A run executes on its threads; only the notification "there are new events" crosses into the event loop.

asyncio is imported inside the functions, so that programs that do not use it do not pay for the import.
"""

from __future__ import annotations

import contextlib
import contextvars
from typing import TYPE_CHECKING

from forkless.runs.run import Run, start

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from typing import Unpack

    from forkless.core.events import Event, Status
    from forkless.core.result import Result
    from forkless.core.spec import StrPath
    from forkless.runs.run import StartOptions

__all__ = ["AsyncRun", "open_run", "run_async"]


class AsyncRun:
    """A run as seen from one event loop. Created by `open_run()`; its methods must be called in that loop."""

    def __init__(self, run: Run) -> None:
        import asyncio

        self._run = run
        self._loop = asyncio.get_running_loop()
        self._bells: set[asyncio.Event] = set()
        self._rung = False
        self._context = contextvars.copy_context()
        self._forget = run._listen(self._ring)

    @property
    def ident(self) -> str:
        return self._run.ident

    @property
    def status(self) -> Status:
        return self._run.status

    def _ring(self) -> None:
        """
        Called on the run's threads when there are new events or the result.

        At most one call into the loop is pending, however many events arrive: followers read all new events when they wake.
        """
        if self._rung:
            return
        self._rung = True
        try:
            # In the program's context: the calling thread's belongs to the run.
            self._loop.call_soon_threadsafe(self._wake, context=self._context)
        except RuntimeError:
            # The loop was closed during the run, so no coroutine is left that could follow or stop it.
            self._forget()
            self._run.cancel()

    def _wake(self) -> None:
        # Cleared before the bells are set: an event that arrives in between schedules another wake-up, at worst a needless one.
        self._rung = False
        for bell in self._bells:
            bell.set()

    @contextlib.contextmanager
    def _bell(self) -> Iterator[asyncio.Event]:
        """An asyncio.Event that is set when there is news. Enter this before checking for news, or news in between is missed."""
        import asyncio

        bell = asyncio.Event()
        self._bells.add(bell)
        try:
            yield bell
        finally:
            self._bells.discard(bell)

    async def events(self) -> AsyncIterator[Event]:
        """Yield every event from the first on, as events arrive; ends with the run. A slow follower never delays the run."""
        import asyncio

        seen = 0
        with self._bell() as bell:
            while True:
                bell.clear()
                fresh, ended = self._run._after(seen)
                for event in fresh:
                    yield event
                seen += len(fresh)
                if fresh:
                    await asyncio.sleep(0)  # a long backlog must not starve the loop's other tasks
                elif ended:
                    return
                else:
                    await bell.wait()

    async def _end(self) -> None:
        with self._bell() as bell:
            while self._run._result is None:
                await bell.wait()
                bell.clear()

    async def wait(self) -> Result:
        """Wait for the result and return it. Cancelling this wait does not stop the run."""
        await self._end()
        # Does not block: the result exists, and the run's thread is about to end.
        return self._run.wait()

    def cancel(self) -> None:
        """Ask the run to stop. A second call stops it without waiting for running tasks."""
        self._run.cancel()

    async def _until_quiet(self) -> None:
        """Stop the run and wait until it has ended. A cancellation in the meantime makes the stop urgent; the wait goes on."""
        import asyncio

        while self._run._result is None:
            self._run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._end()
        self._run._thread.join()


@contextlib.asynccontextmanager
async def open_run(
    playbook: StrPath | Sequence[StrPath] | None = None, **options: Unpack[StartOptions]
) -> AsyncIterator[AsyncRun]:
    """
    Start a run for the length of a block. Takes the arguments of `start()`.

        async with forkless.open_run("site.yml", inventory="hosts.ini") as run:
            async for event in run.events():
                print(event)

    The block is left only after the run has ended. If an exception or a cancellation leaves the block, the run is stopped first.
    """
    run = AsyncRun(start(playbook, **options))
    try:
        yield run
        await run.wait()
    finally:
        await run._until_quiet()
        run._forget()


async def run_async(
    playbook: StrPath | Sequence[StrPath] | None = None,
    *,
    on_event: Callable[[Event], object] | None = None,
    **options: Unpack[StartOptions],
) -> Result:
    """
    Run a playbook without blocking the loop, and return its result.

    Cancelling the task stops the run, waits until it has ended, and re-raises. `on_event` is called in the event loop.
    """
    async with open_run(playbook, **options) as run:
        if on_event is not None:
            async for event in run.events():
                on_event(event)
        return await run.wait()
