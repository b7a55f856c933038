# SPDX-License-Identifier: GPL-3.0-or-later
"""Two stores as one: claims are decided in a store that can, and every record is then shown in one that people look at."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from forkless._errors import ConflictError

if TYPE_CHECKING:
    from forkless.jobs._store import Head, JobStore

__all__ = ["PairedStore"]


class PairedStore:
    def __init__(self, shown: JobStore, deciding: JobStore) -> None:
        self._shown = shown
        self._deciding = deciding
        self.url = shown.url
        self.claims = deciding.claims
        self.no_claims = deciding.no_claims

    def head(self, stem: str) -> Head | None:
        """
        What the deciding store says, if it knows the job; else what was there before the two were paired.

        Both are asked, always: if the shown one cannot be reached, that must come out before anything is started.
        """
        shown = self._shown.head(stem)
        return self._deciding.head(stem) or shown

    def append(self, stem: str, revision: int, body: bytes) -> None:
        self._deciding.append(stem, revision, body)
        with contextlib.suppress(ConflictError):  # it has this one or a newer one: shown late, but shown
            self._shown.append(stem, revision, body)

    def stems(self, host: str = "") -> list[str]:
        return sorted({*self._deciding.stems(host), *self._shown.stems(host)})

    def place(self, stem: str) -> str:
        return self._shown.place(stem)

    def close(self) -> None:
        self._shown.close()
        self._deciding.close()
