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

    def __init__(
        self, hearth: Hearth, command: Any, *, cwd: Any = None, environ: Any = None, shell: str | None = None
    ) -> None:
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
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as err:
            raise NotStartedError(str(err)) from err
        self._thread: threading.Thread | None = None

    def begin(self, text: bytes, *, become: Any, password: bytes | None, verdict: float, greeting: float) -> None:
        """Answer become, send the text, and wait for the greeting: so many seconds for either."""
        try:
            self._converse(text, become, password, verdict, greeting)
        except (OSError, NotStartedError) as err:
            self.close(at_once=True)
            raise NotStartedError(str(err)) from err
        self._thread = threading.Thread(target=self._listen, name=f"forkless-hearth-{self._hearth.name}", daemon=True)
        self._thread.start()

    def _converse(self, text: bytes, become: Any, password: bytes | None, verdict: float, greeting: float) -> None:
        said, out = b"", self._ends[0]
        watch = select.poll()
        for fd in self._ends:
            watch.register(fd, select.POLLIN)
        asked = become is not None and become.expect_prompt()
        sent = become is None
        deadline = time.monotonic() + (greeting if sent else verdict)
        if sent:
            self.send(text)
        while not self._hearth.ready.is_set():
            ready = watch.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                raise NotStartedError("it said nothing in time")
            fd = ready[0][0]
            chunk = os.read(fd, 1 << 16)
            if not chunk:
                watch.unregister(fd)
                if fd == out:
                    raise NotStartedError("it ended before it spoke")
            if sent:
                if fd == out:
                    self._hearth.feed(chunk)
                continue
            said += chunk
            if asked and become.check_password_prompt(said):
                self.send((password or b"") + b"\n")
                asked = False
            if become.check_success(said):
                self.send(text)
                sent, deadline = True, time.monotonic() + greeting

    def send(self, data: bytes) -> None:
        assert self._child.stdin is not None  # noqa: S101  # for the type checker
        left = memoryview(data)
        fd = self._child.stdin.fileno()
        while left:
            left = left[os.write(fd, left) :]

    @property
    def _ends(self) -> tuple[int, int]:
        assert self._child.stdout is not None  # noqa: S101  # for the type checker
        assert self._child.stderr is not None  # noqa: S101  # for the type checker
        return self._child.stdout.fileno(), self._child.stderr.fileno()

    def _listen(self) -> None:
        """Until the end of its output. What it says on the other stream is the program's own (ssh, sudo), and is for nobody."""
        out, err = self._ends
        watch = select.poll()
        for fd in (out, err):
            watch.register(fd, select.POLLIN)
        with contextlib.suppress(OSError, ValueError):
            while True:
                for fd, _ in watch.poll():
                    chunk = os.read(fd, 1 << 18)
                    if fd == out and not chunk:
                        self._hearth.gone()
                        return
                    if fd == out:
                        self._hearth.feed(chunk)
                    elif not chunk:
                        watch.unregister(err)
        self._hearth.gone()

    def end_now(self) -> None:
        """For who cannot wait: it is being started, or does not read what it is sent."""
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
        if child.stderr is not None:
            child.stderr.close()
