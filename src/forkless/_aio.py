# SPDX-License-Identifier: GPL-3.0-or-later
"""
The asyncio door: a thin one. Runs go on in their own threads; what crosses into the loop is that there is news.

asyncio is imported where it is used: whoever comes in by another door need not wait for it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from forkless._run import Run, start

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterator

    from forkless._events import Event, Status
    from forkless._result import Result

__all__ = ["AsyncRun", "open_run", "run_async"]


class AsyncRun:
    """A run, as seen from one event loop. Made by `open_run()`."""

    def __init__(self, run: Run) -> None:
        import asyncio

        self._run = run
        self._loop = asyncio.get_running_loop()
        self._bells: set[asyncio.Event] = set()
        self._rung = False
        self._forget = run._listen(self._ring)

    @property
    def ident(self) -> str:
        return self._run.ident

    @property
    def status(self) -> Status:
        return self._run.status

    def _ring(self) -> None:
        """
        On the run's thread: there is news.

        One call into the loop at a time, however many events come: followers take all there is when they wake.
        """
        if self._rung:
            return
        self._rung = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The loop was closed under us. Nobody is left to follow this run, or to stop it.
            self._forget()
            self._run.cancel()

    def _wake(self) -> None:
        # First this, then the bells: news that comes in between rings again, in vain at worst.
        self._rung = False
        for bell in self._bells:
            bell.set()

    @contextlib.contextmanager
    def _bell(self) -> Iterator[asyncio.Event]:
        """Rings when there is news. Ask for it first and look afterwards, or news may slip in between."""
        import asyncio

        bell = asyncio.Event()
        self._bells.add(bell)
        try:
            yield bell
        finally:
            self._bells.discard(bell)

    async def events(self) -> AsyncIterator[Event]:
        """Every event from the first on, as they come; ends with the run. A slow follower never stalls it."""
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
                    await asyncio.sleep(0)  # a long backlog must not keep the loop from others
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
        """The result, once there is one. Cancelling this wait leaves the run alone."""
        await self._end()
        # Does not block: the thread has nothing left to do but to end.
        return self._run.wait()

    def cancel(self) -> None:
        """Ask the run to stop; asked again, at once."""
        self._run.cancel()

    async def _until_quiet(self) -> None:
        """Stop the run and wait until it has. Whoever cancels us again meanwhile stops it at once, but we still wait."""
        import asyncio

        while self._run._result is None:
            self._run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._end()
        self._run._thread.join()


@contextlib.asynccontextmanager
async def open_run(playbook: Any = None, **options: Any) -> AsyncIterator[AsyncRun]:
    """
    A run for the length of a block. Takes what `start()` takes.

        async with forkless.open_run("site.yml", inventory="hosts.ini") as run:
            async for event in run.events():
                print(event)

    The block ends when the run has ended. If an error or a cancellation leaves the block, the run is stopped first.
    """
    run = AsyncRun(start(playbook, **options))
    try:
        yield run
        await run.wait()
    finally:
        await run._until_quiet()
        run._forget()


async def run_async(
    playbook: Any = None, *, on_event: Callable[[Event], object] | None = None, **options: Any
) -> Result:
    """
    Run a playbook without blocking the loop, and return its result.

    Cancelling the task stops the run, waits until it is quiet, and re-raises. `on_event` is called in the loop.
    """
    async with open_run(playbook, **options) as run:
        if on_event is not None:
            async for event in run.events():
                on_event(event)
        return await run.wait()
