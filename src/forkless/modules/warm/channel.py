# SPDX-License-Identifier: GPL-3.0-or-later
"""
Channels to a warm interpreter: they start the interpreter and carry its bytes in both directions.

The pipes of a child process serve the local connection and the ssh program. Before the interpreter greets, become may
prompt for a password; the become plugin recognises the prompt.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from forkless.core.process_tree import OF_WHOLE_RUN
from forkless.core.thread_stack import OwnThread
from forkless.modules.warm.interpreter import NotStartedError

if TYPE_CHECKING:
    import threading

    from forkless.modules.warm.interpreter import WarmInterpreter

__all__ = ["ProgramChannel"]

GRACE = 2.0


class ProgramChannel:
    """
    A channel over stdin and stdout of a child process.

    The child is in a session of its own, so Ctrl-C on the program's terminal does not reach it. `send` must not be
    called by two threads at once; `end_now` may be called by another thread while `begin` or `send` blocks.
    """

    def __init__(
        self,
        interpreter: WarmInterpreter,
        command: Any,
        *,
        cwd: Any = None,
        environ: Any = None,
        shell: str | None = None,
    ) -> None:
        self._interpreter = interpreter
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
        OF_WHOLE_RUN.add(self._child.pid)
        self._thread: threading.Thread | None = None

    def begin(self, *, become: Any, password: bytes | None, verdict: float, greeting: float) -> None:
        """
        Answer become and wait for the greeting; then start the thread that reads the output.

        `verdict` and `greeting` are the seconds allowed for become and for the greeting. After any failure the child
        has been closed and NotStartedError is raised.
        """
        try:
            self._converse(become, password, verdict, greeting)
        except (OSError, NotStartedError) as err:
            self.close(at_once=True)
            raise NotStartedError(str(err)) from err
        thread = OwnThread(target=self._listen, name=f"forkless-interpreter-{self._interpreter.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as err:  # the thread limit is reached: modules run cold
            self.close(at_once=True)
            raise NotStartedError(str(err)) from err
        self._thread = thread

    def _converse(self, become: Any, password: bytes | None, verdict: float, greeting: float) -> None:
        said = heard = b""  # of both streams, and of stdout: the greeting may follow become's message at once
        out = self._ends[0]
        watch = select.poll()
        for fd in self._ends:
            watch.register(fd, select.POLLIN)
        asked = become is not None and become.expect_prompt()
        became = become is None
        deadline = time.monotonic() + (greeting if became else verdict)
        while not self._interpreter.ready.is_set():
            left = deadline - time.monotonic()
            ready = watch.poll(max(0.0, left) * 1000)
            if not ready or left < 0:  # what says something else all the time does not greet, either
                raise NotStartedError("the warm interpreter did not greet in time")
            fd = ready[0][0]
            chunk = os.read(fd, 1 << 16)
            if not chunk:
                watch.unregister(fd)
                if fd == out:
                    raise NotStartedError("the warm interpreter ended before it greeted")
            if became:
                if fd == out:
                    self._interpreter.feed(chunk)
                continue
            said += chunk
            heard += chunk if fd == out else b""
            if asked and become.check_password_prompt(said):
                self.send((password or b"") + b"\n")
                asked = False
            if become.check_success(said):
                became, deadline = True, time.monotonic() + greeting
                self._interpreter.feed(heard)

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
        """Feed stdout to the interpreter until it ends. stderr carries messages of ssh or sudo only, and is discarded."""
        out, err = self._ends
        watch = select.poll()
        for fd in (out, err):
            watch.register(fd, select.POLLIN)
        with contextlib.suppress(OSError, ValueError):
            while True:
                for fd, _ in watch.poll():
                    chunk = os.read(fd, 1 << 18)
                    if fd == out and not chunk:
                        self._interpreter.gone()
                        return
                    if fd == out:
                        self._interpreter.feed(chunk)
                    elif not chunk:
                        watch.unregister(err)
        self._interpreter.gone()

    def end_now(self) -> None:
        """Kill the child, which releases a thread blocked in `begin` or `send`. Another thread calls this."""
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
        if child.returncode is not None:
            OF_WHOLE_RUN.discard(child.pid)
