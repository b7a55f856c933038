# SPDX-License-Identifier: GPL-3.0-or-later
"""Run: start, follow, wait, cancel. The one place that starts the threads of a run."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

from forkless import engines
from forkless._events import Event, Status
from forkless._result import Outcome, Result
from forkless._spec import RunSpec
from forkless._stop import Stop

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Run", "run", "start"]


class Run:
    """One run under way, or ended. Made by `start()`."""

    def __init__(self, spec: RunSpec, engine: engines.Engine, *, wait: bool = True) -> None:
        self.spec = spec
        self.engine = engine.name
        self.ident = spec.ident or str(uuid.uuid4())
        self._engine = engine
        self._queue_if_busy = wait
        self._stop = Stop()
        # Guards the fields below and nothing else; never held while calling out. Followers wait on it.
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._text: list[str] = []
        self._status = Status.STARTING
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._clock: threading.Timer | None = None
        self._thread = threading.Thread(target=self._carry_out, name=f"forkless-run-{self.ident[:8]}", daemon=True)

    @property
    def status(self) -> Status:
        return self._status

    def _begin(self) -> Run:
        self._thread.start()
        if self.spec.timeout is not None:
            self._clock = threading.Timer(self.spec.timeout, self._stop.request, [Status.TIMEOUT])
            self._clock.daemon = True
            self._clock.start()
        return self

    def _carry_out(self) -> None:
        outcome: Outcome | None = None
        error: BaseException | None = None
        try:
            outcome = self._engine.carry_out(
                self.spec,
                ident=self.ident,
                deliver=self._deliver,
                write=self._write,
                stop=self._stop,
                wait=self._queue_if_busy,
            )
        except BaseException as err:  # noqa: BLE001  # it is raised again in wait(), on the thread of who asks
            error = err
        finally:
            if self._clock is not None:
                self._clock.cancel()
            with self._changed:
                self._error = error
                self._status = outcome.status if outcome else Status.ERROR
                self._result = Result(
                    status=self._status,
                    rc=outcome.rc if outcome else 250,
                    sentence=outcome.sentence if outcome else str(error),
                    events=tuple(self._events),
                    stdout="".join(self._text),
                    ident=self.ident,
                )
                self._changed.notify_all()

    def _deliver(self, event: Event) -> None:
        with self._changed:
            self._status = Status.RUNNING
            self._events.append(event)
            self._changed.notify_all()

    def _write(self, text: str) -> None:
        with self._changed:
            self._text.append(text)

    def events(self) -> Iterator[Event]:
        """Every event from the first on, as they come; ends with the run."""
        seen = 0
        while True:
            with self._changed:
                while len(self._events) == seen and self._result is None:
                    self._changed.wait()
                fresh = self._events[seen:]
                ended = self._result is not None
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


def start(
    playbook: Any = None, *, engine: str | None = None, wait: bool = True, spec: RunSpec | None = None, **fields: Any
) -> Run:
    """Start a run and return at once. Arguments are RunSpec's fields; `spec=` takes a ready one."""
    if spec is None:
        spec = RunSpec(playbook=playbook, **fields)
    return Run(spec, engines.load(engines.choose(engine)), wait=wait)._begin()


def run(
    playbook: Any = None, *, engine: str | None = None, wait: bool = True, spec: RunSpec | None = None, **fields: Any
) -> Result:
    """
    Run a playbook in this process and return its result.

    >>> import forkless
    >>> result = forkless.run("site.yml", inventory="hosts.ini", limit="web")  # doctest: +SKIP
    >>> result.raise_for_failures()  # doctest: +SKIP

    Ctrl-C in the main thread asks the run to stop, waits for it, and is raised again.
    """
    under_way = start(playbook, engine=engine, wait=wait, spec=spec, **fields)
    try:
        return under_way.wait()
    except KeyboardInterrupt:
        under_way.cancel()
        try:
            under_way.wait()
        except KeyboardInterrupt:
            under_way.cancel()
        raise
