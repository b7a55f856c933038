# SPDX-License-Identifier: GPL-3.0-or-later
"""
The contract between the registry of jobs and the stores that keep the records.

A store keeps a log of numbered revisions for each job. Everything depends on one operation: create revision N+1, or fail
if another controller has created it. A file system does this with link(), a bucket with If-None-Match: *, a database with a
unique key. No revision is changed after it was created.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import os
import urllib.parse
from dataclasses import dataclass
from typing import Protocol

from forkless.core.errors import ConflictError, SpecError, StoreError, UnknownStoreError
from forkless.jobs.record import decode

__all__ = ["KEPT", "QUEUE_SCOPE", "STATE_DIR", "Head", "JobStore", "RevisionLog", "open_store"]

STATE_DIR = ".ansible_async_state"
# Set by the workers of a queue, for runs whose folder does not outlast them: records that would be in it are in the queue, under this name.
QUEUE_SCOPE = "FORKLESS_QUEUE_JOBS"
# The queue stands above the jobs; its store is loaded by name.
_QUEUE_STORE = "forkless.queue.job_store"

# How many revisions are kept, including the newest. Correctness does not need the older ones (a writer checks the log again
# after its write); they show a person how a record has changed.
KEPT = 4


@dataclass(frozen=True)
class Head:
    """The newest revision of a log. `body` is None if the record was removed by hand: the name is free again."""

    revision: int
    body: bytes | None
    last: bytes | None = None  # the content before it was removed


class JobStore(Protocol):
    """What `JobRegistry` needs of a store. Every method raises StoreError if the store cannot be read or written."""

    url: str  # without secrets: it is shown in messages
    claims: bool  # whether `append` succeeds for exactly one of any number of controllers
    no_claims: str  # if `claims` is false: the reason, and what to do

    def head(self, stem: str, newest: int | None = None) -> Head | None:
        """The newest revision. `newest` is its number if `revisions` has returned it, which saves a request."""

    def append(self, stem: str, revision: int, body: bytes, *, keep: int = KEPT, gaps: bool = False) -> None:
        """
        Create this revision atomically. ConflictError if another controller has created it, or if the previous revision
        no longer exists (unless `gaps` is set, for a store that only shows what another store has decided). The newest
        `keep` revisions are kept.
        """

    def revisions(self, host: str = "") -> dict[str, int | None]:
        """The stems that have a log, of one host (a path segment) or of all, with the newest revision if it is known."""

    def purge(self, stem: str, revision: int) -> None:
        """Remove the whole log if `revision` is still the newest one."""

    def place(self, stem: str) -> str:
        """The path or URL at which a person finds the record."""

    def close(self) -> None: ...


class RevisionLog(abc.ABC):
    """The log of revisions, on top of the four operations that differ between stores."""

    url = ""
    claims = True
    no_claims = ""

    @abc.abstractmethod
    def _numbers(self, stem: str) -> list[int]:
        """The numbers of the revisions that exist."""

    @abc.abstractmethod
    def _get(self, stem: str, revision: int) -> bytes | None:
        """One revision, or None if it does not exist."""

    @abc.abstractmethod
    def _create(self, stem: str, revision: int, body: bytes) -> bool:
        """Create one revision atomically; False if it already exists."""

    @abc.abstractmethod
    def _erase(self, stem: str, revision: int) -> None:
        """Remove one revision; it need not exist."""

    @abc.abstractmethod
    def revisions(self, host: str = "") -> dict[str, int | None]: ...

    def place(self, stem: str) -> str:
        return f"{self.url.rstrip('/')}/{stem}"

    def close(self) -> None:
        return

    def head(self, stem: str, newest: int | None = None) -> Head | None:
        if newest is not None and (body := self._get(stem, newest)) is not None:
            return Head(newest, body)
        while numbers := self._numbers(stem):
            body = self._get(stem, max(numbers))
            if body is not None:  # otherwise it was removed between the two reads, and there is a newer one
                return Head(max(numbers), body)
        return None

    def append(self, stem: str, revision: int, body: bytes, *, keep: int = KEPT, gaps: bool = False) -> None:
        # If a response was lost, the client repeats the request and gets a conflict with itself; `write` in the body
        # shows whether the revision is this process's own.
        if not self._create(stem, revision, body) and not _same(self._get(stem, revision), body):
            raise ConflictError(f"another controller wrote revision {revision} of {self.place(stem)} first.")
        numbers = self._numbers(stem)
        if numbers and max(numbers) > revision:
            # Either this process was suspended while others wrote newer revisions and removed this number, or another
            # controller wrote directly after this one. In both cases the newest revision is not this process's.
            raise ConflictError(f"another controller has written a newer revision of {self.place(stem)} already.")
        if not gaps and revision > 1 and revision - 1 not in numbers and numbers != [revision]:
            # The log was purged after it was read, and a new one has begun: this revision belongs to neither.
            self._erase(stem, revision)
            raise ConflictError(f"the log of {self.place(stem)} was begun anew by another controller meanwhile.")
        # The oldest is removed first: if a writer finds the revision before its own, its own number was never used before.
        for number in sorted(numbers):
            if number <= revision - keep:
                with contextlib.suppress(StoreError):  # the record is written; the next writer removes old revisions
                    self._erase(stem, number)

    def purge(self, stem: str, revision: int) -> None:
        numbers = self._numbers(stem)
        if max(numbers, default=0) == revision:
            for number in sorted(numbers):
                self._erase(stem, number)


def _same(there: bytes | None, ours: bytes) -> bool:
    """Whether `there` is the revision that this process wrote, by the field `write`, which is unique for each write."""
    try:
        return there is not None and bool(decode(there)["write"] == decode(ours)["write"] != "")
    except (ValueError, LookupError):
        return there == ours


def open_store(url: str, state_dir: str = STATE_DIR) -> JobStore:
    """
    The store for a URL.

    `file:` keeps records in `state_dir`, `file:/path` in that folder, `s3://bucket/prefix` in a bucket, `ara+http://server` in ARA and
    `queue:` in the database of the queue, where a worker of the queue also keeps what would be in a folder that ends with its run.
    Nothing is read or written before the first call of a method.
    """
    scheme, _, rest = (url or "file:").partition(":")
    if "\n" in url or "\0" in url:
        raise SpecError("the store's URL has a line break or a zero byte in it.")
    if scheme == "file":
        from forkless.jobs.stores.file import FileStore

        folder = urllib.parse.unquote(rest.removeprefix("//")) or state_dir
        if os.environ.get(QUEUE_SCOPE) and not os.path.isabs(os.path.expanduser(folder)):
            return _open_queue_store("", "" if folder == STATE_DIR else folder)
        return FileStore(folder)
    if scheme == "queue":
        return _open_queue_store(rest.removeprefix("//"), "")
    if scheme == "s3":
        from forkless.jobs.stores.s3 import S3Store

        return S3Store(url)
    if scheme in ("ara+http", "ara+https"):
        from forkless.jobs.stores.ara import open_ara

        return open_ara(url, state_dir)
    raise UnknownStoreError(
        f"no store goes by '{scheme}:'; there are file:, file:/path, s3://bucket/prefix, ara+http(s)://server and queue:."
    )


def _open_queue_store(name: str, state_dir: str) -> JobStore:
    store: JobStore = importlib.import_module(_QUEUE_STORE).open_store(name, state_dir)
    return store
