# SPDX-License-Identifier: GPL-3.0-or-later
"""Outcome and Result: how a run ended. Both engines return the same types."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forkless.core.errors import RunCancelled, RunFailed, RunTimeout
from forkless.core.events import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forkless.core.events import Event

__all__ = ["Outcome", "Result", "complaint"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an engine returns: the final status, the exit code, and an explanation or ""."""

    status: Status
    rc: int
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended, its events and its output."""

    status: Status
    rc: int
    sentence: str = ""
    events: Sequence[Event] = field(default=(), repr=False)
    text: object = field(default="", repr=False)
    """The printed output: a string, or an object whose `__str__` reads it from the spool."""
    ident: str = ""

    @property
    def stdout(self) -> str:
        """The text that the command would have printed."""
        return str(self.text)

    @property
    def ok(self) -> bool:
        return self.status is Status.SUCCESSFUL

    @property
    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """The recap as ansible-runner has it: `{"ok": {"web1": 3}, "failures": {}, ...}`; empty if the run ended before its recap."""
        for event in reversed(self.events):
            if event.event == "playbook_on_stats":
                keys = ("ok", "changed", "dark", "failures", "ignored", "processed", "rescued", "skipped")
                return {key: event.event_data.get(key, {}) for key in keys}
        return {}

    @property
    def hosts(self) -> Mapping[str, Mapping[str, int]]:
        """The recap by host: `{"web1": {"ok": 3, "changed": 1, ...}}`."""
        stats = self.stats
        names = {name for counts in stats.values() for name in counts}
        return {
            name: {key: counts.get(name, 0) for key, counts in stats.items() if key != "processed"}
            for name in sorted(names)
        }

    def raise_for_failures(self) -> Result:
        """Return self if the run succeeded; otherwise raise `RunFailed`, `RunCancelled` or `RunTimeout`."""
        if self.ok:
            return self
        if self.status is Status.CANCELED:
            raise RunCancelled(self.sentence or "the run was cancelled", self)
        if self.status is Status.TIMEOUT:
            raise RunTimeout(self.sentence or "the run exceeded its time limit", self)
        bad = [name for name, counts in self.hosts.items() if counts["failures"] or counts["dark"]]
        who = f" on {', '.join(bad)}" if bad else ""
        raise RunFailed(self.sentence or f"the run failed{who} (exit code {self.rc})", self)


_END_OF_TRACEBACK = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt): ")


def complaint(last: str) -> str:
    """Ansible's last error message in the output, for a run that ended before its recap; "" if there is none."""
    lines = [line.strip() for line in last.splitlines() if line.strip()]
    for line in reversed(lines):
        for sign in ("ERROR! ", "[ERROR]: "):
            if sign in line:
                return line.partition(sign)[2]
    # A long traceback has pushed the error out of what is kept; its last line has the reason.
    return lines[-1] if lines and _END_OF_TRACEBACK.match(lines[-1]) else ""
