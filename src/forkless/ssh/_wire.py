# SPDX-License-Identifier: GPL-3.0-or-later
"""A channel that stays: a program on the host whose input and output are the two ends of one line."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from forkless.ssh._command import Command

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Wire"]


class Wire(Command):
    """
    Like a command, but its input stays open and its output goes to `feed` as it comes.

    Made on the loop's thread; `send` and `close` may be called from any.
    """

    def __init__(self, *, feed: Callable[[bytes], None], gone: Callable[[], None], **more: Any) -> None:
        super().__init__(**more)
        self._feed, self._gone = feed, gone
        self._loop = asyncio.get_running_loop()
        # Nobody waits for it as for a command: how it ended is told to `gone`.
        self.done.add_done_callback(lambda future: future.cancelled() or future.exception())

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
            self._chan.write(self._input)

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
        """On the loop's thread: the program sees the end of its input, and ends."""
        with contextlib.suppress(OSError):
            self._chan.write_eof()
            self._chan.close()

    def end_now(self) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and all channels with it
            self._loop.call_soon_threadsafe(self.hang_up)
