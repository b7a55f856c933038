# SPDX-License-Identifier: GPL-3.0-or-later
"""
The book of jobs: find, save, claim, adopt, list, forget. The same rules on every store.

What makes "never two, never lost" true is two things together. In the store, a claim is a revision that exactly one
controller can write. On the target, each claim has an async folder of its own (its slot); who takes over a claim first
turns the old slot into a plain file (a fence), unless a job has been started in it already, which is then adopted.
Ansible's own wrapper cannot start a job where a fence stands. So a lease that ends too early, or a clock that jumps,
costs a failed start at worst.
"""

from __future__ import annotations

import os
import posixpath
import secrets
import time
from typing import TYPE_CHECKING, Any

from forkless._errors import (
    ConflictError,
    JobChangedError,
    JobError,
    JobLostError,
    SpecError,
    StoreError,
    UnsupportedError,
)
from forkless.jobs import _owner
from forkless.jobs._names import segment
from forkless.jobs._record import CLAIMED, FORGOTTEN, SAVED, Key, Record, moment, parse, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forkless.jobs._store import Head, JobStore

__all__ = ["LEASE", "JobBook"]

LEASE = 120.0
# How often a writer that loses a race to someone unrelated (a save against a tidy-up) tries again.
_TRIES = 20
_LOOK_AGAIN = 0.25


