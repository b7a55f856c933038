# SPDX-License-Identifier: GPL-3.0-or-later
"""What readers share, and that no reader is given what is older than the hint that woke it, or what it may no longer read."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from types import SimpleNamespace

import pytest

from forkless.queue import RunRecord
from forkless.web import streams
from forkless.web.disk_room import DiskRoom


class StubQueue:
    """A queue with one run, whose hints the test gives. Counts its questions."""

    def __init__(self):
        self.asked, self.hints, self.number = 0, asyncio.Queue(), 0
        now = dt.datetime.now(dt.UTC)
        known = {"id": 1, "status": "running", "spec": {"playbook": ["site.yml"]}, "project": {}, "progress": {}, "counter": 0, "created": now,
                 "started": now, "created_by": "me", "over": False}  # fmt: skip
        fields = dict.fromkeys(RunRecord.__dataclass_fields__) | {
            "labels": [],
            "versions": {},
            "priority": 0,
            "attempt": 1,
            "slices": 0,
            "retries": 0,
        }
        self.row = SimpleNamespace(**fields | known | {"title": "site.yml"})

    def heard(self, number=None):
        return self.number

    async def record(self, number):
        self.asked += 1
        found = SimpleNamespace(**vars(self.row))
        await asyncio.sleep(0)  # others may ask meanwhile
        return found

    async def changes(self, number=None):
        while True:
            yield await self.hints.get()


async def next_row(stream):
    """The next message that is not a sign of life."""
    async for message in stream:
        if not message.startswith(b":"):
            return message
    return None


async def allowed():
    return True


def test_readers_that_one_hint_woke_share_one_question_and_get_what_it_is_about():
    async def main():
        queue = StubQueue()
        readers = streams.StreamReaders(queue, DiskRoom())
        several = [readers.run_stream(1, 0, allowed) for _ in range(20)]
        for place in ("one", "two"):
            # The second change comes at once, while the answer about the first is still young.
            queue.row.place, queue.number, queue.asked = place, queue.number + 1, 0
            for _ in several:
                queue.hints.put_nowait([])
            told = await asyncio.wait_for(asyncio.gather(*map(next_row, several)), 240)
            assert {f'"at":"{place}"'.encode() in one for one in told} == {True}
            assert queue.asked == 1
        for one in several:
            await one.aclose()

    asyncio.run(main())


def test_the_list_is_asked_for_rarely_and_is_never_older_than_the_hint(monkeypatch):
    monkeypatch.setattr(streams, "_SHARED_FOR", 0.2)

    async def main():
        answers, asked = streams._SharedAnswers(), []

        async def ask():
            asked.append(time.monotonic())
            return len(asked)

        first = await answers.get("list", 1, ask, rarely=True)
        later = await asyncio.gather(*(answers.get("list", 2, ask, rarely=True) for _ in range(50)))
        assert (first, set(later), len(asked)) == (1, {2}, 2)
        assert asked[1] - asked[0] >= 0.2

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["run", "list"])
def test_a_stream_ends_when_its_reader_may_no_longer_read(monkeypatch, kind):
    monkeypatch.setattr(streams, "_ASK_AGAIN", -1.0)

    async def main():
        queue, may = StubQueue(), True
        readers = streams.StreamReaders(queue, DiskRoom())

        async def runs(which):
            raise AssertionError("asked for somebody who may not read")

        async def still():
            return may

        stream = readers.run_stream(1, 0, still) if kind == "run" else readers.list_stream(((), "", "", None, 5), still)
        if kind == "run":
            queue.hints.put_nowait([])
            assert b"site.yml" in await asyncio.wait_for(next_row(stream), 240)
        else:
            monkeypatch.setattr(readers, "_runs", runs)
        may = False
        queue.row.place = "a secret"
        queue.number += 1
        queue.hints.put_nowait([])
        assert await asyncio.wait_for(next_row(stream), 240) is None

    asyncio.run(main())
