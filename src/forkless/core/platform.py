# SPDX-License-Identifier: GPL-3.0-or-later
"""What this machine can do. No other module probes the platform; every answer comes from trying, not from the system's name."""

from __future__ import annotations

import functools
import os
import sys
import threading

__all__ = [
    "can_exec",
    "can_fork",
    "can_thread",
    "core_numbers",
    "cores",
    "ctty_tools",
    "green_threads",
    "has_pty",
    "has_sem_open",
    "has_shm",
    "open_files_limit",
]


@functools.cache
def has_sem_open() -> bool:
    """Whether the stdlib's multiprocessing can make a lock: `_multiprocessing` exists and sem_open works (/dev/shm)."""
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

    Probed with posix_spawn of a file that does not exist: a kernel that forbids new processes reports that before it looks
    for the file; one that allows them reports ENOENT. No process is left running.
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
    os.waitpid(pid, 0)  # this libc reports ENOENT by the exit status only: exec is allowed
    return True


@functools.cache
def can_fork() -> bool:
    """Whether fork may be called. A system that forbids exec forbids fork too, and exec can be probed without forking."""
    return hasattr(os, "fork") and can_exec()


@functools.cache
def can_thread() -> bool:
    """Whether a thread can be started. A thread is started to find out: a build without threads, and a limit on them, show in no other way."""
    thread = threading.Thread(target=lambda: None, name="forkless-question")
    try:
        thread.start()
    except RuntimeError:
        return False
    thread.join()
    return True


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
    The paths of setsid(1) and env(1), if together they can set the controlling terminal and ignore SIGHUP; otherwise None.

    setsid --ctty needs util-linux, env --ignore-signal needs coreutils 8.31; BusyBox and the BSDs have neither. Probed on a
    new pseudo-terminal with the same arguments that are used later.
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
    """Whether POSIX shared memory can be created."""
    try:
        import _posixshmem

        name = f"/forkless-{os.getpid()}-{id(sys):x}"
        fd = _posixshmem.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
    except (ImportError, OSError):
        return False
    os.close(fd)
    _posixshmem.shm_unlink(name)
    return True


def green_threads() -> tuple[str, list[str]] | None:
    """
    The library (gevent or eventlet) that has replaced the stdlib's threads, processes or polling in this process, and the
    modules it replaced; None if there is none.

    Not cached, because a program may call the library's patch function at any time. The library is not imported: if the
    program has not imported it, it has replaced nothing.
    """
    needed = ("thread", "threading", "subprocess", "select", "os")
    for library, module, asked in (
        ("gevent", "gevent.monkey", "is_module_patched"),
        ("eventlet", "eventlet.patcher", "is_monkey_patched"),
    ):
        is_patched = getattr(sys.modules.get(module), asked, None)
        found = [name for name in needed if is_patched is not None and is_patched(name)]
        if found:
            return library, found
    return None


def open_files_limit() -> int | None:
    """How many files this process may have open (ulimit -n); None without a limit, or where it cannot be asked for."""
    try:
        import resource
    except ImportError:
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_numbers() -> list[int]:
    """The numbers of the cores that this process may use; [] where a process cannot choose among them, or not for its single threads."""
    try:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        os.listdir(f"/proc/{os.getpid()}/task")
    except (AttributeError, OSError):
        return []
    return sorted(cores)
