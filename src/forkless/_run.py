# SPDX-License-Identifier: GPL-3.0-or-later
"""Run: start, follow, wait, cancel. The one place that starts the threads of a run."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import uuid
import weakref
from typing import TYPE_CHECKING, Any

from forkless import engines
from forkless._artifacts import Artifacts
from forkless._errors import SpawnError, SpecError
from forkless._events import Event, Status
from forkless._limit import GATE
from forkless._result import Outcome, Result
from forkless._spec import RunSpec
from forkless._spool import Events, Spool
from forkless._stop import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Run", "run", "start"]

# What ansible-playbook returns for an error that it did not foresee, and ansible-runner for a run that was stopped.
_UNFORESEEN, _STOPPED = 250, 254
# How long the end of the program waits for runs that are still under way.
_PARTING = 10.0

_under_way: weakref.WeakSet[Run] = weakref.WeakSet()


class Run:
    """One run under way, or ended. Made by `start()`."""

    def __init__(self, spec: RunSpec, engine: engines.Engine | str, *, wait: bool = True) -> None:
        self.spec = spec
        self.engine = engine if isinstance(engine, str) else engine.name
        self.ident = spec.ident or str(uuid.uuid4())
        self._engine = engine
        self._queue_if_busy = wait
        self._stop = Stop()
        self._artifacts = Artifacts(spec, self.ident) if spec.artifacts is not None else None
        folder = self._artifacts.path if self._artifacts else None
        # Guards the fields below and nothing else; never held while calling out. Followers wait on it.
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
        name = self.ident[:8]
        self._thread = threading.Thread(target=self._carry_out, name=f"forkless-run-{name}", daemon=True)
        self._clock = threading.Thread(target=self._watch, name=f"forkless-clock-{name}", daemon=True)
        self._writer = threading.Thread(target=self._write_artifacts, name=f"forkless-artifacts-{name}", daemon=True)

    def __repr__(self) -> str:
        return f"<Run {self.ident} by {self.engine}: {self._status}>"

    @property
    def status(self) -> Status:
        return self._status

    def _begin(self) -> Run:
        _say_goodbye_at_exit()
        _under_way.add(self)
        try:
            self._thread.start()
        except RuntimeError as err:  # no more threads to be had
            if self._artifacts is not None:
                self._artifacts.finish(Status.ERROR, _UNFORESEEN)
            raise SpawnError("a run", str(err)) from err
        return self

    def _carry_out(self) -> None:
        outcome: Outcome | None = None
        error: BaseException | None = None
        try:
            with GATE.turn(self._stop, wait=self._queue_if_busy) as ours:
                outcome = self._take_turn() if ours else Outcome(self._stop.why, _STOPPED, "stopped before its turn")
        except BaseException as err:  # noqa: BLE001  # it is raised again in wait(), on the thread of who asks
            error = err
        self._settle(outcome or Outcome(Status.ERROR, _UNFORESEEN, str(error)), error)

    def _take_turn(self) -> Outcome:
        self._status = Status.STARTING
        self._heard = time.monotonic()
        if self.spec.timeout is not None or self.spec.idle_timeout is not None:
            self._clock.start()
        if self._artifacts is not None:
            self._writer.start()
        engine = engines.load(self._engine) if isinstance(self._engine, str) else self._engine
        return engine.carry_out(
            self.spec,
            ident=self.ident,
            deliver=self._deliver,
            write=self._write,
            stop=self._stop,
            wait=self._queue_if_busy,
        )

    def _settle(self, outcome: Outcome, error: BaseException | None) -> None:
        """Say how it ended. Artifacts are whole before anyone hears of it."""
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
            self._status = Status.RUNNING
            self._heard = time.monotonic()
            self._events.append(event)
            self._changed.notify_all()
        self._tell()

    def _write(self, text: str) -> None:
        with self._changed:
            self._heard = time.monotonic()
            self._text.append(text.encode("utf-8", "replace"))
            self._changed.notify_all()

    def _listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, which must not block, after each event and at the end. Returns what takes it off again."""
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
        """The run's clock: asks it to stop when it has run, or been silent, for too long."""
        started = time.monotonic()
        whole, idle = self.spec.timeout, self.spec.idle_timeout
        while not self._stop.requested:
            now = time.monotonic()
            if whole is not None and started + whole <= now:
                self._why = f"the run passed its time limit of {whole:g} s and was stopped"
            elif idle is not None and self._heard + idle <= now:
                self._why = f"the run was silent for {idle:g} s and was stopped"
            if self._why:
                self._stop.request(Status.TIMEOUT)
                return
            ends = [started + whole] if whole is not None else []
            ends += [self._heard + idle] if idle is not None else []
            # On an event of its own: those who wait for news are woken for each event, and this one need not be.
            if self._over.wait(min(ends) - now):
                return

    def _write_artifacts(self) -> None:
        """A reader like any other: a slow disk keeps nobody waiting but this thread."""
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
        """Events beyond the first `seen`, and whether there will be no more than are there now."""
        with self._changed:
            ended = self._result is not None
            return self._events.part(seen, seen + most), ended

    def events(self) -> Iterator[Event]:
        """
        Every event from the first on, as they come; ends with the run.

        Any number of followers may do this, each at its own pace, during the run or after it.
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
        """Ask the run to stop: no new task starts, those that run are stopped. Asked again, it does not wait for them."""
        self._stop.request(Status.CANCELED)

    def wait(self, timeout: float | None = None) -> Result:
        """The result, once there is one. Raises TimeoutError when `timeout` seconds passed first; the run goes on."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._result is not None, timeout):
                raise TimeoutError(f"the run {self.ident} has not ended within {timeout} s; it goes on")
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101  # for the type checker: waited for above
        return self._result


