# SPDX-License-Identifier: GPL-3.0-or-later
"""
A manager whose server is a thread.

The stdlib's server relies on the end of its process to end its threads, connections and listener. A server on a thread
must close them itself. Client and server also share one garbage collector: a proxy may be finalized on the server's
accepting thread, where a round trip to the server would deadlock. So a proxy's reference is released by a direct call
to the server.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import weakref
from multiprocessing import connection, managers
from typing import TYPE_CHECKING, Any

from forkless.multiprocessing.process_state import MAIN, current_state
from forkless.multiprocessing.stdlib import process, util

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["decref", "finalize_manager", "serve_client", "serve_forever"]

# The servers that run on threads of this program, by address.
_servers: dict[object, Any] = {}


class _Served(BaseException):
    """One request has been answered. A BaseException, because the server sends any Exception to its client."""


class _OneRequest:
    """A connection that delivers one request; the second recv() leaves the server's frame by raising _Served."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self._served = False
        self.send = conn.send
        self.close = conn.close

    def recv(self) -> object:
        if self._served:
            raise _Served
        self._served = True
        return self._conn.recv()


class _Shut(BaseException):
    """The listener was closed. A BaseException, because the stdlib's accepting thread retries after an OSError."""


class _ClosableListener:
    """Replaces a server's listener. `shut` may be called by another thread; it ends accept() and all open connections."""

    def __init__(self, listener: Any) -> None:
        self._listener = listener
        self._shut = False
        self._inside: weakref.WeakSet[object] = weakref.WeakSet()

    def accept(self) -> object:
        try:
            visitor = self._listener.accept()
        except OSError:
            if self._shut:  # the stdlib's thread would retry for ever on a closed listener
                raise _Shut from None
            raise
        if self._shut:
            visitor.close()
            raise _Shut
        self._inside.add(visitor)
        return visitor

    def shut(self, address: object) -> None:
        self._shut = True
        with contextlib.suppress(OSError):  # no thread is in accept(); otherwise this connection wakes it
            connection.SocketClient(address).close()  # type: ignore[attr-defined]
        self._listener.close()
        for visitor in list(self._inside):
            _hang_up(visitor)


def _hang_up(conn: Any) -> None:
    """Shut a connection down that another thread reads from. Closing its descriptor would not wake that thread."""
    # An OSError means that the connection is already closed.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(conn.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def _accept(server: Any) -> None:
    with contextlib.suppress(_Shut):
        server.accepter()


def serve_forever(stock: Callable[..., object]) -> object:
    def serve_forever(self: Any) -> None:
        if current_state() is MAIN:
            stock(self)
            return
        self.stop_event = threading.Event()
        # Re-entrant, because a proxy finalized while the server holds it calls decref on the same thread.
        self.mutex = threading.RLock()
        process.current_process()._manager_server = self
        self.listener = door = _ClosableListener(self.listener)
        _servers[self.address] = self
        try:
            threading.Thread(
                target=_accept, args=(self,), daemon=True, name=f"{current_state().process.name} accepts"
            ).start()
            while not self.stop_event.wait(1):  # ThreadStopped is raised only between two bytecodes
                pass
        finally:
            _servers.pop(self.address, None)
            door.shut(self.address)
        sys.exit(0)

    return serve_forever


def serve_client(stock: Callable[..., object]) -> object:
    """
    Serve each request in a frame of its own.

    The stdlib's frame references the last request and its result until the next request arrives. On a thread of the
    program that would keep the caller's objects alive.
    """

    def serve_client(self: Any, conn: Any) -> None:
        while not self.stop_event.is_set():
            conn.poll(None)
            try:
                stock(self, _OneRequest(conn))
            except _Served:
                continue

    return serve_client


class _NoClient:
    """The client argument of a direct call to the server."""

    def send(self, message: object) -> None:
        """Discard the server's answer."""


def decref(stock: Callable[..., object]) -> Any:
    def decref(token: Any, *rest: Any) -> None:
        server = _servers.get(token.address)
        if server is None:
            stock(token, *rest)
            return
        # Since 3.12.8 and 3.13.1 the second argument is a serial number, which idset holds in place of the token's id.
        *serial, _authkey, state, tls, idset, _client = rest
        idset.discard(serial[0] if serial else token.id)
        if state is None or state.value == managers.State.STARTED:  # type: ignore[attr-defined]
            try:
                server.decref(_NoClient(), token.id)
            except Exception as error:  # noqa: BLE001  as in the stdlib: the server may be shutting down
                util.debug("... decref failed %s", error)
        if not idset and hasattr(tls, "connection"):
            tls.connection.close()
            del tls.connection

    return decref


def finalize_manager(stock: Callable[..., object]) -> Any:
    def finalize_manager(child: Any, address: object, *rest: object) -> None:
        server = _servers.get(address)
        if server is not None:
            server.shutdown(_NoClient())
            child.join(1.0)
        stock(child, address, *rest)

    return finalize_manager
