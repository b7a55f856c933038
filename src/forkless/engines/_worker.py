# SPDX-License-Identifier: GPL-3.0-or-later
"""
One task on one thread.

`Worker` stands in for ansible-core's WorkerProcess. What upstream's `run()` does stays upstream's code; what the
process did around it (copying, detaching, ending) is done here by name.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import io
import itertools
import math
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
import types
from typing import TYPE_CHECKING, Any

from forkless import modules, ssh
from forkless.engines import _missing, _scene, _threads, _views
from forkless.engines._copies import private_task_vars
from forkless.engines._reach import Reach, WorkerStopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines._scene import Scene

__all__ = ["Worker", "make_queue", "make_worker"]

# Seconds between two words to a worker that it should end: some plugins swallow the first.
_BETWEEN = 1.0
# Never a real pid: os.kill of one must not hit a stranger.
_pids = itertools.count(1 << 24)


class _HardExit(BaseException):
    """What os._exit(1) was to a worker that was a process."""


class Answers(queue.SimpleQueue):  # type: ignore[type-arg]
    """Answers to the worker's prompts; an error among them is raised where it is read."""

    def get(self, *_args: Any, **_kwargs: Any) -> Any:
        while True:
            # In slices: an exception that is sent to a thread is seen only between them.
            with contextlib.suppress(queue.Empty):
                answer = super().get(timeout=0.25)
                break
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """There is nothing to close; Ansible says it all the same."""


def uninterrupted(original: Any, _site: str) -> Any:
    """A step that is short and must not be left half done: what was sent to the worker meanwhile arrives after it."""

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        worker = _scene.current_worker()
        if worker is None:
            return original(*args, **kwargs)
        with worker.reach.shielded():
            return original(*args, **kwargs)

    return step


def copy_task(task: Any) -> Any:
    """Templating rewrites a task's attributes, and its parents'; with the linear strategy all hosts share one."""
    return task.copy(exclude_tasks=True)


def snapshot_of_vars(original: Any, _site: str) -> Any:
    """get_vars: one at a time, and what a worker gets of it (hostvars, delegated vars) is the worker's own."""

    @functools.wraps(original)
    def get_vars(*args: Any, **kwargs: Any) -> Any:
        scene = _scene.current()
        if scene is None:
            return original(*args, **kwargs)
        with scene.vars_lock:
            found = original(*args, **kwargs)
            return found if _scene.current_worker() is None else private_task_vars(found)

    return get_vars


