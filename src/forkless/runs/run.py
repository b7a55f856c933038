# SPDX-License-Identifier: GPL-3.0-or-later
"""Run: start, follow, wait, cancel. The only module that starts the threads of a run."""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import os
import threading
import time
import uuid
import weakref
from typing import TYPE_CHECKING, Protocol

from forkless import engines
from forkless.core.errors import SpawnError, SpecError, UnsupportedError
from forkless.core.events import Event, Status
from forkless.core.result import Outcome, Result
from forkless.core.spec import RunOptions, RunSpec, StrPath
from forkless.core.stop import Stop
from forkless.core.thread_stack import OwnThread, start_with_deep_stack
from forkless.patching import thread_environ
from forkless.runs.artifacts import Artifacts
from forkless.runs.limits import RUN_LIMIT
from forkless.runs.spool import Events, Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Unpack

    from forkless.core.terminal import Terminal

__all__ = ["Run", "RunListener", "StartOptions", "run", "start"]

# Once the interpreter waits for its threads this module cannot be imported any more, and a run may begin even then.
with contextlib.suppress(RuntimeError):
    importlib.import_module("concurrent.futures.thread")

# ansible-playbook's exit code for an unexpected error, and ansible-runner's for a run that was stopped.
_UNFORESEEN, _STOPPED = 250, 254
# Seconds that the interpreter's exit waits, in total, for runs that are still under way.
_PARTING = 10.0

_under_way: weakref.WeakSet[Run] = weakref.WeakSet()


class RunListener(Protocol):
    """Receives a run's events and text, each in order, on the run's threads as they happen. Its methods must not block."""

    def event(self, event: Event) -> None: ...

    def text(self, text: str) -> None:
        """Text that the command would have printed. At a terminal it is printed, and not passed here."""


