# SPDX-License-Identifier: GPL-3.0-or-later
"""
One task on one thread.

`Worker` has the interface of a process, and knows nothing of Ansible. `worker_process` makes ansible-core's WorkerProcess of it: `run()` is
upstream's code, and what the process did around it (copying, detaching, ending) is done explicitly.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import math
import os
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, TypeAlias

from forkless.core.run_context import SCOPE
from forkless.core.thread_stack import stack_as_text
from forkless.engines.threads import context as thread_context
from forkless.engines.threads import late_libraries
from forkless.engines.threads.context import ThreadScope
from forkless.engines.threads.patches import inherited_state
from forkless.engines.threads.patches.secret_masker import masked
from forkless.engines.threads.workers import threads
from forkless.engines.threads.workers.interrupt import Interrupt, WorkerStopped

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Hashable

    from forkless.engines.threads.context import RunContext
    from forkless.modules import TaskOutput

__all__ = ["AlarmAction", "HardExit", "Worker", "on_stop", "uninterrupted"]

# What signal.signal() takes and returns.
AlarmAction: TypeAlias = "Callable[[int, types.FrameType | None], object] | int | signal.Handlers | None"
# Minimum seconds between two interrupts of one worker: some plugins swallow the first.
_BETWEEN = 1.0
# Larger than any real process id, so that os.kill() with one of these never hits another process.
_pids = itertools.count(1 << 24)


class HardExit(BaseException):
    """Replaces os._exit(1) of a forked worker."""


def uninterrupted(original: Callable[..., object], _site: str) -> object:
    """Wrap a short step that must not be left half done: an exception sent to the worker is raised after it."""

    @functools.wraps(original)
    def step(*args: object, **kwargs: object) -> object:
        worker = thread_context.current_worker()
        if worker is None:
            return original(*args, **kwargs)
        with worker.interrupt.shielded():
            return original(*args, **kwargs)

    return step


def _flush_streams() -> None:
    """
    As `multiprocessing.Process.start` does before it forks: nothing else in Ansible flushes its output before the end of the run, and a
    program that reads it waits for it.

    A reader that has gone (`| head`) does not end the run: what is left of the output goes nowhere.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
        except (AttributeError, ValueError, OSError):  # none, or closed; a full disk is reported at the end
            pass


