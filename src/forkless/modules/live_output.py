# SPDX-License-Identifier: GPL-3.0-or-later
"""
Output of a task while it runs, on the controller's side: lines from a host become `TaskOutput` for the run's listener.

Without a listener no host is asked for output, so a run without one costs nothing. `no_log` tasks and items give
none. FORKLESS_DISABLE=live-output switches it off.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkless.core import switches
from forkless.core.run_context import SCOPE
from forkless.modules.ansible_types import environ_of
from forkless.modules.warm.remote.live_output import CUT, Masker, OutputLines, secret_forms

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.modules.ansible_types import AnsibleAction, TaskFields

__all__ = ["LiveOutput", "OutputMasker", "TaskOutput", "TimedOutput", "at_end_of_task", "live_output_of", "run_secrets"]


_REDACTED = b"$REDACTED$"  # as ansible-core masks since 2.22


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """Some whole lines that a task printed."""

    task: TaskFields
    item: object
    """The item of a loop; None outside of one, and if the loop has a label, which may be there to hide the item."""
    stream: str
    """stdout or stderr, of the program that the task runs."""
    text: str
    line: int
    """The number of the first line, counting from 1 for each module, stream and item, dropped lines included."""
    dropped: int
    """How many lines before this one were dropped because the task prints faster than they are sent."""


def _listener() -> Callable[[TaskOutput], None] | None:
    """Is called with what the worker's task prints, on any thread, and does not block. None: the run has no listener."""
    task_output = getattr(SCOPE.get(), "task_output", None)  # only the worker of a run has one
    found: Callable[[TaskOutput], None] | None = None if task_output is None else task_output()
    return found


class LiveOutput:
    """The output of one module or command. One thread at a time calls `tell`."""

    def __init__(self, action: AnsibleAction, listener: Callable[[TaskOutput], None]) -> None:
        self._task, self._item, self._listener = action._task, _item(action), listener
        self._lines = {"stdout": 1, "stderr": 1}

    def tell(self, stream: str, text: bytes, dropped: int) -> None:
        line = self._lines[stream] + dropped
        # Whole lines were cut at newlines, so no character is divided; other bytes are shown as U+FFFD. A terminal's lines end in \r\n.
        shown = text.decode("utf-8", "replace").replace("\r\n", "\n").removesuffix("\r")
        self._lines[stream] = line + text.count(b"\n") + 1
        self._listener(TaskOutput(self._task, self._item, stream, shown, line, dropped))


class TimedOutput:
    """
    Output of a program that this process reads: masked by `tap`, put together and bounded here, told within `EVERY` seconds.

    The thread that reads calls `write` and `end`; a timer tells lines that no later output pushes out.
    """

    def __init__(self, live: LiveOutput) -> None:
        self._live = live
        self._lines = OutputLines()
        self._lock = threading.Lock()  # guards _lines and _timer; `tell` does not block
        self._timer: threading.Timer | None = None
        self._timer_at = 0.0

    def write(self, stream: bytes, data: bytes) -> None:
        with self._lock:
            self._lines.feed(stream, data)
            self._tell_due()

    def end(self, stream: bytes) -> None:
        with self._lock:
            self._lines.end(stream)
            self._tell()

    def _tell_due(self) -> None:
        due = self._lines.due
        if due is None:
            return
        left = due - time.monotonic()
        if left <= 0:
            self._tell()
        elif self._timer is None or due < self._timer_at:  # a line is told earlier than a bar that was waited for
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = threading.Timer(left, self._on_time), due
            self._timer.daemon = True
            self._timer.name = "forkless-output-timer"
            with contextlib.suppress(RuntimeError):  # the thread limit is reached: the next output tells it
                self._timer.start()

    def _on_time(self) -> None:
        with self._lock:
            self._tell()

    def _tell(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for stream, dropped, text in self._lines.take(time.monotonic()):
            self._live.tell("stderr" if stream == b"e" else "stdout", text, dropped)
        self._tell_due()  # a bar may wait whose time has not come


def live_output_of(action: AnsibleAction) -> LiveOutput | None:
    """Where the output of this action goes while it runs; None if the run has no listener, or if the output is secret."""
    listener = _listener()
    if (
        listener is None
        or action._task.no_log
        or switches.disabled("live-output", environ_of("ansible.plugins.action"))
    ):
        return None
    return LiveOutput(action, listener)


def at_end_of_task(call: Callable[[], None]) -> None:
    """`call` is called when the worker's task is over, on the worker's thread."""
    at_end: list[Callable[[], None]] | None = getattr(SCOPE.get(), "at_end", None)  # only the worker of a run has one
    if at_end is not None:
        at_end.append(call)


def run_secrets() -> list[object]:
    """What ansible-core masks in all output of the calling thread's run; nothing before 2.22, which has no masker."""
    masker = getattr(sys.modules.get("ansible.module_utils._internal._secrets"), "_secret_masker", None)
    return list(getattr(masker, "_secrets", ()))


class OutputMasker:
    """Masks what tasks print while they run. Called by one thread at a time, which works for the run whose secrets are masked."""

    def __init__(self) -> None:
        self._known = -1
        self._forms: list[bytes] = []

    def masked(self, text: str) -> str:
        secrets = run_secrets()
        if len(secrets) != self._known:  # a run forgets none
            self._known, self._forms = len(secrets), secret_forms(secrets)
        if not self._forms:
            return text
        lines = text.encode("utf-8", "surrogateescape").split(b"\n")
        for at, line in enumerate(lines):
            if line.endswith(CUT):
                lines[at] = Masker(self._forms, _REDACTED).feed_cut(line[: -len(CUT)]) + CUT
        whole = Masker(self._forms, _REDACTED).feed(b"\n".join(lines), end=True)
        return whole.decode("utf-8", "surrogateescape")


def _item(action: AnsibleAction) -> object:
    task = action._task
    if not (task.loop or task.loop_with) or getattr(task.loop_control, "label", None):
        return None
    variables = action._templar.available_variables
    return variables.get(str(variables.get("ansible_loop_var", "item")))
