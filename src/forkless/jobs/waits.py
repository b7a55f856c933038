# SPDX-License-Identifier: GPL-3.0-or-later
"""
Which claimant waits for which claim, so that claimants that wait for each other do not wait until a lease ends.

If one play claims `dump` and then `rebuild`, and another one `rebuild` and then `dump`, each may hold what the other waits
for. A claimant, which is one host of one play, does one thing at a time: while it waits for a claim it starts no job. So
a circle of claimants that wait for each other stays as it is, and all of them see the same circle. The last of them, in an
order that all of them know, gives back its claim in the circle and fails; the others go on.

The record of a wait is removed when the wait ends. Like that of a play it is `forgotten`: no list shows it, and `purge`
removes what a controller that died has left.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Self

from forkless.core.errors import ConflictError, SpecError, StoreError
from forkless.jobs import claims, owner, play_claims
from forkless.jobs.names import digest
from forkless.jobs.record import CLAIMED, FORGOTTEN, Key, Record, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forkless.jobs.stores.store import JobStore

__all__ = ["HOST", "LOOK_AGAIN", "Wait"]

HOST = "forkless:waits"  # no host of an inventory has a colon in its name
_LONGEST = 20  # claimants in a circle; a longer one ends with a lease
_EVERY = 4  # pauses between two looks at what the others wait for
LOOK_AGAIN = 0.25
_TRIES = 20


class Wait:
    """
    One claimant's wait for one claim, until `deadline` on the steady clock; it ends with the block. A claimant without a
    name cannot be found by others.
    """

    def __init__(
        self,
        key: Key,
        claimant: str,
        *,
        store: JobStore,
        newest: Callable[[Key], Record | None],
        append: Callable[[Record, Record | None], Record],
        clock: Callable[[], float],
        steady: Callable[[], float],
        pause: Callable[[float], None],
        deadline: float,
    ) -> None:
        self._key, self._claimant, self._store = key, claimant, store
        self._newest, self._append = newest, append
        self._clock, self._steady, self._pause, self._deadline = clock, steady, pause, deadline
        self._first_seen: dict[str, float] = {}
        self._looks = 0
        self._written: Record | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._written is not None:
            with contextlib.suppress(StoreError):  # it is purged after a day
                self._store.purge(self._written.key.stem, self._written.revision)

    def is_over(self, claim: Mapping[str, object]) -> bool:
        """
        Whether the claim, or the entry of a play, no longer counts: its owner has ended, or its lease has, by the wall
        clock or by the steady one since this was first asked. A time in the future keeps nobody waiting for ever.
        """
        since = self._first_seen.setdefault(json.dumps(claim, sort_keys=True, default=str), self._steady())
        return claims.is_expired(claim, self._clock, self._steady() - since)

    def pause(self, claim: Mapping[str, object], job: Record | None, key: Key) -> None:
        """
        Wait a moment for `claim`, which another claimant has made on `key`; `job` is the record of that key.

        ConflictError if it is too late, or if this claimant must give way: then it has given back a claim of its own.
        """
        if self._steady() > self._deadline:
            raise ConflictError(claims.busy(key, claim, self._clock))
        if job is not None and job.state == CLAIMED:
            self._looks += 1
            if self._claimant and self._looks % _EVERY == 2:
                self._write_down()
                self._give_way(job)
        self._pause(LOOK_AGAIN)

    def _give_way(self, claim: Record) -> None:
        held = self._circle(claim)
        if not held or max(map(_rank, held)) != _rank(held[-1]):
            return
        mine = held[-1]
        with contextlib.suppress(ConflictError):
            # Its lease ends now. Who takes it over puts a fence into its place, so nothing can be started with it.
            self._append(mine.followed_by(claim={**mine.claim, "lease": 0.0}), mine)
        plays = play_claims.record_key(mine.key)
        for _ in range(_TRIES):
            old = self._newest(plays)
            if old is None:
                break
            try:
                self._append(play_claims.without_host(old, mine.key, _rank(mine)[0]), old)
                break
            except ConflictError:
                continue
        who = owner.words(claim.claim.get("owner", {}))
        raise ConflictError(
            f"{claim.key} is being started by another controller ({who}), which waits for {mine.key}, which is claimed "
            "here. Neither could go on, so that claim was given back. Nothing was started here. Let all playbooks claim "
            "these jobs in the same order, or start one before the next is claimed."
        )

    def _write_down(self) -> None:
        if self._written is None:
            key = _record_key(owner.me(), self._claimant)
            wanted = [self._key.host, self._key.job_name, self._key.playbook_name]
            record = Record(key=key, state=FORGOTTEN, save_time=stamp(self._clock()), claim={"waits_for": wanted})
            with contextlib.suppress(ConflictError):
                self._written = self._append(record, self._newest(key))

    def _circle(self, claim: Record) -> list[Record]:
        """The claims in the circle, from the one that is waited for to one of this claimant's own; [] if it is no circle."""
        held = [claim]
        while not claims.is_held_by(held[-1], self._claimant):
            holder = str(held[-1].claim.get("claimant") or "")
            wait = self._newest(_record_key(held[-1].claim.get("owner"), holder)) if holder else None
            wanted = wait.claim.get("waits_for") if wait is not None else None
            if not isinstance(wanted, list) or len(wanted) != 3 or len(held) == _LONGEST:
                return []
            try:
                there = self._newest(Key(*map(str, wanted)))
            except SpecError:
                return []
            if there is None or there.state != CLAIMED or there.key in [one.key for one in held]:
                return []
            held.append(there)
        return held


def _record_key(who: object, claimant: str) -> Key:
    return Key(HOST, digest(json.dumps(who, sort_keys=True), claimant))


def _rank(claim: Record) -> tuple[str, str, str]:
    """The order of claimants. The play comes first: of two plays on many hosts, the same one gives way on all of them."""
    host, _, play = str(claim.claim.get("claimant") or "").rpartition("/")
    return play, json.dumps(claim.claim.get("owner"), sort_keys=True), host
