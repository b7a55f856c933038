# SPDX-License-Identifier: GPL-3.0-or-later
"""
Which run, and which worker, the current thread belongs to.

A forked worker has its process's globals to itself. A thread shares them, so code asks this module for its run. The answer is in the
one ContextVar of `core.run_context`, whose value is a RunContext on the run's own threads and a Worker on a worker's.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

from forkless.core.answers import Answers
from forkless.core.run_context import SCOPE, entered, new_number
from forkless.engines.threads.workers.interrupt import Interrupt, WorkerStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from forkless.core.stop import Stop
    from forkless.core.terminal import Terminal, TextStream
    from forkless.engines.threads.ansible_types import PlayStrategy
    from forkless.engines.threads.workers.threads import WorkerThreads
    from forkless.engines.threads.workers.worker import Worker
    from forkless.modules import InterpreterPool, TaskOutput

__all__ = [
    "RunContext",
    "current",
    "current_environ",
    "current_interrupt",
    "current_worker",
    "enter",
    "enter_worker",
    "in_forked_child",
    "typing",
    "work_for",
]


# Looked up once: these questions are asked some 300 times for every task.
_scope = SCOPE.get


class ThreadScope:
    """A RunScope of this engine: the base class of RunContext and Worker, and of nothing else."""

    if TYPE_CHECKING:  # a worker has the run as a plain attribute: it is read some hundred times for every task

        @property
        def run_context(self) -> RunContext: ...

        @property
        def worker(self) -> Worker | None: ...

    @property
    def run_ident(self) -> str:
        return self.run_context.ident

    @property
    def run_number(self) -> int:
        return self.run_context.number

    @property
    def module_mode(self) -> str:
        return self.run_context.modules

    @property
    def interpreter_pool(self) -> InterpreterPool | None:
        return self.run_context.interpreters

    interrupt: Interrupt
    environ: dict[str, str] | None


class RunContext(ThreadScope):
    """The state of one run, where Ansible has one for the whole process. Read on all threads of the run."""

    def __init__(
        self,
        *,
        ident: str,
        stop: Stop,
        stdout: TextStream | None = None,
        stderr: TextStream | None = None,
        stdin: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
        passwords: Mapping[str, str] | None = None,
        vault_password: str | None = None,
        answers: Answers | None = None,
        modules: str = "auto",
        folder: str | None = None,
        terminal: Terminal | None = None,
    ) -> None:
        self.ident = ident
        self.number = new_number()
        """Unique for each run of this process; two runs may have one `ident`."""
        self.pid = os.getpid()
        """The process that the run is in: a plugin may fork, and its child has a copy of everything here."""
        self.stop = stop
        # None means the program's stream.
        self.stdout = stdout
        self.stderr = stderr
        self.stdin = stdin
        self.environ: dict[str, str] | None = None if environ is None else dict(environ)
        self.folder = folder
        """The run's folder on systems where a thread cannot have a working directory: see `patches.working_directory`. Otherwise None."""
        self.passwords = dict(passwords or {})
        self.vault_password = vault_password
        self.extra_vars = ""
        """The run's extra vars as JSON. Extra vars in the arguments override them."""
        self.answers = Answers({}) if answers is None else answers
        """Answers to the run's prompts: see `patches.prompts`."""
        self.modules = modules
        """How modules are run: see `RunScope.module_mode`."""
        self.terminal = terminal
        """Set if the process exists for this run only, as with `forkless playbook`: the process's signals and prompts are for the run."""
        self.off: frozenset[str] = frozenset()
        """The optimizations that are switched off in this run: see `core.switches`."""
        self.interpreters: InterpreterPool | None = None
        """The pool of warm interpreters of this run."""
        self.state: dict[Hashable, Any] = {}
        """State of the replacements in `patches.run_state` and others, each under its own key."""
        # Held while plugins are searched, never while one is executed.
        self.loader_lock = threading.RLock()
        self.vars_lock = threading.RLock()
        self.strategy: PlayStrategy | None = None
        """The strategy that queued the last task, if it is one of ansible-core's that changes no variables in place, and no debugger is on."""
        self.reads_facts = False
        """Whether `get_vars` is being called by that strategy. Guarded by `vars_lock`."""
        self.woken = threading.Event()
        # Re-entrant: the handler of Ctrl-C sets the event on the very thread that waits for it.
        vars(self.woken)["_cond"] = threading.Condition(threading.RLock())
        """Set when a result has arrived or a worker has ended: the strategy waits for it."""
        self.interrupt = Interrupt()
        """The interrupt of the run's thread, which calls ansible-core's command."""
        # A command at a terminal may prompt there, and so may its children; a run inside a program has no terminal.
        self.interrupt.own_groups = stdin is not None
        self.thread: threading.Thread | None = None
        """The run's thread; None in a command at a terminal, where it is the main thread."""
        self.lingering: list[Interrupt] = []
        """Interrupts of workers that have ended while threads started by their plugins still run."""
        self.leaving = 0.0
        """The time at which the run's thread began to leave because of a stop request; 0.0 if it has not."""
        self.left_behind = False
        """Whether the run has ended although its thread has not, and may still continue."""
        self.workers: set[Worker] = set()
        self.newest: Worker | None = None
        """The worker that was created last: `runner_on_start` is about it when the callback is called."""
        self.abandoned: list[Worker] = []
        self.live_output: Callable[[str, TaskOutput], None] | None = None
        """Takes a host's name and what a task on it prints while it runs; None if the run has no listener."""
        self.before_result: Callable[[str, str, dict[str, object]], None] | None = None
        """Is called with a host's name, a task's uuid and a result before the stdout callback prints it, and may change that copy of it."""
        self.at_end: list[Callable[[], None]] = []
        self.callbacks: list[Callable[[], object]] = []
        """Each makes a callback plugin, or returns the one that it has made, once ansible-core is imported."""

    @property
    def run_context(self) -> RunContext:
        return self

    @property
    def worker(self) -> None:
        """None: this is the scope of the run's own threads."""

    def linger(self, interrupt: Interrupt) -> None:
        """Let a stop of the run, also one that was requested just now, reach threads of a worker that has ended. Any thread may call it."""
        if interrupt not in self.lingering:
            self.lingering.append(interrupt)
        if self.stop.requested:
            interrupt.trigger(WorkerStopped)

    def sleep(self, seconds: float) -> None:
        """
        The strategy's sleep. Ansible polls every millisecond; here the strategy is woken, so the wait may be longer.

        It still ends after 0.1 s or more, in case a worker ended without setting `woken`.
        """
        pool: WorkerThreads | None = self.state.get("worker_threads")
        if pool is not None:
            pool.start_waiting()
        self.woken.wait(max(seconds, 0.1))
        self.woken.clear()

    def check_stop(self) -> None:
        """Raise KeyboardInterrupt, as Ctrl-C does, if a stop was requested."""
        if self.stop.requested:
            self.leaving = self.leaving or time.monotonic()
            raise KeyboardInterrupt

    def getenv(self) -> Mapping[str, str]:
        return os.environ if self.environ is None else self.environ


