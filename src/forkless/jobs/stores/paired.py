# SPDX-License-Identifier: GPL-3.0-or-later
"""Two stores as one: one store decides claims, and every record is then copied to the other, which people read."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from forkless.core.errors import ConflictError
from forkless.jobs.stores.store import KEPT

if TYPE_CHECKING:
    from forkless.jobs.stores.store import Head, JobStore

__all__ = ["PairedStore"]


class PairedStore:
    def __init__(self, shown: JobStore, deciding: JobStore) -> None:
        self._shown = shown
        self._deciding = deciding
        self.url = shown.url
        self.claims = deciding.claims
        self.no_claims = deciding.no_claims

    def head(self, stem: str, newest: int | None = None) -> Head | None:  # noqa: ARG002 -- each of the two stores has its own
        """
        The head in the deciding store, or, if the job is not there, the one that was in the other store before pairing.

        Both stores are always read: if the other one cannot be reached, that is an error before anything is started.
        """
        shown = self._shown.head(stem)
        return self._deciding.head(stem) or shown

    def append(self, stem: str, revision: int, body: bytes, *, keep: int = KEPT, gaps: bool = False) -> None:
        self._deciding.append(stem, revision, body, keep=keep, gaps=gaps)
        with contextlib.suppress(ConflictError):  # the store already has this revision or a newer one
            self._shown.append(stem, revision, body, keep=keep, gaps=True)

    def revisions(self, host: str = "") -> dict[str, int | None]:
        return dict.fromkeys(sorted({*self._deciding.revisions(host), *self._shown.revisions(host)}))

    def purge(self, stem: str, revision: int) -> None:
        self._shown.purge(stem, revision)
        self._deciding.purge(stem, revision)

    def place(self, stem: str) -> str:
        return self._shown.place(stem)

    def close(self) -> None:
        self._shown.close()
        self._deciding.close()
