# SPDX-License-Identifier: GPL-3.0-or-later
"""What this machine can do. The only place that asks; every answer is found by trying, not by the name of the system."""

from __future__ import annotations

import functools
import os
import sys

__all__ = ["can_exec", "can_fork", "ctty_tools", "has_pty", "has_sem_open", "has_shm"]


@functools.cache
def has_sem_open() -> bool:
    """Whether the stdlib's multiprocessing can make a lock: `_multiprocessing` is there and sem_open works (/dev/shm)."""
    try:
        from _multiprocessing import SemLock, sem_unlink
    except ImportError:
        return False
    name = f"/forkless-{os.getpid()}-{id(sys):x}"
    try:
        SemLock(1, 1, 1, name, False)  # the C signature: kind, value, maxvalue, name, unlink
        sem_unlink(name)
    except OSError:
        return False
    return True


@functools.cache
def can_exec() -> bool:
    """
    Whether this process may start a program.

    Tried by posix_spawn of a file that does not exist: a kernel that forbids processes says so before it looks for the
    file, one that allows them says ENOENT. Nothing is started either way.
    """
    if sys.platform in ("ios", "tvos", "watchos", "emscripten", "wasi") or not hasattr(os, "posix_spawn"):
        return False
    try:
        import _posixsubprocess  # noqa: F401
    except ImportError:
        return False
    try:
        pid = os.posix_spawn("/nonexistent/forkless-probe", ["forkless-probe"], {})
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    os.waitpid(pid, 0)  # a libc that only tells through the exit status: it could start something, so it can
    return True


@functools.cache
def can_fork() -> bool:
    """Whether fork may be called here. A system that forbids exec forbids fork too; that is how it can be asked safely."""
    return hasattr(os, "fork") and can_exec()


@functools.cache
def has_pty() -> bool:
    try:
        master, slave = os.openpty()
    except (AttributeError, OSError):
        return False
    os.close(master)
    os.close(slave)
    return True


@functools.cache
def ctty_tools() -> tuple[str, str] | None:
    """
    Where setsid(1) and env(1) are, if together they can make a terminal the controlling one and ignore a hangup.

    util-linux has the one and coreutils 8.31 the other; BusyBox and the BSDs have neither. Tried, on a terminal of
    its own, with the very words that are used later.
    """
    import shutil
    import subprocess

    path = os.pathsep.join([os.defpath, "/usr/bin", "/bin"])
    setsid, env, true = (shutil.which(name, path=path) for name in ("setsid", "env", "true"))
    if not (setsid and env and true and has_pty() and can_exec()):
        return None
    master, slave = os.openpty()
    try:
        tried = subprocess.run(
            [setsid, "--ctty", env, "--ignore-signal=HUP", true],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            check=False,
        )
    except OSError:
        return None
    finally:
        os.close(slave)
        os.close(master)
    return (setsid, env) if tried.returncode == 0 else None


@functools.cache
def has_shm() -> bool:
    """Whether POSIX shared memory can be made and written."""
    try:
        import _posixshmem

        name = f"/forkless-{os.getpid()}-{id(sys):x}"
        fd = _posixshmem.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
    except (ImportError, OSError):
        return False
    os.close(fd)
    _posixshmem.shm_unlink(name)
    return True
