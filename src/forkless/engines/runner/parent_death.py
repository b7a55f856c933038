# SPDX-License-Identifier: GPL-3.0-or-later
"""
Ends a run's processes and removes its files when the program that started them is killed.

A program that gets SIGKILL cannot clean up: its child would go on changing hosts while its output is read by no process, and files
with secrets would stay on disk. A small watcher process waits for the program's death. On Linux the run's first process also asks the
kernel for a signal (PR_SET_PDEATHSIG), so that it ends though the watcher was killed together with the program. That alone would not
be enough: the signal does not reach the child's workers, and removes no files.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Self

__all__ = ["END_WITH", "ParentDeathWatch", "can_end_with", "clean_up_after"]

_HOME = os.path.abspath(__file__).removesuffix(os.path.join("", "forkless", "engines", "runner", "parent_death.py"))
# Seconds between the signal to the run's first process and SIGKILL, as after a cancel.
_GRACE = 5.0
# Seconds that a process is given to have an environment. A zombie has none either.
_EXECVE = 0.5

# The first lines of the run's first process. Signals that the program blocks are not blocked there, or no signal could end the run; and
# if the program ignores SIGCHLD, the run must not: the exit status of every command would be lost, and read as success. The process
# takes the program's process id and a signal from its arguments: the kernel sends it that signal when the program dies. The kernel does so already when the *thread* ends that started the process, so that thread must
# wait for the end of the process, as RunnerEngine.carry_out does. execve() keeps the request, fork() drops it.
END_WITH = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_SETMASK, ())
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
parent, number = map(int, sys.argv[1:3])
del sys.argv[1:3]
if number:
    try:
        import ctypes
        ctypes.CDLL(None).prctl(1, number, 0, 0, 0)  # PR_SET_PDEATHSIG
    except (ImportError, OSError, AttributeError):
        pass
    if os.getppid() != parent:  # it died before the request was made
        os.kill(os.getpid(), number)
"""

# The watcher imports only built-in stdlib modules, so that it starts in milliseconds, and the rest when it is needed. Only the
# program holds the write end of the pipe at stdin: end of file means that the program ended. A child that the program forked may
# have inherited the write end, so the watcher also watches the program's process itself, where the system has pidfd_open.
_WATCH = """
import os, select, sys
home, parent, folder, mark, number = sys.argv[1:]
poll, pid = select.poll(), b""
poll.register(0, select.POLLIN)
try:
    handle = os.pidfd_open(int(parent))
    poll.register(handle, select.POLLIN)
except (AttributeError, OSError):
    handle = -1
while os.getppid() == int(parent):
    ready = dict(poll.poll())
    if handle in ready:
        break
    piece = os.read(0, 64)
    pid += piece
    if not piece:
        break
sys.path.insert(0, home)
from forkless.engines.runner.parent_death import clean_up_after
clean_up_after(int(pid or 0), mark, folder, int(number))
"""


def can_end_with() -> bool:
    """Whether END_WITH can work in a child of this program: on Linux, if Python has ctypes and is what `sys.executable` names."""
    return sys.platform == "linux" and _is_python() and importlib.util.find_spec("_ctypes") is not None


def _is_python() -> bool:
    """Whether `sys.executable` takes Python's flags; a program that embeds Python, such as uwsgi, would parse them as its own."""
    return os.path.basename(sys.executable).startswith(("python", "pypy"))


def clean_up_after(pid: int, mark: str, folder: str, number: int) -> None:
    """
    Called in the watcher after the program was killed: removes the run's files and ends its processes. With the `number` 0 the kernel
    has asked the run's first process to end already: for Ansible, a second SIGINT means that it may not clean up.
    """
    if folder:
        # Secrets first: their files are directly in the folder. The run is being ended, so it need not read them any more.
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)
    if pid or mark:
        from forkless.core.process_tree import ProcessTree

        if mark and os.path.exists("/proc/self/environ") and not _is_marked(pid, mark):
            pid = 0  # the run's first process has ended, and another process may have its id
        ProcessTree(pid, mark).end(_GRACE, signal.Signals(number) if number else None)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _is_marked(pid: int, mark: str) -> bool:
    """Whether the environment of this process has the mark. In the midst of execve() a process has none, for some microseconds."""
    from forkless.core import process_tree

    name, _, value = mark.partition("=")
    deadline = time.monotonic() + _EXECVE
    while (
        not (found := process_tree.environ_of(pid)) and time.monotonic() < deadline and os.path.exists(f"/proc/{pid}")
    ):
        time.sleep(0.005)
    return found.get(name) == value


class ParentDeathWatch:
    """
    While it is open, the death of this program ends the process passed to `watch()` with its descendants, and removes `folder`.

    `mark` is an environment variable (`NAME=value`) that only the run's processes have. `number` asks the first of them to end; None if
    it begins with END_WITH. If no process can be started there is no
    watcher, and the run proceeds without one.
    """

    def __init__(self, *, folder: str = "", mark: str = "", number: signal.Signals | None = signal.SIGTERM) -> None:
        self._popen: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        if not _is_python():
            return
        ours, theirs = os.pipe()
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _WATCH,
            _HOME,
            str(os.getpid()),
            folder,
            mark,
            str(int(number or 0)),
        ]
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=ours,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath)},  # without the mark of an enclosing run
                start_new_session=True,  # Ctrl-C at the terminal must reach the program only, which ends the run itself
            )
            self._pipe = theirs
        except (OSError, ValueError):
            os.close(theirs)
        except BaseException:  # KeyboardInterrupt, or the exception that stops a worker
            os.close(theirs)
            raise
        finally:
            os.close(ours)

    def watch(self, pid: int) -> None:
        """Tell the watcher the run's first process. If the program is killed earlier, the watcher finds processes by their mark only."""
        if self._pipe >= 0:
            with contextlib.suppress(OSError):
                os.write(self._pipe, str(pid).encode())

    def close(self) -> None:
        """End the watcher without cleaning up: the run has ended."""
        if self._popen is not None:
            # The watcher is killed before the pipe is closed: end of file would tell it that the program died.
            with contextlib.suppress(OSError):
                self._popen.kill()
            self._popen.wait()
            self._popen = None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
