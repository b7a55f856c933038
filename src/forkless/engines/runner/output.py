# SPDX-License-Identifier: GPL-3.0-or-later
"""Turns the output of a child process into text and events, behind ansible-runner's OutputEventFilter."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forkless.core.events import Event, without_environment
from forkless.engines.runner.secrets import above_standard_streams

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EventSink", "LivePipe", "OutputText"]


class OutputText:
    """The file object that the filter writes to: it receives the text that the command would have printed."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self.last = ""

    def write(self, text: str) -> None:
        self.last = (self.last + text)[-4096:]
        self._write(text)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class EventSink:
    """Joins the two halves of an event: the filter's, taken from the output, and the one that the callback plugin wrote to a file."""

    def __init__(self, folder: str, ident: str, deliver: Callable[[Event], None], begun: Callable[[], None]) -> None:
        self._folder = os.path.join(folder, "job_events")
        self._ident = ident
        self._deliver = deliver
        self._begun = begun
        self._counter = 0
        self._line = 0
        self._playbook = ""
        self.recap = False

    def __call__(self, line: dict[str, Any]) -> None:
        if "uuid" not in line:  # the filter's end marker
            return
        line = {**line, "runner_ident": self._ident}
        half = os.path.join(self._folder, f"{os.path.basename(line['uuid'])}-partial.json")
        with contextlib.suppress(OSError, ValueError):  # plain output lines have no file of the plugin
            with open(half, encoding="utf-8") as file:
                line.update(json.load(file))
            os.unlink(half)
        line.setdefault("created", datetime.now(UTC).isoformat())
        without_environment(line.get("event_data"))
        if line["event"] == "playbook_on_vars_prompt":
            for secret in ("default", "salt"):  # vars_prompt usually asks for a password
                line.get("event_data", {}).pop(secret, None)
        if line["event"].startswith(("playbook_on_", "runner_")):
            self._begun()
        self.recap = self.recap or line["event"] == "playbook_on_stats"
        self._line = line.get("end_line", self._line)
        if line["event"] == "playbook_on_start":
            self._playbook = line.get("event_data", {}).get("playbook_uuid", "")
        self._number(line)

    def output(self, text: bytes) -> None:
        """An event about what a task prints while it runs, as the child wrote it: a line of JSON."""
        line = json.loads(text)
        line |= {"runner_ident": self._ident, "start_line": self._line, "end_line": self._line}
        line["event_data"]["playbook_uuid"] = self._playbook
        self._number(line)

    def _number(self, line: dict[str, object]) -> None:
        """The filter counts only its own events."""
        self._counter += 1
        self._deliver(Event.from_dict({**line, "counter": self._counter}))


class LivePipe:
    """The pipe by which a child tells what tasks print while they run, a line for each event. Used by the run's thread only."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self.ours, theirs = os.pipe()
        self.theirs = above_standard_streams(theirs)
        os.set_blocking(self.ours, False)
        self._rest = b""

    def deliver(self) -> bool:
        """Deliver all that the child has written so far; False once it can write no more."""
        while True:
            try:
                chunk = os.read(self.ours, 1 << 16)
            except BlockingIOError:
                return True
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._take(line)
            if not chunk:
                return False

    def close(self) -> None:
        os.close(self.ours)
