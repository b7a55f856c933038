# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of a claim: its owner, its lease, and the folders on the target that its successor must fence."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from forkless.jobs import owner
from forkless.jobs.record import CLAIMED, Key, Record, moment, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forkless.jobs.play_claims import Play

__all__ = ["LEASE", "busy", "is_expired", "is_held_by", "is_of_this_process", "is_over", "renewed", "successor"]

LEASE = 120.0


def successor(
    old: Record | None,
    key: Key,
    *,
    lease: float,
    claimant: str,
    now: float,
    attempts: list[dict[str, object]],
    play: Play | None = None,
) -> Record:
    """
    The claim to append after `old`. It has a new token, and names a fence for every claim that it replaces. A controller
    that takes over the claim of a retry retries the same job.
    """
    fences = list(old.claim.get("fences", [])) if old else []
    if old and old.state == CLAIMED:
        fences.append(old.claim.get("token", ""))
        attempts = attempts or old.attempts
    return Record(
        key=key,
        state=CLAIMED,
        save_time=stamp(now),
        claim={
            "token": secrets.token_hex(8),
            "owner": owner.me(),
            "claimant": claimant,
            "time": stamp(now),
            "lease": lease,
            "fences": fences,
            "attempts": attempts,
            **({"play": play.id, "run": play.run} if play else {}),
        },
        previous=old.with_this_among_previous() if old else (),
    )


def renewed(claim: Record, *, lease: float, now: float) -> Record:
    """The same claim, with the same token and fences, and a new lease that begins now."""
    return claim.followed_by(save_time=stamp(now), claim={**claim.claim, "time": stamp(now), "lease": lease})


def is_of_this_process(claim: Record) -> bool:
    return bool(claim.claim.get("owner") == owner.me())


def is_held_by(claim: Record, claimant: str) -> bool:
    """
    Whether `claimant`, in this process, already holds the claim. False for an empty name: the threads of a process
    cannot be told apart without one.
    """
    return bool(claimant) and claim.claim.get("claimant") == claimant and is_of_this_process(claim)


def left(claim: Mapping[str, object], clock: Callable[[], float]) -> float:
    """Seconds until the claim expires by the wall clock; at most its lease, even if its time is in the future."""
    lease = _number(claim.get("lease"), LEASE)
    began = moment(str(claim.get("time", "")))
    return 0.0 if began is None else min(began + lease - clock(), lease)


def is_over(claim: Record, clock: Callable[[], float], waited: float = 0.0) -> bool:
    """
    Whether the claim may be taken over: its owner or the run is known to have ended, or its lease has expired, either by the wall
    clock or by `waited`, the monotonic time since this process first saw the claim. Therefore a jump of the wall clock
    neither keeps a dead claim for ever nor makes a controller wait longer than the lease.
    """
    return is_expired(claim.claim, clock, waited)


def is_expired(claim: Mapping[str, object], clock: Callable[[], float], waited: float = 0.0) -> bool:
    """`is_over` for anything with an owner, a run, a time and a lease."""
    who = claim.get("owner", {})
    if owner.is_gone(who) or owner.run_has_ended(who, claim.get("run")):
        return True
    return left(claim, clock) <= 0 or waited >= _number(claim.get("lease"), LEASE)


def busy(key: Key, claim: Mapping[str, object], clock: Callable[[], float]) -> str:
    who = owner.words(claim.get("owner", {}))
    return (
        f"{key} is being started by another controller ({who}, since {claim.get('time', '?')}) and has no job id "
        f"yet. Nothing was started here. Try again later; the claim ends in {max(0.0, left(claim, clock)):.0f} s."
    )


def _number(thing: object, otherwise: float) -> float:
    return float(thing) if isinstance(thing, int | float) else otherwise
