# SPDX-License-Identifier: GPL-3.0-or-later
"""
For programs that stay with ansible-runner.

    import forkless.runner

    forkless.runner.patch()                    # once, at the start of the program
    ansible_runner.run(private_data_dir=...)   # as before, from any thread, and it no longer hangs

`pexpect.spawn` is not replaced for the rest of the program. Replaced are the name `pexpect` in `ansible_runner.runner`, and the
functions of ansible-runner that start, stop and interrupt a run.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import signal
import threading
import types
from typing import TYPE_CHECKING, Any

from forkless.core.errors import UnsupportedError

try:
    import ansible_runner.interface as _interface
    import ansible_runner.runner as _runner
    import pexpect
except ImportError as err:
    raise UnsupportedError(
        f"forkless.runner stands in for a part of ansible-runner, and {err.name} is not installed; "
        "pip install 'forkless[runner]'"
    ) from err

from forkless.core.process_tree import ProcessTree
from forkless.engines.runner.parent_death import ParentDeathWatch
from forkless.engines.runner.pty_spawn import RunnerSpawn, mark_of, run_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["RunnerSpawn", "patch", "patched", "unpatch"]

# Seconds between the signal to a stopped run's first process and SIGKILL. ansible-runner itself waits for nothing.
_GRACE = 1.0

# Clean-up for the Runner.run() that is active on this thread: above all, its children must have ended.
_at_end: contextvars.ContextVar[contextlib.ExitStack | None] = contextvars.ContextVar("forkless_at_end", default=None)


class _Pexpect(types.ModuleType):
    """The module pexpect with RunnerSpawn as its `spawn`."""

    def __init__(self) -> None:
        super().__init__("pexpect", "pexpect, with forkless.runner.RunnerSpawn for its spawn")
        self.spawn = _spawn

    def __getattr__(self, name: str) -> object:
        return getattr(pexpect, name)


def _spawn(*args: Any, **options: Any) -> RunnerSpawn:
    at_end = _at_end.get()
    if at_end is None:
        return RunnerSpawn(*args, **options)
    # Started before the child: if the program were killed between the two, the child would be left running.
    watch = at_end.enter_context(ParentDeathWatch(mark=run_mark(options.get("env"))))
    child = RunnerSpawn(*args, **options)
    at_end.callback(_end, child)
    watch.watch(child.pid)
    return child


def _end(child: RunnerSpawn) -> None:
    """End a child that Runner.run() left running because an exception passed through it, usually from one of the caller's callbacks."""
    if not child.closed:
        if child.isalive():
            ProcessTree(child.pid, run_mark(child.env)).end(_GRACE)
        with contextlib.suppress(pexpect.ExceptionPexpect):
            child.close()


def _run(stock: Callable[[object], object]) -> Callable[[object], object]:
    @functools.wraps(stock)
    def run(self: Any) -> object:
        with contextlib.ExitStack() as at_end:
            if isinstance(self.cancel_callback, _Interrupted):
                at_end.callback(self.cancel_callback.over)
            token = _at_end.set(at_end)
            try:
                return stock(self)
            finally:
                _at_end.reset(token)

    return run


def _handle_termination(
    _cls: type[object], /, pid: int, pidfile: str | None = None, is_cancel: bool = True, **_more: object
) -> None:
    """
    End a run: its first process and all descendants.

    ansible-runner kills a process group only, but since ansible-core 2.19 each worker leads a process group. `is_cancel` is an
    argument of ansible-runner 2.3.
    """
    del is_cancel
    if pid and pid > 0:
        ProcessTree(pid, mark_of(pid)).end(_GRACE)
    if pidfile:
        with contextlib.suppress(OSError):
            os.remove(pidfile)


class _Interrupted:
    """
    ansible-runner's default cancel_callback: SIGINT and SIGTERM cancel the run while it is active.

    ansible-runner never restores the signal handlers, so that Ctrl-C has no effect after the first run.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._over = False
        self._before = {number: signal.signal(number, self._act) for number in (signal.SIGTERM, signal.SIGINT)}

    def __call__(self) -> bool:
        return self._asked.is_set()

    def _act(self, number: int, frame: Any) -> None:
        if not self._over:
            self._asked.set()
            return
        # The run was on another thread (run_async), which cannot restore signal handlers. This is the main thread, so it can.
        self._put_back()
        before = self._before[signal.Signals(number)]
        if callable(before):
            before(number, frame)
        elif before is signal.SIG_DFL:
            signal.raise_signal(number)

    def over(self) -> None:
        self._over = True
        if threading.current_thread() is threading.main_thread():
            self._put_back()

    def _put_back(self) -> None:
        for number, before in self._before.items():
            # The program may have set another handler since; None means that the handler was not set from Python.
            if signal.getsignal(number) == self._act and before is not None:
                signal.signal(number, before)


def _signal_handler() -> _Interrupted | None:
    return _Interrupted() if threading.current_thread() is threading.main_thread() else None


def _init_runner(stock: Callable[..., object]) -> Callable[..., object]:
    """Restores the signal handlers if init_runner() raises after it has set them, or returns a runner that does not use them."""

    @functools.wraps(stock)
    def init_runner(**options: object) -> object:
        if options.get("cancel_callback") is not None:
            return stock(**options)
        ours = options["cancel_callback"] = _signal_handler()
        made = None
        try:
            made = stock(**options)
        finally:
            if ours is not None and getattr(made, "cancel_callback", None) is not ours:
                ours.over()
        return made

    return init_runner


# Guards the three variables below only.
_lock = threading.Lock()
_asked_for = False
_inside = 0
_undo: list[Callable[[], None]] = []


def _replace(owner: object, name: str, thing: object) -> None:
    before = vars(owner)[name]
    setattr(owner, name, thing)
    _undo.append(lambda: setattr(owner, name, before))


def _settle() -> None:
    """Install or remove the replacements, so that they are installed while patch() or a patched() block is in effect."""
    wanted = _asked_for or _inside > 0
    if wanted and not _undo:
        runner = _runner.Runner
        _replace(_runner, "pexpect", _Pexpect())
        _replace(runner, "run", _run(runner.run))
        _replace(runner, "handle_termination", classmethod(_handle_termination))
        _replace(_interface, "signal_handler", _signal_handler)
        _replace(_interface, "init_runner", _init_runner(_interface.init_runner))
    elif not wanted:
        while _undo:
            _undo.pop()()


def patch() -> None:
    """Patch ansible_runner until `unpatch()`. May be called repeatedly and from any thread; active runs are not affected."""
    global _asked_for  # noqa: PLW0603  # patching a module is a fact about the program, not about an object
    with _lock:
        _asked_for = True
        _settle()


def unpatch() -> None:
    """Undo `patch()`. Inside a `patched()` block of any thread, the replacements stay until the last block ends."""
    global _asked_for  # noqa: PLW0603
    with _lock:
        _asked_for = False
        _settle()


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Patch ansible_runner for the length of the block. Blocks may overlap, on any threads."""
    global _inside  # noqa: PLW0603
    with _lock:
        _inside += 1
        _settle()
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            _settle()
