# SPDX-License-Identifier: GPL-3.0-or-later
"""
Lines to a hearth: how its interpreter is started, and how bytes go there and back.

A program's pipes carry it for the local connection and for the ssh program. Before the interpreter speaks, become may have to be
answered; its plugin says what to look for.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

from forkless.modules._hearth import NotStartedError

if TYPE_CHECKING:
    from forkless.modules._hearth import Hearth

__all__ = ["ProgramLine"]

GRACE = 2.0


class ProgramLine:
    """A child whose input and output are the line. It is in a session of its own: Ctrl-C is not for it."""

    def __init__(self, hearth: Hearth, command: Any, *, cwd: Any = None, environ: Any = None, shell: str | None = None) -> None:
        self._hearth = hearth
        try:
            self._child = subprocess.Popen(
                command,
                shell=shell is not None,  # as Ansible's own connection does it
                executable=shell,
                cwd=cwd,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as err:
            raise NotStartedError(str(err)) from err
        self._thread: threading.Thread | None = None

    def begin(self, text: bytes, *, become: Any, password: bytes | None, seconds: float) -> None:
        """Answer become, send the text, and wait for the greeting."""
        assert self._child.stdout is not None  # noqa: S101  # for the type checker
        fd, said, deadline = self._child.stdout.fileno(), b"", time.monotonic() + seconds
        asked = become is not None and become.expect_prompt()
        sent = become is None
        try:
            if sent:
                self.send(text)
            while not self._hearth.ready.is_set():
                ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
                chunk = os.read(fd, 1 << 16) if ready else b""
                if not chunk:
                    raise NotStartedError("it ended before it spoke" if ready else "it said nothing in time")
                if sent:
                    self._hearth.feed(chunk)
                    continue
                said += chunk
                if asked and become.check_password_prompt(said):
                    self.send((password or b"") + b"\n")
                    asked = False
                if become.check_success(said):
                    self.send(text)
                    sent = True
        except (OSError, NotStartedError) as err:
            self.close(at_once=True)
            raise NotStartedError(str(err)) from err
        self._thread = threading.Thread(target=self._listen, name=f"forkless-hearth-{self._hearth.name}", daemon=True)
        self._thread.start()

    def send(self, data: bytes) -> None:
        assert self._child.stdin is not None  # noqa: S101  # for the type checker
        left = memoryview(data)
        fd = self._child.stdin.fileno()
        while left:
            left = left[os.write(fd, left) :]

    def _listen(self) -> None:
        assert self._child.stdout is not None  # noqa: S101  # for the type checker
        fd = self._child.stdout.fileno()
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(fd, 1 << 18):
                self._hearth.feed(chunk)
        self._hearth.gone()

    def end_now(self) -> None:
        """While it is being started: the one who waits for it was interrupted."""
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def close(self, *, at_once: bool = False) -> None:
        child = self._child
        assert child.stdin is not None  # noqa: S101  # for the type checker
        assert child.stdout is not None  # noqa: S101  # for the type checker
        child.stdin.close()
        try:
            child.wait(0.0 if at_once else GRACE)
        except subprocess.TimeoutExpired:
            self.end_now()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)
        if self._thread is not None:
            self._thread.join(GRACE)
        child.stdout.close()
