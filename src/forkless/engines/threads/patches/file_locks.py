# SPDX-License-Identifier: GPL-3.0-or-later
"""
`fcntl.lockf`, and `fcntl.fcntl` with the same locks, on a worker's thread.

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
import threading
from typing import TYPE_CHECKING

from forkless.engines.threads import context

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import FileDescriptorLike

    from forkless.engines.threads.workers.worker import Worker

__all__: list[str] = []

_SET, _GET = getattr(fcntl, "F_OFD_SETLK", -1), getattr(fcntl, "F_OFD_GETLK", -1)
# struct flock: type, whence, start, length, process (0 for these locks); what a caller wants of it; and what the kernel answers.
_FLOCK = struct.Struct("@hhqqq")
_WANTED = struct.Struct("@hhqq")
_ANSWER = struct.Struct("@hhqqi")
_WHOLE_FILE = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
_KNOWN = sys.platform == "linux" and struct.calcsize("P") == 8 and _SET != -1
# Seconds between two attempts: a wait in C could not be interrupted.
_AGAIN = 0.02
_KEY = "file locks"

# By the number of a descriptor: the worker that was the last to want a lock by it, and the file. A worker's locks are its own by whichever of
# its descriptors, as those of a process are; which of them is still open, and has the lock, the kernel is asked. A number that a worker has
# closed may be the next worker's: that one writes itself down before it wants a lock.
_lockers: dict[int, tuple[Worker, tuple[int, int]]] = {}
_guard = threading.Lock()


def lockf(original: Callable[..., object], _site: str) -> Callable[..., object]:
    """Wrap `fcntl.lockf`: a lock of a worker keeps out other workers, as well as other processes."""

    @functools.wraps(original)
    def lock(fd: FileDescriptorLike, cmd: int, len: int = 0, start: int = 0, whence: int = 0, /) -> object:  # noqa: A002  # the stdlib's name
        worker = _worker()
        kind = {fcntl.LOCK_UN: fcntl.F_UNLCK, fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK}.get(
            cmd & ~fcntl.LOCK_NB
        )
        if worker is None or kind is None:
            return original(fd, cmd, len, start, whence)
        _set_lock(worker, fd, _FLOCK.pack(kind, whence, start, len, 0), waits=not cmd & fcntl.LOCK_NB)
        return None

    return lock


def control(original: Callable[..., object], _site: str) -> Callable[..., object]:
    """Wrap `fcntl.fcntl`: likewise for F_SETLK, F_SETLKW and F_GETLK. Locks of an open file (F_OFD_...) and all else are left alone."""

    @functools.wraps(original)
    def command(fd: FileDescriptorLike, cmd: int, arg: object = 0, /) -> object:
        worker = _worker() if cmd in (fcntl.F_SETLK, fcntl.F_SETLKW, fcntl.F_GETLK) else None
        given = b"" if worker is None else _bytes(arg)
        if worker is None or len(given) < _WANTED.size:
            return original(fd, cmd, arg)
        wanted = _FLOCK.pack(*_WANTED.unpack_from(given), 0)  # by an open file: the number of the process must be 0
        if cmd == fcntl.F_GETLK:
            answer = _ask_lock(worker, fd, wanted)
            return answer[: len(given)] + given[len(answer) :]
        _set_lock(worker, fd, wanted, waits=cmd == fcntl.F_SETLKW)
        return given

    return command


def _worker() -> Worker | None:
    """The worker whose lock it is; None if the stdlib's function does what is wanted."""
    return None if not _KNOWN or context.in_forked_child() else context.current_worker()


def _bytes(arg: object) -> bytes:
    """A struct flock as a caller gives it: bytes, or an object with a buffer, such as a structure of ctypes."""
    try:
        return bytes(memoryview(arg))  # type: ignore[arg-type]  # what has no buffer is an address, or the stdlib's to refuse
    except TypeError:
        return b""


def _number(fd: FileDescriptorLike) -> int:
    return fd if isinstance(fd, int) else fd.fileno()


def _file(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino


def _set_lock(worker: Worker, fd: FileDescriptorLike, wanted: bytes, *, waits: bool) -> None:
    number = _number(fd)
    with worker.interrupt.shielded(), _guard:
        _lockers[number] = worker, _file(number)
        if _KEY not in worker.state:
            worker.state[_KEY] = True
            worker.at_end.append(functools.partial(_release_all, worker))
    while True:
        try:
            fcntl.fcntl(number, _SET, wanted)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            with worker.interrupt.shielded(), _guard:
                # Another open file of this worker has it, and takes what is wanted: a process's own locks are not in its way.
                if any(_is_free_for(other, wanted) and _set(other, wanted) for other in _others(worker, number)):
                    return
            if not waits:
                raise
            worker.interrupt.sleep(_AGAIN)
        else:
            if _FLOCK.unpack(wanted)[0] == fcntl.F_UNLCK:
                with worker.interrupt.shielded(), _guard:
                    for other in _others(worker, number):
                        _set(other, wanted)
            return


def _others(worker: Worker, number: int) -> list[int]:
    """Other descriptors of the same file by which this worker may have locks. Called with the guard held."""
    file = _file(number)
    return [one for one, found in _lockers.items() if found == (worker, file) and one != number and _is_of(one, file)]


def _is_of(number: int, file: tuple[int, int]) -> bool:
    try:
        return _file(number) == file
    except OSError:  # closed
        return False


def _set(number: int, wanted: bytes) -> bool:
    try:
        fcntl.fcntl(number, _SET, wanted)
    except OSError:
        return False
    return True


def _is_free_for(number: int, wanted: bytes) -> bool:
    """Whether no lock is in the way of this one but those of the same open file."""
    try:
        answer: bytes = fcntl.fcntl(number, _GET, wanted)
    except OSError:
        return False
    return bool(_WANTED.unpack_from(answer)[0] == fcntl.F_UNLCK)


def _ask_lock(worker: Worker, fd: FileDescriptorLike, wanted: bytes) -> bytes:
    """The lock that would keep this one out, as F_GETLK tells it; its type is F_UNLCK if there is none."""
    number = _number(fd)
    found: bytes = fcntl.fcntl(number, _GET, wanted)
    kind, whence, start, length, process = _ANSWER.unpack_from(found)
    if kind == fcntl.F_UNLCK or process != -1:
        return found
    # A lock of an open file, of which the kernel tells no process. It is one of this process if it is not in the way of its own file.
    file = _file(number)
    with worker.interrupt.shielded(), _guard:
        if any(_is_free_for(one, wanted) for one in _others(worker, number)):
            return _FLOCK.pack(fcntl.F_UNLCK, *_WANTED.unpack_from(wanted)[1:], 0)
        ours = any(which == file and _is_free_for(one, wanted) for one, (_, which) in _lockers.items() if one != number)
    return _ANSWER.pack(kind, whence, start, length, os.getpid() if ours else -1).ljust(_FLOCK.size, b"\0")


def _release_all(worker: Worker) -> None:
    """The locks of a process end with it, also if another process or thread keeps its files open."""
    with _guard:
        for number, (owner, file) in list(_lockers.items()):
            if owner is worker:
                # Threads that a plugin has started, and that still run, keep what they have.
                if not worker.interrupt.has_members and _is_of(number, file):
                    _set(number, _WHOLE_FILE)
                del _lockers[number]
