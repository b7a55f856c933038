# SPDX-License-Identifier: GPL-3.0-or-later
"""
Who is running here: which run, and which worker, the current thread belongs to.

A forked worker knew whose it was because it was a process of its own. A thread has to be told, and this is
where it looks.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, TextIO

from forkless._answers import Answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from forkless._stop import Stop
    from forkless.engines._worker import Worker

__all__ = ["Scene", "current", "current_worker", "enter", "enter_worker", "typing"]


class _Here(threading.local):
    scene: Scene | None = None
    worker: Worker | None = None


_here = _Here()
_on_stage: list[Scene] = []
_stage_lock = threading.Lock()
_loader_lock = threading.RLock()


class Scene:
    """What one run has for itself, where Ansible keeps one for the whole process."""

    def __init__(
        self,
        *,
        ident: str,
        stop: Stop,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        stdin: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
        passwords: Mapping[str, str] | None = None,
        vault_password: str | None = None,
        answers: Mapping[str, str] | None = None,
        modules: str = "auto",
    ) -> None:
        self.ident = ident
        self.stop = stop
        # None stands for the program's own.
        self.stdout = stdout
        self.stderr = stderr
        self.stdin = stdin
        self.environ: dict[str, str] | None = None if environ is None else dict(environ)
        self.passwords = dict(passwords or {})
        self.vault_password = vault_password
        self.answers = Answers(answers or {})
        """What the run's own questions are answered: see `_questions`."""
        self.modules = modules
        """How modules for the local connection are run: see `forkless.modules.MODE`."""
        self.off: frozenset[str] = frozenset()
        """The caches that are switched off in this run: see `_caches`."""
        self.hearths: Any = None
        """Interpreters that are kept warm for this run: see `forkless.modules.KEEP`."""
        self.state: dict[Any, Any] = {}
        """What the stand-ins of `_isolation` keep for this run, by a key of their own."""
        # One for all runs: the modules of Ansible's own plugins are in sys.modules, half loaded for whoever looks too soon.
        self.loader_lock = _loader_lock
        self.vars_lock = threading.RLock()
        self.woken = threading.Event()
        """Set when a result has come in or a worker is free: what the strategy sleeps on."""
        self.workers: set[Worker] = set()
        self.newest: Worker | None = None
        """The worker that was made last: the one that `runner_on_start` is about, when it is told."""
        self.abandoned: list[Worker] = []
        self.at_end: list[Callable[[], None]] = []
        self.callbacks: list[Any] = []
        self.typing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Entered while the run asks a person something, by whoever shows it on a terminal."""

    def sleep(self, seconds: float) -> None:
        """
        The strategy's sleep. Ansible polls every millisecond; we are told, so it may be long.

        The bound is there for what tells nobody: a worker that died without a word.
        """
        self.woken.wait(max(seconds, 0.1))
        self.woken.clear()

    def check_stop(self) -> None:
        """Leave the run by the way that Ctrl-C leaves it, if it was asked to stop."""
        if self.stop.requested:
            raise KeyboardInterrupt

    def getenv(self) -> Mapping[str, str]:
        return os.environ if self.environ is None else self.environ


def current() -> Scene | None:
    """
    The run that this thread works for.

    A thread that a plugin started knows nothing of runs; it is given the only one there is, if there is only one.
    """
    scene = _here.scene
    if scene is None and len(_on_stage) == 1:
        with contextlib.suppress(IndexError):  # the last run may end between the two looks
            return _on_stage[0]
    return scene


def typing() -> contextlib.AbstractContextManager[None]:
    """Around a question to a person: whoever shows the run on a terminal steps aside."""
    scene = current()
    return contextlib.nullcontext() if scene is None else scene.typing()


def current_worker() -> Worker | None:
    return _here.worker


@contextlib.contextmanager
def enter(scene: Scene) -> Iterator[Scene]:
    """The calling thread carries out this run, from here on to the end of the block."""
    with _stage_lock:
        _on_stage.append(scene)
    outer, _here.scene = _here.scene, scene
    try:
        yield scene
    finally:
        _here.scene = outer
        with _stage_lock:
            _on_stage.remove(scene)


@contextlib.contextmanager
def enter_worker(scene: Scene, worker: Worker | None) -> Iterator[None]:
    """The calling thread is one of this run's: a worker, or one that reads results."""
    outer = _here.scene, _here.worker
    _here.scene, _here.worker = scene, worker
    try:
        yield
    finally:
        _here.scene, _here.worker = outer
