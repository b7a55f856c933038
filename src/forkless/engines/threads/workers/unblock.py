# SPDX-License-Identifier: GPL-3.0-or-later
"""
Ends a thread's wait in C, during which no asynchronous exception is raised.

An exception that is sent to a thread is raised when the thread next runs Python code. Two kinds of waits in plugins can be ended
from another thread, found in the innermost frame: a condition (`Future.result`, `Queue.get`, `Event.wait`) and a socket.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["unblock"]

_WAIT = threading.Condition.wait.__code__


def unblock(ident: int) -> None:
    """
    End the wait of the thread `ident` if it is one of these. Any thread may call it, after the exception was sent.

    The waiter of a condition is released like a spurious wake-up: the exception is raised before the waiting code continues. A
    socket is shut down, so that a read from it returns end of file.
    """
    frame = sys._current_frames().get(ident)
    if frame is None:
        return
    found = frame.f_locals
    if frame.f_code is _WAIT:
        with contextlib.suppress(KeyError, RuntimeError):  # the thread has not begun to wait, or was just notified
            found["waiter"].release()
        return
    for one in _sockets(found):
        with contextlib.suppress(OSError):  # not connected, or already closed
            one.shutdown(socket.SHUT_RDWR)


def _sockets(found: Any) -> Iterator[socket.socket]:
    """The sockets among a frame's local variables and the attributes of its `self`, directly or inside a SocketIO."""
    own = getattr(found.get("self"), "__dict__", {})
    for value in [*list(found.values()), *list(own.values())]:
        inner = getattr(value, "_sock", None) if isinstance(value, socket.SocketIO) else value
        if isinstance(inner, socket.socket):
            yield inner
