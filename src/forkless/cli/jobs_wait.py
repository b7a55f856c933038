# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless jobs wait: until jobs are over, with an exit code that says how they ended."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from forkless.cli import jobs_notify
from forkless.cli.jobs_lookup import NOT_KNOWN, ask_status, find_one
from forkless.cli.jobs_view import print_json, sentence, tell
from forkless.core.errors import ForklessError, JobLostError, SpecError, StoreError

if TYPE_CHECKING:
    import argparse

    from forkless.jobs import JobRegistry, Record

__all__ = ["EXIT_CODES", "wait"]

EXIT_CODES = {"done": 0, "failed": 1, "killed": 4, "dead": 4, "lost": 4, "timed_out": 5}
_BAD_INPUT = 2
_NOT_OVER = ("running", "claimed", "unreachable")
# After this many errors in a row about one job, waiting for it ends with an error; a host that cannot be reached does not count.
_FAILURES = 5
# A host that is connected and silent counts as unreachable after this many seconds, and does not delay the answers of the others.
_ANSWER_WITHIN = 120.0


class _Waiting:
    """What is known of each job that is waited for."""

    def __init__(self, names: list[str]) -> None:
        self.pending = names
        self.ended: dict[str, dict[str, Any]] = {}
        self.given_up: dict[str, dict[str, object]] = {}
        self.last: dict[str, dict[str, object]] = {}
        self.told: dict[str, str] = {}
        self.failures: dict[str, int] = {}

    def take(self, name: str, row: dict[str, object], trouble: str, *, transient: bool) -> None:
        self.last[name] = row
        if row["state"] not in _NOT_OVER:
            self.ended[name] = row
        else:
            if trouble and trouble != self.told.get(name):
                tell([trouble])
            self.told[name] = trouble
            # A host that cannot be reached may come back, and so may a store. What is wrong otherwise stays wrong.
            self.failures[name] = self.failures.get(name, 0) + 1 if trouble and not transient else 0
            if self.failures[name] >= _FAILURES:
                self.given_up[name] = row
        self._leave_pending()

    def give_up(self, name: str, why: str) -> None:
        tell([why])
        self.given_up[name] = self.last[name] = self.last[name] | {"state": "unknown", "why": why}
        self._leave_pending()

    def _leave_pending(self) -> None:
        self.pending = [one for one in self.pending if one not in self.ended and one not in self.given_up]

    def code(self) -> int:
        return max(EXIT_CODES.get(row["state"], NOT_KNOWN) for row in self.ended.values())


def wait(book: JobRegistry, asked: argparse.Namespace) -> int:
    """
    Wait until all of the jobs are over, or with --any until one is. The exit code is the highest of theirs.

    A host that cannot be reached, or a store, is asked again, and never taken for a job that failed.
    """
    deadline = None if asked.timeout is None else time.monotonic() + asked.timeout
    waiting = _Waiting(list(dict.fromkeys(asked.job)))
    try:
        code = _until_over(book, asked, waiting, deadline)
    except (JobLostError, SpecError) as error:
        tell([str(error)])
        return _BAD_INPUT
    except ForklessError as error:
        tell([str(error)])
        code = NOT_KNOWN
    if asked.format == "json":
        shown = [waiting.ended[name] for name in dict.fromkeys(asked.job) if name in waiting.ended]
        if shown:
            print_json(shown[0] if len(set(asked.job)) == 1 else shown)
    if asked.notify:
        rows = waiting.ended if asked.any and waiting.ended else waiting.last
        jobs_notify.notify(asked.notify, list(rows.values()), code, secret_file=asked.notify_secret_file)
    return code


def _until_over(book: JobRegistry, asked: argparse.Namespace, waiting: _Waiting, deadline: float | None) -> int:
    while True:
        before = set(waiting.ended)
        _look(book, asked, waiting, deadline)
        if asked.format != "json":
            for name in waiting.ended.keys() - before:
                print(sentence(waiting.ended[name]))
            sys.stdout.flush()
        if asked.any and waiting.ended:
            return waiting.code()
        if not waiting.pending:
            return max(waiting.code() if waiting.ended else 0, NOT_KNOWN if waiting.given_up else 0)
        if deadline is not None and time.monotonic() >= deadline:
            states = {name: waiting.last[name]["state"] for name in waiting.pending}
            tell(f"job '{name}' is still {state} after {asked.timeout:.0f} s." for name, state in states.items())
            return max(NOT_KNOWN, waiting.code() if waiting.ended else 0)
        time.sleep(asked.interval if deadline is None else max(0.0, min(asked.interval, deadline - time.monotonic())))


def _look(book: JobRegistry, asked: argparse.Namespace, waiting: _Waiting, deadline: float | None) -> None:
    """Ask once about every job that is not over."""
    records: dict[str, Record] = {}
    for name in list(waiting.pending):
        try:
            records[name] = find_one(book, asked, name)
        except StoreError as error:
            waiting.take(name, {"job_name": name, "state": "unreachable"}, str(error), transient=True)
        except JobLostError:
            if name not in waiting.last:
                raise
            waiting.give_up(name, f"the record of job '{name}' was removed while it was waited for.")
    left = _ANSWER_WITHIN if deadline is None else min(_ANSWER_WITHIN, max(30.0, deadline - time.monotonic()))
    answers = ask_status(list(records.values()), asked, timeout=left)
    for (name, record), (row, answer) in zip(records.items(), answers, strict=True):
        trouble, transient = answer.trouble, bool(answer.result.get("unreachable"))
        if row["state"] == "claimed" and book.is_over(record):
            trouble, transient = f"the controller that claimed job '{name}' has ended, and started nothing.", True
        waiting.take(name, row, trouble, transient=transient)
