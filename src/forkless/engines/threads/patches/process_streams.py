# SPDX-License-Identifier: GPL-3.0-or-later
"""
The process's stdout and stderr, divided by worker.

Plugins get a view of `sys` (`stdlib_views`), but the libraries that they call use the real one. Since 2.19 ansible-core captures what a
worker writes to the streams, and reports it with the task. That requires replacing `sys.stdout` and `sys.stderr`, so it is done only in
a process that belongs to forkless: the command.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from forkless.engines.threads import context
from forkless.patching import seams

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["divided_by_worker"]


class _Divided:
    """A stream that passes what a worker's threads write to the worker's stream of this name, and everything else to the real one."""

    def __init__(self, name: str, real: object) -> None:
        self._name, self._real = name, real

    def _stream(self) -> Any:
        worker = context.current_worker()
        return self._real if worker is None else worker.streams[self._name]

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream(), name)

    def __iter__(self) -> object:
        return iter(self._stream())


@contextlib.contextmanager
def divided_by_worker() -> Iterator[None]:
    """Divide the streams for the length of the block. Up to 2.18 workers share the process's streams, and nothing is changed."""
    if seams.minor(seams.version()) == "2.18":
        yield
        return
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Divided("stdout", before[0]), _Divided("stderr", before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
