# SPDX-License-Identifier: GPL-3.0-or-later
"""An interactive shell on a channel with a terminal, as network devices have it."""

from __future__ import annotations

import contextlib
import queue
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

__all__ = ["InteractiveShell"]

# Seconds between two looks of a waiting thread: an exception that is sent to it is raised only between two waits.
LOOK_UP = 0.25


class _Channel(Protocol):
    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool: ...


class InteractiveShell:
    """
    What is typed into a shell and what it prints, with the methods of a socket.

    asyncssh calls `connection_made`, `data_received`, `eof_received` and `connection_lost` on the event loop's thread. One other thread
    at a time uses the rest; only `recv` waits for the host. That thread is sent exceptions, which may be raised at any place: it takes no
    lock that the event loop waits for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # its lock is held within one call of C only
        self._unread = b""  # of the last chunk
        self._ended = False
        self._timeout: float | None = None
        self._channel: _Channel | None = None

    # asyncssh calls these.

    def connection_made(self, channel: _Channel) -> None:
        self._channel = channel

    def session_started(self) -> None:
        pass

    def data_received(self, data: bytes, _datatype: int | None) -> None:
        self._chunks.put(data)

    def eof_received(self) -> bool:
        self.connection_lost(None)
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._ended = True
        self._chunks.put(b"")  # wakes the reader

    def exit_status_received(self, status: int) -> None:
        pass

    def exit_signal_received(self, signal: str, core_dumped: bool, message: str, language: str) -> None:
        pass

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    # For the thread that uses the shell.

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        return self._timeout

    def recv(self, size: int) -> bytes:
        """Up to `size` bytes, b"" if the host has closed the shell. TimeoutError after the time that `settimeout` has set."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while not self._unread:
            if self._ended and self._chunks.empty():
                return b""
            left = LOOK_UP if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self._unread = self._chunks.get(timeout=min(left, LOOK_UP))
            except queue.Empty:
                if not left:
                    raise TimeoutError from None
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def sendall(self, data: bytes) -> None:
        """Raises OSError if the shell is closed."""
        with contextlib.suppress(RuntimeError):  # the loop was closed, and all channels with it
            if not self._ended:
                self._loop.call_soon_threadsafe(self._write, data)
                return
        raise OSError("Socket is closed")

    def _write(self, data: bytes) -> None:
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(data)

    def close(self) -> None:
        """May be called more than once; does not wait for the host."""
        with contextlib.suppress(RuntimeError):  # the loop was closed, and all channels with it
            if self._channel is not None:
                self._loop.call_soon_threadsafe(self._channel.close)
