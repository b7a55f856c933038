# SPDX-License-Identifier: GPL-3.0-or-later
"""From what a child prints to events: what stands between ansible-runner's filter and the run."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forkless._events import Event

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Sink", "Text", "without_environment"]


class Text:
    """The filter's file: what it writes is what would have been printed."""

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


class Sink:
    """Puts the two halves of an event together: what the filter cut out of the output, and what the plugin wrote."""

    def __init__(self, folder: str, ident: str, deliver: Callable[[Event], None], begun: Callable[[], None]) -> None:
        self._folder = os.path.join(folder, "job_events")
        self._ident = ident
        self._deliver = deliver
        self._begun = begun
        self.recap = False

    def __call__(self, line: dict[str, Any]) -> None:
        if "uuid" not in line:  # the filter's way of saying that it is done
            return
        line = {**line, "runner_ident": self._ident}
        half = os.path.join(self._folder, f"{os.path.basename(line['uuid'])}-partial.json")
        with contextlib.suppress(OSError, ValueError):  # lines that are no events have no second half
            with open(half, encoding="utf-8") as file:
                line.update(json.load(file))
            os.unlink(half)
        line.setdefault("created", datetime.now(UTC).isoformat())
        without_environment(line.get("event_data"))
        if line["event"] == "playbook_on_vars_prompt":
            for secret in ("default", "salt"):  # of a password, most often
                line.get("event_data", {}).pop(secret, None)
        if line["event"].startswith(("playbook_on_", "runner_")):
            self._begun()
        self.recap = self.recap or line["event"] == "playbook_on_stats"
        self._deliver(Event.from_dict(line))


def without_environment(thing: Any) -> None:
    """Facts hold the environment of the target, which here is ours. The plugin drops it for `setup` by that name only."""
    if isinstance(thing, dict):
        facts = thing.get("ansible_facts")
        if isinstance(facts, dict):
            facts.pop("ansible_env", None)
            facts.pop("env", None)
        for value in (thing.get("res"), thing.get("results")):
            without_environment(value)
    elif isinstance(thing, list):
        for one in thing:
            without_environment(one)