_goodbye = threading.Lock()


def _say_goodbye_at_exit() -> None:
    """Children of ours must not outlive the program just because it forgot them. Registered by the first run."""
    if _goodbye.acquire(blocking=False):
        atexit.register(_end_all)


def _end_all() -> None:
    runs = [run for run in _under_way if run._result is None]
    for run in runs:
        run.cancel()
        run.cancel()
    deadline = time.monotonic() + _PARTING
    for run in runs:
        run._thread.join(max(0.0, deadline - time.monotonic()))


def _check_places(spec: RunSpec) -> None:
    """Ansible only warns of an inventory that is not there, goes on with none, and calls it a success."""
    if not os.path.isdir(str(spec.cwd)):
        raise SpecError(f"cwd {spec.cwd} is not a folder")
    for source in spec.inventory or ():  # type: ignore[union-attr]  # __post_init__ made it a tuple
        path = os.path.join(str(spec.cwd), os.path.expanduser(str(source)))
        if "," not in str(source) and not os.path.exists(path):
            raise SpecError(f"inventory {path} does not exist; a list of hosts needs a comma, as in 'web1,'")


def start(
    playbook: Any = None,
    *,
    engine: str | engines.Engine | None = None,
    wait: bool = True,
    spec: RunSpec | None = None,
    **fields: Any,
) -> Run:
    """
    Start a run and return at once. Arguments are RunSpec's fields; `spec=` takes a ready one.

    With `wait=False` a run that would have to queue raises EngineBusyError from `wait()` instead.
    """
    if spec is None:
        spec = RunSpec(playbook=playbook, **fields)
    elif playbook is not None or fields:
        raise SpecError("spec= is the whole request; other fields go into it")
    _check_places(spec)
    chosen = engines.choose(engine) if engine is None or isinstance(engine, str) else engine
    return Run(spec, chosen, wait=wait)._begin()


def run(
    playbook: Any = None,
    *,
    engine: str | engines.Engine | None = None,
    wait: bool = True,
    spec: RunSpec | None = None,
    on_event: Callable[[Event], object] | None = None,
    **fields: Any,
) -> Result:
    """
    Run a playbook and return its result.

    >>> import forkless
    >>> result = forkless.run("site.yml", inventory="hosts.ini", limit="web")  # doctest: +SKIP
    >>> result.raise_for_failures()  # doctest: +SKIP

    `on_event` is called with each event, on this thread; it may take its time. If it raises, the run is stopped and
    the error is raised here, as is Ctrl-C in the main thread.
    """
    under_way = start(playbook, engine=engine, wait=wait, spec=spec, **fields)
    try:
        if on_event is not None:
            for event in under_way.events():
                on_event(event)
        return under_way.wait()
    except BaseException:  # Ctrl-C above all: the run must be over before this function is
        # Ctrl-C again while it stops: stop at once.
        while under_way._result is None:
            under_way.cancel()
            with contextlib.suppress(KeyboardInterrupt):
                under_way._thread.join()
        raise