class Run:
    """
    One run, under way or ended. All public methods may be called from any thread.

    `start()` makes one and carries it out on a thread of its own; `carry_out_at_terminal()` does so on the calling thread.
    """

    def __init__(
        self,
        spec: RunSpec,
        engine: engines.Engine | str,
        *,
        wait: bool = True,
        listener: RunListener | None = None,
    ) -> None:
        self.spec = spec
        self.engine = engine if isinstance(engine, str) else engine.name
        self.ident = spec.ident or str(uuid.uuid4())
        self._engine = engine
        self._queue_if_busy = wait
        self._listener = listener
        self._terminal: Terminal | None = None
        self._stop = Stop()
        self._artifacts = Artifacts(spec, self.ident) if spec.artifacts is not None else None
        folder = self._artifacts.path if self._artifacts else None
        # Guards the fields below only; never held while other code runs. Followers wait on it.
        self._changed = threading.Condition()
        self._events = Events(folder)
        self._text = Spool(folder)
        self._status = Status.UNSTARTED
        self._outcome: Outcome | None = None
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._heard = time.monotonic()
        self._why = ""
        self._over = threading.Event()
        self._starter = threading.current_thread()
        name = self.ident[:8]
        self._thread = OwnThread(target=self._carry_out, name=f"forkless-run-{name}", daemon=True)
        self._clock = OwnThread(target=self._watch, name=f"forkless-clock-{name}", daemon=True)
        self._writer = OwnThread(target=self._write_artifacts, name=f"forkless-artifacts-{name}", daemon=True)

    def __repr__(self) -> str:
        return f"<Run {self.ident} by {self.engine}: {self._status}>"

    @property
    def status(self) -> Status:
        return self._status

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.requested

    def carry_out_at_terminal(self, terminal: Terminal) -> Result:
        """
        Carry out a run that was not started, at the process's own terminal, and return its result. Called once, on the main thread.

        For a process that exists for this run, as `forkless playbook` does: see `engines.TerminalEngine`. The caller owns the
        process's signals, and calls `cancel()`.
        """
        self._terminal = terminal
        self._carry_out()
        return self.wait()

    def _begin(self) -> Run:
        _under_way.add(self)
        try:
            _say_goodbye_at_exit()
            _start(self._thread, "a run")
        except SpawnError:
            _under_way.discard(self)
            if self._artifacts is not None:
                self._artifacts.finish(Status.ERROR, _UNFORESEEN)
            raise
        return self

    def _starter_is_waited_for(self) -> bool:
        """Whether the interpreter, as it ends, waits for the thread that started this run."""
        starter = self._starter
        return starter.is_alive() and not starter.daemon and starter is not threading.main_thread()

    def _carry_out(self) -> None:
        outcome: Outcome | None = None
        error: BaseException | None = None
        try:
            with RUN_LIMIT.turn(self._stop, wait=self._queue_if_busy) as ours:
                outcome = self._take_turn() if ours else Outcome(self._stop.why, _STOPPED, "stopped before its turn")
        except BaseException as err:  # noqa: BLE001  # raised again in wait(), on the caller's thread
            error = err
            if isinstance(err, OSError) and err.errno in (
                errno.EMFILE,
                errno.ENFILE,
            ):  # any code may raise it, such as an import
                error = SpawnError("a run", f"{err.strerror} (ulimit -n), as {err.filename or 'a pipe'} was opened")
                error.__cause__ = err
        self._settle(outcome or Outcome(Status.ERROR, _UNFORESEEN, str(error)), error)

    def _take_turn(self) -> Outcome:
        self._status = Status.STARTING
        self._heard = time.monotonic()
        if self.spec.timeout is not None or self.spec.idle_timeout is not None:
            _start(self._clock, "the clock of a run")
        if self._artifacts is not None:
            _start(self._writer, "the writer of a run's artifacts")
        engine = engines.load(self._engine) if isinstance(self._engine, str) else self._engine
        if self._terminal is None:
            return engine.carry_out(
                self.spec,
                ident=self.ident,
                deliver=self._deliver,
                write=self._write,
                stop=self._stop,
                wait=self._queue_if_busy,
            )
        if not isinstance(engine, engines.TerminalEngine):
            raise UnsupportedError(f"the engine '{engine.name}' cannot carry out a run at a terminal")
        return engine.carry_out_at_terminal(
            self.spec,
            ident=self.ident,
            deliver=self._deliver,
            write=self._write,
            stop=self._stop,
            terminal=self._terminal,
        )

    def _settle(self, outcome: Outcome, error: BaseException | None) -> None:
        """Publish the result. The artifacts are complete before any waiter or follower sees the result."""
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()
        self._over.set()
        if self._clock.ident is not None:
            self._clock.join()
        sentences = [outcome.sentence or (self._why if outcome.status is Status.TIMEOUT else "")]
        if self._artifacts is not None:
            if self._writer.ident is not None:
                self._writer.join()
            self._artifacts.finish(outcome.status, outcome.rc)
            sentences.append(self._artifacts.trouble)
        with self._changed:
            self._error = error
            self._status = outcome.status
            self._result = Result(
                status=outcome.status,
                rc=outcome.rc,
                sentence="; ".join(filter(None, sentences)),
                events=self._events,
                text=self._text,
                ident=self.ident,
            )
            self._changed.notify_all()
        self._tell()

    def _deliver(self, event: Event) -> None:
        with self._changed:
            if self._outcome is not None:
                return  # from a worker that was abandoned when the run was stopped, and finished later
            self._status = Status.RUNNING
            self._heard = time.monotonic()
            self._events.append(event)
            self._changed.notify_all()
        if self._listener is not None:
            self._listener.event(event)
        self._tell()

    def _write(self, text: str) -> None:
        with self._changed:
            if self._outcome is not None:
                return
            self._heard = time.monotonic()
            self._text.append(text.encode("utf-8", "replace"))
            self._changed.notify_all()
        if self._listener is not None:
            self._listener.text(text)

    def _listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, which must not block, after each event and at the end. Returns a function that removes it."""
        with self._changed:
            self._listeners += (listener,)

        def forget() -> None:
            with self._changed:
                self._listeners = tuple(one for one in self._listeners if one is not listener)

        return forget

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _watch(self) -> None:
        """The run's clock thread: requests a stop when the run exceeds `timeout` or `idle_timeout`."""
        started = time.monotonic()
        whole, idle = self.spec.timeout, self.spec.idle_timeout
        while not self._stop.requested:
            now = time.monotonic()
            if whole is not None and started + whole <= now:
                self._why = f"the run exceeded its time limit of {whole:g} s and was stopped"
            elif idle is not None and self._heard + idle <= now:
                self._why = f"the run was silent for {idle:g} s and was stopped"
            if self._why:
                self._stop.request(Status.TIMEOUT)
                return
            ends = [started + whole] if whole is not None else []
            ends += [self._heard + idle] if idle is not None else []
            # Waits on a separate event: `_changed` is notified for each event, which would wake this thread needlessly.
            if self._over.wait(min(*ends, now + threading.TIMEOUT_MAX) - now):
                return

    def _write_artifacts(self) -> None:
        """The artifact thread: follows the run like any reader, so a slow disk delays nothing but this thread and the result."""
        folder = self._artifacts
        assert folder is not None  # noqa: S101  # for the type checker: started only then
        events = text = 0
        while True:
            with self._changed:
                while len(self._events) == events and len(self._text) == text and self._outcome is None:
                    self._changed.wait()
                last = self._outcome is not None
            piece = self._text.read(text, text + (1 << 20))
            folder.write_stdout(piece)
            text += len(piece)
            lines = self._events.lines(events, events + 256)
            for line in lines:
                folder.write_event(line)
            events += len(lines)
            if last and not piece and not lines:
                return

    def _after(self, seen: int, most: int = 256) -> tuple[list[Event], bool]:
        """At most `most` events after the first `seen`, and whether the run had ended, so that no event can follow the existing ones."""
        with self._changed:
            ended = self._result is not None
            return self._events.part(seen, seen + most), ended

    def events(self) -> Iterator[Event]:
        """
        Yield every event from the first on, as events arrive; ends with the run.

        Any number of threads may follow at the same time, each at its own pace, during the run or after it.
        """
        seen = 0
        while True:
            with self._changed:
                while len(self._events) == seen and self._result is None:
                    self._changed.wait()
            fresh, ended = self._after(seen)
            yield from fresh
            seen += len(fresh)
            if ended and not fresh:
                return

    def cancel(self) -> None:
        """Ask the run to stop: no new task starts, running tasks are interrupted. A second call does not wait for them."""
        self._stop.request(Status.CANCELED)

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for the result and return it. Raises TimeoutError after `timeout` seconds; the run goes on."""
        limit = None if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        with self._changed:
            if not self._changed.wait_for(lambda: self._result is not None, limit):
                raise TimeoutError(f"the run {self.ident} has not ended within {timeout} s; it goes on")
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101  # for the type checker: waited for above
        return self._result


def _start(thread: threading.Thread, what: str) -> None:
    try:
        start_with_deep_stack(thread)
    except RuntimeError as err:  # the system allows no more threads
        raise SpawnError(what, str(err)) from err


_goodbye = threading.Lock()


def _say_goodbye_at_exit() -> None:
    """
    End runs that are still under way when the interpreter exits, so that no child process outlives it. Registered by the first run.

    `threading._register_atexit`, where it exists, is called before the interpreter joins non-daemon threads: the threads of a plugin's
    executor end only when their run does. concurrent.futures.thread is imported first because it registers its own function on
    import, and the function that was registered last is called first.
    A run that was started by one of the threads that the interpreter joins goes on; what those threads leave unfinished is ended after
    them.
    """
    if _goodbye.acquire(blocking=False):
        try:
            importlib.import_module("concurrent.futures.thread")
        except RuntimeError as err:  # of its own registration; ansible-core cannot be run without this module
            _goodbye.release()
            raise SpawnError("a run", "the interpreter is shutting down, and forkless was imported too late") from err
        atexit.register(_end_all)
        # Refused when the interpreter already waits for its threads, of which one starts this run, or calls what `atexit` was given.
        with contextlib.suppress(RuntimeError, AttributeError):
            threading._register_atexit(_end_forgotten)  # type: ignore[attr-defined]


def _end_forgotten() -> None:
    _end([run for run in _under_way if not run._starter_is_waited_for()])


def _end_all() -> None:
    _end(list(_under_way))


def _end(runs: list[Run]) -> None:
    runs = [run for run in runs if run._result is None]
    for run in runs:
        run.cancel()
        run.cancel()
    deadline = time.monotonic() + _PARTING
    for run in runs:
        run._thread.join(max(0.0, deadline - time.monotonic()))


def _check_places(spec: RunSpec) -> None:
    """Raise SpecError for a missing inventory: Ansible only warns, continues without hosts, and reports success."""
    if not os.path.isdir(spec.cwd):
        raise SpecError(f"cwd {spec.cwd} is not a folder")
    for source in spec.inventory:
        with thread_environ.variables_of_this_thread({**os.environ, **spec.env}):
            path = os.path.join(spec.cwd, os.path.expanduser(os.path.expandvars(source)))
        if "," not in source and not os.path.exists(path):
            raise SpecError(f"inventory {path} does not exist; a list of hosts needs a comma, as in 'web1,'")


class StartOptions(RunOptions, total=False):
    """The keyword arguments of `start()`."""

    engine: str | engines.Engine | None
    wait: bool
    spec: RunSpec | None


def start(
    playbook: StrPath | Sequence[StrPath] | None = None,
    *,
    engine: str | engines.Engine | None = None,
    wait: bool = True,
    spec: RunSpec | None = None,
    listener: RunListener | None = None,
    **fields: Unpack[RunOptions],
) -> Run:
    """
    Start a run and return at once. The arguments are RunSpec's fields; `spec=` takes a complete RunSpec instead.

    With `wait=False` a run that would have to queue fails: `Run.wait()` raises EngineBusyError. `listener` receives events and
    text on the run's own threads, for programs that show a run while it happens.
    """
    if spec is None:
        spec = RunSpec(playbook=playbook, **fields)
    elif playbook is not None or fields:
        raise SpecError("spec= is the whole request; other fields go into it")
    _check_places(spec)
    chosen = engines.choose(engine) if engine is None or isinstance(engine, str) else engine
    return Run(spec, chosen, wait=wait, listener=listener)._begin()


def run(
    playbook: StrPath | Sequence[StrPath] | None = None,
    *,
    engine: str | engines.Engine | None = None,
    wait: bool = True,
    spec: RunSpec | None = None,
    on_event: Callable[[Event], object] | None = None,
    **fields: Unpack[RunOptions],
) -> Result:
    """
    Run a playbook and return its result.

    >>> import forkless
    >>> result = forkless.run("site.yml", inventory="hosts.ini", limit="web")  # doctest: +SKIP
    >>> result.raise_for_failures()  # doctest: +SKIP

    `on_event` is called with each event on the calling thread; a slow callback does not delay the run. If it raises, or
    on Ctrl-C in the main thread, the run is stopped and the exception is raised after the run has ended.
    """
    under_way = start(playbook, engine=engine, wait=wait, spec=spec, **fields)
    try:
        if on_event is not None:
            for event in under_way.events():
                on_event(event)
        return under_way.wait()
    except BaseException:  # KeyboardInterrupt in particular: the run must end before this function returns
        # A second Ctrl-C during the stop makes it urgent.
        while under_way._result is None:
            under_way.cancel()
            with contextlib.suppress(KeyboardInterrupt):
                under_way._thread.join()
        raise
