# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run came to: one type, whichever engine carried it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forkless._errors import RunCancelled, RunFailed, RunTimeout
from forkless._events import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forkless._events import Event

__all__ = ["Outcome", "Result", "complaint"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an engine answers when it is done: how it ended, the exit code, and a sentence when there is something to say."""

    status: Status
    rc: int
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended, and what was seen of it."""

    status: Status
    rc: int
    sentence: str = ""
    events: Sequence[Event] = field(default=(), repr=False)
    text: object = field(default="", repr=False)
    """What was printed: a string, or something that reads it from where it lies when `str()` asks for it."""
    ident: str = ""

    @property
    def stdout(self) -> str:
        """What the command would have printed."""
        return str(self.text)

    @property
    def ok(self) -> bool:
        return self.status is Status.SUCCESSFUL

    @property
    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """The recap, as in ansible-runner: `{"ok": {"web1": 3}, "failures": {}, ...}`; empty if it never came to one."""
        for event in reversed(self.events):
            if event.event == "playbook_on_stats":
                keys = ("ok", "changed", "dark", "failures", "ignored", "processed", "rescued", "skipped")
                return {key: event.event_data.get(key, {}) for key in keys}
        return {}

    @property
    def hosts(self) -> Mapping[str, Mapping[str, int]]:
        """The same, host by host: `{"web1": {"ok": 3, "changed": 1, ...}}`."""
        stats = self.stats
        names = {name for counts in stats.values() for name in counts}
        return {
            name: {key: counts.get(name, 0) for key, counts in stats.items() if key != "processed"}
            for name in sorted(names)
        }

    def raise_for_failures(self) -> Result:
        """Raise `RunFailed`, `RunCancelled` or `RunTimeout` unless all went well; return self if it did."""
        if self.ok:
            return self
        if self.status is Status.CANCELED:
            raise RunCancelled(self.sentence or "the run was cancelled", self)
        if self.status is Status.TIMEOUT:
            raise RunTimeout(self.sentence or "the run passed its time limit", self)
        bad = [name for name, counts in self.hosts.items() if counts["failures"] or counts["dark"]]
        who = f" on {', '.join(bad)}" if bad else ""
        raise RunFailed(self.sentence or f"the run failed{who} (exit code {self.rc})", self)


def complaint(last: str) -> str:
    """What Ansible said before it gave up, if it never came to a recap."""
    for line in reversed(last.splitlines()):
        for sign in ("ERROR! ", "[ERROR]: "):
            if sign in line:
                return line.partition(sign)[2].strip()
    return ""
