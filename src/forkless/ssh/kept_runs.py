# SPDX-License-Identifier: GPL-3.0-or-later
"""The runs whose connections are kept until the run ends. Apart from the pool, which is imported when the first of them connects."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING

from forkless.core.run_context import SCOPE, BareRun, entered

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["KEPT", "kept"]

_POOL = "forkless.ssh.pool"

KEPT: set[Hashable] = set()

if hasattr(os, "register_at_fork"):
    # A forked child has no connections yet, and ends its own one by one.
    os.register_at_fork(after_in_child=KEPT.clear)


@contextlib.contextmanager
def kept(run: Hashable) -> Iterator[None]:
    """Keep the connections of `run` open until the block ends, whichever threads use them; then close all of them."""
    KEPT.add(run)
    scope = SCOPE.get()
    try:
        with contextlib.nullcontext() if scope is not None and scope.run_ident == run else entered(BareRun(run)):
            yield
    finally:
        KEPT.discard(run)
        if _POOL in sys.modules:
            importlib.import_module(_POOL).close_all(run)  # not from sys.modules: a thread may be executing the module
