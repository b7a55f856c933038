# SPDX-License-Identifier: GPL-3.0-or-later
"""`subprocess` as a worker sees it: a child belongs to the run, and ends with the worker."""

from __future__ import annotations

import logging
import os
import subprocess
import types
from typing import Any

from forkless.core.process_tree import start_time
from forkless.engines.threads import context
from forkless.engines.threads.patches.worker_view import WorkerView
from forkless.engines.threads.workers.interrupt import starting_child
from forkless.modules import live_command

__all__ = ["WorkerPopen", "subprocess_view"]

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
        self.born: str | None = None
        if interrupt is None:
            super().__init__(*args, **kwargs)
            return
        with interrupt.shielded(), starting_child():
            super().__init__(*args, **kwargs)
            self.born = start_time(self.pid)
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


subprocess_view = _SubprocessView(subprocess)
