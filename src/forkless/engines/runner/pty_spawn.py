# SPDX-License-Identifier: GPL-3.0-or-later
"""
The part of pexpect that ansible-runner needs, on top of subprocess.

`pexpect.spawn` forks this program and runs Python in the child until exec. Finalizers of other threads' objects and signal
handlers run there too, and wait for locks whose owners do not exist in the child: a deadlock. Here the terminal is opened and
configured in the parent, the child is started by `subprocess` (vfork, C only), and a small program that takes the controlling
terminal and then calls exec runs in between.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from typing import Any

import pexpect
from pexpect.expect import Expecter, searcher_re
from pexpect.pty_spawn import ptyprocess

from forkless.core import platform
from forkless.core.process_tree import ProcessTree, environ_of, wait_for_end

__all__ = ["RunnerSpawn"]

_log = logging.getLogger("forkless")

# Seconds between a child closing its terminal and its exit. A child that closed its terminal and runs on is alive, and
# isalive() must not block for as long as it runs.
_LAST_STEPS = 0.5
# The kernel buffers some 70 kB of a dead child's output. Anything beyond this limit is the output of another process.
_TAIL_AT_MOST = 1 << 20
# The longest prompt that can still be matched from its first character.
_LONGEST_LINE = 4096

# For systems whose setsid(1) or env(1) lacks the needed options, and for commands with "=" in their name, which env(1) would take
# for an assignment. It runs Python in the child, but after exec: no locks of this program exist there.
_STEP_IN_PYTHON = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "ignore" else signal.SIG_DFL)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
command = [os.fsencode(word) for word in sys.argv[2:]]
try:
    os.execv(command[0], command)
except OSError as err:
    print(f"{sys.argv[2]}: {err.strerror}")
    sys.exit(127 if isinstance(err, FileNotFoundError) else 126)
"""


def _step(command: bytes, *, ignore_hangup: bool) -> list[str]:
    """The command prefix that makes a command a session leader whose controlling terminal is its stdin."""
    tools = platform.ctty_tools()
    if tools is None or b"=" in command:
        if not sys.executable:
            raise pexpect.ExceptionPexpect(
                f"cannot give {os.fsdecode(command)} a terminal of its own: this system has no setsid --ctty, and the "
                "program that we run in does not say where its Python is (sys.executable)"
            )
        return [sys.executable, "-I", "-S", "-c", _STEP_IN_PYTHON, "ignore" if ignore_hangup else "keep"]
    setsid, env = tools
    return [setsid, "--ctty", env, "--ignore-signal=HUP"] if ignore_hangup else [setsid, "--ctty"]


def _prepare_terminal(fd: int, dimensions: tuple[int, int], *, echo: bool) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *dimensions, 0, 0))
    if not echo:
        settings = termios.tcgetattr(fd)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(fd, termios.TCSANOW, settings)