def current() -> RunContext | None:
    """The run that the calling thread works for, or None."""
    scope = _scope()
    if type(scope) is RunContext:
        return scope
    return scope.run_context if isinstance(scope, ThreadScope) else None


@contextlib.contextmanager
def typing() -> Iterator[None]:
    """A context manager around a prompt to a person: a live view on the terminal pauses for it."""
    run_context = current()
    if run_context is None or run_context.terminal is None:
        yield
        return
    with run_context.terminal.typing() as stream:
        kept = run_context.stdout, run_context.stderr
        run_context.stdout, run_context.stderr = stream, None
        try:
            yield
        finally:
            run_context.stdout, run_context.stderr = kept


def in_forked_child() -> bool:
    """Whether a plugin has forked on this thread: it is then the only one of a process of its own, and works for no run."""
    run_context = current()
    return run_context is not None and run_context.pid != os.getpid()


def current_worker() -> Worker | None:
    scope = _scope()
    if type(scope) is RunContext or not isinstance(scope, ThreadScope):
        return None
    return scope  # type: ignore[return-value]  # what is no RunContext is a Worker


def current_environ() -> dict[str, str] | None:
    """The environment of the calling thread's worker or run; None if the thread uses the program's."""
    scope = _scope()
    if not isinstance(scope, ThreadScope):
        return None
    return scope.run_context.environ if scope.environ is None else scope.environ


def current_interrupt() -> Interrupt | None:
    """The interrupt that stops the calling thread's task or run; None outside of runs."""
    scope = _scope()
    return scope.interrupt if isinstance(scope, ThreadScope) else None


def enter_worker(run_context: RunContext, worker: Worker | None) -> contextlib.AbstractContextManager[None]:
    """Bind the calling thread to this run and `worker`. None means the run's thread, or one that reads results."""
    return entered(run_context if worker is None else worker)


@contextlib.contextmanager
def enter(run_context: RunContext) -> Iterator[RunContext]:
    """Bind the calling thread to this run for the length of the block."""
    with enter_worker(run_context, None):
        yield run_context


@contextlib.contextmanager
def work_for(run_context: RunContext, worker: Worker | None, *, service: bool = False) -> Iterator[None]:
    """
    Bind a thread that a plugin started to the run and worker of the starting thread; it is interrupted with them.

    Only the scope goes with the thread. In stock Ansible a thread starts with an empty context, and what ansible-core keeps in
    variables of its own, such as the template that is being evaluated, does not reach it.
    """
    interrupt = run_context.interrupt if worker is None else worker.interrupt
    with enter_worker(run_context, worker), interrupt.joined(service=service):
        if interrupt.over:  # the task has ended before this thread began
            run_context.linger(interrupt)
        yield
