# SPDX-License-Identifier: GPL-3.0-or-later
"""`Key` identifies a job, and `Record` is what a store keeps about it. Both are values; their JSON is a public format."""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from forkless.core.errors import SpecError
from forkless.jobs.names import digest, segment

__all__ = [
    "CLAIMED",
    "FORGOTTEN",
    "SAVED",
    "Key",
    "NewerFormatError",
    "Record",
    "decode",
    "moment",
    "now",
    "parse",
    "stamp",
]

CLAIMED = "claimed"  # a controller is about to start the job
SAVED = "saved"  # the job was started, and its id is in the record
FORGOTTEN = "forgotten"  # the record of the job was removed; the name is free again

# The version of the format. Records without a number come from hand-written roles or from versions before the number was
# introduced; both are read. A record with a higher number is refused, because writing it back would lose its new fields.
FORMAT = 1
_KNOWN_PREVIOUS = 10
# The deepest nesting that is accepted: json, copy and Ansible's templating are recursive and would fail on deeper values.
_DEEPEST = 100


class NewerFormatError(ValueError):
    """A record that a newer version of forkless has written."""


def stamp(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 text in UTC, without fractions."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> float:
    """Seconds since the epoch, by this controller's clock."""
    return time.time()


def moment(text: str) -> float | None:
    """The inverse of `stamp`; None if the text is not ISO 8601 (hand-written records contain other formats)."""
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=dt.UTC)
    return when.timestamp()


@dataclass(frozen=True)
class Key:
    """
    Identifies a job: the host that runs it, its name, and the playbook's name if several playbooks use the same job
    name. SpecError if a name cannot be kept.
    """

    host: str
    job_name: str
    playbook_name: str = ""

    def __post_init__(self) -> None:
        _ = self.stem  # raises for a name that cannot be kept

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
    """One revision of the record of a job."""

    key: Key
    ansible_job_id: str = ""
    state: str = SAVED
    save_time: str = ""
    metadata: dict[str, object] = field(default_factory=dict)
    async_dir: str = ""  # absolute, on the target
    process: dict[str, object] = field(
        default_factory=dict
    )  # boot id, session, groups and start times, as seen on the target
    claim: dict[str, Any] = field(default_factory=dict)  # token, owner, time, lease, fences, attempts
    previous: tuple[dict[str, Any], ...] = ()
    adopted: bool = False
    revision: int = 0
    # Unique for each write: shows whether this process wrote the revision if the server's response was lost.
    write: str = field(default_factory=lambda: uuid.uuid4().hex)

    def body(self, revision: int) -> bytes:
        """
        The record as JSON, at this revision. Hand-written roles use the five fields after `format` as well.

        ValueError if no reader would accept it: metadata that is nested too deeply, a number that JSON lacks (NaN), or text that is not
        Unicode.
        """
        what = {
            "format": FORMAT,
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
        try:
            body = (json.dumps(what, indent=2, ensure_ascii=False, default=str, allow_nan=False) + "\n").encode()
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        except UnicodeEncodeError:
            raise ValueError(_NOT_UNICODE) from None
        decode(body)
        return body

    def shown(self) -> dict[str, object]:
        """The record for display and for JSON output, without the fields that only stores need."""
        what: dict[str, Any] = json.loads(self.body(self.revision))
        del what["write"], what["format"]
        what["attempts"] = self.attempts
        what["claim"] = {name: what["claim"][name] for name in ("owner", "time", "lease") if name in what["claim"]}
        return what

    def followed_by(self, **changes: Any) -> Record:
        """The content of the next revision: this record with changes, and a new `write`."""
        return replace(self, write=uuid.uuid4().hex, **changes)

    def at(self, revision: int) -> Record:
        """The same record, after a store has written it as this revision."""
        return replace(self, revision=revision)

    @property
    def attempts(self) -> list[dict[str, object]]:
        """How earlier attempts ended that this job is a retry of, the oldest first."""
        known = self.claim.get("attempts")
        found = [one for one in known if isinstance(one, dict)] if isinstance(known, list) else []
        # A claim that was given back, as the job was not over after all, has named it already.
        return [one for one in found if one.get("ansible_job_id") != self.ansible_job_id]

    def with_this_among_previous(self) -> tuple[dict[str, object], ...]:
        """`previous` for the record that replaces this one, so that this job's id stays known."""
        if not self.ansible_job_id:
            return self.previous
        mine = {"ansible_job_id": self.ansible_job_id, "save_time": self.save_time, "async_dir": self.async_dir}
        return (mine, *self.previous)[:_KNOWN_PREVIOUS]

    def known_ids(self) -> list[str]:
        """The job ids that this name has had, as far as they are recorded."""
        mine = [self.ansible_job_id] if self.ansible_job_id else []
        return mine + [str(old.get("ansible_job_id", "")) for old in self.previous]


_TOO_DEEP = f"it is nested more than {_DEEPEST} levels deep"
_NOT_UNICODE = "a text in it is not valid Unicode"


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object in these bytes; ValueError with the reason if they contain anything else."""
    try:
        what = json.loads(body)
        if not isinstance(what, dict):
            raise ValueError("it holds no object")  # noqa: TRY004 -- ValueError is the only error of this function
        level: list[Any] = [what]
        for _ in range(_DEEPEST):
            if not level:
                break
            level = [
                inner
                for outer in level
                for inner in (outer.values() if isinstance(outer, dict) else outer)
                if isinstance(inner, dict | list)
            ]
        if level:
            raise ValueError(_TOO_DEEP)
        json.dumps(what, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except UnicodeEncodeError:  # an escaped lone surrogate: neither a terminal nor a store accepts it
        raise ValueError(_NOT_UNICODE) from None
    return what


def parse(body: bytes, key: Key | None = None, revision: int | None = None) -> Record:
    """
    Reads a record of forkless or of a hand-written role from JSON; ValueError with the reason if it is neither.

    `key` comes from the path of the record, for records that do not name their host or job. The job id is always text:
    YAML would read "123e4.5" as a number, and 1234567890.50 would lose its last digit.
    """
    what = decode(body)
    written = what.get("format", 0)
    if isinstance(written, int) and written > FORMAT:
        raise NewerFormatError(f"format {written}, and this version reads up to {FORMAT}")
    host = what.get("host") or (key.host if key else None)
    job_name = what.get("job_name") or (key.job_name if key else None)
    if not isinstance(host, str) or not isinstance(job_name, str):
        raise ValueError("it names no host and no job")  # noqa: TRY004 -- as above
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


def _mapping(thing: object) -> dict[str, object]:
    return thing if isinstance(thing, dict) else {}
