# SPDX-License-Identifier: GPL-3.0-or-later
"""One command on one channel: its input, its output, and the negotiation with become before both."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

from forkless.ssh.errors import ConnectionLostError, EscalationError
from forkless.ssh.result import Become, CommandResult, TellData

__all__ = ["Command"]


class Command:
    """
    An asyncssh session. All methods are called on the event loop's thread and never block.

    With a become plugin, the state `prompt` waits for the password prompt and `escalation` for the success message.
    Then the input is sent, and further output is only collected.
    """

    def __init__(
        self,
        *,
        input_: bytes | None,
        become: Become | None = None,
        expects_prompt: bool = False,
        password: bytes | None = None,
        tty: bool = False,
        tell: TellData | None = None,
    ) -> None:
        self.done: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        self._input = input_
        self._become = become
        self._password = password
        self._tty = tty
        self._tell = tell
        self.heard = 0  # chunks received so far; a negotiation without new output times out
        self._out: list[bytes] = []
        self._err: list[bytes] = []
        self._tail = {None: b"", 1: b""}  # the unfinished last line of stdout and of stderr
        self._rc: int | None = None
        self._chan: Any = None
        self._state = "ready"
        if become is not None and expects_prompt:
            self._state = "prompt"
        elif become is not None and become.success:
            self._state = "escalation"

    @property
    def negotiating(self) -> bool:
        return self._state != "ready"

    # asyncssh calls these.

    def connection_made(self, chan: object) -> None:
        self._chan = chan

    def session_started(self) -> None:
        if not self.negotiating:
            self._send_input()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self.heard += 1
        if self._tell is not None:
            self._tell(b"e" if datatype else b"o", data)
        if self.negotiating:
            self._negotiate(data, datatype)
        else:
            (self._err if datatype else self._out).append(data)

    def eof_received(self) -> bool:
        return True  # keep our side open until the command ends, as ssh does

    def exit_status_received(self, status: int) -> None:
        self._rc = status

    def exit_signal_received(self, name: str, core_dumped: bool, msg: str, lang: str) -> None:
        del core_dumped, msg, lang
        number = getattr(signal, f"SIG{name}", None)
        self._rc = 128 + int(number or 0)
        self._err.append(f"ended by signal {name}\n".encode())

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        for datatype, rest in self._tail.items():
            (self._err if datatype else self._out).append(rest)
        if self._rc is None:
            why = getattr(exc, "reason", None) or exc or "the host closed the channel without an exit status"
            self.done.set_exception(
                ConnectionLostError(f"the connection was lost while the command ran: {why}", started=True)
            )
        else:
            self.done.set_result(CommandResult(self._rc, b"".join(self._out), b"".join(self._err)))

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def xon_xoff_requested(self, client_can_do: bool) -> None: ...

    # HostConnection calls this.

    def stop(self) -> None:
        """End the command: send KILL to the host, then close the channel, which closes the command's terminal or pipes."""
        self.forget()
        if self._chan is not None and not self.done.done():
            try:
                self._chan.kill()
                self._chan.abort()
            except OSError:
                pass  # the channel is already closed

    def forget(self) -> None:
        """Nothing awaits the result any more. asyncio would log an exception that nobody has read."""
        self.done.add_done_callback(lambda future: future.cancelled() or future.exception())

    def _send_input(self) -> None:
        if self._input:
            self._send(self._input)
        if not self._tty:
            self._chan.write_eof()

    def _send(self, data: bytes) -> None:
        """
        What the command reads. It may have ended before, also before asyncssh tells that it was started, and its result says why.

        asyncssh takes an exception from here for a start that failed, and the command would be executed a second time.
        """
        with contextlib.suppress(BrokenPipeError):
            self._chan.write(data)

    def _fail(self, sentence: str) -> None:
        if not self.done.done():
            self.done.set_exception(EscalationError(sentence))
        self._chan.kill()
        self._chan.abort()

    def _negotiate(self, data: bytes, datatype: int | None) -> None:
        """Check whole lines, and an unfinished last line for the prompt, which has no line end."""
        assert self._become is not None  # noqa: S101  # for the type checker: without become there is no negotiation
        lines = (self._tail[datatype] + data).splitlines(keepends=True)
        keep: list[bytes] = []
        self._tail[datatype] = b""
        for position, line in enumerate(lines):
            last = position == len(lines) - 1
            whole = line.endswith((b"\n", b"\r"))
            if not self.negotiating:
                keep.append(line)
            elif self._state == "prompt" and self._become.check_password_prompt(line):
                self._send((self._password or b"") + b"\n")
                self._state = "escalation"
            elif last and not whole:
                self._tail[datatype] = line
            elif self._become.success and self._become.check_success(line):
                self._state = "ready"
            elif refusal := self._refusal(line):
                self._fail(refusal)
                return
            else:
                keep.append(line)
        (self._err if datatype else self._out).extend(keep)
        if not self.negotiating:
            for other, rest in self._tail.items():
                (self._err if other else self._out).append(rest)
                self._tail[other] = b""
            self._send_input()

    def _refusal(self, line: bytes) -> str | None:
        assert self._become is not None  # noqa: S101  # for the type checker
        if self._become.check_missing_password(line):
            return f"Missing {self._become.name} password"
        if self._state == "escalation" and self._become.check_incorrect_password(line):
            return f"Incorrect {self._become.name} password"
        return None
