# SPDX-License-Identifier: GPL-3.0-or-later
"""
The registry of jobs: find, save, claim, adopt, list, forget. The rules are the same on every store.

Two mechanisms together guarantee that a job is never started twice and never lost. In the store, a claim is a revision
that exactly one controller can write. On the target, each claim has an async folder of its own (its slot). A controller
that takes over a claim first replaces the old slot by a plain file (a fence); if a job was already started in the old
slot, the controller adopts that job instead. Ansible's own wrapper cannot start a job where there is a fence. So if a
lease ends too early, or a clock jumps, the worst result is a failed start.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from forkless.core.errors import (
    ConflictError,
    JobChangedError,
    JobError,
    JobLostError,
    SpecError,
    StoreError,
    UnsupportedError,
)
from forkless.jobs import claims, owner, play_claims, waits
from forkless.jobs.claims import LEASE
from forkless.jobs.locations import Unreadable, key_of, stems, unreadable
from forkless.jobs.names import segment
from forkless.jobs.record import CLAIMED, FORGOTTEN, SAVED, Key, NewerFormatError, Record, moment, parse, stamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.jobs.play_claims import Play
    from forkless.jobs.stores.store import Head, JobStore

__all__ = ["JobRegistry"]

# Seconds for which the record of a forgotten job is kept. During this time a controller that was suspended still sees that
# others have written, and a file that the job left on its host is not mistaken for an unknown job.
_KEPT_FORGOTTEN = 86400.0
# How often a writer tries again after another writer was first (for example a cleanup during a save).
_TRIES = 20


class _Refusals:
    """
    Counts writes that the store refused although nobody has written since: after a full disk it may have an entry that cannot be read, and
    refuses for ever what would come in its place.
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self._seen: dict[tuple[Key, int], int] = {}

    def count(self, old: Record | None) -> None:
        """A write after `old` was refused. StoreError if that has happened too often."""
        revision = (self._key, 0) if old is None else (old.key, old.revision)
        self._seen[revision] = self._seen.get(revision, 0) + 1
        if self._seen[revision] > _TRIES:
            raise StoreError(
                f"{self._key} could not be claimed: the store refused {_TRIES} writes, and nobody else has written meanwhile. "
                "Nothing was started. See whether its disk is full and who may write to it."
            )


