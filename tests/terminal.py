# SPDX-License-Identifier: GPL-3.0-or-later
"""A program at a real terminal of a chosen size, and the screen that a user would see."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import struct
import subprocess
import sys
import termios
import time

import pyte


class Terminal:
    """Starts `forkless ...` with a pty as its controlling terminal; `screen` is the content of the terminal."""

    def __init__(self, *arguments, cwd, columns=100, rows=30, env=None, program=None):
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen = pyte.HistoryScreen(columns, rows, history=2000, ratio=0.001)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self._open = True
        command = list(program or [sys.executable, "-m", "forkless"]) + list(arguments)
        self._popen = subprocess.Popen(
            [shutil.which("setsid"), "--ctty", *command],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, start_new_session=False,
            env={**os.environ, "TERM": "xterm-256color", **(env or {})},
        )  # fmt: skip
        os.close(theirs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()
        if self._ours >= 0:
            os.close(self._ours)

    @property
    def pid(self):
        return self._popen.pid

    @property
    def lines(self):
        """All lines, including those that were scrolled out, with their present content."""
        above = ["".join(row[x].data for x in range(self._screen.columns)) for row in self._screen.history.top]
        return [line.rstrip() for line in [*above, *self._screen.display]]

    @property
    def screen(self):
        return "\n".join(line.rstrip() for line in self._screen.display)

    def type(self, text):
        os.write(self._ours, text.encode())

    def _read(self, seconds):
        ready, _, _ = select.select([self._ours], [], [], seconds)
        if not ready:
            return
        try:
            piece = os.read(self._ours, 1 << 16)
        except OSError:  # Linux raises EIO after the last process has closed the other end
            piece = b""
        if not piece:
            self._open = False
        self.raw += piece
        self._stream.feed(piece)

    def until(self, found, seconds=200):
        """Read output until `found` is on the screen (a text), or returns true (a function without arguments)."""
        wanted = (lambda: found in self.screen) if isinstance(found, str) else found
        deadline = time.monotonic() + seconds
        while not wanted():
            assert self._open, f"it ended before {found!r} came:\n" + "\n".join(self.lines)
            assert time.monotonic() < deadline, f"{found!r} did not come:\n{self.screen}"
            self._read(0.2)
        return self

    def wait(self, seconds=200):
        """Read output until the program ends; its exit code."""
        deadline = time.monotonic() + seconds
        while self._open:
            assert time.monotonic() < deadline, f"it did not end:\n{self.screen}"
            self._read(0.2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(max(1.0, deadline - time.monotonic()))
        raise AssertionError("it closed its terminal and did not end")

    def hang_up(self, seconds=200):
        """Close the terminal while the program runs; its exit code."""
        os.close(self._ours)
        self._ours = -1
        return self._popen.wait(seconds)
