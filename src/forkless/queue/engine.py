# SPDX-License-Identifier: GPL-3.0-or-later
"""engine="queue": a run is launched into the queue of FORKLESS_DATABASE, and followed until a worker has carried it out."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from forkless.core.events import Status
from forkless.core.result import Outcome
from forkless.queue.client import QueuedRun, connect
from forkless.queue.database import ask_until_back
from forkless.queue.requests import LaunchOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.core.events import Event
    from forkless.core.spec import RunSpec
    from forkless.core.stop import Stop

__all__ = ["ENGINE", "QueueEngine"]


class QueueEngine:
    """
    The third engine behind the same contract: `forkless.run(..., engine="queue")`.

    `QueueEngine(url, LaunchOptions(labels=[...]))` says where and how; `engine="queue"` takes FORKLESS_DATABASE and the defaults.
    """

    name = "queue"

    def __init__(self, url: str | None = None, options: LaunchOptions | None = None) -> None:
        self._url, self._options = url, options or LaunchOptions()

    def carry_out(
        self,
        spec: RunSpec,
        *,
        ident: str,
        deliver: Callable[[Event], None],
        write: Callable[[str], None],
        stop: Stop,
        wait: bool = True,
    ) -> Outcome:
        del ident, wait  # the run has a number of the queue; it waits there for a worker
        return asyncio.run(self._follow(spec, deliver, write, stop))

    async def _follow(
        self, spec: RunSpec, deliver: Callable[[Event], None], write: Callable[[str], None], stop: Stop
    ) -> Outcome:
        loop = asyncio.get_running_loop()
        async with connect(self._url) as queue:
            run = await queue.launch(spec, self._options)
            asked = asyncio.Event()

            def tell() -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(asked.set)

            forget = stop.listen(tell)
            stopping = loop.create_task(_cancel_when(asked, run))
            try:
                async for event in run.events():
                    deliver(event)
                    if event.stdout:
                        write(event.stdout + "\n")
                record = await ask_until_back(run.record)
            finally:
                forget()
                stopping.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await stopping
        rc = record.rc if record.rc is not None else 250
        if stop.requested and record.status == "canceled":
            return Outcome(stop.why, rc, record.sentence or "")
        status = {"successful": Status.SUCCESSFUL, "failed": Status.FAILED, "canceled": Status.CANCELED}.get(
            record.status, Status.ERROR
        )
        return Outcome(status, rc, record.sentence or "")


async def _cancel_when(asked: asyncio.Event, run: QueuedRun) -> None:
    await asked.wait()
    await ask_until_back(run.cancel)


ENGINE = QueueEngine()
