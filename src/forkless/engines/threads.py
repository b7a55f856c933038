# SPDX-License-Identifier: GPL-3.0-or-later
"""The threads engine: ansible-core in this process, its workers as threads."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from forkless import _disable, modules, ssh
from forkless._errors import StuckWorkerError
from forkless._events import Status
from forkless._result import Outcome, complaint
from forkless.engines import (
    _callback,
    _copies,
    _gate,
    _plugins,
    _reach,
    _scene,
    _seams,
    _stitch,
    _threads,
    _views,
    _worker,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless._events import Event
    from forkless._spec import RunSpec
    from forkless._stop import Stop
    from forkless.engines._scene import Scene

__all__ = ["ENGINE", "ThreadsEngine", "call_cli"]

# How long the threads of a run that has ended may take to go home.
GRACE = 5.0

_checked = False


@contextlib.contextmanager
def _seams_installed() -> Iterator[None]:
    global _checked  # noqa: PLW0603  # once for a process; what is installed does not change under it
    if not _checked:
        _stitch.check(_seams.SEAMS)
        _checked = True
    with _stitch.installed(_seams.SEAMS) as put_late:
        modules.VIEWS.update(_VIEWS)
        modules.BEFORE.append(put_late)
        try:
            yield
        finally:
            modules.BEFORE.clear()
            modules.VIEWS.clear()
            _plugins.undress_all()
            _copies.forget_types()


# What a module that runs in this process imports under these names: sleeps and children that can be ended.
_VIEWS = {
    "signal": _views.signal_view,
    "subprocess": _views.subprocess_view,
    "threading": _views.threading_view,
    "time": _views.time_view,
}
_stage = _gate.Gate(_seams_installed)


def call_cli(scene: Scene, command: str, argv: list[str], cli: Callable[[], Any] | None = None) -> int:
    """
    Run `ansible-playbook` or `ansible` with these arguments, as the scene's run, on this thread. Returns its exit code.

    `cli` names another class than Ansible's own for the command.
    """
    if cli is None:
        from ansible.cli.adhoc import AdHocCLI
        from ansible.cli.playbook import PlaybookCLI

        chosen = PlaybookCLI if command == "ansible-playbook" else AdHocCLI
    else:
        chosen = cli()
    try:
        chosen.cli_executor([command, *argv])
    except SystemExit as leaving:
        code = leaving.code
        if isinstance(code, str):
            stream = scene.stderr or sys.stderr
            stream.write(code + "\n")
            return 1
        return int(code or 0)
    return 0


@contextlib.contextmanager
def staged(
    scene: Scene,
    *,
    config: dict[str, str],
    wait: bool = True,
    ours: bool = False,
) -> Iterator[None]:
    """Everything around a run: the gate, the seams, the scene, being told to stop, and tidying up afterwards."""
    scene.off = _disable.asked(scene.getenv())
    with (
        _scene.enter_worker(scene, None),  # ansible-core may be imported on the way in, under this run's environment
        _stage.passed(config, stop=scene.stop, wait=wait, ours=ours),
        _scene.enter(scene),
        ssh.kept(scene.ident),
        modules.kept() as scene.hearths,
    ):
        forget = scene.stop.listen(_worker.on_stop(scene))
        try:
            yield
        finally:
            forget()
            _reach.wait_for_ended_groups()
            _threads.crew(scene).close(0.0 if scene.stop.urgent else GRACE)
            while scene.at_end:
                scene.at_end.pop()()
            scene.state.clear()


def stuck(scene: Scene) -> StuckWorkerError | None:
    """The first worker that had to be left behind, if there was one, and is still there."""
    for worker in scene.abandoned:
        if worker.thread is not None and worker.thread.is_alive() and (stack := worker.stack()):
            host, task = worker.describe()
            return StuckWorkerError(host, task, time.monotonic() - worker.since, stack)
    return None


class Watchdog:
    """Names each worker that has been at its task for `after` seconds, once."""

    def __init__(self, scene: Scene, after: float, tell: Callable[[StuckWorkerError], None]) -> None:
        self._scene, self._after, self._tell = scene, after, tell
        self._end = threading.Event()
        self._seen: set[int] = set()
        self._thread = threading.Thread(target=self._watch, name=f"forkless-watchdog-{scene.ident[:8]}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(min(1.0, self._after / 4)):
            for worker in list(self._scene.workers):
                seconds = time.monotonic() - worker.since
                if seconds >= self._after and worker.pid not in self._seen:
                    self._seen.add(worker.pid)
                    host, task = worker.describe()
                    self._tell(StuckWorkerError(host, task, seconds, worker.stack()))


class ThreadsEngine:
    """Carries out a RunSpec with ansible-core's own command, executor and strategies, on threads of this process."""

    name = "threads"

    def carry_out(
        self,
        spec: RunSpec,
        *,
        ident: str,
        deliver: Callable[[Event], None],
        write: Callable[[str], None],
        stop: Stop,
        wait: bool = True,
    ) -> Outcome:
        transcript: Any = _callback.Transcript(write)
        listener = _callback.Listener(ident, deliver, transcript)
        scene = _scene.Scene(
            ident=ident,
            stop=stop,
            stdout=transcript,
            stderr=transcript,
            stdin=io.StringIO(),
            environ={**os.environ, **spec.env} if spec.env else None,
            passwords=spec.passwords,
            vault_password=spec.vault_password,
            answers=spec.answers,
            modules=spec.modules,
        )
        scene.callbacks.append(_once(lambda: _callback.make_callback(listener)))
        cwd, books = str(spec.cwd), [str(book) for book in spec.playbook or ()]  # type: ignore[union-attr]
        config = _gate.configuration(scene.getenv(), cwd, books)
        code = 99
        with _threads.own_folder(cwd), contextlib.ExitStack() as around:
            try:
                around.enter_context(staged(scene, config=config, wait=wait))
                if spec.stuck_after is not None:
                    around.enter_context(Watchdog(scene, spec.stuck_after, lambda error: _tell_stuck(listener, error)))
                code = call_cli(scene, spec.command, spec.argv())
            except KeyboardInterrupt:
                if not stop.requested:
                    raise
        listener.last_words()
        left_behind = stuck(scene)
        if left_behind is not None:
            raise left_behind
        if stop.requested:
            return Outcome(stop.why, code or 99)
        if code == 0:
            return Outcome(Status.SUCCESSFUL, 0)
        return Outcome(Status.FAILED, code, "" if listener.recap else complaint(transcript.last))


def _once(make: Callable[[], Any]) -> Callable[[], Any]:
    made: list[Any] = []

    def get() -> Any:
        if not made:
            made.append(make())
        return made[0]

    return get


def _tell_stuck(listener: _callback.Listener, error: StuckWorkerError) -> None:
    fields = {"host": error.host, "task": error.task, "seconds": error.seconds, "stack": error.stack}
    listener.emit("worker_stuck", fields)


ENGINE = ThreadsEngine()
