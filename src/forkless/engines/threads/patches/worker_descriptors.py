# SPDX-License-Identifier: GPL-3.0-or-later
"""
Pipes and terminals that a plugin opens, as numbers which nothing closes but the plugin itself.

Those of a process that is ended are closed. A worker that is stopped between two lines of a plugin, such as those of ansible.builtin.ssh that open
a terminal and start ssh on it, would leave them open in the program.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import stat
import sys
from typing import TYPE_CHECKING

from forkless.engines.threads import context
from forkless.engines.threads.patches.worker_view import WorkerView

if TYPE_CHECKING:
    from forkless.engines.threads.workers.worker import Worker

__all__ = ["PtyView", "forget", "note"]

_KEY = "descriptors"
# Of Linux: the device of every terminal's upper end, and the request that tells which lower end it has.
_UPPER_END = os.makedev(5, 2)
_TIOCGPTN = 0x80045430


def note(pair: tuple[int, int]) -> tuple[int, int]:
    """The plugin on this thread has opened these, and is to close them with `os.close`, or to give them to `os.fdopen` or `open`."""
    worker = context.current_worker()
    if worker is not None and not context.in_forked_child():
        if _KEY not in worker.state:
            worker.state[_KEY] = {}
            worker.at_end.append(functools.partial(_close_all, worker))
        worker.state[_KEY].update({fd: _identity(fd) for fd in pair})
    return pair


def forget(fd: object) -> None:
    """The plugin is about to close this descriptor, or a file object closes it from now on."""
    worker = context.current_worker()
    if worker is not None and _KEY in worker.state:
        worker.state[_KEY].pop(fd, None)


def _identity(fd: int) -> tuple[int, ...] | None:
    """
    What no later file of the same number has; None if that cannot be told, and the descriptor is not closed then.

    Every pipe has an inode of its own. All terminals of a program have one for their upper ends, and the number of the lower end is given
    again: there the moment at which the system made the lower end is compared, too.
    """
    try:
        found = os.fstat(fd)
        if not stat.S_ISCHR(found.st_mode):
            return found.st_dev, found.st_ino
        if sys.platform != "linux":
            return None
        if found.st_rdev == _UPPER_END:
            number = int.from_bytes(fcntl.ioctl(fd, _TIOCGPTN, bytes(4)), sys.byteorder)
            found = os.stat(f"/dev/pts/{number}")
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_rdev, found.st_ctime_ns


def _close_all(worker: Worker) -> None:
    noted: dict[int, tuple[int, ...] | None] = worker.state.pop(_KEY, {})
    # Of a worker that has ended by itself nothing is closed: a plugin may keep them on purpose, and its threads may still use them.
    if worker.interrupt.sent is None or worker.interrupt.has_members:
        return
    for fd, identity in noted.items():
        if identity is not None and _identity(fd) == identity:
            with contextlib.suppress(OSError):
                os.close(fd)


class PtyView(WorkerView):
    """The `pty` of a plugin's code."""

    def openpty(self) -> tuple[int, int]:
        opened: tuple[int, int] = self.__dict__["_real"].openpty()
        return note(opened)
