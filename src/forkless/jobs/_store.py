# SPDX-License-Identifier: GPL-3.0-or-later
"""
The wall between jobs and where they are remembered.

A store keeps, for each job, a log of numbered revisions, and can do one thing that everything else rests on: "write
revision N+1, or learn that someone else did". A file system does it with link(), a bucket with If-None-Match: *, a
database with a unique key. Nothing is ever changed in place.
"""

from __future__ import annotations

import abc
import json
import urllib.parse
from dataclasses import dataclass
from typing import Protocol

from forkless._errors import ConflictError, SpecError, UnknownStoreError

__all__ = ["STATE_DIR", "Head", "JobStore", "RevisionLog", "open_store"]

STATE_DIR = ".ansible_async_state"

# How many revisions stay below the newest. Not for safety (whoever writes looks again afterwards), but so that a person
# can see how a record came to be.
_KEPT = 4


@dataclass(frozen=True)
class Head:
    """The newest revision of a log. `body` is None when someone took the record away by hand: the name is free again."""

    revision: int
    body: bytes | None
    last: bytes | None = None  # what was there before it was taken away


class JobStore(Protocol):
    """What the book of jobs needs of a place to keep records. Every method raises StoreError if it cannot tell."""

    url: str  # without secrets: it is shown in messages
    claims: bool  # whether "write, or learn that someone else did" holds however many controllers there are
    no_claims: str  # and if not, why not, and what to do

    def head(self, stem: str) -> Head | None: ...

    def append(self, stem: str, revision: int, body: bytes) -> None:
        """Write this revision whole; ConflictError if another one was first."""

    def stems(self, host: str = "") -> list[str]:
        """The jobs that have a log, of one host (a path segment) or of all."""

    def place(self, stem: str) -> str:
        """Where a person finds the record."""

    def close(self) -> None: ...


class RevisionLog(abc.ABC):
    """The log, on top of the four things that differ between stores."""

    url = ""
    claims = True
    no_claims = ""

    @abc.abstractmethod
    def _numbers(self, stem: str) -> list[int]:
        """The revisions there are."""

    @abc.abstractmethod
    def _get(self, stem: str, revision: int) -> bytes | None:
        """One revision, or None if it is not there."""

    @abc.abstractmethod
    def _create(self, stem: str, revision: int, body: bytes) -> bool:
        """Write one whole, and say whether it was us; False if it is there already."""

    @abc.abstractmethod
    def _erase(self, stem: str, revision: int) -> None:
        """Take an old one away; no matter if it is gone."""

    @abc.abstractmethod
    def stems(self, host: str = "") -> list[str]: ...

    def place(self, stem: str) -> str:
        return f"{self.url.rstrip('/')}/{stem}"

    def close(self) -> None:
        return

    def head(self, stem: str) -> Head | None:
        while numbers := self._numbers(stem):
            body = self._get(stem, max(numbers))
            if body is not None:  # else it was taken away between the two questions, and there is a newer one
                return Head(max(numbers), body)
        return None

    def append(self, stem: str, revision: int, body: bytes) -> None:
        # A lost answer looks like a conflict when the client asks again by itself; the mark in the body tells.
        if not self._create(stem, revision, body) and not _same(self._get(stem, revision), body):
            raise ConflictError(f"another controller wrote revision {revision} of {self.place(stem)} first.")
        numbers = self._numbers(stem)
        if numbers and max(numbers) > revision:
            # We slept so long that others wrote, and tidied up the number that we then took; or someone followed us at
            # once. Either way the newest one is not ours.
            raise ConflictError(f"another controller has written a newer revision of {self.place(stem)} already.")
        for number in numbers:
            if number <= revision - _KEPT:
                self._erase(stem, number)


def _same(there: bytes | None, ours: bytes) -> bool:
    """Whether that is what we wrote, by the mark that every write of a record bears."""
    try:
        return there is not None and bool(json.loads(there)["write"] == json.loads(ours)["write"] != "")
    except (ValueError, LookupError, TypeError):
        return there == ours


def open_store(url: str, state_dir: str = STATE_DIR) -> JobStore:
    """
    The store that a URL names.

    `file:` keeps records in `state_dir`, `file:/path` in that folder, `s3://bucket/prefix` in a bucket and
    `ara+http://server` in ARA. Nothing is asked or written until the first call.
    """
    scheme, _, rest = (url or "file:").partition(":")
    if "\n" in url or "\0" in url:
        raise SpecError("the store's URL has a line break or a zero byte in it.")
    if scheme == "file":
        from forkless.jobs._file import FileStore

        return FileStore(urllib.parse.unquote(rest.removeprefix("//")) or state_dir)
    if scheme == "s3":
        from forkless.jobs._s3 import S3Store

        return S3Store(url)
    if scheme in ("ara+http", "ara+https"):
        from forkless.jobs._ara import open_ara

        return open_ara(url, state_dir)
    raise UnknownStoreError(
        f"no store goes by '{scheme}:'; there are file:, file:/path, s3://bucket/prefix and ara+http(s)://server."
    )
