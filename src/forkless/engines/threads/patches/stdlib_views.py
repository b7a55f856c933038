# SPDX-License-Identifier: GPL-3.0-or-later
"""
Views of stdlib modules for workers.

Ansible and its plugins were written to run in separate processes: they set `sys.stdout`, call `time.sleep`, set alarms, start children
and change `os.environ`. These views replace the *names* `sys`, `os`, `time`, `signal` and `subprocess` inside Ansible's modules and
plugins. The real modules are not changed, so the rest of the program is not affected. Any attribute that a view does not define comes
from the real module. The view of `os` is made in `worker_os`, that of `subprocess` in `worker_subprocess`.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from forkless.core import trace_functions
from forkless.engines.threads import context
from forkless.engines.threads.patches import worker_descriptors, worker_signals, working_directory
from forkless.engines.threads.patches.worker_os import os_view
from forkless.engines.threads.patches.worker_subprocess import WorkerPopen, subprocess_view
from forkless.engines.threads.patches.worker_view import WorkerView
from forkless.patching.module_view import put_views

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from forkless.core.terminal import TextStream
    from forkless.engines.threads.workers.worker import AlarmAction

__all__ = [
    "install_views",
    "os_view",
    "print_to_run",
    "seen_by_workers",
    "signal_view",
    "subprocess_view",
    "sys_view",
    "time_view",
]


class _SysView(WorkerView):
    if trace_functions.BY_ONE_THREAD_AT_A_TIME:
        settrace = staticmethod(trace_functions.set_trace)
        setprofile = staticmethod(trace_functions.set_profile)

    @property
    def stdout(self) -> TextStream:
        stream: TextStream = self._stream("stdout")
        return stream

    @stdout.setter
    def stdout(self, stream: TextIO) -> None:
        self._set("stdout", stream)

    @property
    def stderr(self) -> TextStream:
        stream: TextStream = self._stream("stderr")
        return stream

    @stderr.setter
    def stderr(self, stream: TextIO) -> None:
        self._set("stderr", stream)

    @property
    def stdin(self) -> TextIO:
        stream: TextIO = self._stream("stdin")
        return stream

    @stdin.setter
    def stdin(self, stream: TextIO) -> None:
        self._set("stdin", stream)

    @property
    def __stdin__(self) -> TextIO | None:
        run_context = context.current()
        return sys.__stdin__ if run_context is None or run_context.stdin is None else run_context.stdin

    @staticmethod
    def _stream(name: str) -> Any:
        worker = context.current_worker()
        if worker is not None:
            return worker.streams[name]
        run_context = context.current()
        stream = getattr(run_context, name, None)
        return getattr(sys, name) if stream is None else stream

    @staticmethod
    def _set(name: str, stream: TextIO) -> None:
        worker = context.current_worker()
        if worker is not None:
            # Up to 2.18 a worker ends by opening /dev/null over its streams. Streams are per worker here, so it is closed.
            if getattr(stream, "name", None) == os.devnull:
                stream.close()
            else:
                worker.streams[name] = stream
            return
        run_context = context.current()
        if run_context is None:
            setattr(sys, name, stream)
        else:
            setattr(run_context, name, stream)


class _Time(WorkerView):
    @staticmethod
    def sleep(seconds: float) -> None:
        interrupt = context.current_interrupt()
        if interrupt is None:
            time.sleep(seconds)
        else:
            interrupt.sleep(seconds)


class _StrategyTime(WorkerView):
    """The strategy's polling sleep, which ends early when the strategy is woken."""

    @staticmethod
    def sleep(seconds: float) -> None:
        run_context = context.current()
        if run_context is None:
            time.sleep(seconds)
        else:
            run_context.sleep(seconds)


_DUMP = getattr(signal, "SIGUSR1", None)


