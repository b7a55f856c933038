# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults that tests cause: a statement that is held up in the database, and a network that swallows what is sent."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

import psycopg

from queue_support import wait_until

# The advisory lock on which a held statement waits.
HELD = 4711


@contextlib.contextmanager
def held(url, function):
    """
    Whoever calls the SQL function waits inside of it, until the block ends or `Hold.release()`.

    So a client can be killed at the moment at which it waits for that statement's answer, on any machine, however slow.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (HELD,))
        signature = connection.execute(
            "SELECT pg_get_function_identity_arguments(oid), pg_get_function_arguments(oid), pg_get_function_result(oid), pronargs "
            "FROM pg_proc WHERE pronamespace = 'forkless'::regnamespace AND proname = %s",
            (function,),
        ).fetchone()
        identity, arguments, result, count = signature
        numbers = ", ".join(f"${number + 1}" for number in range(count))
        connection.execute("SET search_path = forkless")
        connection.execute(f"ALTER FUNCTION forkless.{function}({identity}) RENAME TO {function}_itself")
        call = f"forkless.{function}_itself({numbers})"
        answer = f"PERFORM {call}; RETURN;" if result == "void" else f"RETURN {call};"
        connection.execute(
            f"CREATE FUNCTION forkless.{function}({arguments}) RETURNS {result} LANGUAGE plpgsql AS $$ BEGIN "
            f"PERFORM pg_advisory_xact_lock_shared({HELD}); {answer} END $$"
        )
        yield Hold(connection)


class Hold:
    def __init__(self, connection):
        self._connection = connection

    def _waiting(self):
        return self._connection.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted", (HELD,)
        ).fetchall()

    def wait_for_caller(self):
        """Return when somebody waits inside the function."""
        wait_until(self._waiting, "the call of the held function")

    def drop_statement(self):
        """The statement never happened: its session ends before the function goes on."""
        for (pid,) in self._waiting():
            self._connection.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
        self.release()

    def release(self):
        """The statement happens, whether or not its client is there to hear it; so do all later ones."""
        self._connection.execute("SELECT pg_advisory_unlock_all()")


class Proxy:
    """A TCP proxy to a Unix socket. What is sent in a direction that is `cut` is swallowed; connections stay open, new ones are accepted."""

    def __init__(self, path):
        self._path = path
        self.cut = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=50)
        self.port = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._open = set()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def restore(self):
        """The network is back. What was swallowed stays lost, so old connections are reset, as their ends would find."""
        self.cut = set()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._wake.send(b".")
        self._thread.join()
        for one in (*self._open, self._listener, self._wake, self._woken):
            one.close()
        self._selector.close()

    def _serve(self):
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._open:  # otherwise its other end was closed a moment ago
                    self._pass_on(key.fileobj, *key.data)

    def _accept(self):
        near, _ = self._listener.accept()
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(self._path)
        except OSError:  # the server is away
            near.close()
            far.close()
            return
        self._open |= {near, far}
        self._selector.register(near, selectors.EVENT_READ, (far, "to the database"))
        self._selector.register(far, selectors.EVENT_READ, (near, "to the worker"))

    def _pass_on(self, source, target, direction):
        try:
            data = source.recv(65536)
            if data and direction not in self.cut:
                target.sendall(data)
        except OSError:
            data = b""
        if not data:
            for one in (source, target):
                self._selector.unregister(one)
                self._open.discard(one)
                one.close()
