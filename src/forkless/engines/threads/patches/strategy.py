# SPDX-License-Identifier: GPL-3.0-or-later
"""How a strategy is woken and stopped, and what happens to workers that do not end."""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from forkless.engines.threads import context
from forkless.engines.threads.patches import slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from ansible.inventory.host import Host
    from ansible.playbook.play_context import PlayContext
    from ansible.playbook.task import Task
    from ansible.plugins.strategy import StrategyBase

    from forkless.engines.threads.ansible_types import (
        CallbackQueue,
        CallbackResult,
        ForeignEvent,
        PlayStrategy,
        ResultQueue,
        TaskQueue,
    )
    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.workers.worker import Worker

__all__: list[str] = []

P = ParamSpec("P")
R = TypeVar("R")

# Seconds that interrupted workers get to end before they are abandoned.
GRACE = 5.0
# Seconds between two interrupts within that time.
AGAIN = 1.0


def checks_stop(original: Callable[P, R], _site: str) -> Callable[P, R]:
    """Check for a stop request before each step of the strategy."""

    @functools.wraps(original)
    def step(*args: P.args, **kwargs: P.kwargs) -> R:
        run_context = context.current()
        if run_context is not None:
            run_context.check_stop()
        return original(*args, **kwargs)

    return step


# Strategies that only read a task's variables. With a debugger, a person may change them.
_READERS = tuple(f"ansible.plugins.strategy.{name}" for name in ("linear", "free", "host_pinned"))


def queues_task(original: Callable[..., None], site: str) -> Callable[..., None]:
    """No new task after a stop request, and none in a slice of a run that means something else there."""
    checked = checks_stop(original, site)

    @functools.wraps(original)
    def queue_task(
        strategy: StrategyBase, host: Host, task: Task, task_vars: dict[str, object], play_context: PlayContext
    ) -> None:
        run_context = context.current()
        if run_context is not None:
            slices.refuse(run_context, task)
            only_reads = type(strategy).__module__ in _READERS and not strategy.debugger_active
            run_context.strategy = strategy if only_reads else None
        checked(strategy, host, task, task_vars, play_context)

    return queue_task


def run_play(original: Callable[P, R], site: str) -> Callable[P, R]:
    """One play: refused after a stop request. If no thread can be started, Ansible's error replaces a traceback."""
    checked = checks_stop(original, site)

    @functools.wraps(original)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from ansible.errors import AnsibleError

        try:
            return checked(*args, **kwargs)
        except RuntimeError as error:
            if "can't start new thread" not in str(error):
                raise
            raise AnsibleError(
                "No thread could be started for a worker: this process, its user or its container is at its limit "
                f"(ulimit -u, pids.max; {threading.active_count()} threads are running in this process)."
            ) from None

    return run


def load_callbacks(original: Callable[[CallbackQueue], None], _site: str) -> object:
    """Append the run's listeners after all callbacks, so that the stdout callback has printed an event before they receive it."""

    @functools.wraps(original)
    def load(tqm: CallbackQueue) -> None:
        original(tqm)
        run_context = context.current()
        if run_context is not None and run_context.before_result is not None:
            _call_before_results(
                getattr(tqm, "_stdout_callback", None) or tqm._callback_plugins[0], run_context.before_result
            )
        for make in run_context.callbacks if run_context else ():
            listener = make()
            if all(known is not listener for known in tqm._callback_plugins):
                tqm._callback_plugins.append(listener)

    return load


_RESULTS = (
    "v2_runner_on_ok", "v2_runner_on_failed", "v2_runner_on_unreachable", "v2_runner_on_skipped", "v2_runner_retry",
    "v2_runner_item_on_ok", "v2_runner_item_on_failed", "v2_runner_item_on_skipped",
)  # fmt: skip