class JobRegistry:
    """The jobs in one store. It keeps no state of its own: every call reads the store."""

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
        """The newest revision of exactly this key, in any state."""
        return self._read(key.stem, key)

    def find(self, key: Key) -> Record | None:
        """
        The record of a started job; None if there is no record, or only a claim.

        Both layouts are read. A key with a playbook's name also finds a record that was saved without one. A key without
        a playbook's name also finds a record with one, if only one playbook has a job of that name.
        """
        return self._started(key.stem, key) or self._elsewhere(key)

    def _elsewhere(self, key: Key) -> Record | None:
        """The record of a started job at any path other than the key's own."""
        for stem in stems(key)[1:]:
            if found := self._started(stem, key):
                return found
        if key.playbook_name:
            return self._started(Key(key.host, key.job_name).stem, key)
        nested = [
            found
            for stem, newest in self.store.revisions(segment(key.host, "host")).items()
            if stem.count("/") == 2 and stem.rpartition("/")[2] == segment(key.job_name, "job name")
            if (found := self._started(stem, None, newest))
        ]
        if len(nested) > 1:
            names = ", ".join(sorted(record.key.playbook_name for record in nested))
            raise JobError(f"{key} is kept for several playbooks ({names}); say which one by its playbook name.")
        return nested[0] if nested else None

    def known(self, key: Key) -> Record:
        """The record of a started job; JobLostError if there is none."""
        found = self.find(key)
        if found is None:
            raise JobLostError(f"there is no record of {key} in {self.store.url}.")
        return found

    def _started(self, stem: str, key: Key | None, newest: int | None = None) -> Record | None:
        record = self._parsed(stem, self.store.head(stem, newest), key)
        return record if record is not None and _is_started(record) else None

    def jobs(
        self,
        host: str = "",
        *,
        job_name: str = "",
        playbook_name: str = "",
        problems: list[Unreadable] | None = None,
    ) -> list[Record]:
        """
        Every job that is claimed or saved, sorted by host and name.

        A record that cannot be read or parsed raises StoreError. If `problems` is given, the record is appended there
        instead, so that one damaged file does not hide the others.
        """
        found = []
        names = {segment(job_name, "job name"), job_name} if job_name else set()
        for stem, newest in self.store.revisions(segment(host, "host") if host else "").items():
            if names and stem.rpartition("/")[2] not in names:
                continue
            try:
                record = self._parsed(stem, self.store.head(stem, newest), None)
            except StoreError as error:
                if problems is None:
                    raise
                problems.append(unreadable(stem, self.store.place(stem), str(error)))
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
                # Removed by hand. Its job ids stay known, so that its files on the host are not adopted as a lost job.
                return parse(head.last or b"", key, head.revision).followed_by(state=FORGOTTEN)
            record = parse(head.body, key or key_of(stem), head.revision)
        except NewerFormatError as error:
            raise StoreError(
                f"the job record {self.store.place(stem)} was written by a newer version of forkless ({error}); nothing "
                "is started or saved under that name from here. Update forkless on this controller."
            ) from None
        except ValueError as error:
            raise StoreError(
                f"the job record {self.store.place(stem)} cannot be understood: {error}. It is left as it is, and nothing "
                "is started or saved under that name. Repair it; or, when you are sure that its job is over, move it away."
            ) from None
        seen = record.key
        if key is not None and seen != Key(key.host, key.job_name, key.playbook_name or seen.playbook_name):
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
        metadata: dict[str, object] | None = None,
        async_dir: str = "",
        slot: str = "",
        process: dict[str, object] | None = None,
    ) -> Record:
        """
        Write the record of a job that was started. Saving the same job again only updates its metadata, folder and process.

        `slot` is the async folder that load returned. If another controller has taken over its claim, this raises
        ConflictError, and the other controller's record is kept.
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
        if not claimed and (old.state == SAVED or claims.is_of_this_process(old) or self.is_over(old)):
            return  # without a claim, a save replaces the existing record, as hand-written roles do
        if claimed and old.state == SAVED and not token:
            return
        who = owner.words(old.claim.get("owner", {}))
        raise ConflictError(
            f"{key} was taken over by another controller ({who}, at {old.claim.get('time', 'an unknown time')}) before job "
            f"id {jid} could be saved. Nothing was saved, and the other's record stands. If {jid} was started after all, "
            "end it on the host."
        )

    def claim(
        self,
        key: Key,
        *,
        lease: float = LEASE,
        wait: float | None = None,
        claimant: str = "",
        instead_of: Record | None = None,
        attempts: list[dict[str, object]] | None = None,
        play: Play | None = None,
    ) -> Record:
        """
        Claim the right to start the job. Of all callers, on all controllers, one gets a record in state `claimed`, with
        its token and the fences that it must create on the target before it starts anything. The others wait until the
        job is started, and get its record.

        A claim whose owner has ended is taken over at once if this process can know that, otherwise when its lease has
        expired. An owner is a process, a run of this process, and an earlier play of the same run. ConflictError if the owner has not started the job after `wait` seconds (by default the lease and 30 s).

        `claimant` distinguishes callers in one process; a caller that already holds the claim gets it again, renewed.
        `instead_of` is the record of a job that has ended and is to be started again: of all callers that saw this
        record, one gets the claim.
        `attempts` says how that job and the attempts before it ended, if the job that is started now is a retry of them.
        `play` is the play that claims, if a play does. If it claims on several hosts before it starts anything: while another
        play is about to start the job on one of these hosts, this play waits for it, so that neither waits for the other.

        Each write is conditional on the revision that was read. If another controller writes in between, the write
        fails, and the loop reads everything again.
        """
        if not self.store.claims:
            raise UnsupportedError(self.store.no_claims)
        with waits.Wait(
            key,
            claimant,
            store=self.store,
            newest=self.newest,
            append=self._append,
            clock=self._clock,
            steady=self._steady,
            pause=self._pause,
            deadline=self._steady() + (wait if wait is not None else lease + 30),
        ) as waiting:
            refused = _Refusals(key)
            while True:
                old = self.newest(key)
                if old is not None and _is_started(old) and not _same(old, instead_of):
                    return old
                if old is not None and old.state == CLAIMED:
                    if claims.is_held_by(old, claimant):
                        new = claims.renewed(old, lease=lease, now=self._clock())
                        try:
                            return self._append(new, old)
                        except ConflictError:
                            refused.count(old)
                            continue
                    earlier = play is not None and play_claims.is_of_earlier_play(old.claim, play)
                    if not earlier and not waiting.is_over(old.claim):
                        waiting.pause(old.claim, old, key)
                        continue
                if (
                    play is not None
                    and len(play.hosts) > 1
                    and not self._announced(key, play, old, waiting, refused, lease=lease, may_wait=wait != 0)
                ):
                    continue
                elsewhere = self._elsewhere(key)
                if elsewhere is not None and not _same(elsewhere, instead_of):
                    return elsewhere
                if elsewhere is not None:
                    # Otherwise `find` would return this record again after the job that is started now is forgotten.
                    try:
                        self.forget(elsewhere)
                    except (ConflictError, JobChangedError):
                        continue
                new = claims.successor(
                    old, key, lease=lease, claimant=claimant, now=self._clock(), attempts=attempts or [], play=play
                )
                try:
                    return self._append(new, old)
                except ConflictError:
                    refused.count(old)
                    continue  # another controller was first: read its revision

    def _announced(
        self,
        key: Key,
        play: Play,
        job: Record | None,
        waiting: waits.Wait,
        refused: _Refusals,
        *,
        lease: float,
        may_wait: bool,
    ) -> bool:
        """
        Write down that the play is about to claim the name on this host. False if it had to wait for another play, or
        another writer was first: everything must be read again. A play that does not wait makes no other play wait.
        """
        plays = play_claims.record_key(key)
        old = self.newest(plays)
        for host, seen, other in play_claims.claimed_by_others(old, play, waiting.is_over) if may_wait else ():
            there = Key(host, key.job_name, key.playbook_name)
            newest = self.newest(there)
            if not play_claims.is_started_since(newest, seen):
                waiting.pause(other, newest, there)
                return False
        new = play_claims.with_host(
            old, key, play, job.write if job else "", lease=lease, now=self._clock(), is_over=waiting.is_over
        )
        if new is not None:
            try:
                self._append(new, old)
            except ConflictError:
                refused.count(old)
                self._pause(waits.LOOK_AGAIN * random.random())  # noqa: S311  # all hosts of a play write to this record
                return False
        return True

    def adopt(
        self, old: Record | None, key: Key, ansible_job_id: str, async_dir: str, process: dict[str, object]
    ) -> Record:
        """
        Write the record of a job that was found on the target because its controller died before it could save it.
        JobChangedError if another controller has written since `old` was read.
        """
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
        try:
            return self._append(new, old)
        except ConflictError:
            raise JobChangedError(f"{key} was changed by another controller meanwhile; nothing was adopted.") from None

    def forget(self, record: Record) -> None:
        """Free the name. JobChangedError if `record` is no longer the newest one."""
        gone = record.followed_by(
            state=FORGOTTEN,
            save_time=stamp(self._clock()),
            ansible_job_id="",
            async_dir="",
            process={},
            claim={},
            previous=record.with_this_among_previous(),
            metadata={},
        )
        own, *other = [(stem, self._read(stem, record.key)) for stem in stems(record.key)]
        if own[1] is not None and _same(own[1], record):
            self._append_last(own[0], own[1].revision + 1, gone)
        elif not any(there is not None and _same(there, record) for _, there in other):
            raise JobChangedError(f"{record.key} was changed by another controller meanwhile; nothing was removed.")
        for stem, there in other:
            # Otherwise `find` would return a hand-written role's record of the same name.
            if there is not None and there.state == SAVED:
                self._append_last(stem, there.revision + 1, gone)

    def _append_last(self, stem: str, revision: int, gone: Record) -> None:
        try:
            self.store.append(stem, revision, gone.body(revision), keep=1)
        except ConflictError:
            raise JobChangedError(
                f"{gone.key} was changed by another controller meanwhile; nothing was removed."
            ) from None

    def purge(self, host: str = "") -> int:
        """
        Remove the logs of jobs that were forgotten at least a day ago, and what plays and waits have left since then; the
        number of logs removed.
        """
        purged = 0
        hosts = [segment(one, "host") for one in (host, play_claims.HOST, waits.HOST)] if host else [""]
        logs = [log for one in hosts for log in self.store.revisions(one).items()]
        for stem, newest in logs:
            try:
                record = self._parsed(stem, head := self.store.head(stem, newest), None)
            except StoreError:
                continue  # a record that cannot be parsed is never removed
            if head is None or record is None or head.body is None or record.state != FORGOTTEN:
                continue
            since = moment(record.save_time)
            if since is not None and self._clock() - since >= _KEPT_FORGOTTEN:
                self.store.purge(stem, record.revision)
                purged += 1
        return purged

    def _append(self, new: Record, old: Record | None) -> Record:
        revision = (old.revision if old else 0) + 1
        try:
            body = new.body(revision)
        except ValueError as error:
            raise SpecError(f"{new.key} cannot be saved with this metadata: {error}.") from None
        self.store.append(new.key.stem, revision, body)
        return new.at(revision)

    def is_over(self, claim: Record, play: Play | None = None) -> bool:
        """Whether the claim may be taken over, by `play` if one asks: its owner has ended, or its lease has expired."""
        earlier = play is not None and play_claims.is_of_earlier_play(claim.claim, play)
        return earlier or claims.is_over(claim, self._clock)


def _is_started(record: Record) -> bool:
    return record.state == SAVED and bool(record.ansible_job_id)


def _same(there: Record, seen: Record | None) -> bool:
    return seen is not None and (there.write, there.ansible_job_id, there.state) == (
        seen.write,
        seen.ansible_job_id,
        seen.state,
    )
