# SPDX-License-Identifier: GPL-3.0-or-later
"""
What runs on a child's thread: the stdlib's steps before and after Process.run().

This is BaseProcess._bootstrap without the steps that need a process of its own: it does not close standard input, write
module globals, or clear and join what belongs to the program.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from multiprocessing import process as stdlib_process
from operator import itemgetter
from typing import Any

from forkless.multiprocessing.process_state import OwnedNumber, ProcessState, current_state
from forkless.multiprocessing.stdlib import context, process, util
from forkless.multiprocessing.stopping import ThreadStopped
from forkless.multiprocessing.transfer import give_back_queues

__all__ = ["ParentProcess", "bootstrap", "drop_references", "report"]

Process = Any

# Attributes that a process object keeps after its child has ended; the others may hold the child's ends of pipes.
_BOOKKEEPING = {"_identity", "_config", "_parent_pid", "_parent_name", "_popen", "_closed", "_name", "_start_method"}


def bootstrap(self: Process, parent_sentinel: int | None = None) -> int:  # noqa: ARG001  (the stdlib's signature)
    state = current_state()
    exitcode = 1
    try:
        try:
            if self._start_method is not None:
                context._force_start_method(self._start_method)
            _run_after_forkers(state)
            util.info("child process calling self.run()")
            self.run()
            exitcode = 0
        except ThreadStopped:
            raise
        except SystemExit as stop:
            exitcode = _exitcode(stop)
        except BaseException:  # noqa: BLE001  (it must end the child, not the program)
            report(self.name)
    finally:
        state.leaving = True
        _leave(state)
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
    """Print the exception that ended a child to sys.stderr, in the stdlib's format."""
    if sys.stderr is None:
        return
    sys.stderr.write(f"Process {name}:\n")
    traceback.print_exc()
    util._flush_std_streams()


def _run_after_forkers(state: ProcessState) -> None:
    """Run the after-fork hooks of objects that this child unpickled. Objects shared by reference need none."""
    if not state.registered_finalizers:
        return
    registry = util._afterfork_registry
    # .data, because list() of a plain dict is atomic, and other threads register objects meanwhile.
    for key in sorted(
        (key for key in list(registry.data) if OwnedNumber.owner_of(key[0]) == state.pid), key=itemgetter(0)
    ):
        thing = registry.get(key)
        if thing is not None:
            try:
                key[2](thing)
            except Exception as error:  # noqa: BLE001  as the stdlib does: a failing hook must not prevent the child from running
                util.info("after forker raised exception %s", error)


def _leave(state: ProcessState) -> None:
    """Do what an interpreter does at exit: join threads, run finalizers, join children, run the other finalizers."""
    if state.started_threads:
        _join_threads(state)
    if state.registered_finalizers:
        give_back_queues(state)
        util._run_finalizers(0)
    if state.children:
        for child in process.active_children():
            if child.daemon:
                child.terminate()
        for child in process.active_children():
            child.join()
    if state.registered_finalizers:
        util._run_finalizers()


def _join_threads(state: ProcessState) -> None:
    me = threading.current_thread()
    while True:
        left = [
            thread
            for thread in threading.enumerate()
            if getattr(thread, "_forkless_state", None) is state
            and thread is not me
            and not thread.daemon
            and not _belongs_to_a_pool(thread)
        ]
        if not left:
            return
        for thread in left:
            with contextlib.suppress(RuntimeError):  # a thread that is just being started cannot be joined yet
                thread.join()


def _belongs_to_a_pool(thread: threading.Thread) -> bool:
    """
    Whether the thread is a worker of a ThreadPoolExecutor, which ends only at shutdown() or when the interpreter exits.

    A library may keep an executor for the whole program whose first task was submitted by this child. Its threads
    belong to the program, and joining them here would never return.
    """
    pools = sys.modules.get("concurrent.futures.thread")
    return pools is not None and thread in pools._threads_queues


def drop_references(dead: Process) -> None:
    """Drop the child's references to its arguments, so that its pipe ends are closed and the other ends see EOF."""
    belongings = dead.__dict__
    for name in set(belongings) - _BOOKKEEPING:
        belongings.pop(name, None)


class ParentProcess(stdlib_process._ParentProcess):  # type: ignore[name-defined,misc]
    """The object that parent_process() returns in a child."""

    def __init__(self, parent: ProcessState) -> None:
        self._state = parent
        super().__init__(self._state.process.name, self._state.pid, None)

    def is_alive(self) -> bool:
        return self._state.returncode is None

    def join(self, timeout: float | None = None) -> None:
        self._state.wait(timeout)

    @property
    def sentinel(self) -> int:
        return self._state.sentinel()