class Worker:
    """The part that needs nothing of Ansible: a thread with a process's manners."""

    scene: Scene
    worker_id: int
    _host: Any
    _task: Any

    def _arm(self) -> None:
        scene = _scene.current()
        if scene is None:
            raise RuntimeError("a worker was made outside of a run")
        self.scene = scene
        self.pid = next(_pids)
        self.exitcode: int | None = None
        self.reach = Reach()
        self.streams: dict[str, Any] = {}
        self.environ: dict[str, str] | None = None
        self.state: dict[Any, Any] = {}
        self.at_end: list[Callable[[], None]] = []
        self.answered = False
        self.on_alarm: Any = signal.SIG_DFL
        self.since = 0.0
        self._told = -math.inf
        self.thread: threading.Thread | None = None
        self._alarm_clock: threading.Timer | None = None
        self._done = threading.Event()
        self._started = False

    # -- what Ansible asks of a process ------------------------------------------------------------------------

    def start(self) -> None:
        self._started = True
        _missing.look()
        self.since = time.monotonic()
        self.scene.workers.add(self)
        self._done.clear()
        _threads.crew(self.scene).hand(self._work)

    def is_alive(self) -> bool:
        return self._started and not self._done.is_set()

    def join(self, timeout: float | None = None) -> None:
        self._done.wait(timeout)

    def close(self) -> None:
        """A process had handles to give back. We have none."""

    def terminate(self) -> None:
        """Ask it to end; `abandon()` is for one that does not. One that has answered is at its end, and is left to tidy up."""
        # Who stops the run tells it, and then Ansible as it tidies up: the second word would hit it in the middle of leaving.
        now = time.monotonic()
        if self.is_alive() and not self.answered and now - self._told > _BETWEEN:
            self._told = now
            self.reach.interrupt(WorkerStopped)

    kill = terminate

    def abandon(self) -> None:
        """Go on without it. It stays alive, is reported, and its result is not waited for."""
        if self.is_alive():
            self.scene.abandoned.append(self)
            self.exitcode = -signal.SIGTERM
            self._done.set()

    @property
    def sentinel(self) -> int:
        raise NotImplementedError("a worker of forkless is a thread: wait for it with join()")

    # -- the thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self.thread = threading.current_thread()
        code = 0
        try:
            with _scene.enter_worker(self.scene, self):
                try:
                    self.reach.begin()
                    # An empty context: what the strategy's thread has open in its own is not this worker's.
                    context = contextvars.Context()
                    context.run(ssh.RUN.set, self.scene.ident)
                    context.run(modules.MODE.set, self.scene.modules)
                    context.run(modules.KEEP.set, self.scene.hearths)
                    context.run(modules.REACH.set, self.reach)
                    context.run(self.run)
                finally:
                    self.reach.end()
                    self.alarm(0)
                    self._leave()
        except WorkerStopped:
            code = -signal.SIGTERM
        except _HardExit:
            code = 1
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:  # noqa: BLE001  # the thread is ours: whatever a plugin threw ends here, as in a process
            code = 1
            self._say(traceback.format_exc())
        finally:
            if not self._done.is_set():
                # Upstream has ways out that send no result; the strategy would wait for it for ever.
                self.exitcode = code if self.answered or code else 1
            self._done.set()
            self.scene.workers.discard(self)
            self.scene.woken.set()

    def run(self) -> None:
        raise NotImplementedError

    def _leave(self) -> None:
        """Give back what the worker had; upstream's class adds to it."""
        while self.at_end:
            self.at_end.pop()()
        self.state.clear()

    def _say(self, text: str) -> None:
        stream = self.scene.stderr or sys.stderr
        stream.write(text)

    # -- time-outs ---------------------------------------------------------------------------------------------

    def alarm(self, seconds: int) -> None:
        """signal.alarm for one worker: its action is called, and what that raises is raised in the worker."""
        clock, self._alarm_clock = self._alarm_clock, None
        if clock is not None:
            clock.cancel()
            self.reach.withdraw()
        if seconds > 0:
            self._alarm_clock = threading.Timer(seconds, self._ring)
            self._alarm_clock.daemon = True
            self._alarm_clock.name = f"forkless-alarm-{self.pid}"
            self._alarm_clock.start()

    def _ring(self) -> None:
        action = self.on_alarm
        if not callable(action):
            return
        thread = self.thread
        frame = sys._current_frames().get(thread.ident or 0) if thread else None
        try:
            action(signal.SIGALRM, frame)
        except BaseException as error:  # noqa: BLE001  # it is carried over to the worker
            self.reach.interrupt(_carrying(error))

    # -- being asked -------------------------------------------------------------------------------------------

    def stack(self) -> str:
        """Where its thread stands now."""
        frame = sys._current_frames().get(self.thread.ident or 0) if self.thread else None
        return "".join(traceback.format_stack(frame)) if frame else ""

    def describe(self) -> tuple[str, str]:
        """Host and task, for people."""
        return str(getattr(self._host, "name", self._host)), str(self._task.get_name())


def _carrying(error: BaseException) -> type[BaseException]:
    """A class that makes that very error when called with nothing, which is how an exception is sent to a thread."""
    kind = type(error)

    def __init__(self: BaseException) -> None:  # noqa: N807  # becomes the class's own
        self.args = error.args
        self.__dict__.update(error.__dict__)

    return type(kind.__name__, (kind,), {"__init__": __init__, "__module__": kind.__module__})