class Worker(ThreadScope):
    """
    The part of a worker that is independent of Ansible: a thread with the interface of a process.

    It is the RunScope of its thread, and of threads that its plugins start.
    """

    run_context: RunContext
    worker_id: int
    _host: object
    _task: Any
    _task_vars: dict[str, object]

    def _arm(self) -> None:
        run_context = thread_context.current()
        if run_context is None:
            raise RuntimeError("a worker was made outside of a run")
        self.run_context = run_context
        self.pid = next(_pids)
        self.exitcode: int | None = None
        self.interrupt = Interrupt()
        self.streams: dict[str, Any] = {}
        self.environ: dict[str, str] | None = None
        self.state: dict[Hashable, Any] = {}
        self.at_end: list[Callable[[], None]] = []
        self.answered = False
        self.on_alarm: AlarmAction = signal.SIG_DFL
        self.since = 0.0
        self._told = -math.inf
        self.thread: threading.Thread | None = None
        self.thread_number = 0
        """The kernel's number of the thread, which a child that a plugin forks must not take for its own."""
        self._alarm_clock: threading.Timer | None = None
        self._done = threading.Event()
        self._started = False
        self._described: tuple[str, str] | None = None

    @property
    def worker(self) -> Worker:
        return self

    # -- the interface of a process ----------------------------------------------------------------------------

    def start(self) -> None:
        """RuntimeError: there is no thread to be had; where a worker starts another, not even later: it could wait for its own."""
        if self.run_context.terminal is not None:
            _flush_streams()
        self._started = True
        late_libraries.look()
        inherited_state.take_snapshot(self.run_context, self)
        self.since = time.monotonic()
        self.run_context.workers.add(self)
        self._done.clear()
        try:
            waits = thread_context.current_worker() is None
            threads.worker_threads(self.run_context).submit(self._work, wait_for_thread=waits)
        except BaseException:  # the worker never began, so no thread may wait for it
            self._done.set()
            self.run_context.workers.discard(self)
            raise

    def is_alive(self) -> bool:
        return self._started and not self._done.is_set()

    def join(self, timeout: float | None = None) -> None:
        self._done.wait(timeout)

    def close(self) -> None:
        """Does nothing: a thread has no process handle to close."""

    def terminate(self) -> None:
        """Interrupt the worker; may be called from any thread. A worker that has sent its result is about to end and is not interrupted."""
        # The stop listener calls this first and Ansible's clean-up again: a second interrupt would hit the worker while it leaves.
        now = time.monotonic()
        if self.is_alive() and not self.answered and now - self._told > _BETWEEN:
            self._told = now
            self.interrupt.trigger(WorkerStopped)

    kill = terminate

    def abandon(self) -> None:
        """Continue without the worker. Its thread stays alive and is reported, and the strategy does not wait for its result."""
        if self.is_alive():
            self._described = self.describe()  # it is named after the run, which then has forgotten its secrets
            self.run_context.abandoned.append(self)
            self.exitcode = -signal.SIGTERM
            self._done.set()

    @property
    def sentinel(self) -> int:
        raise NotImplementedError("a worker of forkless is a thread: wait for it with join()")

    # -- the thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self.thread = threading.current_thread()
        self.thread_number = threading.get_native_id()
        code = 0
        try:
            # An empty context: context variables of the strategy's thread must not reach the worker.
            contextvars.Context().run(self._run_to_its_end)
        except WorkerStopped:
            code = -signal.SIGTERM
        except HardExit:
            code = 1
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:  # noqa: BLE001  # any exception of a plugin ends here, as it would in a process
            code = 1
            self._say(traceback.format_exc())
        finally:
            if self.run_context.pid != os.getpid():
                # A plugin forked, and its child returned from the task: the child has no run to continue, so it exits.
                os._exit(code & 0xFF)
            if not self._done.is_set():
                # Upstream's run() can return without sending a result, for which the strategy would wait forever.
                self.exitcode = code if self.answered or code else 1
            self._done.set()
            self.run_context.workers.discard(self)
            self.run_context.woken.set()

    def _run_to_its_end(self) -> None:
        SCOPE.set(self)
        try:
            self.interrupt.begin()
            # The stop may have been requested since the strategy looked: the process may have been stopped in between.
            if self.run_context.stop.requested:
                raise WorkerStopped
            self.run()
        finally:
            if not thread_context.in_forked_child():
                self._end()

    def run(self) -> None:
        raise NotImplementedError

    def for_items(self, final_q: object) -> Worker:
        """Another worker for the same task, with copies of all that this one has: see `loop_items`."""
        raise NotImplementedError

    def _end(self) -> None:
        """Called when the task is over: stops the interrupt and the alarm, and releases the worker's resources."""
        self.interrupt.end()
        if self.interrupt.has_members:
            self.run_context.linger(self.interrupt)
        self.alarm(0)
        self._leave()

    def _leave(self) -> None:
        """Release the worker's resources; ThreadWorker extends it."""
        while self.at_end:
            self.at_end.pop()()
        self.state.clear()

    def task_output(self) -> Callable[[TaskOutput], None] | None:
        """The function that receives what this worker's task prints while it runs; None if the run has no listener."""
        listener, host = self.run_context.live_output, self._host_name
        if listener is None:
            return None

        def hear(output: TaskOutput) -> None:
            if not self.answered:  # a job that its task waited for in vain may still print
                listener(host, output)

        return hear

    def _say(self, text: str) -> None:
        stream = self.run_context.stderr or sys.stderr
        if stream is not None:  # sys.stderr is None in a program without a console
            stream.write(text)

    # -- alarms ------------------------------------------------------------------------------------------------

    def alarm(self, seconds: float) -> None:
        """signal.alarm for one worker: the handler runs on a timer thread, and an exception that it raises is raised in the worker."""
        clock, self._alarm_clock = self._alarm_clock, None
        if clock is not None:
            clock.cancel()
            self.interrupt.clear_alarm()
        if seconds > 0:
            clock = threading.Timer(seconds, self._ring, (self.interrupt.set_alarm(),))
            clock.daemon = True
            clock.name = f"forkless-alarm-{self.pid}"
            clock.start()
            self._alarm_clock = clock

    def _ring(self, alarm: object) -> None:
        action = self.on_alarm
        if not callable(action):
            return
        thread = self.thread
        frame = sys._current_frames().get(thread.ident or 0) if thread else None
        try:
            with thread_context.enter_worker(self.run_context, self):
                action(signal.SIGALRM, frame)
        except BaseException as error:  # noqa: BLE001  # raised again in the worker
            # Not sent if the worker has cleared the alarm in the meantime: a late error would hit its next step, or its next task.
            self.interrupt.trigger(_carrying(error, lambda: self.interrupt.alarm_raised(alarm)), alarm=alarm)

    # -- diagnosis ---------------------------------------------------------------------------------------------

    def stack(self) -> str:
        """The current stack of the worker's thread, formatted; "" if it has none."""
        return stack_as_text(self.thread.ident) if self.thread else ""

    def describe(self) -> tuple[str, str]:
        """The names of host and task, for messages, without secrets that ansible-core knows. Any thread may call it."""
        if self._described is not None:
            return self._described
        with thread_context.enter(self.run_context):
            return self._host_name, masked(str(self._task.get_name()))

    @property
    def _host_name(self) -> str:
        return str(getattr(self._host, "name", self._host))


def _carrying(error: BaseException, raised: Callable[[], None]) -> type[BaseException]:
    """
    A class that creates a copy of this error when called without arguments, and calls `raised` then: PyThreadState_SetAsyncExc takes a class,
    not an instance.
    """
    kind = type(error)

    def __init__(self: BaseException) -> None:  # noqa: N807  # becomes the class's __init__
        self.args = error.args
        self.__dict__.update(error.__dict__)
        raised()

    return type(kind.__name__, (kind,), {"__init__": __init__, "__module__": kind.__module__})


def on_stop(run_context: RunContext) -> Callable[[], None]:
    """The stop listener of a run: interrupts every worker and wakes the strategy. It may be called from any thread."""

    def tell() -> None:
        for worker in list(run_context.workers):
            worker.terminate()
            if run_context.stop.urgent:
                worker.abandon()
        for interrupt in list(run_context.lingering):
            interrupt.trigger(WorkerStopped)
        # The run's thread notices the stop by itself once its blocking calls are ended.
        run_context.interrupt.release(KeyboardInterrupt)
        run_context.woken.set()

    return tell
