# SPDX-License-Identifier: GPL-3.0-or-later
"""
Views of stdlib modules for workers.

Ansible and its plugins were written to run in separate processes: they set `sys.stdout`, call `time.sleep`, set alarms, start children
and change `os.environ`. These views replace the *names* `sys`, `os`, `time`, `signal` and `subprocess` inside Ansible's modules and
plugins. The real modules are not changed, so the rest of the program is not affected. Any attribute that a view does not define comes
from the real module.
"""

from __future__ import annotations

import builtins
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
import types
from typing import TYPE_CHECKING, Any, TextIO

from forkless.engines.threads import context
from forkless.engines.threads.patches import worker_signals, working_directory
from forkless.modules import live_command
from forkless.patching.module_view import ModuleView, put_views

if TYPE_CHECKING:
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


class WorkerView(ModuleView):
    """A view in which every worker, and every run outside of its workers, sees its own assignments; other threads assign to the module."""

    def __getattr__(self, name: str) -> Any:
        own = self._own_attributes()
        return own[name] if name in own else super().__getattr__(name)

    def __setattr__(self, name: str, value: object) -> None:
        home = context.current_worker() or context.current()
        if isinstance(getattr(type(self), name, None), property):
            super().__setattr__(name, value)
        elif home is None:
            setattr(self.__dict__["_real"], name, value)
        else:
            # A plugin that replaces a function of the stdlib replaces it for its worker only, not for the program.
            home.state.setdefault(("attributes", id(self)), {})[name] = value

    def _own_attributes(self) -> dict[str, object]:
        home = context.current_worker() or context.current()
        found: dict[str, object] = {} if home is None else home.state.get(("attributes", id(self)), {})
        return found


class _SysView(WorkerView):
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


class RunVariables:
    """What `os.environ` holds on the threads of a run, for libraries that read it: a provider for `patching.thread_environ`."""

    seen = staticmethod(context.current_environ)

    def changed(self) -> dict[str, str] | None:
        home = context.current_worker() or context.current()
        if home is None:
            return None
        if home.environ is None:
            home.environ = dict(os.environ)
        return home.environ


run_variables = RunVariables()


class _Os(WorkerView):
    @property
    def path(self) -> types.ModuleType:
        return working_directory.path_view if working_directory.active() else os.path

    @staticmethod
    def putenv(key: str, value: str) -> None:
        os.environ[key] = value

    @staticmethod
    def unsetenv(key: str) -> None:
        os.environ.pop(key, None)

    @staticmethod
    def getpid() -> int:
        # Plugins of several hosts that name a file by it must not share the file. Linux takes the number of a thread for that of its process.
        worker = context.current_worker()
        if worker is None or context.in_forked_child() or sys.platform != "linux":
            return os.getpid()
        return worker.thread_number or os.getpid()

    @staticmethod
    def getppid() -> int:
        # For a forked worker this was the pid of the play; it is part of the names of the play's sockets and locks.
        worker, run_context = context.current_worker(), context.current()
        if worker is None or run_context is None:
            return os.getppid()
        if not context.in_forked_child():
            return os.getpid()
        above = os.getppid()
        return worker.thread_number if above == run_context.pid and sys.platform == "linux" else above

    @staticmethod
    def set_inheritable(fd: int, inheritable: bool) -> None:
        # The program's descriptors 0, 1 and 2 must not be changed: its children would start without them.
        if fd > 2:
            os.set_inheritable(fd, inheritable)

    @staticmethod
    def system(command: str | bytes) -> int:
        """Starts a child that is ended with its worker; returns a wait status as os.system does."""
        code = WorkerPopen(command, shell=True).wait()  # noqa: S604  # what os.system does
        return code << 8 if code >= 0 else -code

    @staticmethod
    def popen(command: str, mode: str = "r", buffering: int = -1) -> object:
        """The stdlib's function, which imports subprocess when it is called, with an import that returns the view."""
        space = {**vars(os), "__builtins__": {**vars(builtins), "__import__": _import_for_popen}}
        return types.FunctionType(os.popen.__code__, space)(command, mode, buffering)

    @staticmethod
    def kill(pid: int, number: int) -> None:
        if worker_signals.is_for_worker(pid):
            worker_signals.deliver(number)
        else:
            os.kill(pid, number)

    @staticmethod
    def killpg(group: int, number: int) -> None:
        # A forked worker led a group of its own; the group here is the program's, with whatever else the shell started in it.
        if worker_signals.is_for_worker(-group):
            worker_signals.deliver(number)
        else:
            os.killpg(group, number)

    @staticmethod
    def abort() -> None:
        if not worker_signals.is_for_worker(os.getpid()):
            os.abort()
        worker_signals.end(signal.SIGABRT)

    @staticmethod
    def _exit(code: int) -> None:
        if context.current() is None or context.in_forked_child():
            os._exit(code)
        raise SystemExit(code)


for _name, _function in working_directory.OS_FUNCTIONS.items():
    setattr(_Os, _name, staticmethod(_function))


