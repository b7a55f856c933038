# SPDX-License-Identifier: GPL-3.0-or-later
"""One LISTEN for any number of readers in a program. A notification is only a hint: each reader reads the tables to find out what is new."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import psycopg

from forkless.queue.database import connect_async
from forkless.queue.errors import DatabaseError
from forkless.queue.records import RunChange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["ChangeListener"]

# Readers look by themselves after this many seconds: a notification may be lost with the listening connection, or in a pooler.
LOOK_AGAIN = 2.0
# Runs whose last hint is remembered; with more of them, every run counts as one that was heard of.
_MOST_HEARD = 10_000


class _Inbox:
    """The changes that one reader has not received yet. A slow reader loses details, never the fact that something changed."""

    def __init__(self, root: int | None) -> None:
        self.root = root
        self.changes: dict[int, RunChange] = {}
        self.bell = asyncio.Event()

    def put(self, change: RunChange) -> None:
        if change.run == 0 or self.root is None or change.root == self.root:
            if len(self.changes) >= 1000:
                self.changes.clear()
                change = RunChange()
            self.changes[change.run] = change
            self.bell.set()


class ChangeListener:
    """Listens on one connection, which it makes again when it is lost. All methods are for the loop that it was made in."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._inboxes: set[_Inbox] = set()
        self._count = self._heard_of_all = 0
        self._heard: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def _inbox(self, root: int | None) -> Iterator[_Inbox]:
        inbox = _Inbox(root)
        self._inboxes.add(inbox)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="forkless listener")
        try:
            yield inbox
        finally:
            self._inboxes.discard(inbox)

    async def changes(self, root: int | None = None) -> AsyncIterator[list[RunChange]]:
        """
        Yield changes of all runs, or of the stream of one, several at once if they came together.

        A change with `run == 0` comes first, after an interruption, and every 2 s: "look for yourself".
        """
        with self._inbox(root) as inbox:
            yield [RunChange()]
            while True:
                try:
                    async with asyncio.timeout(LOOK_AGAIN):
                        await inbox.bell.wait()
                except TimeoutError:
                    yield [RunChange()]
                    continue
                inbox.bell.clear()
                fresh, inbox.changes = list(inbox.changes.values()), {}
                yield fresh

    def heard(self, root: int | None = None) -> int:
        """
        A number that grows with each hint about a run, or about any run. An answer that was asked for at the number of now
        is not older than the last hint, so readers that were woken by one hint can share it.
        """
        return self._count if root is None else max(self._heard_of_all, self._heard.get(root, 0))

    def _tell(self, change: RunChange) -> None:
        self._count += 1
        if change.run == 0 or len(self._heard) >= _MOST_HEARD:
            self._heard.clear()
            self._heard_of_all = self._count
        else:
            self._heard[change.root] = self._count
        for inbox in self._inboxes:
            inbox.put(change)

    async def _listen(self) -> None:
        pause = 0.1
        while True:
            try:
                connection = await connect_async(self._url)
                async with connection:
                    await connection.execute("LISTEN forkless_runs")
                    self._tell(RunChange())  # what happened before this moment was not heard
                    pause = 0.1
                    while True:
                        async for notification in connection.notifies(timeout=30):
                            self._tell(_read(notification.payload))
                        await connection.execute("SELECT 1")  # a connection that was cut silently is noticed
            except (DatabaseError, psycopg.Error, OSError):
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None


def _read(payload: str) -> RunChange:
    try:
        told = json.loads(payload)
        return RunChange(int(told["run"]), int(told["root"]), int(told["counter"]), str(told["status"]))
    except (ValueError, KeyError, TypeError):  # of a later version
        return RunChange()
