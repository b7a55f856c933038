# SPDX-License-Identifier: GPL-3.0-or-later
"""A long-lived channel to a program on the host."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from forkless.ssh.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Stream"]


class Stream(Command):
    """
    Like a command, but its input stays open, and its stdout is passed to `feed` as it arrives.

    It is created on the event loop's thread, which also calls `feed` and `gone`. Any thread may call `send`, `end_now`
    and `close`; they do not wait for the host.
    """

    def __init__(self, *, feed: Callable[[bytes], None], gone: Callable[[], None], **more: Any) -> None:
        super().__init__(**more)
        self._feed, self._gone = feed, gone
        self._loop = asyncio.get_running_loop()
        self.forget()  # `gone` reports the end

    def data_received(self, data: bytes, datatype: int | None) -> None:
        negotiating = self.negotiating
        if negotiating:
            super().data_received(data, datatype)
            if not self.negotiating and self._out:
                self._feed(b"".join(self._out))
                self._out.clear()
        elif not datatype:
            self._feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gone()

    def _fail(self, sentence: str) -> None:
        super()._fail(sentence)
        self._gone()

    def _send_input(self) -> None:
        if self._input:
            self._send(self._input)

    def send(self, data: bytes) -> None:
        try:
            self._loop.call_soon_threadsafe(self._write, data)
        except RuntimeError as err:
            raise OSError("the connection is closed") from err

    def _write(self, data: bytes) -> None:
        if self._chan.is_closing():
            self._gone()
        else:
            self._chan.write(data)

    def hang_up(self) -> None:
        """Close the channel, so that the program reads the end of its input and exits. Only on the loop's thread."""
        with contextlib.suppress(OSError):
            self._chan.write_eof()
            self._chan.close()

    def end_now(self) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, and all channels with it
            self._loop.call_soon_threadsafe(self.hang_up)