class _Signal(WorkerView):
    """
    Signals belong to the program. Emulated, separately for each worker, are SIGALRM and what a worker sends to itself. In a child process that a
    plugin has forked, signals and the alarm are the child's own.
    """

    @staticmethod
    def signal(number: int, action: AlarmAction) -> AlarmAction | None:
        if context.in_forked_child():
            return signal.signal(number, action)
        worker = context.current_worker()
        if worker is not None and number == signal.SIGALRM:
            before, worker.on_alarm = worker.on_alarm, action
            return before
        if worker is not None:
            return worker_signals.set_action(worker, number, action)
        run_context = context.current()
        if number == _DUMP and worker is None and run_context is not None and run_context.terminal is not None:
            return signal.signal(
                number, action
            )  # since 2.22 Ansible's handler writes stacks to a file; the default action would end the process
        if run_context is not None and run_context.terminal is None:
            return worker_signals.set_action(run_context, number, action)
        return signal.SIG_DFL

    @staticmethod
    def alarm(seconds: int) -> int:
        before, _ = _Signal.setitimer(signal.ITIMER_REAL, seconds)
        return math.ceil(before)

    @staticmethod
    def setitimer(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        if context.in_forked_child():
            return signal.setitimer(which, seconds, interval)
        if which != signal.ITIMER_REAL or interval:
            raise signal.ItimerError("a worker is a thread: its alarm is that of the real clock, and rings once")
        before = _Signal.getitimer(which)
        worker = context.current_worker()
        if worker is not None:
            worker.alarm(seconds)
            worker.state["alarm"] = time.monotonic() + seconds if seconds > 0 else None
        return before

    @staticmethod
    def getitimer(which: int) -> tuple[float, float]:
        if context.in_forked_child():
            return signal.getitimer(which)
        worker = context.current_worker()
        due = worker.state.get("alarm") if worker is not None and which == signal.ITIMER_REAL else None
        return (0.0 if due is None else max(0.0, due - time.monotonic()), 0.0)

    @staticmethod
    def getsignal(number: int) -> AlarmAction | None:
        worker = context.current_worker()
        if worker is not None and not context.in_forked_child():
            return worker_signals.action_of(worker, number)
        run_context = context.current()
        if run_context is not None and number in run_context.state.get("signals", {}):
            return worker_signals.action_of(run_context, number)
        return signal.getsignal(number)

    @staticmethod
    def raise_signal(number: int) -> None:
        if worker_signals.is_for_worker(os.getpid()):
            worker_signals.deliver(number)
        else:
            signal.raise_signal(number)

    @staticmethod
    def pthread_kill(thread: int, number: int) -> None:
        # Every thread is one of this process, which a signal to it would end.
        if number and worker_signals.is_for_worker(os.getpid()):
            worker_signals.deliver(number)
        else:
            signal.pthread_kill(thread, number)


def print_to_run(*values: object, file: Any = None, **kwargs: Any) -> None:
    builtins.print(*values, file=sys_view.stdout if file is None else file, **kwargs)


sys_view = _SysView(sys)
time_view = _Time(time)
strategy_time_view = _StrategyTime(time)
signal_view = _Signal(signal)

# Replacements by the original, whatever name a plugin has imported it as.
_VIEWS: list[tuple[object, object]] = [
    (sys, sys_view),
    (os, os_view),
    (subprocess, subprocess_view),
    (time, time_view),
    (signal, signal_view),
    (subprocess.Popen, WorkerPopen),
    (subprocess.run, subprocess_view.run),
    (subprocess.check_output, subprocess_view.check_output),
    (subprocess.check_call, subprocess_view.check_call),
    (subprocess.call, subprocess_view.call),
    (time.sleep, time_view.sleep),
    (os.kill, os_view.kill),
    (os.killpg, os_view.killpg),
]
with contextlib.suppress(ImportError):  # a platform without terminals
    import pty

    _VIEWS.append((pty, worker_descriptors.PtyView(pty)))
_BY_ID: dict[int, object] = {id(real): view for real, view in _VIEWS}


def seen_by_workers(thing: object) -> object:
    """The view of an object, if there is one; otherwise the object."""
    return _BY_ID.get(id(thing), thing)


def install_views(module: types.ModuleType) -> Callable[[], None]:
    """Replace what a plugin's module imported at module level by the views. Returns a function that restores the originals."""
    restore_names = put_views(module.__dict__, _BY_ID, print=print_to_run)
    restore_paths = working_directory.install_views(module.__dict__, {}) if working_directory.active() else None

    def remove_views() -> None:
        if restore_paths is not None:
            restore_paths()
        restore_names()

    return remove_views
