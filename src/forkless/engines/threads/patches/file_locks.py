# SPDX-License-Identifier: GPL-3.0-or-later
"""
`fcntl.lockf` on a worker's thread.

POSIX locks belong to a process. Forked workers wait for each other's locks; threads of one process would all be granted the same lock at
once. Linux has the same locks for an open file instead of a process, and other processes see no difference.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import struct
import sys
from typing import TYPE_CHECKING

from forkless.engines.threads import context

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import FileDescriptorLike

__all__: list[str] = []

_SET = getattr(fcntl, "F_OFD_SETLK", None)
# struct flock: type, whence, start, length, process (0 for these locks).
_FLOCK = struct.Struct("@hhqqq")
_KNOWN = sys.platform == "linux" and struct.calcsize("P") == 8 and _SET is not None
# Seconds between two attempts: a wait in C could not be interrupted.
_AGAIN = 0.02
_KEY = "file locks"


def lockf(original: Callable[..., object], _site: str) -> Callable[..., object]:
    """Wrap `fcntl.lockf`: a lock of a worker keeps out other workers, as well as other processes."""

    @functools.wraps(original)
    def lock(fd: FileDescriptorLike, cmd: int, len: int = 0, start: int = 0, whence: int = 0, /) -> object:  # noqa: A002  # the stdlib's name
        worker = context.current_worker()
        kind = {fcntl.LOCK_UN: fcntl.F_UNLCK, fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK}.get(
            cmd & ~fcntl.LOCK_NB
        )
        if worker is None or not _KNOWN or kind is None or context.in_forked_child():
            return original(fd, cmd, len, start, whence)
        number = fd if isinstance(fd, int) else fd.fileno()
        found = os.fstat(number)
        held: set[tuple[int, int]] = worker.state.setdefault(_KEY, set())
        wanted = _FLOCK.pack(kind, whence, start, len, 0)
        while True:
            try:
                fcntl.fcntl(number, _SET, wanted)  # type: ignore[arg-type]  # an int, because _KNOWN is true
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                if (found.st_dev, found.st_ino) in held:  # by another open file of this worker, whose lock it is
                    return None
                if cmd & fcntl.LOCK_NB:
                    raise
                worker.interrupt.sleep(_AGAIN)
            else:
                (held.discard if kind == fcntl.F_UNLCK else held.add)((found.st_dev, found.st_ino))
                return None

    return lock
