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
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from forkless.queue import DatabaseError, UnknownRunError
from forkless.web.answers import RunAnswer, RunEvent, RunEventsAnswer, RunsAnswer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from forkless.core.events import Event
    from forkless.queue import Queue, RunRecord
    from forkless.web.disk_room import DiskRoom

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


@dataclass(frozen=True, slots=True)
class _Question:
    since: float
    heard: int
    """The listener's number when it was asked: the answer has all that readers were told of until then."""
    task: asyncio.Task[object]

    def is_young(self) -> bool:
        return not self.task.done() or time.monotonic() < self.since + _SHARED_FOR

    def has_failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)


class _SharedAnswers:
    """
    One query for all callers with the same key that were woken by the same hint. No answer is older than the hint: a reader that was
    told of an event and got an answer from before it would wait for the next hint.
    """

    def __init__(self) -> None:
        self._asked: dict[object, _Question] = {}

    async def get(
        self, key: object, heard: int, ask: Callable[[], Awaitable[Answer]], *, rarely: bool = False
    ) -> Answer:
        """With `rarely` at most every `_SHARED_FOR` seconds: who needs a newer answer before that waits for it."""
        while (found := self._asked.get(key)) is not None and rarely and found.heard < heard and found.is_young():
            if found.task.done():
                await asyncio.sleep(found.since + _SHARED_FOR - time.monotonic())
            else:
                await asyncio.wait([found.task])
        if found is None or found.heard < heard or not found.is_young() or found.has_failed():
            for old in [one for one, asked in self._asked.items() if not asked.is_young()]:
                del self._asked[old]

            async def call() -> object:
                return await ask()

            found = self._asked[key] = _Question(time.monotonic(), heard, asyncio.ensure_future(call()))
        # A reader that leaves must not cancel the query that others wait for.
        return await asyncio.shield(found.task)  # type: ignore[arg-type]  # the key names the question and so its type


@dataclass(frozen=True, slots=True)
class _ListPicture:
    """The list as an answer and as a message, made once for all readers. `settled` is what does not change by itself."""

    answer: RunsAnswer
    settled: str
    message: bytes


@dataclass(frozen=True, slots=True)
class _RowPicture:
    """A run's row and the message about it, made once for all readers."""

    record: RunRecord
    settled: str
    message: bytes


class StreamReaders:
    """All readers of one server. For the loop of its queue."""

    def __init__(self, queue: Queue, disks: DiskRoom, most: int = 1000) -> None:
        self._queue, self._disks = queue, disks
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
        return (await self._list(which)).answer

    async def _list(self, which: RunsFilter) -> _ListPicture:
        return await self._answers.get(("runs", which), self._queue.heard(), lambda: self._runs(which), rarely=True)

    async def _runs(self, which: RunsFilter) -> _ListPicture:
        status, search, host, before, limit = which
        found = await self._queue.runs(status=status, search=search, host=host, before=before, limit=limit + 1)
        rows = [RunAnswer.of(record) for record in found[:limit]]
        older = found[limit - 1].id if len(found) > limit else None
        answer = RunsAnswer(runs=rows, counts=await self._queue.counts(), older=older)
        settled = answer.model_dump_json(exclude={"runs": {"__all__": {"now", "seconds"}}})
        return _ListPicture(answer, settled, _message("runs", answer.model_dump_json()))

    async def _row(self, number: int) -> _RowPicture:
        record = await self._queue.record(number)
        row = RunAnswer.of(record)
        return _RowPicture(
            record, row.model_dump_json(exclude={"now", "seconds"}), _message("run", row.model_dump_json())
        )

    async def events(self, number: int, after: int) -> RunEventsAnswer:
        return await self._events(await self._queue.record(number), after)

    async def _events(self, record: RunRecord, after: int) -> RunEventsAnswer:
        found = await self._queue.events(record.id, after=after, batches=_BATCHES)
        last = found[-1].counter if found else after
        behind = max(0, record.counter - last)
        # Not on the loop: a thousand events take some 30 ms, in which every other reader would wait.
        made = await asyncio.to_thread(_events, found, record.project, brief=behind > _FAR_BEHIND)
        return RunEventsAnswer(events=made, behind=behind)

    async def _events_message(self, record: RunRecord, after: int) -> tuple[int, bytes]:
        """The next position, and the message that leads to it; the same position if there is nothing yet."""
        answer = await self._events(record, after)
        if not answer.events:
            return after, b""
        last = answer.events[-1].n
        return last, await asyncio.to_thread(lambda: _message("events", answer.model_dump_json(), last))

    # -- streams ------------------------------------------------------------------------------------------------

    async def list_stream(self, which: RunsFilter, allowed: Allowed) -> AsyncIterator[bytes]:
        """The list as a whole, whenever it has changed. A reader that comes back is given the list as it is then."""
        sent, trouble = None, ""
        async for _ in self._wakes(None, allowed):
            if trouble != self._disks.trouble:
                trouble = self._disks.trouble
                yield _message("trouble", json.dumps({"sentence": trouble}))
            try:
                picture = await self._list(which)
            except DatabaseError:
                sent = None
                yield _message("away", "{}")
                continue
            if picture.settled != sent:
                sent = picture.settled
                yield picture.message
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LIST_EVERY):
                        await self._closing.wait()
            else:
                yield b": alive\n\n"

    async def run_stream(self, number: int, after: int, allowed: Allowed) -> AsyncIterator[bytes]:
        """Every event after `after`, once and in order, and the run's row when it changed; ends with the run."""
        sent, trouble = None, ""
        async for _ in self._wakes(number, allowed):
            if trouble != self._disks.trouble:
                trouble = self._disks.trouble
                yield _message("trouble", json.dumps({"sentence": trouble}))
            try:
                # The row is read before the events: what comes after the end of a run does not exist.
                heard = self._queue.heard(number)
                row = await self._answers.get(("row", number), heard, functools.partial(self._row, number))
                record = row.record
                if row.settled != sent:
                    sent = row.settled
                    yield row.message
                read_all = False
                # While the run is under way its row says whether there are more: the next ones come with a hint.
                while not self._closing.is_set() and (record.over or after < record.counter):
                    ask = functools.partial(self._events_message, record, after)
                    # An answer from before the end of the run is not taken for one from after it.
                    last, message = await self._answers.get(("events", number, after, record.over), heard, ask)
                    if last == after:
                        read_all = True
                        break
                    after = last
                    yield message
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
