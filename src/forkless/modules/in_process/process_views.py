# SPDX-License-Identifier: GPL-3.0-or-later
"""
`sys`, `os` and `signal` as a module's own code sees them: what a module does to its own process must not reach the program.

A module that is a process may replace `sys.stdout`, signal itself or its group, and leave by `os._exit`. Here the process is the
program. So an assignment is the invocation's own, and a signal is delivered to the invocation: the module's handler is called, or the
module ends as a process does that such a signal ends. In a process that the module has forked, signals are the child's own.
"""

from __future__ import annotations

import os
import signal
import sys
import types
from typing import TYPE_CHECKING

from forkless.modules.in_process.invocation import VIEWS, current

if TYPE_CHECKING:
    from forkless.modules.in_process.invocation import Invocation, SignalAction

__all__ = ["os_view", "signal_view", "sys_view"]

# Signals that end no process unless it asks for that (Python itself ignores the last two), or stop it until another one continues it.
_HARMLESS = {
    getattr(signal, name, None)
    for name in (
        *("SIGCHLD", "SIGURG", "SIGWINCH", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGPIPE", "SIGXFSZ"),
    )
}


def _own_process() -> Invocation | None:
    """The invocation of this thread; None if there is none, and in a process that the module has forked."""
    here = current()
    return here if here is not None and here.pid == os.getpid() else None


def _deliver(invocation: Invocation, number: int) -> None:
    action = signal_view.getsignal(number)
    if number == 0 or action == signal.SIG_IGN or (action == signal.SIG_DFL and number in _HARMLESS):
        return
    if callable(action) and number != signal.SIGKILL:
        action(number, sys._getframe(1))
        return
    if number == signal.SIGINT and invocation.is_on_own_thread():
        invocation.interrupted_itself = True
        raise KeyboardInterrupt
    invocation.end(-number)


class _InvocationView(types.ModuleType):
    """A module with the assignments of the invocation that reads it."""

    def __getattr__(self, name: str) -> object:
        invocation = current()
        assigned = {} if invocation is None else invocation.assigned
        return assigned[self.__name__, name] if (self.__name__, name) in assigned else self._taken(name)

    def __setattr__(self, name: str, value: object) -> None:
        invocation = current()
        if invocation is None:
            setattr(self._real(), name, value)
        else:
            invocation.assigned[self.__name__, name] = value

    def _taken(self, name: str) -> object:
        return getattr(self._real(), name)

    def _real(self) -> types.ModuleType:
        real: types.ModuleType = VIEWS.get(self.__name__, sys.modules[self.__name__])
        return real


class _SysOfModule(_InvocationView):
    def _taken(self, name: str) -> object:
        invocation = current()
        if invocation is not None and name in ("stdout", "stderr"):
            return getattr(invocation, name)
        if invocation is not None and name == "argv":
            return [invocation.name]
        return super()._taken(name)


class _OsOfModule(_InvocationView):
    def kill(self, pid: int, number: int) -> None:
        invocation = _own_process()
        if invocation is not None and pid in (0, os.getpid(), self._real().getpid(), -os.getpgrp()):
            _deliver(invocation, number)
        else:
            self._real().kill(pid, number)

    def killpg(self, group: int, number: int) -> None:
        if group in (0, os.getpgrp()):
            self.kill(0, number)
        else:
            self._real().killpg(group, number)

    def abort(self) -> None:
        invocation = _own_process()
        if invocation is None:
            self._real().abort()
        else:
            invocation.end(-signal.SIGABRT)

    def _exit(self, status: int) -> None:
        invocation = _own_process()
        if invocation is None:
            self._real()._exit(status)
        else:
            invocation.end(status)


class _SignalOfModule(_InvocationView):
    def signal(self, number: int, action: SignalAction) -> SignalAction:
        before, invocation = self.getsignal(number), _own_process()
        if invocation is None or self._is_alarm(number):
            self._real().signal(number, action)
        else:
            invocation.signals[number] = action
        return before

    def getsignal(self, number: int) -> SignalAction:
        invocation = _own_process()
        if invocation is None or self._is_alarm(number):
            action: SignalAction = self._real().getsignal(number)
            return action
        return invocation.signals.get(number, signal.SIG_DFL)

    def raise_signal(self, number: int) -> None:
        os_view.kill(os.getpid(), number)

    def pthread_kill(self, thread: int, number: int) -> None:
        if number and _own_process() is not None:  # every thread is one of this process, which a signal to it would end
            self.raise_signal(number)
        else:
            self._real().pthread_kill(thread, number)

    @staticmethod
    def _is_alarm(number: int) -> bool:
        """Whether the engine has an alarm for each worker."""
        return number == getattr(signal, "SIGALRM", None) and "signal" in VIEWS


sys_view, os_view, signal_view = _SysOfModule("sys"), _OsOfModule("os"), _SignalOfModule("signal")
