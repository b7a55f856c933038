# SPDX-License-Identifier: GPL-3.0-or-later
"""
Server-sent events for any number of readers of one queue.

A reader's place is a position in a run's stream (`Last-Event-ID`), and the events after it are read from the database when the reader has
taken the ones before: a slow reader holds no memory here and delays no other reader, and a reader whose connection was cut continues at its position. Readers at
the same place share one question to the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from forkless.queue import DatabaseError, UnknownRunError
from forkless.web.answers import RunAnswer, RunEvent, RunEventsAnswer, RunsAnswer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from forkless.core.events import Event
    from forkless.queue import Queue, RunRecord

__all__ = ["RunsFilter", "StreamReaders"]

Answer = TypeVar("Answer")

# Seconds between two pictures of the list for one reader, and the age up to which an answer is shared.
_LIST_EVERY = 0.4
_SHARED_FOR = 0.2
# Rows of events for one message, of up to 1000 events each.
_BATCHES = 2
# A page that is further behind than this is sent no text for the log: it shows the end of it only.
_FAR_BEHIND = 20_000
_PASSING = ("runner_on_start", "runner_on_output")
# Seconds after which a reader is asked for its permission again.
_ASK_AGAIN = 5.0

RunsFilter = tuple[tuple[str, ...], str, str, int | None, int]
"""States, text, host, `before`, and how many."""
Allowed = Callable[[], Awaitable[bool]]
"""Whether a reader may still read."""


class _SharedAnswers:
    """One query at a time for each key: callers with the same key meanwhile, or shortly after, get the same answer."""

    def __init__(self) -> None:
        self._asked: dict[object, tuple[float, asyncio.Task[object]]] = {}

    async def get(self, key: object, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        now = time.monotonic()
        found = self._asked.get(key)
        if found is None or (
            found[1].done() and (now - found[0] > _SHARED_FOR or found[1].cancelled() or found[1].exception())
        ):
            for old in [one for one, (since, task) in self._asked.items() if task.done() and now - since > _SHARED_FOR]:
                del self._asked[old]

            async def call() -> object:
                return await ask()

            found = (now, asyncio.ensure_future(call()))
            self._asked[key] = found
        # A reader that leaves must not cancel the query that others wait for.
        return await asyncio.shield(found[1])  # type: ignore[arg-type]  # the key names the question and so its type


class StreamReaders:
    """All readers of one server. For the loop of its queue."""

    def __init__(self, queue: Queue, most: int = 1000) -> None:
        self._queue = queue
        self._answers = _SharedAnswers()
        self._open = 0
        self._most = most
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End all streams; browsers connect again, to the next server."""
        self._closing.set()

    @property
    def is_full(self) -> bool:
        return self._open >= self._most

    # -- answers, shared ----------------------------------------------------------------------------------------

    async def runs(self, which: RunsFilter) -> RunsAnswer:
        return await self._answers.get(("runs", which), lambda: self._runs(which))

    async def _runs(self, which: RunsFilter) -> RunsAnswer:
        status, search, host, before, limit = which
        found = await self._queue.runs(status=status, search=search, host=host, before=before, limit=limit + 1)
        rows = [RunAnswer.of(record) for record in found[:limit]]
        older = found[limit - 1].id if len(found) > limit else None
        return RunsAnswer(runs=rows, counts=await self._queue.counts(), older=older)

    async def record(self, number: int) -> RunRecord:
        return await self._answers.get(("record", number), lambda: self._queue.record(number))

    async def events(self, number: int, after: int) -> RunEventsAnswer:
        record = await self._queue.record(number)
        found = await self._queue.events(number, after=after, batches=_BATCHES)
        last = found[-1].counter if found else after
        behind = max(0, record.counter - last)
        # Not on the loop: a thousand events take some 30 ms, in which every other reader would wait.
        made = await asyncio.to_thread(_events, found, record.project, brief=behind > _FAR_BEHIND)
        return RunEventsAnswer(events=made, behind=behind)

    # -- streams ------------------------------------------------------------------------------------------------

    async def list_stream(self, which: RunsFilter, allowed: Allowed) -> AsyncIterator[bytes]:
        """The list as a whole, whenever it has changed. A reader that comes back is given the list as it is then."""
        sent = None
        async for _ in self._wakes(None, allowed):
            try:
                answer = await self.runs(which)
            except DatabaseError:
                sent = None
                yield _message("away", "{}")
                continue
            picture = [row.model_dump(exclude={"now", "seconds"}) for row in answer.runs], answer.counts
            if picture != sent:
                sent = picture
                yield _message("runs", answer.model_dump_json())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LIST_EVERY):
                        await self._closing.wait()
            else:
                yield b": alive\n\n"

    async def run_stream(self, number: int, after: int, allowed: Allowed) -> AsyncIterator[bytes]:
        """Every event after `after`, once and in order, and the run's row when it changed; ends with the run."""
        sent = None
        async for _ in self._wakes(number, allowed):
            try:
                # The row is read before the events: what comes after the end of a run does not exist.
                record = await self._queue.record(number)
                row = RunAnswer.of(record)
                picture = row.model_dump(exclude={"now", "seconds"})
                if picture != sent:
                    sent = picture
                    yield _message("run", row.model_dump_json())
                read_all = False
                while not self._closing.is_set():
                    ask = functools.partial(self.events, number, after)
                    # An answer from before the end of the run is not taken for one from after it.
                    answer = await self._answers.get(("events", number, after, record.over), ask)
                    if not answer.events:
                        read_all = True
                        break
                    after = answer.events[-1].n
                    yield _message("events", answer.model_dump_json(), after)
            except UnknownRunError:
                yield _message("gone", "{}")
                return
            except DatabaseError:
                sent = None
                yield _message("away", "{}")
                continue
            # Not by `record.counter`: the retention may have removed the events.
            if record.over and read_all:
                yield _message("end", "{}")
                return
            yield b": alive\n\n"

    async def _wakes(self, number: int | None, allowed: Allowed) -> AsyncIterator[None]:
        """Whenever something may have changed, until the server ends, or the reader may not read any more."""
        asked = time.monotonic()
        self._open += 1
        changes = self._queue.changes(number)
        closing: asyncio.Future[object] = asyncio.ensure_future(_waited(self._closing))
        pending: list[asyncio.Future[object]] = []
        try:
            while not closing.done():
                hint: asyncio.Future[object] = asyncio.ensure_future(_next(changes))
                pending = [hint]
                await asyncio.wait((hint, closing), return_when=asyncio.FIRST_COMPLETED)
                if not hint.done():
                    break
                hint.result()
                if time.monotonic() - asked > _ASK_AGAIN:
                    asked = time.monotonic()
                    with contextlib.suppress(DatabaseError):  # who it is will be known when the database is back
                        if not await allowed():
                            break
                yield None
        finally:
            self._open -= 1
            for task in (*pending, closing):
                if not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
            await changes.aclose()  # type: ignore[attr-defined]  # an async generator


def _events(found: list[Event], project: Mapping[str, object], *, brief: bool) -> list[RunEvent]:
    # The start of a task and its live output say nothing to a page that is far behind; the last event keeps the place.
    kept = [one for one in found[:-1] if one.event not in _PASSING] + found[-1:] if brief else found
    return [RunEvent.of(event, project, brief=brief) for event in kept]


async def _waited(event: asyncio.Event) -> object:
    return await event.wait()


async def _next(changes: AsyncIterator[object]) -> object:
    return await anext(changes)


def _message(kind: str, body: str, ident: int | None = None) -> bytes:
    head = f"id: {ident}\n" if ident is not None else ""
    return f"{head}event: {kind}\ndata: {body}\n\n".encode()
