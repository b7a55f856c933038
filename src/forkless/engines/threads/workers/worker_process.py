# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-core's WorkerProcess as a `Worker`: its arguments, copied as fork did, its streams and its end."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import queue
import sys
import types
from typing import TYPE_CHECKING, Any

from forkless.engines.threads import context as thread_context
from forkless.engines.threads.patches import event_loops, stdlib_views
from forkless.engines.threads.workers.copy_variables import private_task_vars
from forkless.engines.threads.workers.interrupt import WorkerStopped
from forkless.engines.threads.workers.worker import HardExit, Worker

if TYPE_CHECKING:
    from forkless.engines.threads.context import RunContext

__all__ = ["make_worker", "snapshot_of_vars"]


class PromptAnswers(queue.SimpleQueue):  # type: ignore[type-arg]
    """Answers to the worker's prompts. An exception in the queue is raised by `get()`."""

    def get(self, *_args: object, **_kwargs: object) -> object:
        while True:
            # With a timeout: an exception that is sent to the thread is raised only between two waits in C.
            with contextlib.suppress(queue.Empty):
                answer = super().get(timeout=0.25)
                break
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Does nothing: there is no descriptor to close. Ansible calls it."""


def copy_task(task: Any) -> object:
    """Copy a task and its parents: templating modifies them, and with the linear strategy all hosts share one task."""
    return task.copy(exclude_tasks=True)


def snapshot_of_vars(original: Any, _site: str) -> object:
    """Wrap get_vars: one thread of a run at a time, and a worker gets a private copy of the result (hostvars, delegated vars)."""

    @functools.wraps(original)
    def get_vars(*args: object, **kwargs: object) -> object:
        run_context = thread_context.current()
        if run_context is None:
            return original(*args, **kwargs)
        with run_context.vars_lock:
            before, run_context.reads_facts = run_context.reads_facts, _is_for_strategy(run_context, kwargs)
            try:
                found = original(*args, **kwargs)
            finally:
                run_context.reads_facts = before
            return found if thread_context.current_worker() is None else private_task_vars(found)

    return get_vars


# The attributes of a task that a strategy templates itself.
_TEMPLATED_BY_STRATEGY = ("name", "run_once", "any_errors_fatal", "throttle")


def _is_for_strategy(run_context: RunContext, asked: dict[str, object]) -> bool:
    """Whether these are the arguments with which a strategy that only reads asks for the variables of a task. A worker copies them."""
    strategy, task = run_context.strategy, asked.get("task")
    if strategy is None or task is None or "fast-copies" in run_context.off:
        return False
    # Every strategy has a list of its own here; plugins that ask for variables have none.
    if asked.get("_hosts") is not strategy._hosts_cache or thread_context.current_worker() is not None:
        return False
    if getattr(task, "debugger", None) is not None:
        return False
    # A lookup plugin in a template of the strategy is given the variables themselves, and may change them.
    for name in _TEMPLATED_BY_STRATEGY:
        value = getattr(task, name, "")
        if not (value is None or value is False or value is True or value == 0) and "{" in str(value):
            return False
    files = getattr(asked.get("play"), "vars_files", None)
    return not files or "{" not in str(files)


def make_worker(upstream: Any) -> type:
    """ansible-core's WorkerProcess with a thread instead of the process. `run` and `_run` are upstream's functions."""
    module = sys.modules[upstream.__module__]
    display = module.display
    # Seams are not enough: an abandoned worker may continue after the run, when they have been undone, and would end the program.
    world = {
        **vars(module),
        "sys": stdlib_views.sys_view,
        "os": stdlib_views.os_view,
        "signal": stdlib_views.signal_view,
    }

    def own(name: str) -> Any:
        """Upstream's function with globals in which the streams are the worker's, and os._exit does not end the program."""
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
            final_q: object,
            task_vars: dict[str, object],
            host: object,
            task: object,
            play_context: object,
            loader: Any,
            variable_manager: object,
            shared_loader_obj: object,
            worker_id: int,
            cliargs: object = None,
            stacktrace_dir: str | None = None,
        ) -> None:
            # Not upstream's __init__: it creates a Process, and clears the shared loader's list of temporary files.
            self._arm()
            self._final_q = final_q
            self._task_vars = private_task_vars(task_vars)
            self._host = copy.copy(host)  # `run` clears its vars and groups
            self._task = copy_task(task)
            self._play_context = copy.copy(play_context)  # connections write to it
            self._loader = copy.copy(loader)
            self._loader._tempfiles = set()  # removed at the end of the worker, not of the run
            self._variable_manager = variable_manager
            self._shared_loader_obj = shared_loader_obj
            self.worker_queue = PromptAnswers()
            self.worker_id = worker_id
            if thread_context.current_worker() is None:
                self.run_context.newest = self
            self._cliargs = cliargs
            self._stacktrace_dir = stacktrace_dir  # since 2.22
            self._new_stdin = None
            self.streams = {"stdout": io.StringIO(), "stderr": io.StringIO(), "stdin": _closed_stdin()}

        start = Worker.start
        is_alive = Worker.is_alive
        join = Worker.join
        close = Worker.close
        terminate = Worker.terminate
        kill = Worker.kill
        pid = 0  # upstream's `pid` is a property without a setter
        exitcode = None

        def __repr__(self) -> str:
            host, task = self.describe()
            return f"<worker {self.worker_id} of run {self.run_context.ident[:8]}: {task!r} on {host}>"

        def for_items(self, final_q: object) -> Worker:
            made = type(self)(
                final_q,
                self._task_vars,
                self._host,
                self._task,
                self._play_context,
                self._loader,
                self._variable_manager,
                self._shared_loader_obj,
                self.worker_id,
                self._cliargs,
                self._stacktrace_dir,
            )
            made.worker_queue = self.worker_queue  # the strategy knows one for each worker_id
            return made

        def _save_stdin(self) -> None:
            """Up to 2.18 this duplicates stdin for the child. A thread needs no duplicate."""

        def _detach(self) -> None:
            """Since 2.19 this calls setsid and redirects 0, 1 and 2. Here streams are per worker, and children start in a new session."""
            constants: Any = sys.modules["ansible.constants"]
            isolated = getattr(constants, "WORKER_SESSION_ISOLATION", None)  # since 2.21
            if isolated is not None and "ansible_worker_session_isolation" in self._task_vars:
                isolated = constants.config.get_config_value("WORKER_SESSION_ISOLATION", variables=self._task_vars)
            self.interrupt.own_session = isolated is None or bool(isolated)

        def _hard_exit(self, error: object) -> None:
            failure = sys.exc_info()[1]
            if isinstance(failure, WorkerStopped):
                raise failure
            with contextlib.suppress(SystemExit):
                hard_exit(self, error)  # prints the error and calls os._exit, which the os view makes SystemExit
            raise HardExit

        def _leave(self) -> None:
            event_loops.close_of_this_thread()
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
