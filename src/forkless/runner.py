# SPDX-License-Identifier: GPL-3.0-or-later
"""
The door for people who stay with ansible-runner.

    import forkless.runner

    forkless.runner.patch()                    # once, at the start of the program
    ansible_runner.run(private_data_dir=...)   # as before, from any thread, and it no longer hangs

`pexpect.spawn` stays what it is for the rest of the program: what is replaced is the name `pexpect` in
`ansible_runner.runner`, and three things there that keep a run from ending well.
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

from forkless._errors import UnsupportedError

try:
    import ansible_runner.interface as _interface
    import ansible_runner.runner as _runner
    import pexpect
except ImportError as err:
    raise UnsupportedError(
        f"forkless.runner stands in for a part of ansible-runner, and {err.name} is not installed; "
        "pip install 'forkless[runner]'"
    ) from err

from forkless.engines._spawn import RunnerSpawn, mark_of, run_mark
from forkless.engines._tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["RunnerSpawn", "patch", "patched", "unpatch"]

# What a stopped run gets between being asked and being killed. ansible-runner itself gives nothing.
_GRACE = 1.0

# The children of the run() that is under way on this thread.
_children: contextvars.ContextVar[list[RunnerSpawn] | None] = contextvars.ContextVar("forkless_children", default=None)


class _Pexpect(types.ModuleType):
    """The module pexpect, with another `spawn`."""

    def __init__(self) -> None:
        super().__init__("pexpect", "pexpect, with forkless.runner.RunnerSpawn for its spawn")
        self.spawn = _spawn

    def __getattr__(self, name: str) -> Any:
        return getattr(pexpect, name)


def _spawn(*args: Any, **options: Any) -> RunnerSpawn:
    child = RunnerSpawn(*args, **options)
    under_way = _children.get()
    if under_way is not None:
        under_way.append(child)
    return child


def _end(child: RunnerSpawn) -> None:
    """End what run() left because something in it raised: a callback of the caller's, most often."""
    if not child.closed:
        if child.isalive():
            Tree(child.pid, run_mark(child.env)).end(_GRACE)
        with contextlib.suppress(pexpect.ExceptionPexpect):
            child.close()


def _run(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(stock)
    def run(self: Any) -> Any:
        mine: list[RunnerSpawn] = []
        token = _children.set(mine)
        try:
            return stock(self)
        finally:
            _children.reset(token)
            for child in mine:
                _end(child)
            if isinstance(self.cancel_callback, _Interrupted):
                self.cancel_callback.over()

    return run


def _handle_termination(
    _cls: type[Any], /, pid: int, pidfile: str | None = None, is_cancel: bool = True, **_more: Any
) -> None:
    """
    End a run: the process, and all that descends from it.

    ansible-runner kills a process group, and since ansible-core 2.19 workers are in groups of their own.
    `is_cancel` is ansible-runner 2.3's.
    """
    del is_cancel
    if pid and pid > 0:
        Tree(pid, mark_of(pid)).end(_GRACE)
    if pidfile:
        with contextlib.suppress(OSError):
            os.remove(pidfile)


class _Interrupted:
    """
    ansible-runner's default for cancel_callback: SIGINT and SIGTERM cancel the run, while there is one.

    ansible-runner leaves its signal actions in place, so that Ctrl-C does nothing any more after the first run.
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
        # The run was on another thread (run_async), where signal actions cannot be put back. Now they can.
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
            # Someone may have set another since; and None means that it was not set from Python.
            if signal.getsignal(number) == self._act and before is not None:
                signal.signal(number, before)


def _signal_handler() -> _Interrupted | None:
    return _Interrupted() if threading.current_thread() is threading.main_thread() else None


# Guards the three below and nothing else.
_lock = threading.Lock()
_asked_for = False
_inside = 0
_undo: list[Callable[[], None]] = []


def _replace(owner: Any, name: str, thing: Any) -> None:
    before = vars(owner)[name]
    setattr(owner, name, thing)
    _undo.append(lambda: setattr(owner, name, before))


def _settle() -> None:
    """Make it so: the stand-ins are in place while someone wants them there."""
    wanted = _asked_for or _inside > 0
    if wanted and not _undo:
        runner = _runner.Runner
        _replace(_runner, "pexpect", _Pexpect())
        _replace(runner, "run", _run(runner.run))
        _replace(runner, "handle_termination", classmethod(_handle_termination))
        _replace(_interface, "signal_handler", _signal_handler)
    elif not wanted:
        while _undo:
            _undo.pop()()


def patch() -> None:
    """Put the stand-ins into ansible_runner, for good. Doing it twice is harmless; runs under way are not touched."""
    global _asked_for  # noqa: PLW0603  # patching a module is a fact about the program, not about an object
    with _lock:
        _asked_for = True
        _settle()


def unpatch() -> None:
    """Take them out again, unless someone is inside a `with patched()`: then when the last one leaves."""
    global _asked_for  # noqa: PLW0603
    with _lock:
        _asked_for = False
        _settle()


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """The same, for as long as the block lasts. Blocks may overlap, on any threads."""
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