def _call_before_results(callback: object, before: Callable[[str, str, dict[str, object]], None]) -> None:
    """Have `before` called with each result that a stdout callback is given: every callback is given a copy of its own."""
    # A callback of a collection may rely on keys of a result that ansible-core's own only look for.
    ours = type(callback).__module__.startswith("ansible.plugins.callback.")

    def extend(method: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(method)
        def extended(result: CallbackResult, *args: object, **kwargs: object) -> None:
            before(result._host.get_name(), str(result._task._uuid), result._result if ours else {})
            method(result, *args, **kwargs)

        return extended

    for name in _RESULTS:
        if hasattr(callback, name):
            setattr(callback, name, extend(getattr(callback, name)))


def asks(original: Callable[P, R], _site: str) -> object:
    """A live view on the terminal pauses while the run prompts a person."""
    real: Callable[P, R] = getattr(original, "__func__", original)

    @functools.wraps(real)
    def ask(*args: P.args, **kwargs: P.kwargs) -> R:
        with context.typing():
            return real(*args, **kwargs)

    return staticmethod(ask) if isinstance(original, staticmethod) else ask


def results_thread(original: Callable[[object], None], _site: str) -> Callable[[PlayStrategy], None]:
    """Upstream's loop, on a queue that wakes the strategy after each item was processed."""

    class WakingQueue:
        def __init__(self, queue: ResultQueue, run_context: RunContext) -> None:
            self._queue, self._run_context = queue, run_context

        def get(self) -> object:
            # The previous item has been processed when the next one is requested.
            self._run_context.woken.set()
            return self._queue.get()

    class Strategy:
        """The strategy with a replaced `_final_q`."""

        def __init__(self, real: PlayStrategy, run_context: RunContext) -> None:
            self.__dict__.update(_real=real, _final_q=WakingQueue(real._final_q, run_context))

        def __getattr__(self, name: str) -> object:
            found: object = getattr(self.__dict__["_real"], name)
            return found

        def __setattr__(self, name: str, value: object) -> None:
            setattr(self.__dict__["_real"], name, value)

    @functools.wraps(original)
    def main(strategy: PlayStrategy) -> None:
        run_context = context.current()
        if run_context is None:
            original(strategy)
            return
        try:
            # Callbacks run on this thread too: one that blocks must be interrupted when a stop is requested. It is a daemon thread, and has
            # joined as a service when it was started.
            with run_context.interrupt.joined(), run_context.interrupt.hearing():
                original(Strategy(strategy, run_context))
        except KeyboardInterrupt:
            if not run_context.stop.requested:
                raise
        finally:
            run_context.woken.set()

    return main


def rpc_operation(original: type, _site: str) -> type:
    """A worker's request to the strategy, which may be asleep and must be woken."""

    class WakingOperation(original):  # type: ignore[misc]
        def __init__(self, **fields: object) -> None:
            super().__init__(**fields)
            run_context = context.current()
            if run_context is not None:
                self.event: ForeignEvent = _WakingEvent(self.event, run_context)

    return WakingOperation


class _WakingEvent:
    """The event that the worker waits for. `wait()` wakes the strategy first, and can be interrupted."""

    def __init__(self, event: ForeignEvent, run_context: RunContext) -> None:
        self._event, self._run_context = event, run_context

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        self._run_context.woken.set()
        # With a timeout: an exception that is sent to the thread is raised only between two waits in C.
        while not self._event.wait(0.5 if timeout is None else timeout):
            if timeout is not None:
                return False
            self._run_context.woken.set()
        return True


def cleanup_workers(_original: object, _site: str) -> Callable[[TaskQueue], None]:
    """
    Wait for the play's workers, interrupt those that still run, and abandon those that do not end within GRACE seconds.

    Upstream polls for five seconds and then calls terminate(), which a process cannot ignore.
    """

    def cleanup(tqm: TaskQueue) -> None:
        from ansible import constants
        from ansible.utils.display import Display

        workers = [worker for worker in getattr(tqm, "_workers", ()) if worker]
        patience = float(constants.WORKER_SHUTDOWN_POLL_COUNT * constants.WORKER_SHUTDOWN_POLL_DELAY)
        run_context = context.current()
        if run_context is not None and run_context.stop.requested:
            patience = 0.0
        _join(workers, patience)
        left = [worker for worker in workers if worker.is_alive()]
        if left and patience:
            Display().warning("One or more worker processes are still running and will be terminated.")
        deadline = time.monotonic() + (0.0 if run_context is not None and run_context.stop.urgent else GRACE)
        while any(worker.is_alive() for worker in left):
            # Repeatedly: a task that was interrupted may block again while it cleans up on a host that does not respond.
            for worker in left:
                worker.terminate()
            if time.monotonic() >= deadline:
                break
            _join(left, min(AGAIN, deadline - time.monotonic()))
        for worker in left:
            worker.abandon()

    return cleanup


def cleanup_play(original: Callable[[TaskQueue], None], _site: str) -> Callable[[TaskQueue], None]:
    """Closes upstream's lock file, which otherwise stays open until the process ends."""

    @functools.wraps(original)
    def cleanup(tqm: TaskQueue) -> None:
        try:
            original(tqm)
        finally:
            tqm._connection_lockfile.close()

    return cleanup


def _join(workers: list[Worker], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