def make_worker(upstream: Any) -> type:
    """ansible-core's WorkerProcess with a thread in place of the process. `run` and `_run` are upstream's."""
    module = sys.modules[upstream.__module__]
    display = module.display
    # Not by the seams alone: a worker that was given up may come back when the run is over and they are out. It would end the program.
    world = {**vars(module), "sys": _views.sys_view, "os": _views.os_view, "signal": _views.signal_view}

    def own(name: str) -> Any:
        """Upstream's function, in a module where the streams are the worker's and there is no way out of the program."""
        theirs = getattr(upstream, name)
        made = types.FunctionType(theirs.__code__, world, name, theirs.__defaults__, theirs.__closure__)
        made.__kwdefaults__ = theirs.__kwdefaults__
        return made

    hard_exit = own("_hard_exit")

    class ThreadWorker(Worker, upstream):  # type: ignore[misc]
        run = own("run")
        _run = own("_run")

        def __init__(
            self,
            final_q: Any,
            task_vars: dict[str, Any],
            host: Any,
            task: Any,
            play_context: Any,
            loader: Any,
            variable_manager: Any,
            shared_loader_obj: Any,
            worker_id: int,
            cliargs: Any = None,
        ) -> None:
            # Not upstream's __init__: that makes a Process, and empties the temp files of everyone's loader.
            self._arm()
            self._final_q = final_q
            self._task_vars = private_task_vars(task_vars)
            self._host = copy.copy(host)  # `run` empties its vars and groups
            self._task = copy_task(task)
            self._play_context = copy.copy(play_context)  # connections write to it
            self._loader = copy.copy(loader)
            self._loader._tempfiles = set()  # cleaned per worker, not per run
            self._variable_manager = variable_manager
            self._shared_loader_obj = shared_loader_obj
            self.worker_queue = Answers()
            self.worker_id = worker_id
            self.scene.newest = self
            self._cliargs = cliargs
            self._new_stdin = None
            self.streams = {"stdout": io.StringIO(), "stderr": io.StringIO(), "stdin": _closed_stdin()}

        start = Worker.start
        is_alive = Worker.is_alive
        join = Worker.join
        close = Worker.close
        terminate = Worker.terminate
        kill = Worker.kill
        pid = 0  # upstream's is a property without a setter
        exitcode = None

        def __repr__(self) -> str:
            host, task = self.describe()
            return f"<worker {self.worker_id} of run {self.scene.ident[:8]}: {task!r} on {host}>"

        def _save_stdin(self) -> None:
            """Up to 2.18: a duplicate of stdin for the child. A worker of ours has none."""

        def _detach(self) -> None:
            """Since 2.19: setsid and /dev/null over 0, 1 and 2. The streams are the worker's own already, a session is for its children."""
            constants: Any = sys.modules["ansible.constants"]
            isolated = getattr(constants, "WORKER_SESSION_ISOLATION", None)  # since 2.21
            if isolated is not None and "ansible_worker_session_isolation" in self._task_vars:
                isolated = constants.config.get_config_value("WORKER_SESSION_ISOLATION", variables=self._task_vars)
            self.reach.own_session = isolated is None or bool(isolated)

        def _hard_exit(self, error: Any) -> None:
            failure = sys.exc_info()[1]
            if isinstance(failure, WorkerStopped):
                raise failure
            with contextlib.suppress(SystemExit):
                hard_exit(self, error)  # says it, then calls os._exit, which the view turns into SystemExit
            raise _HardExit

        def _leave(self) -> None:
            self._loader.cleanup_all_tmp_files()
            self._task_vars = {}
            super()._leave()

        def _say(self, text: str) -> None:
            display.error(text)

    return ThreadWorker


def _closed_stdin() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def make_queue(upstream: Any) -> type:
    """
    ansible-core's FinalQueue in memory.

    What is put is still pickled by who puts it and unpickled by who gets it: that is what parts a result from the worker's objects, and what
    makes Ansible's own words for a result that cannot be pickled come true. No pipe, so no descriptor, no semaphore,
    and no half-written message when a worker is interrupted.
    """

    class MemoryQueue(upstream):  # type: ignore[misc]
        def __init__(self, *_args: Any, **_kwargs: Any) -> None:
            self._items: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

        def send_task_result(self, *args: Any, **kwargs: Any) -> None:
            worker = _scene.current_worker()
            if worker is None:
                super().send_task_result(*args, **kwargs)
                return
            # Before the result is out: whoever reads it may end the run, and with it this worker, in the next moment.
            worker.answered = True
            try:
                super().send_task_result(*args, **kwargs)
            except BaseException:  # whatever it was, the answer is not out
                worker.answered = False
                raise

        def put(self, item: Any) -> None:
            self._items.put(pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL))

        def get(self) -> Any:
            item = self._items.get()
            if item is None:
                raise EOFError
            return pickle.loads(item)  # noqa: S301  # pickled three lines above, by ourselves

        def empty(self) -> bool:
            return self._items.empty()

        def close(self) -> None:
            self._items.put(None)

        def __del__(self) -> None:
            """Upstream's closes pipes; there are none."""

    return MemoryQueue


def on_stop(scene: Scene) -> Callable[[], None]:
    """What is done when the run is asked to stop: every worker is told, and the strategy is woken to see it."""

    def tell() -> None:
        for worker in list(scene.workers):
            worker.terminate()
            if scene.stop.urgent:
                worker.abandon()
        scene.woken.set()

    return tell
