# SPDX-License-Identifier: GPL-3.0-or-later
"""
Installs the replacements in the stdlib, and undoes them.

Every replaced name of the stdlib is in the lists below, with the reason. There are two steps. THREAD adds the start
method "thread"; the other start methods still start processes. STAND_IN makes "fork", "spawn" and "forkserver" start
threads as well, and needs no `_multiprocessing`, sem_open, /dev/shm or fork.
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

from forkless.core import platform
from forkless.multiprocessing import process_state
from forkless.multiprocessing import shared_memory as shm
from forkless.multiprocessing import synchronize as sync
from forkless.patching import seams
from forkless.patching.module_view import ModuleView
from forkless.patching.seam import Seam, always, made_by, static

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["install", "installed", "is_installed", "uninstall"]


_CONTEXT = "multiprocessing.context"
_PROCESS = "multiprocessing.process"
_CHILD = "multiprocessing.process:BaseProcess"
_UTIL = "multiprocessing.util"
_MANAGERS = "multiprocessing.managers"
_QUEUES = "multiprocessing.queues"
_TRACKER = "multiprocessing.resource_tracker"
_EXECUTOR = "concurrent.futures.process"


class Step(enum.IntEnum):
    OUT = 0
    THREAD = 1
    STAND_IN = 2


# Guards the three variables below. Re-entrant, because a really forked process may inherit it held by its own thread.
_lock = threading.RLock()
_undos: list[Callable[[], None]] = []
_kept = Step.OUT
_inside: collections.Counter[Step] = collections.Counter()


def install(*, stand_in: bool = True) -> None:
    """
    Make `multiprocessing` use threads in the whole program, until uninstall(). Any thread may call this.

    With stand_in=False only the start method "thread" is added; "fork", "spawn" and "forkserver" are unchanged. A
    second call does no harm, and `multiprocessing` may have been imported before.
    """
    global _kept  # noqa: PLW0603
    with _lock:
        step = max(_kept, Step.STAND_IN if stand_in else Step.THREAD)
        _go_to(max(_wanted(), step))
        _kept = step


def uninstall() -> None:
    """Undo install(). The replacements stay while any thread is inside a `with installed()` block."""
    global _kept  # noqa: PLW0603
    with _lock:
        _kept = Step.OUT
        _go_to(_wanted())


@contextlib.contextmanager
def installed(*, stand_in: bool = True) -> Iterator[None]:
    """install() until the block ends. Blocks may nest, and overlap on several threads; the last one uninstalls."""
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
        _undos.pop()()
    if len(_undos) < Step.THREAD <= step:
        _import_stdlib()
        process_state.MAIN.look_around()
        _undos.append(seams.install(_thread_seams()))
    if len(_undos) < Step.STAND_IN <= step:
        _undos.append(seams.install(_stand_in_seams()))


def _import_stdlib() -> None:
    """
    Import every module that is changed, so that the program's import order does not matter.

    This happens before any replacement, so that the stdlib binds the real C extensions where they exist and has them
    after uninstall().
    """
    for name, stand_in, needed in (
        ("_multiprocessing", sync.as_extension, "SemLock"),
        ("_posixshmem", shm.as_extension, "shm_open"),
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

    from forkless.multiprocessing import process as by
    from forkless.multiprocessing import queues as queues_module
    from forkless.multiprocessing import transfer as transfers

    per_process = "one per process in the stdlib, one per child here"
    asks_itself = "compares itself to _current_process, which is a stand-in"
    its_os = always(ModuleView(os, getpid=by.getpid))
    seams = [
        Seam(f"{_CONTEXT}:_concrete_contexts", "the start method itself", made_by(by.Contexts)),
        Seam("threading:Thread.start", "a thread belongs to its child", made_by(process_state.inherit_state)),
        Seam(
            f"{_PROCESS}:_forkless_here",
            "for the two bodies below",
            always(process_state.current_state),
            optional=True,
        ),
        Seam(f"{_PROCESS}:current_process.__code__", per_process, always(by.code_of("current_process"))),
        Seam(f"{_PROCESS}:parent_process.__code__", per_process, always(by.code_of("parent_process"))),
        Seam(f"{_PROCESS}:_current_process", per_process, always(by.CurrentProcess())),
        Seam(f"{_PROCESS}:_children", per_process, always(by.Children())),
        Seam(f"{_PROCESS}:_process_counter", per_process, always(by.ChildCounter())),
        Seam(f"{_PROCESS}:os", "a child knows its own children by the pid of their parent", its_os),
        Seam(f"{_CHILD}._bootstrap", "the stdlib's writes module globals and closes stdin", made_by(_bootstrap_of)),
        Seam(f"{_CHILD}.is_alive", asks_itself, made_by(by.is_alive)),
        Seam(f"{_CHILD}.ident", asks_itself, made_by(by.ident_of)),
        Seam(f"{_CHILD}.pid", asks_itself, made_by(by.ident_of)),
        Seam(f"{_CHILD}.__repr__", asks_itself, made_by(by.repr_of)),
        Seam(f"{_CHILD}.sentinel", "opens its descriptor at the first read", made_by(by.sentinel_of)),
        Seam(
            f"{_CONTEXT}:_default_context.__class__",
            "each child has a default start method",
            always(by.DefaultContext),
        ),
        Seam(f"{_UTIL}:_finalizer_counter", "whose finalizer is it", made_by(process_state.OwnedNumbers)),
        Seam(f"{_UTIL}:_afterfork_counter", "whose object is it", made_by(process_state.OwnedNumbers)),
        Seam(f"{_UTIL}:_forkless_run_finalizers", "for the body below", always(by.run_finalizers), optional=True),
        Seam(
            f"{_UTIL}:_run_finalizers.__code__",
            "a child runs its own finalizers, and no others",
            always(by.code_of("_run_finalizers")),
        ),
        Seam(f"{_EXECUTOR}:os", "a worker names itself by os.getpid(), and is looked up under that name", its_os),
        Seam(
            f"{_EXECUTOR}:_system_limits_checked",
            "its earlier result does not count: locks can be made now",
            always(False),
        ),
        Seam(f"{_EXECUTOR}:_system_limited", "likewise", always(None)),
        Seam(
            f"{_MANAGERS}:signal",
            "only the main thread may set signal handlers",
            always(ModuleView(signal, signal=_signal)),
        ),
        Seam(f"{_QUEUES}:SimpleQueue.__init__", "messages stay in memory", made_by(queues_module.simple_init)),
        Seam("multiprocessing.pool:Pool._get_sentinels", "wakes up for every result", made_by(_pool_sentinels)),
        Seam(
            f"{_QUEUES}:SimpleQueue.put",
            "a faster pickler is enough for plain values",
            made_by(queues_module.simple_put),
        ),
        Seam(f"{_QUEUES}:SimpleQueue.get", "the stdlib's method takes no timeout", made_by(queues_module.get)),
        Seam(
            f"{_QUEUES}:Queue.__init__",
            "messages stay in memory: a message store for them",
            made_by(queues_module.init),
        ),
        Seam(
            f"{_QUEUES}:Queue._reset", "every copy of the queue finds that message store", made_by(queues_module.reset)
        ),
        Seam(
            "multiprocessing.heap:rebuild_arena",
            "the stdlib leaves its descriptor open until the process ends",
            always(transfers.rebuild_arena),
        ),
        *_manager_seams(),
    ]
    if not platform.has_sem_open():
        seams += _semlock_seams()
    if not _room_for_sockets():
        seams.append(
            Seam(
                "multiprocessing.connection:default_family",
                "the path of the temporary folder is too long",
                always("AF_INET"),
            )
        )
    if not platform.has_shm():
        seams += _shm_seams()
        seams.append(Seam("multiprocessing.heap:Arena._dir_candidates", "there is no /dev/shm to write to", always([])))
    return seams


def _room_for_sockets() -> bool:
    """Whether the path of a socket in the temporary folder fits into sun_path: 104 bytes at least (macOS, iOS)."""
    longest = os.path.join(tempfile.gettempdir(), "pymp-12345678", "listener-12345678")
    return len(os.fsencode(longest)) < 104


def _manager_seams() -> list[Seam]:
    from forkless.multiprocessing import managers as ours

    return [
        Seam(
            f"{_MANAGERS}:Server.serve_forever", "the server's threads do not end with it", made_by(ours.serve_forever)
        ),
        Seam(
            f"{_MANAGERS}:Server.serve_client",
            "the server's frame keeps the caller's objects alive",
            made_by(ours.serve_client),
        ),
        Seam(f"{_MANAGERS}:BaseProxy._decref", "a finalizer may run on the server's own thread", static(ours.decref)),
        Seam(f"{_MANAGERS}:BaseManager._finalize_manager", "likewise", static(ours.finalize_manager)),
    ]


def _semlock_seams() -> list[Seam]:
    extension = sync.as_extension()
    why = "sem_open is missing, or must not be needed"
    unlink = always(extension.sem_unlink)
    return [
        Seam("sys:modules[_multiprocessing]", why, always(extension), optional=True),
        Seam("multiprocessing.synchronize:_multiprocessing", why, always(extension)),
        Seam("multiprocessing.synchronize:sem_unlink", why, unlink),
        Seam(f"{_TRACKER}:_CLEANUP_FUNCS[semaphore]", why, unlink, optional=True),
    ]


def _shm_seams() -> list[Seam]:
    extension = shm.as_extension()
    why = "there is no /dev/shm to write to"
    return [
        Seam("sys:modules[_posixshmem]", why, always(extension), optional=True),
        Seam("multiprocessing.shared_memory:_posixshmem", why, always(extension)),
        Seam(f"{_TRACKER}:_CLEANUP_FUNCS[shared_memory]", why, always(extension.shm_unlink), optional=True),
    ]


def _stand_in_seams() -> list[Seam]:
    from forkless.multiprocessing import popen_thread
    from forkless.multiprocessing import queues as queues_module
    from forkless.multiprocessing import transfer as transfers
    from forkless.multiprocessing.resource_tracker import InProcessTracker

    by_copy = "a thread, by copy"
    return [
        *_semlock_seams(),
        Seam(f"{_CONTEXT}:ForkProcess._Popen", "a thread, by reference", always(staticmethod(popen_thread.ForkPopen))),
        Seam(f"{_CONTEXT}:SpawnProcess._Popen", by_copy, always(staticmethod(popen_thread.SpawnPopen))),
        Seam(f"{_CONTEXT}:ForkServerProcess._Popen", by_copy, always(staticmethod(popen_thread.ForkserverPopen))),
        Seam(
            "multiprocessing.resource_sharer:DupFd",
            "sender and receiver are one process",
            always(transfers.FdInMessage),
        ),
        Seam(f"{_QUEUES}:Queue.put", "no feeder thread is needed between threads", made_by(queues_module.put)),
        Seam("multiprocessing.forkserver:ensure_running", "there is no server to start", always(_nothing_to_run)),
        Seam(f"{_TRACKER}:_resource_tracker.__class__", "the stdlib's tracker is a process", always(InProcessTracker)),
        Seam(f"{_TRACKER}:ensure_running", "likewise", always(_nothing_to_run)),
        Seam(f"{_TRACKER}:getfd", "likewise", always(_no_descriptor)),
    ]


def _bootstrap_of(stock: Callable[..., Any]) -> object:
    from forkless.multiprocessing import bootstrap as bootstrap_module

    def bootstrap(self: object, parent_sentinel: int | None = None) -> int:
        if process_state.current_state() is process_state.MAIN:
            # A real process, forked while only "thread" was installed. It shares its interpreter with no other child,
            # so the replacements are undone.
            while _undos:
                _undos.pop()()
            return int(stock(self, parent_sentinel))
        return bootstrap_module.bootstrap(self, parent_sentinel)

    return bootstrap


def _pool_sentinels(stock: Callable[..., object]) -> object:
    """
    Replaces Pool._get_sentinels: what the thread that replaces ended workers waits for.

    The stdlib's thread also wakes up for every result and polls while results are pending. With workers on threads,
    that loop would compete with them for the GIL.
    """
    from forkless.multiprocessing.memory_pipe import MemoryConnection

    def _get_sentinels(self: Any) -> object:
        if isinstance(self._outqueue._reader, MemoryConnection):
            return [self._change_notifier._reader]
        return stock(self)

    return _get_sentinels


def _signal(signum: int, handler: Any) -> object:
    if process_state.current_state() is process_state.MAIN:
        return signal.signal(signum, handler)
    return signal.getsignal(signum)


def _nothing_to_run() -> None:
    """Replaces functions that start a helper process, which threads do not need."""


def _no_descriptor() -> None:
    """Replaces getfd(): there is no tracker process to write to."""
