# SPDX-License-Identifier: GPL-3.0-or-later
"""
Which plays are claiming a job's name on which hosts, so that two plays never wait for each other.

A play claims a name on each of its hosts, and starts no job before all of its hosts are done with that task. If one play
held the claim for web1 and waited for web2, and another held web2 and waited for web1, neither would start anything
until a lease ends, and both would fail. So a play writes down each host before it claims the name there, in one record
for the name, and it may not do so while another play has written down one of its hosts, and has not started that job.

The record's state is `forgotten`: no list shows it, `purge` removes it after a day, and versions of forkless that do not
know of it take no notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from forkless.jobs import owner
from forkless.jobs.record import FORGOTTEN, SAVED, Key, Record, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "HOST",
    "IsOver",
    "Play",
    "claimed_by_others",
    "is_of_earlier_play",
    "is_started_since",
    "record_key",
    "with_host",
    "without_host",
]

HOST = "forkless:claims"  # no host of an inventory has a colon in its name
# Whether a play's entry counts no longer: its controller has ended, or its lease has.
IsOver: TypeAlias = "Callable[[Mapping[str, object]], bool]"


@dataclass(frozen=True)
class Play:
    """
    A play that claims: its id, unique in this process, the hosts on which it may claim the same name, and the run that it
    is part of, as `forkless.jobs.current_run` names it. Without a run nothing is known about other plays of this process.
    """

    id: str
    hosts: frozenset[str]
    run: str = ""


def record_key(key: Key) -> Key:
    """The key of the record that has the plays; one for each name of a job."""
    return Key(HOST, key.job_name, key.playbook_name)


def claimed_by_others(
    record: Record | None, play: Play, is_over: IsOver
) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """
    The hosts of this play on which another play that has not ended is claiming the name: the host, which write of its
    job's record that play saw before it claimed (or ""), and the entry of that play.
    """
    for entry in _entries(record, is_over):
        if not _is_of(entry, play) and not is_of_earlier_play(entry, play):
            for host, seen in _hosts(entry).items():
                if host in play.hosts:
                    yield host, seen, entry


def is_started_since(job: Record | None, seen: str) -> bool:
    """Whether the job of which a play had seen this write before its claim has been started, by any controller, or is over and forgotten."""
    return job is not None and job.state in (SAVED, FORGOTTEN) and job.write != seen


def with_host(
    record: Record | None, key: Key, play: Play, seen: str, *, lease: float, now: float, is_over: IsOver
) -> Record | None:
    """
    The record to append before the play claims `key`; None if `record` already says it. Plays that have ended are left
    out.
    """
    entries = list(_entries(record, is_over))
    mine = next((entry for entry in entries if _is_of(entry, play)), None)
    if mine is not None and _hosts(mine).get(key.host) == seen:
        return None
    others = [entry for entry in entries if entry is not mine and not is_of_earlier_play(entry, play)]
    hosts = {**(_hosts(mine) if mine else {}), key.host: seen}
    time = stamp(now)
    entry = {"play": play.id, "run": play.run, "owner": owner.me(), "time": time, "lease": lease, "hosts": hosts}
    return Record(key=record_key(key), state=FORGOTTEN, save_time=time, claim={"plays": [*others, entry]})


def is_of_earlier_play(claim: Mapping[str, object], play: Play) -> bool:
    """
    Whether a claim, or the entry of a play, was made by another play of the same run. A run carries out one play at a
    time, so that play is over, and starts nothing any more.
    """
    return (
        bool(play.run)
        and claim.get("run") == play.run
        and claim.get("play") != play.id
        and claim.get("owner") == owner.me()
    )


def without_host(record: Record, key: Key, play_id: str) -> Record:
    """The record to append when the play has given back its claim on `key`: it keeps nobody waiting for that host."""
    entries = []
    for entry in _entries(record, lambda _: False):
        mine = entry.get("play") == play_id and entry.get("owner") == owner.me()
        hosts = {host: seen for host, seen in _hosts(entry).items() if not (mine and host == key.host)}
        entries.append({**entry, "hosts": hosts})
    return record.followed_by(claim={"plays": [entry for entry in entries if entry["hosts"]]})


def _entries(record: Record | None, is_over: IsOver) -> Iterator[Mapping[str, object]]:
    plays = record.claim.get("plays") if record else None
    for entry in plays if isinstance(plays, list) else []:
        if isinstance(entry, dict) and not is_over(entry):
            yield entry


def _hosts(entry: Mapping[str, object]) -> dict[str, str]:
    hosts = entry.get("hosts")
    return {str(host): str(seen) for host, seen in hosts.items()} if isinstance(hosts, dict) else {}


def _is_of(entry: Mapping[str, object], play: Play) -> bool:
    return entry.get("play") == play.id and entry.get("owner") == owner.me()
