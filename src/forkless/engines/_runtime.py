# SPDX-License-Identifier: GPL-3.0-or-later
"""How a play is carried out: events, waking, stopping, and what becomes of a worker that does not end."""

from __future__ import annotations

import functools
import time
from typing import Any

from forkless.engines import _scene

__all__: list[str] = []

# How long workers that were told to end may take before the run goes on without them.
GRACE = 5.0


def checks_stop(original: Any, _site: str) -> Any:
    """Ask, before each step of the strategy, whether to go on."""

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        scene = _scene.current()
        if scene is not None:
            scene.check_stop()
        return original(*args, **kwargs)

    return step


def load_callbacks(original: Any, _site: str) -> Any:
    """The run's own listeners come last, so that what the stdout callback printed for an event is there when they hear of it."""

    @functools.wraps(original)
    def load(tqm: Any) -> None:
        original(tqm)
        scene = _scene.current()
        for make in scene.callbacks if scene else ():
            listener = make()
            if all(known is not listener for known in tqm._callback_plugins):
                tqm._callback_plugins.append(listener)

    return load


def asks(original: Any, _site: str) -> Any:
    """Whoever shows the run on a terminal steps aside while a person is asked."""
    real = getattr(original, "__func__", original)

    @functools.wraps(real)
    def ask(*args: Any, **kwargs: Any) -> Any:
        with _scene.typing():
            return real(*args, **kwargs)

    return staticmethod(ask) if isinstance(original, staticmethod) else ask


def results_thread(original: Any, _site: str) -> Any:
    """Upstream's loop, on a queue that says when something was taken from it: then the strategy has something to do."""

    class Waking:
        def __init__(self, queue: Any, scene: Any) -> None:
            self._queue, self._scene = queue, scene

        def get(self) -> Any:
            # The item before this one has been dealt with by now.
            self._scene.woken.set()
            return self._queue.get()

    class Strategy:
        """The strategy, but for the queue that is read from."""

        def __init__(self, real: Any, scene: Any) -> None:
            self.__dict__.update(_real=real, _final_q=Waking(real._final_q, scene))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["_real"], name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self.__dict__["_real"], name, value)

    @functools.wraps(original)
    def main(strategy: Any) -> None:
        scene = _scene.current()
        original(strategy if scene is None else Strategy(strategy, scene))
        if scene is not None:
            scene.woken.set()

    return main


def rpc_operation(original: Any, _site: str) -> Any:
    """A worker's request to the strategy, which may be asleep."""

    class Waking(original):  # type: ignore[misc]
        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)
            scene = _scene.current()
            if scene is not None:
                self.event: Any = _WakingEvent(self.event, scene)

    return Waking


class _WakingEvent:
    """The event that the worker waits on: waiting starts by waking who will set it, and ends when the worker is told to."""

    def __init__(self, event: Any, scene: Any) -> None:
        self._event, self._scene = event, scene

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        self._scene.woken.set()
        # In slices: an exception that is sent to a thread is seen only between them.
        while not self._event.wait(0.5 if timeout is None else timeout):
            if timeout is not None:
                return False
            self._scene.woken.set()
        return True


def cleanup_workers(_original: Any, _site: str) -> Any:
    """
    Wait for the play's workers; tell those that stay to end; leave those that do not, by name.

    Upstream polls for five seconds, then calls terminate(), which a process cannot refuse.
    """

    def cleanup(tqm: Any) -> None:
        from ansible import constants
        from ansible.utils.display import Display

        workers = [worker for worker in getattr(tqm, "_workers", ()) if worker]
        patience = float(constants.WORKER_SHUTDOWN_POLL_COUNT * constants.WORKER_SHUTDOWN_POLL_DELAY)
        scene = _scene.current()
        if scene is not None and scene.stop.requested:
            patience = 0.0
        _join(workers, patience)
        left = [worker for worker in workers if worker.is_alive()]
        if left and patience:
            Display().warning("One or more worker processes are still running and will be terminated.")
        for worker in left:
            worker.terminate()
        _join(left, 0.0 if scene is not None and scene.stop.urgent else GRACE)
        for worker in left:
            worker.abandon()

    return cleanup


def cleanup_play(original: Any, _site: str) -> Any:
    """Upstream leaves its lock file for the end of the process to close."""

    @functools.wraps(original)
    def cleanup(tqm: Any) -> None:
        try:
            original(tqm)
        finally:
            tqm._connection_lockfile.close()

    return cleanup


def _join(workers: list[Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
