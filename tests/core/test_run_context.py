# SPDX-License-Identifier: GPL-3.0-or-later
"""Which run a thread works for: one ContextVar, seen by every layer, and by nobody outside of the run."""

from __future__ import annotations

import asyncio
import contextvars
import threading

from forkless import Run, RunSpec, ssh
from forkless.core.run_context import SCOPE, BareRun, entered
from forkless.runs.async_run import AsyncRun
from forkless.ssh.event_loop import EventLoopThread
from pretend import Pretend


def on_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_scope_ends_with_its_block_and_is_the_threads_own():
    assert SCOPE.get() is None
    with entered(BareRun("outer")), entered(BareRun("inner")):
        assert SCOPE.get().run_ident == "inner"
        assert on_a_thread(SCOPE.get) is None
    assert SCOPE.get() is None


def test_connections_that_are_kept_belong_to_the_run_of_the_thread():
    with ssh.kept("one"):
        assert ssh.RUN.get() == SCOPE.get().run_ident == "one"
        scope = SCOPE.get()
        with ssh.kept("one"):
            assert SCOPE.get() is scope  # an engine's own scope is not replaced
        assert contextvars.Context().run(lambda: (ssh.RUN.set("two"), ssh.RUN.get())[1]) == "two"
        token = ssh.RUN.set("three")
        ssh.RUN.reset(token)
        assert ssh.RUN.get() == "one"
    assert ssh.RUN.get() is None


def test_what_runs_on_the_ssh_thread_works_for_no_run():
    async def scope():
        return SCOPE.get()

    loop = EventLoopThread()
    try:
        with entered(BareRun("one")):
            assert loop.call(scope()) is None
    finally:
        loop.end()


def test_the_programs_event_loop_is_not_drawn_into_a_run():
    seen = []

    async def main():
        run = AsyncRun(Run(RunSpec(playbook="x.yml"), Pretend()))
        woken = asyncio.Event()
        run._wake = lambda: (seen.append(SCOPE.get()), woken.set())

        def ring():
            with entered(BareRun("one")):
                run._ring()

        on_a_thread(ring)
        await asyncio.wait_for(woken.wait(), 240)
        run._forget()

    asyncio.run(main())
    assert seen == [None]
