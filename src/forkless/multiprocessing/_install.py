# SPDX-License-Identifier: GPL-3.0-or-later
"""
Stepping in, and out again.

Every name of the stdlib that is replaced is in the lists below, with the reason. There are two steps: THREAD adds a
start method and nothing else changes for the processes of this program; STAND_IN makes threads of "fork", "spawn" and
"forkserver" too, and needs no `_multiprocessing`, no sem_open, no /dev/shm, no fork.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import importlib
import os
import signal
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any

from forkless import _platform
from forkless.multiprocessing import _life, _semlock, _shm
from forkless.multiprocessing._seams import Seam, Undo, sew
from forkless.multiprocessing._stdlib import context, process, util

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["install", "installed", "is_installed", "uninstall"]


class Step(enum.IntEnum):
    OUT = 0
    THREAD = 1
    STAND_IN = 2


# Guards the three below. Re-entrant, because a really forked child steps out from under whoever held it.
_lock = threading.RLock()
_undos: list[Undo] = []
_kept = Step.OUT
_inside: collections.Counter[Step] = collections.Counter()


def install(*, stand_in: bool = True) -> None:
    """
    Make `multiprocessing` work on threads, for the whole program and until it ends.

    With stand_in=False only the start method "thread" is added, and "fork", "spawn" and "forkserver" stay what they
    are. Calling it twice is harmless, and it does not matter whether multiprocessing was imported before.
    """
    global _kept  # noqa: PLW0603
    with _lock:
        step = max(_kept, Step.STAND_IN if stand_in else Step.THREAD)
        _go_to(max(_wanted(), step))
        _kept = step


def uninstall() -> None:
    """Take back install(). What is inside `with installed()` at the time stays so until it leaves."""
    global _kept  # noqa: PLW0603
    with _lock:
        _kept = Step.OUT
        _go_to(_wanted())


@contextlib.contextmanager
def installed(*, stand_in: bool = True) -> Iterator[None]:
    """install() for the length of a block. Blocks may nest and overlap; the last one out takes the stand-ins out."""
    step = Step.STAND_IN if stand_in else Step.THREAD
    with _lock:
        _go_to(max(_wanted(), step))
        _inside[step] += 1
    try:
        yield
    finally:
        with _lock:
            _inside[step] -= 1
            _go_to(_wanted())


def is_installed(*, stand_in: bool = False) -> bool:
    return len(_undos) >= (Step.STAND_IN if stand_in else Step.THREAD)


def _wanted() -> Step:
    return max([_kept, *(step for step, holders in _inside.items() if holders)])


def _go_to(step: Step) -> None:
    while len(_undos) > step:
        _undos.pop().undo()
    if len(_undos) < Step.THREAD <= step:
        _import_stdlib()
        _life.MAIN.look_around()
        _undos.append(sew(_thread_seams()))
    if len(_undos) < Step.STAND_IN <= step:
        _undos.append(sew(_stand_in_seams()))


def _import_stdlib() -> None:
    """
    Have every module that we touch imported, so that the order of imports cannot matter.

    Where the extensions are there, before anything is replaced: stepping out must leave the stdlib with its own.
    """
    for name, stand_in, needed in (
        ("_multiprocessing", _semlock.as_extension, "SemLock"),
        ("_posixshmem", _shm.as_extension, "shm_open"),
    ):
        try:
            absent = not hasattr(importlib.import_module(name), needed)
        except ImportError:
            absent = True
        if absent:
            sys.modules[name] = stand_in()
    for name in (
        "multiprocessing.heap",
        "multiprocessing.forkserver",
        "multiprocessing.managers",
        "multiprocessing.pool",
        "multiprocessing.resource_sharer",
        "multiprocessing.shared_memory",
        "multiprocessing.synchronize",
        "concurrent.futures.process",
    ):
        importlib.import_module(name)


def _thread_seams() -> list[Seam]:
    from concurrent.futures import process as executor
    from multiprocessing import connection, heap, managers, pool, queues, synchronize

    from forkless.multiprocessing import _by_thread as by
    from forkless.multiprocessing import _handover, _managers, _queues
    from forkless.multiprocessing.context import ThreadContext

    per_process = "one per process in the stdlib, one per life here"
    asks_itself = "compares itself to _current_process, which is a stand-in"
    child = process.BaseProcess
    its_os = by.View(os, getpid=by.getpid)
    seams = [
        Seam(context._concrete_contexts, "thread", ThreadContext(), "the start method itself"),
        Seam(threading.Thread, "start", _life.inherit_life(threading.Thread.start), "a thread belongs to its child"),
        Seam(process, "_forkless_here", _life.here, "for the two bodies below"),
        Seam(process.current_process, "__code__", by.code_of("current_process"), per_process),
        Seam(process.parent_process, "__code__", by.code_of("parent_process"), per_process),
        Seam(process, "_current_process", by.CurrentProcess(), per_process),
        Seam(process, "_children", by.Children(), per_process),
        Seam(process, "_process_counter", by.Counter(), per_process),
        Seam(process, "os", its_os, "a child knows its own children by the pid of their parent"),
        Seam(
            child, "_bootstrap", _bootstrap_of(child._bootstrap), "the stdlib's writes module globals and closes stdin"
        ),
        Seam(child, "is_alive", by.is_alive(child.is_alive), asks_itself),
        Seam(child, "ident", by.ident_of(vars(child)["ident"]), asks_itself),
        Seam(child, "pid", by.ident_of(vars(child)["pid"]), asks_itself),
        Seam(child, "__repr__", by.repr_of(child.__repr__), asks_itself),
        Seam(child, "sentinel", by.sentinel_of(vars(child)["sentinel"]), "opens its descriptor when asked for it"),
        Seam(context._default_context, "__class__", by.DefaultContext, "each child has a default start method"),
        Seam(util, "_finalizer_counter", _life.Tickets(util._finalizer_counter), "whose finalizer is it"),
        Seam(util, "_afterfork_counter", _life.Tickets(util._afterfork_counter), "whose object is it"),
        Seam(util, "_forkless_run_finalizers", by.run_finalizers, "for the body below"),
        Seam(util._run_finalizers, "__code__", by.code_of("_run_finalizers"), "a child runs its own, and no others"),
        Seam(executor, "os", its_os, "a worker names itself by os.getpid(), and is looked up under that name"),
        Seam(executor, "_system_limits_checked", False, "whatever it found before, it can make locks now"),
        Seam(executor, "_system_limited", None, "likewise"),
        Seam(managers, "signal", by.View(signal, signal=_signal), "only the main thread may set signal handlers"),
        Seam(
            queues.SimpleQueue, "__init__", _queues.simple_init(queues.SimpleQueue.__init__), "messages stay in memory"
        ),
        Seam(
            pool.Pool, "_get_sentinels", _pool_sentinels(vars(pool.Pool)["_get_sentinels"]), "wakes up for every result"
        ),
        Seam(
            queues.SimpleQueue,
            "put",
            _queues.simple_put(queues.SimpleQueue.put),
            "a faster pickler does for plain things",
        ),
        Seam(queues.SimpleQueue, "get", _queues.get(queues.SimpleQueue.get), "the stdlib's knows no time limit"),
        Seam(
            queues.Queue, "__init__", _queues.init(queues.Queue.__init__), "messages stay in memory: a shelf for them"
        ),
        Seam(queues.Queue, "_reset", _queues.reset(vars(queues.Queue)["_reset"]), "every twin finds that shelf"),
        Seam(heap, "rebuild_arena", _handover.rebuild_arena, "leaves its descriptor to the end of the process"),
        *_manager_seams(managers, _managers),
    ]
    if not _platform.has_sem_open():
        seams += _semlock_seams(synchronize)
    if not _room_for_sockets():
        seams.append(Seam(connection, "default_family", "AF_INET", "the path of the temporary folder is too long"))
    if not _platform.has_shm():
        seams += _shm_seams()
        seams.append(Seam(heap.Arena, "_dir_candidates", [], "there is no /dev/shm to write to"))
    return seams


def _room_for_sockets() -> bool:
    """Whether a socket in the temporary folder has a path that fits: 104 bytes where it is least (macOS, iOS)."""
    longest = os.path.join(tempfile.gettempdir(), "pymp-12345678", "listener-12345678")
    return len(os.fsencode(longest)) < 104


def _manager_seams(managers: Any, ours: Any) -> list[Seam]:
    server, proxy, manager = managers.Server, managers.BaseProxy, managers.BaseManager
    finalize = staticmethod(ours.finalize_manager(manager._finalize_manager))
    return [
        Seam(server, "serve_forever", ours.serve_forever(server.serve_forever), "its threads do not die with it"),
        Seam(server, "serve_client", ours.serve_client(server.serve_client), "its frame holds on to our objects"),
        Seam(proxy, "_decref", staticmethod(ours.decref(proxy._decref)), "may run on the server's own thread"),
        Seam(manager, "_finalize_manager", finalize, "likewise"),
    ]


def _semlock_seams(synchronize: Any) -> list[Seam]:
    extension: Any = _semlock.as_extension()
    why = "sem_open is missing, or must not be needed"
    return [
        Seam(sys.modules, "_multiprocessing", extension, why),
        Seam(synchronize, "_multiprocessing", extension, why),
        Seam(synchronize, "sem_unlink", extension.sem_unlink, why),
        Seam(_tracker_module()._CLEANUP_FUNCS, "semaphore", extension.sem_unlink, why),
    ]


def _shm_seams() -> list[Seam]:
    from multiprocessing import shared_memory

    extension: Any = _shm.as_extension()
    why = "there is no /dev/shm to write to"
    return [
        Seam(sys.modules, "_posixshmem", extension, why),
        Seam(shared_memory, "_posixshmem", extension, why),
        Seam(_tracker_module()._CLEANUP_FUNCS, "shared_memory", extension.shm_unlink, why),
    ]


def _tracker_module() -> Any:
    from multiprocessing import resource_tracker

    return resource_tracker


def _stand_in_seams() -> list[Seam]:
    from multiprocessing import forkserver, queues, resource_sharer, synchronize

    from forkless.multiprocessing import _handover, _queues, popen_thread
    from forkless.multiprocessing._tracker import InProcessTracker

    tracker = _tracker_module()
    return [
        *_semlock_seams(synchronize),
        Seam(context.ForkProcess, "_Popen", staticmethod(popen_thread.ForkPopen), "a thread, by reference"),
        Seam(context.SpawnProcess, "_Popen", staticmethod(popen_thread.SpawnPopen), "a thread, by copy"),
        Seam(context.ForkServerProcess, "_Popen", staticmethod(popen_thread.ForkserverPopen), "a thread, by copy"),
        Seam(resource_sharer, "DupFd", _handover.Handed, "sender and receiver are one process"),
        Seam(queues.Queue, "put", _queues.put(queues.Queue.put), "a feeder thread for each message is a detour"),
        Seam(forkserver, "ensure_running", _nothing_to_run, "there is no server to start"),
        Seam(tracker._resource_tracker, "__class__", InProcessTracker, "the stdlib's tracker is a process"),
        Seam(tracker, "ensure_running", _nothing_to_run, "likewise"),
        Seam(tracker, "getfd", _no_descriptor, "likewise"),
    ]


def _bootstrap_of(stock: Any) -> Any:
    from forkless.multiprocessing import _bootstrap

    def bootstrap(self: Any, parent_sentinel: int | None = None) -> int:
        if _life.here() is _life.MAIN:
            # A real process, forked while only "thread" was installed. All of it is its own, so nothing is shared out.
            while _undos:
                _undos.pop().undo()
            return int(stock(self, parent_sentinel))
        return _bootstrap.bootstrap(self, parent_sentinel)

    return bootstrap


def _pool_sentinels(stock: Any) -> Any:
    """
    Pool._get_sentinels: what the thread that replaces dead workers waits for.

    The stdlib's wakes up for every result as well, finds nothing to do, and looks again as long as results are waiting.
    Beside real processes nobody notices. Beside threads it keeps them all from the interpreter.
    """
    from forkless.multiprocessing._shelf import Shelved

    def _get_sentinels(self: Any) -> Any:
        if isinstance(self._outqueue._reader, Shelved):
            return [self._change_notifier._reader]
        return stock(self)

    return _get_sentinels


def _signal(signum: int, handler: Any) -> Any:
    if _life.here() is _life.MAIN:
        return signal.signal(signum, handler)
    return signal.getsignal(signum)


def _nothing_to_run() -> None:
    """In the place of starting a process that nobody needs."""


def _no_descriptor() -> None:
    """In the place of the descriptor that leads to such a process."""