class JobBook:
    """What is remembered, in one store. Holds no state of its own: every question is asked of the store."""

    def __init__(
        self,
        store: JobStore,
        *,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self._clock = clock
        self._pause = pause
        self._steady = steady

    # -- reading

    def newest(self, key: Key) -> Record | None:
        """The newest revision of exactly this key, whatever its state."""
        return self._read(key.stem, key)

    def find(self, key: Key) -> Record | None:
        """
        The record of a started job; None if there is none, or if it is only claimed.

        Both layouts are read: with a playbook's name, one that was saved without is found too, and the other way round
        if only one playbook has a job of that name.
        """
        for stem in _stems(key):
            if found := self._started(stem, key):
                return found
        if key.playbook_name:
            return self._started(Key(key.host, key.job_name).stem, key)
        nested = [
            found
            for stem in self.store.stems(segment(key.host, "host"))
            if stem.count("/") == 2 and stem.rpartition("/")[2] == segment(key.job_name, "job name")
            if (found := self._started(stem, None))
        ]
        if len(nested) > 1:
            names = ", ".join(sorted(record.key.playbook_name for record in nested))
            raise JobError(f"{key} is kept for several playbooks ({names}); say which one by its playbook name.")
        return nested[0] if nested else None

    def known(self, key: Key) -> Record:
        """The record of a started job that must be there; JobLostError if it is not."""
        found = self.find(key)
        if found is None:
            raise JobLostError(f"there is no record of {key} in {self.store.url}.")
        return found

    def _started(self, stem: str, key: Key | None) -> Record | None:
        record = self._read(stem, key)
        return record if record is not None and record.state == SAVED and record.ansible_job_id else None

    def jobs(
        self,
        host: str = "",
        *,
        job_name: str = "",
        playbook_name: str = "",
        problems: list[str] | None = None,
    ) -> list[Record]:
        """
        Every job that is claimed or saved, in the order of hosts and names.

        A record that cannot be understood is an error, unless `problems` is given to take the sentence about it: one
        damaged file must not hide all the others.
        """
        found = []
        for stem in self.store.stems(segment(host, "host") if host else ""):
            head = self.store.head(stem)
            try:
                record = self._parsed(stem, head, None)
            except StoreError as error:
                if problems is None:
                    raise
                problems.append(str(error))
                continue
            if record is None or record.state == FORGOTTEN:
                continue
            if job_name in ("", record.key.job_name) and playbook_name in ("", record.key.playbook_name):
                found.append(record)
        return found

    def _read(self, stem: str, key: Key | None) -> Record | None:
        return self._parsed(stem, self.store.head(stem), key)

    def _parsed(self, stem: str, head: Head | None, key: Key | None) -> Record | None:
        if head is None:
            return None
        if key is not None and key.stem != stem:
            key = Key(key.host, key.job_name)
        try:
            if head.body is None:
                # Removed by hand. Its job ids stay known, so that the job is not taken for one that got lost.
                return parse(head.last or b"", key, head.revision).followed_by(state=FORGOTTEN)
            record = parse(head.body, key or _key_of(stem), head.revision)
        except ValueError as error:
            raise StoreError(
                f"the job record {self.store.place(stem)} cannot be understood: {error}. It is left as it is, and nothing "
                "is started or saved under that name. Repair it; or, when you are sure that its job is over, move it away."
            ) from None
        if key is not None and (record.key.host, record.key.job_name) != (key.host, key.job_name):
            raise StoreError(
                f"the job record {self.store.place(stem)} is about {record.key}, not about {key}: names that differ only "
                "in capitals share a file here. Give one of the jobs another name."
            )
        return record

    # -- writing

    def save(
        self,
        key: Key,
        ansible_job_id: str,
        *,
        metadata: dict[str, Any] | None = None,
        async_dir: str = "",
        slot: str = "",
        process: dict[str, Any] | None = None,
    ) -> Record:
        """
        Remember a job that was started. Saving it again changes nothing but its metadata.

        `slot` is the async folder that load gave out. If someone else has taken over its claim meanwhile, this is a
        ConflictError, and the record stays that of the winner.
        """
        if not ansible_job_id:
            raise SpecError(f"{key} has no job id to save; it was not started, or not with `poll: 0`.")
        slot = slot if key.slots in slot else ""
        for _ in range(_TRIES):
            old = self.newest(key)
            self._refuse_if_lost(key, ansible_job_id, old, slot)
            new = Record(
                key=key,
                ansible_job_id=str(ansible_job_id),
                save_time=stamp(self._clock()),
                metadata=metadata or {},
                async_dir=async_dir or slot,
                process=process or {},
                claim={**old.claim, "fences": []} if old and old.claim else {},
                previous=old.with_this_among_previous() if old and old.ansible_job_id != ansible_job_id else (),
            )
            if old and old.ansible_job_id == ansible_job_id and old.state == SAVED:
                new = old.followed_by(
                    metadata=metadata or old.metadata,
                    async_dir=new.async_dir or old.async_dir,
                    process=new.process or old.process,
                )
            try:
                return self._append(new, old)
            except ConflictError:
                continue
        raise ConflictError(
            f"{key} is being written by others all the time; job id {ansible_job_id} could not be saved."
        )

    def _refuse_if_lost(self, key: Key, jid: str, old: Record | None, slot: str) -> None:
        if old is None or old.state == FORGOTTEN or old.ansible_job_id == jid:
            return
        token = old.claim.get("token", "")
        claimed = "/c-" in slot
        if claimed and slot.endswith(f"/c-{token}"):
            return
        if not claimed and (old.state == SAVED or self._mine(old) or self.is_over(old)):
            return  # who does not claim writes over what is there, as hand-written roles do
        if claimed and old.state == SAVED and not token:
            return
        who = _owner.words(old.claim.get("owner", {}))
        raise ConflictError(
            f"{key} was taken over by another controller ({who}, at {old.claim.get('time', 'an unknown time')}) before job "
            f"id {jid} could be saved. Nothing was saved, and the other's record stands. If {jid} was started after all, "
            "end it on the host."
        )

    def claim(self, key: Key, *, lease: float = LEASE, wait: float | None = None) -> Record:
        """
        Say that this controller will start the job: of all who ask, one gets a record in state `claimed`, with its
        token and the fences that it must raise on the target before it starts anything. All others get the record of
        the started job, after waiting for it if need be.

        A claim whose owner is gone is taken over at once if that can be known from here, else when its lease has ended.
        ConflictError if the owner lives and has not started the job after `wait` seconds (the lease and a little more).
        """
        if not self.store.claims:
            raise UnsupportedError(self.store.no_claims)
        deadline = self._steady() + (wait if wait is not None else lease + 30)
        seen, since = "", 0.0
        while True:
            found = self.find(key)
            if found is not None:
                return found
            old = self.newest(key)
            if old is not None and old.state == CLAIMED:
                if old.write != seen:
                    seen, since = old.write, self._steady()
                # By its own time and by ours since we first saw it, whichever is over first: a clock that jumps can
                # neither keep a dead claim for ever, nor make us wait longer than the lease.
                waited = self._steady() - since
                if not self._is_over(old, waited):
                    if self._steady() > deadline:
                        raise ConflictError(self._busy(key, old))
                    self._pause(_LOOK_AGAIN)
                    continue
            try:
                return self._append(self._claim_after(key, old, lease), old)
            except ConflictError:
                continue  # another one was first; what did it write?

    def _claim_after(self, key: Key, old: Record | None, lease: float) -> Record:
        fences = list(old.claim.get("fences", [])) if old else []
        if old and old.state == CLAIMED:
            fences.append(old.claim.get("token", ""))
        return Record(
            key=key,
            state=CLAIMED,
            save_time=stamp(self._clock()),
            claim={
                "token": secrets.token_hex(8),
                "owner": _owner.me(),
                "time": stamp(self._clock()),
                "lease": lease,
                "fences": fences,
            },
            previous=old.with_this_among_previous() if old else (),
        )

    def adopt(
        self, old: Record | None, key: Key, ansible_job_id: str, async_dir: str, process: dict[str, Any]
    ) -> Record:
        """Remember a job that was found on the target, whose controller died before it could save it."""
        new = Record(
            key=key,
            ansible_job_id=ansible_job_id,
            save_time=stamp(self._clock()),
            async_dir=async_dir,
            process=process,
            claim={**old.claim, "fences": []} if old else {},
            previous=old.with_this_among_previous() if old else (),
            adopted=True,
        )
        return self._append(new, old)

    def forget(self, record: Record) -> None:
        """Free the name, if the record is still the one that was seen; JobChangedError if not."""
        gone = record.followed_by(
            state=FORGOTTEN,
            ansible_job_id="",
            async_dir="",
            process={},
            claim={},
            previous=record.with_this_among_previous(),
            metadata={},
        )
        own, *other = [(stem, self._read(stem, record.key)) for stem in _stems(record.key)]
        if _same(own[1], record):
            self.store.append(own[0], record.revision + 1, gone.body(record.revision + 1))
        elif not any(_same(there, record) for _, there in other):
            raise JobChangedError(f"{record.key} was changed by another controller meanwhile; nothing was removed.")
        for stem, there in other:
            # A hand-written role's record of the same name would come to light again; it goes, too.
            if there is not None and there.state == SAVED:
                self.store.append(stem, there.revision + 1, gone.body(there.revision + 1))

    def _append(self, new: Record, old: Record | None) -> Record:
        revision = (old.revision if old else 0) + 1
        self.store.append(new.key.stem, revision, new.body(revision))
        return new.at(revision)

    # -- claims

    def _mine(self, claim: Record) -> bool:
        return bool(claim.claim.get("owner") == _owner.me())

    def _left(self, claim: Record) -> float:
        """Seconds that a claim has left by the wall clock; never more than its lease, though it came from the future."""
        lease = _number(claim.claim.get("lease"), LEASE)
        began = moment(str(claim.claim.get("time", "")))
        return 0.0 if began is None else min(began + lease - self._clock(), lease)

    def _is_over(self, claim: Record, waited: float) -> bool:
        if _owner.is_gone(claim.claim.get("owner", {})):
            return True
        return self._left(claim) <= 0 or waited >= _number(claim.claim.get("lease"), LEASE)

    def is_over(self, claim: Record) -> bool:
        """Whether nobody stands behind a claim any more."""
        return self._is_over(claim, 0.0)

    def _busy(self, key: Key, claim: Record) -> str:
        who = _owner.words(claim.claim.get("owner", {}))
        return (
            f"{key} is being started by another controller ({who}, since {claim.claim.get('time', '?')}) and has no job id "
            f"yet. Nothing was started here. Try again later; the claim ends in {max(0.0, self._left(claim)):.0f} s."
        )


def slot_of(base: str, key: Key, token: str = "") -> str:
    """The async folder of one claim on the target, or the one for those who do not claim."""
    return posixpath.join(base, key.slots, f"c-{token}" if token else "open")


def _number(thing: Any, otherwise: float) -> float:
    return float(thing) if isinstance(thing, int | float) else otherwise


def _stems(key: Key) -> list[str]:
    """Where a record may lie: in our place, and in that of a hand-written role, if it stays inside its folder."""
    parts: Sequence[str] = [part for part in (key.host, key.playbook_name, key.job_name) if part]
    if any(part.startswith(".") or os.sep in part or len(part.encode()) > 200 for part in parts):
        return [key.stem]
    return list(dict.fromkeys([key.stem, "/".join(parts)]))


def _same(there: Record | None, seen: Record) -> bool:
    return there is not None and (there.write, there.ansible_job_id, there.state) == (
        seen.write,
        seen.ansible_job_id,
        seen.state,
    )


def _key_of(stem: str) -> Key:
    """What the place of a record says of its names."""
    parts = stem.split("/")
    return Key(parts[0], parts[-1], parts[1] if len(parts) == 3 else "")
