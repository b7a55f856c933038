# SPDX-License-Identifier: GPL-3.0-or-later
"""
Signals that a plugin sends to its own process.

A forked worker that signals itself calls its own handler, or ends; here the process is the program, which must do neither. So the
signal is delivered to the worker: its handler is called, or the worker ends as a process does that such a signal ends. The same on a run's own thread
(callbacks, inventory plugins), except in the command, whose process is the run's own.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
from typing import TYPE_CHECKING, NoReturn

from forkless.engines.threads import context

if TYPE_CHECKING:
    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.workers.worker import AlarmAction, Worker

__all__ = ["action_of", "deliver", "end", "interrupt_main", "is_for_worker", "leave", "set_action"]

# Those that no process is ended by, unless it says so.
_IGNORED = {getattr(signal, name, None) for name in ("SIGCHLD", "SIGURG", "SIGWINCH", "SIGCONT", "SIGPIPE", "SIGXFSZ")}
# These would stop a worker until somebody continues it, which nobody can.
_STOPPING = {getattr(signal, name, None) for name in ("SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU")}

# ansible-core's main process sets handlers for these, and its workers others.
_OF_CORE = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGALRM", None)}


def is_for_worker(pid: int) -> bool:
    """Whether os.kill() with this number, on this thread, would signal the program instead of a process of the thread's own."""
    run_context, worker = context.current(), context.current_worker()
    if run_context is None or context.in_forked_child() or (worker is None and run_context.terminal is not None):
        return False
    return pid in (0, os.getpid(), -os.getpgrp()) or (
        worker is not None and abs(pid) in (worker.pid, worker.thread_number)
    )


def deliver(number: int) -> None:
    """Do what the signal does to a process: call its handler, nothing, or end it."""
    home = context.current_worker() or context.current()
    action = signal.SIG_DFL if home is None else action_of(home, number)
    if number == 0 or action == signal.SIG_IGN or (action == signal.SIG_DFL and number in _IGNORED | _STOPPING):
        return
    if callable(action) and number not in (signal.SIGKILL, signal.SIGSTOP):
        action(number, None)
    else:
        end(number)


def interrupt_main(number: int = signal.SIGINT) -> None:
    """The `_thread.interrupt_main` of a plugin's code: the main thread of a forked worker was the worker's, and not the program's."""
    if is_for_worker(os.getpid()):
        deliver(number)
    else:
        _thread.interrupt_main(number)  # type: ignore[arg-type]  # the stub has named signals only


def end(number: int) -> NoReturn:
    if number == signal.SIGINT and _on_own_thread():
        raise KeyboardInterrupt
    leave(-number)


def leave(status: int) -> NoReturn:
    """
    End the worker, or the run on one of its own threads, as a process that ends with this status. On a thread that a plugin has started, that thread and
    the worker's, or the run's, own.
    """
    interrupt = context.current_interrupt()
    if interrupt is not None and not _on_own_thread():
        kind = type("ProcessLeft", (SystemExit,), {"__init__": lambda self: SystemExit.__init__(self, status)})
        interrupt.trigger(kind)
    raise SystemExit(status)


def _on_own_thread() -> bool:
    """Whether the calling thread is the one that the worker, or the run, was given."""
    home = context.current_worker() or context.current()
    return home is None or home.thread is None or home.thread is threading.current_thread()


def set_action(home: Worker | RunContext, number: int, action: AlarmAction) -> AlarmAction:
    """Of a run's own thread, actions for the signals that ansible-core handles itself are not kept."""
    before = action_of(home, number)
    if home.worker is not None or number not in _OF_CORE:
        home.state.setdefault("signals", {})[number] = action
    return before


def action_of(home: Worker | RunContext, number: int) -> AlarmAction:
    """What was set for a worker, or for its run when the worker had none: a forked worker inherited it."""
    if number == signal.SIGALRM:
        return signal.SIG_DFL if home.worker is None else home.worker.on_alarm
    of_run: AlarmAction = home.run_context.state.get("signals", {}).get(number, signal.SIG_DFL)
    found: AlarmAction = home.state.get("signals", {}).get(number, of_run)
    return found
