# SPDX-License-Identifier: GPL-3.0-or-later
"""The owner of the process's signals while `forkless playbook` or `forkless adhoc` carries out its run."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from forkless.cli import unanswered_signals
from forkless.core import versions
from forkless.core.errors import UnsupportedError
from forkless.patching import seams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from forkless.cli.command_view import CommandView
    from forkless.runs.run import Run

__all__ = ["signals_for"]


def _always() -> tuple[signal.Signals, ...]:
    """The signals that the installed ansible-core sets handlers for, whether or not they were ignored before: since 2.19 its TaskQueueManager does."""
    try:
        minor = versions.nearest(seams.version())
    except UnsupportedError:  # the run will be refused with this error
        return ()
    return (signal.SIGINT, signal.SIGTERM) if minor in versions.since("2.19") else ()


@contextlib.contextmanager
def signals_for(run: Run, view: CommandView, *, stay: bool = False) -> Iterator[None]:
    """
    With `stay`, Ctrl-C ends what is under way, and not the command. Otherwise the first Ctrl-C ends the run: no new task starts, and running tasks are stopped. The second one ends the process at once.
    SIGTERM, SIGHUP and SIGQUIT end the process as usual, and its child processes with it: these have sessions of their own,
    so the terminal does not signal them.

    A signal that was ignored when the process started (nohup, a background job of a shell) stays ignored, except SIGCHLD, and unless
    ansible-core sets a handler for it all the same. Main thread only.
    """

    def on_interrupt(_number: int, _frame: FrameType | None) -> None:
        if stay:
            raise KeyboardInterrupt
        if not run.stopping:
            view.stopping()
        run.cancel()
        raise KeyboardInterrupt

    def end_children() -> None:
        run.cancel()
        view.wait_for_children()

    def on_terminate(number: int, _frame: FrameType | None) -> None:
        view.ended()
        answered()  # only now: closing the view may wait for a lock of the interrupted thread
        end_children()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    ending = dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT), on_terminate)
    wanted = {signal.SIGINT: on_interrupt} | ending
    always = _always()
    heeded = [number for number in wanted if number in always or signal.getsignal(number) is not signal.SIG_IGN]
    with unanswered_signals.answering(ending.keys() & set(heeded), end_children) as answered:
        before = {number: signal.signal(number, wanted[number]) for number in heeded}
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # The parent process ignores SIGCHLD, and this process inherited that: the exit status of each child would be lost.
            before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        before[signal.SIGUSR1] = signal.getsignal(signal.SIGUSR1)  # ansible-core sets it since 2.22
        try:
            yield
        finally:
            for caught, was in before.items():
                signal.signal(caught, was)
