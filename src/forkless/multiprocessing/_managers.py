# SPDX-License-Identifier: GPL-3.0-or-later
"""
A manager whose server is a thread.

The stdlib's server ends with its process: its threads, its connections and its listener go with it. One that is a
thread has to show everybody out. And since client and server share one garbage collector, a proxy may be finalized on
the server's own accepting thread, where a round trip to the server would wait for itself: a reference is given back to
the server directly.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import weakref
from multiprocessing import connection, managers
from typing import Any

from forkless.multiprocessing._life import MAIN, here
from forkless.multiprocessing._stdlib import process, util

__all__ = ["decref", "finalize_manager", "serve_client", "serve_forever"]

# The servers that are threads of this program, by address.
_servers: dict[Any, Any] = {}


class _Served(BaseException):
    """One request has been answered. Not an Exception: the server would send that to its client."""


class _OneRequest:
    """A connection that brings one request, then leaves the server's frame."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self._served = False
        self.send = conn.send
        self.close = conn.close

    def recv(self) -> Any:
        if self._served:
            raise _Served
        self._served = True
        return self._conn.recv()


class _Shut(BaseException):
    """Nobody is let in any more. Not an Exception: the stdlib's accepting thread takes most of those for passing ones."""


class _Door:
    """In the place of a server's listener: it can be shut, and knows who is inside."""

    def __init__(self, listener: Any) -> None:
        self._listener = listener
        self._shut = False
        self._inside: weakref.WeakSet[Any] = weakref.WeakSet()

    def accept(self) -> Any:
        try:
            visitor = self._listener.accept()
        except OSError:
            if self._shut:  # closed before anyone came by: the stdlib's thread would try again for ever
                raise _Shut from None
            raise
        if self._shut:
            visitor.close()
            raise _Shut
        self._inside.add(visitor)
        return visitor

    def shut(self, address: Any) -> None:
        self._shut = True
        with contextlib.suppress(OSError):  # nobody is waiting in accept()
            connection.SocketClient(address).close()  # type: ignore[attr-defined]
        self._listener.close()
        for visitor in list(self._inside):
            _hang_up(visitor)


def _hang_up(conn: Any) -> None:
    """End a conversation that another thread is waiting in. Closing the descriptor under it would not wake it."""
    # An error means that it has ended by itself.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(conn.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def _accept(server: Any) -> None:
    with contextlib.suppress(_Shut):
        server.accepter()


def serve_forever(stock: Any) -> Any:
    def serve_forever(self: Any) -> None:
        if here() is MAIN:
            stock(self)
            return
        self.stop_event = threading.Event()
        # Re-entrant: a proxy finalized while the server holds it gives its reference back on the same thread.
        self.mutex = threading.RLock()
        process.current_process()._manager_server = self
        self.listener = door = _Door(self.listener)
        _servers[self.address] = self
        try:
            threading.Thread(target=_accept, args=(self,), daemon=True, name=f"{here().process.name} accepts").start()
            while not self.stop_event.wait(1):  # not for ever: one that is told to stop must come by a bytecode
                pass
        finally:
            _servers.pop(self.address, None)
            door.shut(self.address)
        sys.exit(0)

    return serve_forever


def serve_client(stock: Any) -> Any:
    """
    Serve each request in a frame of its own.

    The stdlib's frame keeps the last request and its result until the next one comes. In a process of its own nobody
    can tell; in ours it would keep the caller's objects alive.
    """

    def serve_client(self: Any, conn: Any) -> None:
        while not self.stop_event.is_set():
            conn.poll(None)
            try:
                stock(self, _OneRequest(conn))
            except _Served:
                continue

    return serve_client


class _Nobody:
    """The client of a call that needs no connection."""

    def send(self, message: Any) -> None:
        """There is no one to answer."""


def decref(stock: Any) -> Any:
    def decref(token: Any, authkey: Any, state: Any, tls: Any, idset: Any, client: Any) -> None:
        server = _servers.get(token.address)
        if server is None:
            stock(token, authkey, state, tls, idset, client)
            return
        idset.discard(token.id)
        if state is None or state.value == managers.State.STARTED:  # type: ignore[attr-defined]
            try:
                server.decref(_Nobody(), token.id)
            except Exception as error:  # noqa: BLE001  as in the stdlib's: the server may be on its way out
                util.debug("... decref failed %s", error)
        if not idset and hasattr(tls, "connection"):
            tls.connection.close()
            del tls.connection

    return decref


def finalize_manager(stock: Any) -> Any:
    def finalize_manager(child: Any, address: Any, *rest: Any) -> None:
        server = _servers.get(address)
        if server is not None:
            server.shutdown(_Nobody())
            child.join(1.0)
        stock(child, address, *rest)

    return finalize_manager
