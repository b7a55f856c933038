# SPDX-License-Identifier: GPL-3.0-or-later
"""Event and Status: what happened in a run, in the format of ansible-runner's job events."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Event", "Status", "item_failed", "without_environment"]


class Status(enum.StrEnum):
    """The state of a run. The values are ansible-runner's."""

    UNSTARTED = "unstarted"
    STARTING = "starting"
    RUNNING = "running"
    SUCCESSFUL = "successful"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMEOUT = "timeout"
    ERROR = "error"

    @property
    def ended(self) -> bool:
        return self not in (Status.UNSTARTED, Status.STARTING, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run. `as_dict()` returns the JSON object that ansible-runner would have written."""

    event: str
    uuid: str
    counter: int
    stdout: str = ""
    start_line: int = 0
    end_line: int = 0
    created: str = ""
    runner_ident: str = ""
    parent_uuid: str = ""
    pid: int = 0
    event_data: Mapping[str, Any] = field(default_factory=dict)
    worker: int | None = field(default=None, compare=False, repr=False)
    """For `runner_on_start`, where it is known: the number of the worker that runs the task. Not part of ansible-runner's format."""

    @property
    def host(self) -> str | None:
        """The inventory name of the host that the event concerns; None if it concerns no host."""
        host = self.event_data.get("host")
        return None if host is None else str(host)

    @property
    def task(self) -> str | None:
        task = self.event_data.get("task")
        return None if task is None else str(task)

    def as_dict(self) -> dict[str, Any]:
        line: dict[str, Any] = {
            "uuid": self.uuid,
            "counter": self.counter,
            "stdout": self.stdout,
            "start_line": self.start_line,
            "end_line": self.end_line,
            "runner_ident": self.runner_ident,
            "event": self.event,
            "pid": self.pid,
            "created": self.created,
            "event_data": dict(self.event_data),
        }
        if self.parent_uuid:
            line["parent_uuid"] = self.parent_uuid
        return line

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Event:
        return cls(
            event=line["event"],
            uuid=line["uuid"],
            counter=int(line["counter"]),
            stdout=line.get("stdout", ""),
            start_line=int(line.get("start_line", 0)),
            end_line=int(line.get("end_line", 0)),
            created=line.get("created", ""),
            runner_ident=str(line.get("runner_ident", "")),
            parent_uuid=line.get("parent_uuid", ""),
            pid=int(line.get("pid", 0) or 0),
            event_data=line.get("event_data", {}),
        )


def item_failed(result: Mapping[str, object]) -> bool:
    """
    Whether an item of a loop failed, or its host could not be reached, by its result in an event.

    Since ansible-core 2.21 the results that callback plugins are given do not say `failed`, and always have the exception.
    """
    return bool(result.get("failed") or result.get("unreachable") or "exception" in result)


def without_environment(thing: Any) -> None:
    """
    Remove the environment from gathered facts, in place: a local target's environment is the program's, secrets included.

    ansible-runner's callback plugin removes the same names for `setup` and `gather_facts`.
    """
    if isinstance(thing, dict):
        facts = thing.get("ansible_facts")
        if isinstance(facts, dict):
            for name in ("ansible_env", "env"):
                if isinstance(facts.get(name), dict):  # a play may set a fact named env that is not an environment
                    del facts[name]
        for value in (thing.get("res"), thing.get("results")):
            without_environment(value)
    elif isinstance(thing, list):
        for one in thing:
            without_environment(one)
