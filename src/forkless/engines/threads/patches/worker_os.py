# SPDX-License-Identifier: GPL-3.0-or-later
"""`os` as a worker sees it: process numbers, signals, exits, children and the folder are the worker's; `os.environ` is the run's."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import types
from typing import Any

from forkless.engines.threads import context
from forkless.engines.threads.patches import inherited_state, worker_descriptors, worker_signals, working_directory
from forkless.engines.threads.patches.worker_subprocess import WorkerPopen, subprocess_view
from forkless.engines.threads.patches.worker_view import WorkerView

__all__ = ["os_view", "run_variables"]


class RunVariables:
    """What `os.environ` holds on the threads of a run, for libraries that read it: a provider for `patching.thread_environ`."""

    seen = staticmethod(context.current_environ)

    def changed(self) -> dict[str, str] | None:
        home = context.current_worker() or context.current()
        if home is None:
            return None
        if home.environ is None:
            home.environ = dict(os.environ)
        home.state[inherited_state.ENVIRON] = True
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
    def openpty() -> tuple[int, int]:
        return worker_descriptors.note(os.openpty())

    @staticmethod
    def pipe() -> tuple[int, int]:
        return worker_descriptors.note(os.pipe())

    @staticmethod
    def close(fd: int) -> None:
        worker_descriptors.forget(fd)
        os.close(fd)

    @staticmethod
    def fdopen(fd: int, *args: object, **kwargs: object) -> object:
        worker_descriptors.forget(fd)
        found: object = os.fdopen(fd, *args, **kwargs)  # type: ignore[call-overload]  # as it is called
        return found

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
        worker_signals.leave(code)


for _name, _function in working_directory.OS_FUNCTIONS.items():
    setattr(_Os, _name, staticmethod(_function))


def _import_for_popen(name: str, *args: Any) -> types.ModuleType:
    return subprocess_view if name == "subprocess" else builtins.__import__(name, *args)


os_view = _Os(os)
