# SPDX-License-Identifier: GPL-3.0-or-later
"""Key: which job. Record: what is remembered of it. Both are values; how they look as JSON is an interface."""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from forkless._errors import SpecError
from forkless.jobs._names import digest, segment

__all__ = ["CLAIMED", "FORGOTTEN", "SAVED", "Key", "Record", "moment", "now", "parse", "stamp"]

CLAIMED = "claimed"  # someone said that they will start it
SAVED = "saved"  # it was started, and this is its id
FORGOTTEN = "forgotten"  # there was one; the name is free again

_KNOWN_PREVIOUS = 10


def stamp(seconds: float) -> str:
    """Seconds since the epoch as text: UTC, to the second."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> float:
    """Seconds since the epoch, by this controller's clock."""
    return time.time()


def moment(text: str) -> float | None:
    """The other way round; None for what cannot be read (hand-written records have all kinds of times)."""
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=dt.UTC)
    return when.timestamp()


@dataclass(frozen=True)
class Key:
    """Which job: the host that runs it, its name, and the playbook's name if the same job name is used in several."""

    host: str
    job_name: str
    playbook_name: str = ""

    def __post_init__(self) -> None:
        _ = self.stem  # a name that cannot be kept is refused when the key is made

    @property
    def stem(self) -> str:
        """The path of the record in every store, without its suffix."""
        parts = [segment(self.host, "host")]
        if self.playbook_name:
            parts.append(segment(self.playbook_name, "playbook name"))
        return "/".join([*parts, segment(self.job_name, "job name")])

    @property
    def slots(self) -> str:
        """The folder on the target that holds this job's own async folders, below Ansible's async_dir."""
        return "forkless/" + digest(self.host, self.playbook_name, self.job_name)

    def __str__(self) -> str:
        of = f" of playbook '{self.playbook_name}'" if self.playbook_name else ""
        return f"job '{self.job_name}'{of} on {self.host}"


@dataclass(frozen=True)
class Record:
    """One revision of what is remembered of a job."""

    key: Key
    ansible_job_id: str = ""
    state: str = SAVED
    save_time: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    async_dir: str = ""  # absolute, on the target
    process: dict[str, Any] = field(
        default_factory=dict
    )  # boot id, session, groups and start times, as seen on the target
    claim: dict[str, Any] = field(default_factory=dict)  # token, owner, time, lease, fences
    previous: tuple[dict[str, Any], ...] = ()
    adopted: bool = False
    revision: int = 0
    # Tells our own write from another's when the answer of a server was lost on the way.
    write: str = field(default_factory=lambda: uuid.uuid4().hex)

    def body(self, revision: int) -> bytes:
        """The record as it is written, at this revision. The first five names are what hand-written roles use, too."""
        what = {
            "job_name": self.key.job_name,
            "host": self.key.host,
            "ansible_job_id": self.ansible_job_id,
            "save_time": self.save_time,
            "metadata": self.metadata,
            "playbook_name": self.key.playbook_name,
            "state": self.state,
            "async_dir": self.async_dir,
            "process": self.process,
            "claim": self.claim,
            "previous": list(self.previous),
            "adopted": self.adopted,
            "revision": revision,
            "write": self.write,
        }
        return (json.dumps(what, indent=2, ensure_ascii=False, default=str) + "\n").encode()

    def shown(self) -> dict[str, Any]:
        """The record for people and for JSON output: without what only the stores need."""
        what: dict[str, Any] = json.loads(self.body(self.revision))
        del what["write"]
        what["claim"] = {name: what["claim"][name] for name in ("owner", "time", "lease") if name in what["claim"]}
        return what

    def followed_by(self, **changes: Any) -> Record:
        """The next revision's content: this one with changes, under a new mark of its own."""
        return replace(self, write=uuid.uuid4().hex, **changes)

    def at(self, revision: int) -> Record:
        """The same record, once a store has it as this revision."""
        return replace(self, revision=revision)

    def with_this_among_previous(self) -> tuple[dict[str, Any], ...]:
        """So that a job whose record is written over can still be found by whoever looks for it."""
        if not self.ansible_job_id:
            return self.previous
        mine = {"ansible_job_id": self.ansible_job_id, "save_time": self.save_time, "async_dir": self.async_dir}
        return (mine, *self.previous)[:_KNOWN_PREVIOUS]

    def known_ids(self) -> list[str]:
        """Every job id that this name ever had, as far as it is remembered."""
        mine = [self.ansible_job_id] if self.ansible_job_id else []
        return mine + [str(old.get("ansible_job_id", "")) for old in self.previous]


def parse(body: bytes, key: Key | None = None, revision: int | None = None) -> Record:
    """
    A record from JSON, ours or one of a hand-written role's; ValueError with the reason if it is neither.

    `key` is what the place of the record says, for those that do not name their host or job themselves. The job id
    stays text, whatever it looks like: "123e4.5" is a number to YAML, and 1234567890.50 would lose its last digit.
    """
    what = json.loads(body)
    if not isinstance(what, dict):
        raise ValueError("it holds no object")  # noqa: TRY004 -- one kind of error for every way to be unreadable
    host = what.get("host") or (key.host if key else None)
    job_name = what.get("job_name") or (key.job_name if key else None)
    if not isinstance(host, str) or not isinstance(job_name, str):
        raise ValueError("it names no host and no job")  # noqa: TRY004
    jid = what.get("ansible_job_id") or ""
    if not isinstance(jid, str):
        jid = str(json.loads(body, parse_float=str, parse_int=str)["ansible_job_id"])
    try:
        named = Key(host, job_name, str(what.get("playbook_name") or (key.playbook_name if key else "")))
    except SpecError as error:
        raise ValueError(str(error)) from None
    number = revision if revision is not None else what.get("revision", 0)
    return Record(
        key=named,
        ansible_job_id=jid,
        state=what["state"] if what.get("state") in (CLAIMED, FORGOTTEN) else SAVED,
        save_time=str(what.get("save_time") or ""),
        metadata=_mapping(what.get("metadata")),
        async_dir=str(what.get("async_dir") or ""),
        process=_mapping(what.get("process")),
        claim=_mapping(what.get("claim")),
        previous=tuple(old for old in what.get("previous") or () if isinstance(old, dict)),
        adopted=bool(what.get("adopted")),
        revision=number if isinstance(number, int) else 0,
        write=str(what.get("write") or ""),
    )


def _mapping(thing: Any) -> dict[str, Any]:
    return thing if isinstance(thing, dict) else {}
