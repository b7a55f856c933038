# SPDX-License-Identifier: GPL-3.0-or-later
"""
Threads that a plugin starts, or a library on its behalf, belong to the run and worker of the thread that started them.

A thread started by a forked worker was in the worker's process. Here the run and the worker of the thread that calls `Thread.start`
are passed to the new thread. A pool may be a library's, which the whole program shares: what its threads do belongs to the run that asked
for it, or to none, even if another run started the threads. Methods of the stdlib are replaced for that while runs are active, because libraries that
plugins use call them directly. Threads that are started outside of runs are not affected.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from forkless.core import thread_exception
from forkless.core.run_context import entered
from forkless.engines.threads import context

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.workers.worker import Worker

__all__: list[str] = []

# Name prefix of forkless's own threads, which set their run explicitly.
_OURS = "forkless-"


def thread_start(original: Callable[..., object], _site: str) -> object:
    """
    `Thread.start`: the new thread belongs to the run of the thread that starts it. The starter is interrupted before or after it, not within.
    """
    from concurrent.futures import thread as pools

    @functools.wraps(original)
    def start(thread: threading.Thread) -> None:
        run_context, worker = context.current(), context.current_worker()
        # A thread of an executor works for the run that submitted each item.
        serves_pool = getattr(thread, "_target", None) is pools._worker
        if run_context is None or thread.name.startswith(_OURS):
            thread_exception.starting(functools.partial(original, thread))
            return
        run = _serve if serves_pool else _run
        vars(thread)["run"] = functools.partial(run, thread, run_context, worker, thread.run)
        try:
            thread_exception.starting(functools.partial(original, thread))
        except BaseException:
            if thread.ident is None:  # the system allows no more threads, or the starter was interrupted before
                vars(thread).pop("run", None)
            raise

    return start


def _run(thread: threading.Thread, run_context: RunContext, worker: Worker | None, run: Callable[..., object]) -> None:
    vars(thread).pop("run", None)
    interrupt = run_context.interrupt if worker is None else worker.interrupt
    try:
        with context.work_for(run_context, worker, service=thread.daemon):
            run()
    except BaseException as error:
        # The exception that stopped the thread needs no traceback on the program's stderr, and one that leaves ends a thread without a word: the
        # program's threading.excepthook may know neither. Any other is raised.
        if not isinstance(error, SystemExit if interrupt.sent is None else (SystemExit, interrupt.sent)):
            raise


def _serve(
    thread: threading.Thread, run_context: RunContext, worker: Worker | None, run: Callable[..., object]
) -> None:
    """A pool's thread: code between items, such as the initializer, belongs to the run that started the thread."""
    vars(thread).pop("run", None)
    with context.enter_worker(run_context, worker):
        run()


def executor_submit(original: Callable[..., object], _site: str) -> object:
    """`ThreadPoolExecutor.submit`, which `asyncio.to_thread` uses too: the call belongs to the run of the submitting thread, or to none."""

    @functools.wraps(original)
    def submit(executor: object, function: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        interpreters = sys.modules.get("concurrent.futures.interpreter")
        if interpreters is not None and isinstance(executor, interpreters.InterpreterPoolExecutor):
            return original(executor, function, *args, **kwargs)  # it pickles the function for another interpreter
        return original(executor, _for_asker(function), *args, **kwargs)

    return submit


def thread_pool_method(original: Callable[..., object], _site: str) -> object:
    """The methods of `multiprocessing.pool.ThreadPool` that take a function: likewise. A pool of processes is left alone."""
    from multiprocessing import pool as pools

    @functools.wraps(original)
    def method(pool: object, func: Callable[..., object], *args: object, **kwargs: object) -> object:
        return original(pool, _for_asker(func) if isinstance(pool, pools.ThreadPool) else func, *args, **kwargs)

    return method


def _for_asker(function: Callable[..., object]) -> Callable[..., object]:
    return functools.partial(_call, context.current(), context.current_worker(), function)


def _call(
    run_context: RunContext | None,
    worker: Worker | None,
    function: Callable[..., object],
    /,
    *args: object,
    **kwargs: object,
) -> object:
    if run_context is None:
        with entered(None):
            return function(*args, **kwargs)
    with context.work_for(run_context, worker):
        return function(*args, **kwargs)