class _PtyChild(ptyprocess.PtyProcess):  # type: ignore[misc]  # ptyprocess has no types
    """The process behind a RunnerSpawn: ptyprocess's interface to a child that ptyprocess did not fork."""

    terminated: bool
    closed: bool

    def __init__(self, pid: int, fd: int, mark: str) -> None:
        self._mark = mark
        self._taken = False
        # Held from waitpid until the status is stored: the kernel returns a status once, and several threads may ask for it.
        self._reaping = threading.Lock()
        super().__init__(pid, fd)

    def isalive(self) -> bool:
        if self.terminated:
            return False
        if self.flag_eof:
            wait_for_end(self.pid, _LAST_STEPS)
        return not self._reap()

    def wait(self) -> int | None:
        while self.isalive():
            wait_for_end(self.pid, 3600.0)
        status: int | None = self.exitstatus
        return status

    def _reap(self) -> bool:
        """Whether the child has ended; stores its exit status if so. Any thread may call it."""
        with self._reaping:
            if self.terminated:
                return True
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                if self._taken:
                    raise ptyprocess.PtyProcessError(
                        'isalive() encountered condition where "terminated" is 0, but its status was taken before'
                    ) from None
                _log.warning(
                    "the exit status of process %d was taken by other code in this program (SIGCHLD is ignored, or "
                    "waitpid(-1) is called); it counts as failed, because it cannot be known any more",
                    self.pid,
                )
                status, pid = None, self.pid
            if pid == 0:
                return False
            self.status = status
            if status is not None and os.WIFEXITED(status):
                self.exitstatus = os.WEXITSTATUS(status)
            elif status is not None:
                self.signalstatus = os.WTERMSIG(status)
            self._taken = self.terminated = True
            return True

    def close(self, force: bool = True) -> None:
        if self.closed:
            return
        self.flush()
        self.fileobj.close()
        try:
            # ptyprocess always sleeps for the whole delay here; most children have ended already.
            if not self._reap() and not wait_for_end(self.pid, self.delayafterclose):
                self._escalate(force=force)
            if not self._reap():
                raise ptyprocess.PtyProcessError("Could not terminate the child.")
        finally:
            self.fd = -1
            self.closed = True

    def _escalate(self, *, force: bool) -> None:
        """Send HUP, CONT and INT to the child; with `force`, KILL to the child and all its descendants."""
        tree = ProcessTree(self.pid, self._mark)
        for number in (signal.SIGHUP, signal.SIGCONT, signal.SIGINT):
            tree.ask(number)
            if wait_for_end(self.pid, self.delayafterterminate):
                break
        if force:
            tree.kill()
            wait_for_end(self.pid, 5.0)


class _TailExpecter(Expecter):  # type: ignore[misc]  # pexpect has no types
    """
    Searches for prompts at the end of the output, and keeps only that part of it.

    pexpect keeps all output for `before`, at three times its size in memory, and with a search window of 100 characters
    it cannot match a longer prompt from its start. Here the window always reaches back to the start of the line.
    """

    def _keep(self, fresh: str) -> int | None:
        spawn = self.spawn
        text = spawn._buffer.getvalue() + fresh
        line = text.rfind("\n") + 1
        start = max(0, len(text) - _LONGEST_LINE, min(line, len(text) - self.searchwindowsize))
        spawn._buffer = spawn.buffer_type()
        spawn._buffer.write(text[start:])
        spawn._before = spawn.buffer_type()
        spawn._before.write(text[start:])
        index = self.searcher.search(text[start:], len(fresh), None)
        if index < 0:
            return None
        return self._found(text[start:], index)

    def _found(self, window: str, index: int) -> int:
        spawn, searcher = self.spawn, self.searcher
        rest = window[searcher.end :]
        spawn.before, spawn.after = window[: searcher.start], window[searcher.start : searcher.end]
        spawn.match, spawn.match_index = searcher.match, index
        for name in ("_buffer", "_before"):
            setattr(spawn, name, spawn.buffer_type())
            getattr(spawn, name).write(rest)
        return index

    def existing_data(self) -> int | None:
        return self._keep(self.spawn.string_type())

    def new_data(self, data: str) -> int | None:
        return self._keep(data)


