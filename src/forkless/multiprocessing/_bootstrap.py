# SPDX-License-Identifier: GPL-3.0-or-later
"""
A child's life, seen from inside: what the stdlib does between the first statement of a process and its last.

This is BaseProcess._bootstrap without what only makes sense in a process of one's own: no standard input is closed, no
module global is written, nothing that belongs to the program is flushed away or joined.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from multiprocessing import process as stdlib_process
from operator import itemgetter
from typing import Any

from forkless.multiprocessing._abandoned import Stop
from forkless.multiprocessing._handover import give_back_queues
from forkless.multiprocessing._life import Life, Ticket, here
from forkless.multiprocessing._stdlib import context, process, util

__all__ = ["ParentProcess", "bootstrap", "empty_pockets", "report"]

Process = Any

# What is left of a process object once its child is dead; the rest may hold the child's ends of pipes.
_BOOKKEEPING = {"_identity", "_config", "_parent_pid", "_parent_name", "_popen", "_closed", "_name", "_start_method"}


def bootstrap(self: Process, parent_sentinel: int | None = None) -> int:  # noqa: ARG001  (the stdlib's signature)
    life = here()
    exitcode = 1
    try:
        try:
            if self._start_method is not None:
                context._force_start_method(self._start_method)
            _run_after_forkers(life)
            util.info("child process calling self.run()")
            self.run()
            exitcode = 0
        except Stop:
            raise
        except SystemExit as stop:
            exitcode = _exitcode(stop)
        except BaseException:  # noqa: BLE001  (it ends the child, not the program)
            report(self.name)
    finally:
        life.leaving = True
        _leave(life)
        util.info("process exiting with exitcode %d" % exitcode)  # noqa: UP031
        util._flush_std_streams()
    return exitcode


def _exitcode(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    sys.stderr.write(str(stop.code) + "\n")
    return 1


def report(name: str) -> None:
    """Say what a child died of, as the stdlib says it."""
    if sys.stderr is None:
        return
    sys.stderr.write(f"Process {name}:\n")
    traceback.print_exc()
    util._flush_std_streams()


def _run_after_forkers(life: Life) -> None:
    """For the objects that came in by pickle. Those that are shared by reference have not been through a fork."""
    if not life.drew_tickets:
        return
    registry = util._afterfork_registry
    # .data, because list() of a plain dict is one step, while other threads register objects of their own.
    for key in sorted((key for key in list(registry.data) if Ticket.owner_of(key[0]) == life.pid), key=itemgetter(0)):
        thing = registry.get(key)
        if thing is not None:
            try:
                key[2](thing)
            except Exception as error:  # noqa: BLE001  as the stdlib does: one of them must not keep the child from running
                util.info("after forker raised exception %s", error)


def _leave(life: Life) -> None:
    """What an interpreter does at its exit, for one life: threads, finalizers, children, the other finalizers."""
    if life.started_threads:
        _join_threads(life)
    if life.drew_tickets:
        give_back_queues(life)
        util._run_finalizers(0)
    if life.children:
        for child in process.active_children():
            if child.daemon:
                child.terminate()
        for child in process.active_children():
            child.join()
    if life.drew_tickets:
        util._run_finalizers()


def _join_threads(life: Life) -> None:
    me = threading.current_thread()
    while True:
        left = [
            thread
            for thread in threading.enumerate()
            if getattr(thread, "_forkless_life", None) is life
            and thread is not me
            and not thread.daemon
            and not _belongs_to_a_pool(thread)
        ]
        if not left:
            return
        for thread in left:
            with contextlib.suppress(RuntimeError):  # one that is about to start cannot be joined yet
                thread.join()


def _belongs_to_a_pool(thread: threading.Thread) -> bool:
    """
    Threads of a ThreadPoolExecutor end when it is shut down, or when the interpreter exits.

    An executor that a library keeps for the whole program may have been filled from this child first. Its threads are
    the program's, and waiting for them here would be for ever.
    """
    pools = sys.modules.get("concurrent.futures.thread")
    return pools is not None and thread in pools._threads_queues


def empty_pockets(dead: Process) -> None:
    """Let go of everything the child was given, so that the other end of its pipes sees the end of it."""
    belongings = dead.__dict__
    for name in set(belongings) - _BOOKKEEPING:
        belongings.pop(name, None)


class ParentProcess(stdlib_process._ParentProcess):  # type: ignore[name-defined,misc]
    """parent_process(), seen from a child."""

    def __init__(self, parent: Life) -> None:
        self._life = parent
        super().__init__(self._life.process.name, self._life.pid, None)

    def is_alive(self) -> bool:
        return self._life.returncode is None

    def join(self, timeout: float | None = None) -> None:
        self._life.wait(timeout)

    @property
    def sentinel(self) -> int:
        return self._life.sentinel()