_log = logging.getLogger("forkless")
_UNKNOWN_STATUS = 250


class WorkerPopen(subprocess.Popen):  # type: ignore[type-arg]
    """
    A child process of one run: it leads a process group, has the run's environment, and is registered with the interrupt.

    The children of a forked worker inherited /dev/null; so do these, unless the caller passes streams.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        worker, run_context, interrupt = context.current_worker(), context.current(), context.current_interrupt()
        if run_context is not None and interrupt is not None:
            if interrupt.own_groups and not kwargs.get("start_new_session") and kwargs.get("process_group") is None:
                # Either way the child leads a process group, by which it is ended with its descendants.
                kwargs |= {"start_new_session": True} if interrupt.own_session else {"process_group": 0}
            if worker is not None or run_context.stdin is not None:
                for name, place in (("stdin", 3), ("stdout", 4), ("stderr", 5)):
                    if len(args) <= place and kwargs.get(name) is None:
                        kwargs[name] = subprocess.DEVNULL
        self.leads_group = bool(kwargs.get("start_new_session")) or kwargs.get("process_group") == 0
        self._live = False
        if interrupt is None:
            super().__init__(*args, **kwargs)
            return
        with interrupt.shielded():
            super().__init__(*args, **kwargs)
            interrupt.adopt(self)
        self._live = live_command.tap_if_live(self)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """
        The stdlib's step of wait(). If the program ignores SIGCHLD or calls waitpid(-1), the exit status is gone; the stdlib then says 0,
        success. Here it is a failure.
        """
        try:
            return os.waitpid(self.pid, wait_flags)
        except ChildProcessError:
            _log.warning(
                "the exit status of process %d was taken by other code in this program (SIGCHLD is ignored, or waitpid(-1) is "
                "called); it counts as failed, with %d, because it cannot be known any more",
                self.pid,
                _UNKNOWN_STATUS,
            )
            return self.pid, _UNKNOWN_STATUS << 8

    def _internal_poll(self, _deadstate: int | None = None, *args: object) -> int | None:
        """The stdlib's poll(), by `_try_wait`; `_deadstate` is given by its finalizers, which need no true status."""
        if _deadstate is not None or self.returncode is not None:
            found: int | None = super()._internal_poll(_deadstate, *args)  # type: ignore[misc]  # private
            return found
        if self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]  # private
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]  # private
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]  # private
        return self.returncode

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:  # noqa: A002  # the stdlib's name
        return live_command.communicate(self, input) if self._live else super().communicate(input, timeout)


class _SubprocessView(WorkerView):
    Popen = WorkerPopen

    def _through(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        # The stdlib's functions look each other up in their module's globals; these are the same functions with other globals.
        real = getattr(subprocess, name)
        names = {"Popen": WorkerPopen, "check_output": self.check_output, "getstatusoutput": self.getstatusoutput}
        seen = types.FunctionType(real.__code__, {**vars(subprocess), **names}, name, real.__defaults__)
        seen.__kwdefaults__ = real.__kwdefaults__
        return seen(*args, **kwargs)

    def call(self, *args: object, **kwargs: object) -> int:
        code: int = self._through("call", args, kwargs)
        return code

    def run(self, *args: object, **kwargs: object) -> subprocess.CompletedProcess[Any]:
        completed: subprocess.CompletedProcess[Any] = self._through("run", args, kwargs)
        return completed

    def check_call(self, *args: Any, **kwargs: Any) -> int:
        code = self.call(*args, **kwargs)
        if code:
            raise subprocess.CalledProcessError(code, args[0] if args else kwargs["args"])
        return 0

    def check_output(self, *args: object, **kwargs: object) -> object:
        return self.run(*args, stdout=subprocess.PIPE, check=True, **kwargs).stdout

    def getstatusoutput(self, *args: object, **kwargs: object) -> object:
        return self._through("getstatusoutput", args, kwargs)

    def getoutput(self, *args: object, **kwargs: object) -> object:
        return self._through("getoutput", args, kwargs)


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
        return signal.getsignal(number)

    @staticmethod
    def raise_signal(number: int) -> None:
        if worker_signals.is_for_worker(os.getpid()):
            worker_signals.deliver(number)
        else:
            signal.raise_signal(number)

    @staticmethod
    def pthread_kill(thread: int, number: int) -> None:
        if thread == threading.get_ident() and worker_signals.is_for_worker(os.getpid()):
            worker_signals.deliver(number)
        else:
            signal.pthread_kill(thread, number)


def _import_for_popen(name: str, *args: Any) -> types.ModuleType:
    return subprocess_view if name == "subprocess" else builtins.__import__(name, *args)


def print_to_run(*values: object, file: Any = None, **kwargs: Any) -> None:
    builtins.print(*values, file=sys_view.stdout if file is None else file, **kwargs)


sys_view = _SysView(sys)
os_view = _Os(os)
subprocess_view = _SubprocessView(subprocess)
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