class RunnerSpawn(pexpect.spawn):  # type: ignore[misc]  # pexpect has no types
    """
    `pexpect.spawn` without Python code between fork and exec.

    Takes the same arguments except `preexec_fn`, which is Python code between fork and exec.
    """

    def __init__(self, command: str, args: list[str] | None = None, **options: object) -> None:
        options.setdefault("maxread", 16384)
        super().__init__(command, [] if args is None else args, **options)

    def _spawn(
        self, command: object, args: object = None, preexec_fn: object = None, dimensions: object = None
    ) -> None:
        if preexec_fn is not None:
            raise pexpect.ExceptionPexpect(
                "preexec_fn would run Python in a copy of this program, which may hang for ever; RunnerSpawn does not "
                "take it. Start a small program that does the same and then execs the command."
            )
        super()._spawn(command, [] if args is None else args, None, dimensions)

    def _spawnpty(
        self,
        args: list[Any],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        echo: bool = True,
        preexec_fn: object = None,  # noqa: ARG002  # pexpect's own function, for SIGHUP: the exec step handles that
        dimensions: tuple[int, int] = (24, 80),
    ) -> _PtyChild:
        words = [word if isinstance(word, bytes) else os.fsencode(word) for word in args]
        try:
            master, slave = os.openpty()
        except OSError as err:
            raise pexpect.ExceptionPexpect(f"no terminal for {os.fsdecode(words[0])}: {err.strerror}") from err
        try:
            _prepare_terminal(slave, dimensions, echo=echo)
            popen = subprocess.Popen(
                [*_step(words[0], ignore_hangup=self.ignore_sighup), *words],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                cwd=cwd,
                env=env,
            )
        except (OSError, ValueError, TypeError, subprocess.SubprocessError) as err:
            os.close(master)
            # ansible-runner catches ExceptionPexpect and reports exit code 127; any other exception would escape its run().
            raise pexpect.ExceptionPexpect(f"The command could not be started: {os.fsdecode(words[0])}: {err}") from err
        except BaseException:  # KeyboardInterrupt or a stop: no object owns the descriptor yet
            os.close(master)
            raise
        finally:
            os.close(slave)
        # _PtyChild reaps the child from here on. Popen's finalizer would otherwise take the exit status, and would report
        # success if other code had taken it before.
        popen.returncode = 0
        return _PtyChild(popen.pid, master, run_mark(env))

    def expect_list(
        self, pattern_list: Any, timeout: object = -1, searchwindowsize: object = -1, async_: bool = False, **kw: object
    ) -> object:
        if async_ or kw:
            return super().expect_list(pattern_list, timeout, searchwindowsize, async_, **kw)
        if list(pattern_list) == [pexpect.EOF] and not self.isalive():
            return self._drain()
        if searchwindowsize in (-1, None) or self.encoding is None:
            return super().expect_list(pattern_list, timeout, searchwindowsize)
        if timeout == -1:
            timeout = self.timeout
        return _TailExpecter(self, searcher_re(pattern_list), searchwindowsize).expect_loop(timeout)

    def read_nonblocking(self, size: int = 1, timeout: Any = -1) -> Any:
        if timeout == -1:
            timeout = self.timeout
        if (timeout is None or timeout > 0) and not self.closed and self._news(timeout):
            timeout = 0
        return super().read_nonblocking(size, timeout)

    def _news(self, timeout: float | None) -> bool:
        """
        Wait for output or the child's end, whichever comes first; return False if the system cannot wait for both.

        pexpect waits for output only: if a background process keeps the terminal open, it waits in vain after the child has
        ended.
        """
        try:
            end = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        except (AttributeError, OSError):
            return False
        try:
            poll = select.poll()
            poll.register(self.child_fd, select.POLLIN)
            poll.register(end, select.POLLIN)
            poll.poll(None if timeout is None else timeout * 1000)
        finally:
            os.close(end)
        return True

    def _drain(self) -> int:
        """
        Read what a child that has ended left in the terminal's buffer, to the last byte, at the reader's pace.

        The kernel reports whether there is more, so there is no timeout: one that expires while a slow reader works would
        lose the tail.
        """
        expecter, size = Expecter(self, searcher_re([pexpect.EOF])), 0
        while size < _TAIL_AT_MOST:
            try:
                text = self.read_nonblocking(self.maxread, 0)
            except (pexpect.EOF, pexpect.TIMEOUT):
                break
            size += len(text)
            self._before.write(text)
        index: int = expecter.eof()
        return index

    def send(self, s: object) -> int:
        try:
            written: int = super().send(s)
        except OSError as err:
            # The child asked and ended before the answer was sent: its exit status explains why.
            if err.errno in (errno.EIO, errno.EBADF, errno.EPIPE) and not self.isalive():
                return 0
            raise
        return written


# ansible-runner sets this variable to a folder that no other run has.
_MARK = "AWX_ISOLATED_DATA_DIR"


def run_mark(env: Any) -> str:
    """The environment variable (`NAME=value`) that only the processes of one ansible-runner run have; "" if `env` lacks it."""
    folder = (env or {}).get(_MARK, "")
    return f"{_MARK}={folder}" if folder and isinstance(folder, str) else ""


def mark_of(pid: int) -> str:
    """The mark of a running process."""
    return run_mark(environ_of(pid))
