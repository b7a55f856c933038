# SPDX-License-Identifier: GPL-3.0-or-later
"""
Replaces the extension `_posixshmem`: shared memory by name, for the threads of one process.

The memory is an anonymous file. Its name exists only in this module, so that nothing is left in /dev/shm when the
program ends. Any thread may call the functions.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import types

__all__ = ["as_extension", "shm_open", "shm_unlink"]

_files: dict[str, int] = {}
# Guards _files. Re-entrant, because a finalizer that runs under it may unlink a SharedMemory.
_lock = threading.RLock()


def _anonymous_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name.lstrip("/"))
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _check(path: str) -> None:
    if "\0" in path:
        raise ValueError("embedded null character")


def shm_open(path: str, flags: int, mode: int = 0o777) -> int:  # noqa: ARG001  (no other process can open it)
    _check(path)
    with _lock:
        if path in _files:
            if flags & os.O_CREAT and flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        elif flags & os.O_CREAT:
            _files[path] = _anonymous_file(path)
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return os.dup(_files[path])


def shm_unlink(path: str) -> None:
    _check(path)
    with _lock:
        if path not in _files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        os.close(_files.pop(path))


def as_extension() -> types.ModuleType:
    """A module for sys.modules["_posixshmem"]."""
    module = types.ModuleType(
        "_posixshmem", "Shared memory for the threads of one process; stands in for the extension."
    )
    vars(module).update(shm_open=shm_open, shm_unlink=shm_unlink)
    return module
