# SPDX-License-Identifier: GPL-3.0-or-later
"""The asyncio door: the same runs, from an event loop that never blocks."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import forkless
from forkless import Status
from pretend import Pretend, event, some, until_stopped


def test_a_run_is_awaited():
    result = asyncio.run(forkless.run_async("site.yml", engine=Pretend(some(3))))
    assert result.ok
    assert len(result.events) == 4


def test_events_come_in_order_to_the_last():
    async def main():
        async with forkless.open_run("site.yml", engine=Pretend(some(2000))) as run:
            seen = [one async for one in run.events()]
            again = [one.counter async for one in run.events()]
            result = await run.wait()
        assert run.status is Status.SUCCESSFUL
        return seen, again, result

    seen, again, result = asyncio.run(main())
    assert [one.counter for one in seen] == again == list(range(1, 2002))
    assert seen[-1].event == "playbook_on_stats"
    assert result.ok


def test_events_come_while_the_run_goes_on():
    async def main():
        async with forkless.open_run("site.yml", engine=Pretend(until_stopped)) as run:
            async for one in run.events():
                assert one.counter == 1
                assert run.status is Status.RUNNING
                run.cancel()
        return run.status

    assert asyncio.run(main()) is Status.CANCELED


def test_cancelling_the_task_stops_the_run_waits_and_raises():
    quiet = threading.Event()

    def play(deliver, write, stop):
        deliver(event(1))
        stop.wait()
        time.sleep(0.2)  # it takes a while to become quiet
        quiet.set()

    async def main():
        started = asyncio.Event()
        task = asyncio.create_task(
            forkless.run_async("site.yml", engine=Pretend(play), on_event=lambda _: started.set())
        )
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert quiet.is_set()

    asyncio.run(main())


def test_cancelling_again_stops_it_at_once():
    urgent = threading.Event()

    def play(deliver, write, stop):
        deliver(event(1))
        while not stop.urgent:
            stop.wait()
            time.sleep(0.01)
        urgent.set()

    async def main():
        started = asyncio.Event()
        task = asyncio.create_task(
            forkless.run_async("site.yml", engine=Pretend(play), on_event=lambda _: started.set())
        )
        await started.wait()
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert urgent.is_set()


def test_a_timeout_of_asyncios_own_does_the_same():
    engine = Pretend(until_stopped)

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await forkless.run_async("site.yml", engine=engine)
        assert engine.at_once == 0

    asyncio.run(main())


def test_an_error_in_the_block_stops_the_run():
    engine = Pretend(until_stopped)

    async def main():
        with pytest.raises(ZeroDivisionError):
            async with forkless.open_run("site.yml", engine=engine) as run:
                async for _ in run.events():
                    raise ZeroDivisionError
        assert engine.at_once == 0
        assert run.status is Status.CANCELED

    asyncio.run(main())


def test_leaving_the_block_waits_for_the_run():
    engine = Pretend(lambda deliver, write, stop: stop.wait(0.2))

    async def main():
        async with forkless.open_run("site.yml", engine=engine) as run:
            pass
        assert run.status is Status.SUCCESSFUL

    asyncio.run(main())


def test_cancelling_a_wait_leaves_the_run_alone():
    async def main():
        async with forkless.open_run("site.yml", engine=Pretend(until_stopped)) as run:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(run.wait(), 0.05)
            assert run.status in (Status.STARTING, Status.RUNNING)
            run.cancel()
        assert (await run.wait()).status is Status.CANCELED

    asyncio.run(main())


def test_an_engine_error_is_raised_where_it_is_awaited():
    def play(deliver, write, stop):
        raise forkless.SpawnError("ansible-playbook", "no such file")

    with pytest.raises(forkless.SpawnError):
        asyncio.run(forkless.run_async("site.yml", engine=Pretend(play)))


def test_a_callback_that_raises_stops_the_run():
    engine = Pretend(until_stopped)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(forkless.run_async("site.yml", engine=engine, on_event=lambda _: 1 / 0))
    assert engine.at_once == 0


def test_fifty_at_once_share_a_limit_and_the_loop_stays_free():
    loop = None

    def play(deliver, write, stop):
        """Ends well only if the loop answers while the run goes on."""
        some(20)(deliver, write, stop)
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        assert answered.wait(240)

    engine = Pretend(play)

    async def main():
        nonlocal loop
        loop = asyncio.get_running_loop()
        with forkless.limit(8):
            results = await asyncio.gather(*(forkless.run_async("site.yml", engine=engine) for _ in range(50)))
        assert all(result.ok and len(result.events) == 21 for result in results)
        assert len({result.ident for result in results}) == 50

    asyncio.run(main())
    assert engine.most <= 8


def test_a_slow_reader_in_the_loop_never_stalls_the_play():
    done = threading.Event()

    def play(deliver, write, stop):
        some(1000)(deliver, write, stop)
        done.set()

    async def main():
        async with forkless.open_run("site.yml", engine=Pretend(play)) as run:
            seen = 0
            async for _ in run.events():
                seen += 1
                if seen == 1:
                    # The loop itself is blocked here; the play ends all the same.
                    assert done.wait(240)
            assert seen == 1001

    asyncio.run(main())


def test_a_thousand_events_ring_the_loop_a_few_times_only():
    calls = 0

    async def main():
        nonlocal calls
        loop = asyncio.get_running_loop()
        real = loop.call_soon_threadsafe

        def count(*args, **kwargs):
            nonlocal calls
            calls += 1
            return real(*args, **kwargs)

        loop.call_soon_threadsafe = count
        go = threading.Event()

        def play(deliver, write, stop):
            go.wait()
            some(1000)(deliver, write, stop)

        async with forkless.open_run("site.yml", engine=Pretend(play)) as run:
            go.set()
            while not run.status.ended:
                time.sleep(0.01)  # noqa: ASYNC251  # nobody in the loop listens meanwhile
            await run.wait()

    asyncio.run(main())
    assert calls <= 3


def test_a_loop_that_is_closed_during_a_run_ends_the_run():
    more, stopped = threading.Event(), threading.Event()

    def play(deliver, write, stop):
        deliver(event(1))
        more.wait(240)
        deliver(event(2))
        stop.wait(240)
        stopped.set()

    loop = asyncio.new_event_loop()

    async def begin():
        run = forkless.AsyncRun(forkless.start("site.yml", engine=Pretend(play)))
        await anext(run.events())
        return run

    run = loop.run_until_complete(begin())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    more.set()
    assert stopped.wait(240)
    assert run._run.wait().status is Status.CANCELED


def test_asyncio_run_that_ends_early_takes_its_runs_along():
    engine = Pretend(until_stopped)

    async def main():
        task = asyncio.create_task(forkless.run_async("site.yml", engine=engine))
        while not engine.at_once:  # noqa: ASYNC110  # it is set on another thread
            await asyncio.sleep(0.01)
        return task

    task = asyncio.run(main())
    assert task.cancelled()
    assert engine.at_once == 0
