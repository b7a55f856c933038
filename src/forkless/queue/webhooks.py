# SPDX-License-Identifier: GPL-3.0-or-later
"""The message at the end of a run: signed, sent by whichever worker is first, tried again until it is taken."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import http.client
import json
import logging
import socket
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from forkless.core.errors import ForklessError
from forkless.queue import secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.queue.database import AsyncConnection
    from forkless.queue.records import Json

__all__ = ["MOST_TRIES", "deliver_due", "sign"]

log = logging.getLogger("forkless.worker")

# With pauses that double from 15 s to an hour, about nine hours.
MOST_TRIES = 16
# Seconds for the connection, and for each read and write; seconds for the whole message.
_PATIENCE = 10.0
_PATIENCE_IN_ALL = 20.0


def sign(body: bytes, secret: str) -> str:
    """The value of the header X-Forkless-Signature: HMAC-SHA256 of the body, in hexadecimal."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead a signed message to another place; it counts as a failure."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


class _Delivery:
    """
    The connection of one message. A receiver that sends a byte now and then exceeds the time limit of no read, so `end` ends all of them.

    `end` may be called by any thread, more than once; what is read or written then fails at once, in a TLS handshake too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[socket.socket] = []
        self.ended = False

    def opener(self) -> urllib.request.OpenerDirector:
        return urllib.request.build_opener(_NoRedirects, _Handler(self))

    def connect(self, address: tuple[str, int], timeout: float, source: tuple[str, int] | None) -> socket.socket:
        """What http.client calls in place of socket.create_connection."""
        made = socket.create_connection(address, timeout, source)
        with self._lock:
            self._held.append(made.dup())  # a TLS socket takes the descriptor of the first away
            if self.ended:
                self._shut_down()
        return made

    def end(self) -> None:
        with self._lock:
            self.ended = True
            self._shut_down()

    def _shut_down(self) -> None:
        while self._held:
            with self._held.pop() as held, contextlib.suppress(OSError):  # it has ended by itself
                held.shutdown(socket.SHUT_RDWR)


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Takes the place of both for an opener."""

    def __init__(self, delivery: _Delivery) -> None:
        super().__init__()
        self._delivery = delivery

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_connection, http.client.HTTPConnection, self._delivery), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_connection, http.client.HTTPSConnection, self._delivery), req)


def _connection(
    kind: Callable[..., http.client.HTTPConnection], delivery: _Delivery, host: str, /, **more: object
) -> http.client.HTTPConnection:
    made = kind(host, **more)
    vars(made)["_create_connection"] = delivery.connect
    return made


def _send(message: dict[str, Json], delivery: _Delivery) -> str | None:
    """Send one message; the reason if it was not taken."""
    body = json.dumps({"run": message["run"], "delivery": message["id"]}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "forkless", "X-Forkless-Delivery": str(message["id"])}
    try:
        if message["secret"]:
            headers["X-Forkless-Signature"] = sign(body, secrets.resolve(message["secret"]))
        asked = urllib.request.Request(message["url"], body, headers, method="POST")  # noqa: S310  # http(s) was checked at launch
        with delivery.opener().open(asked, timeout=_PATIENCE):
            trouble = None
    except urllib.error.HTTPError as err:
        trouble = f"it answered {err.code}"
    except (OSError, ValueError, ForklessError, http.client.HTTPException) as err:
        trouble = str(getattr(err, "reason", None) or err)[:200]
    # The head of an answer that was cut off counts as a whole one.
    return f"it took longer than {_PATIENCE_IN_ALL:g} s" if delivery.ended else trouble


async def deliver_due(connection: AsyncConnection, most: int = 5) -> None:
    """Send up to `most` messages that are due. For workers; a slow receiver delays this worker's tick, and no run."""
    for _ in range(most):
        row = await (await connection.execute("SELECT forkless.take_webhook()")).fetchone()
        if row is None or row[0] is None:
            return
        delivery = _Delivery()
        limit = asyncio.get_running_loop().call_later(_PATIENCE_IN_ALL, delivery.end)
        try:
            trouble = await asyncio.to_thread(_send, row[0], delivery)
        finally:
            limit.cancel()
            delivery.end()  # if the tick was cancelled, the thread would still read
        if trouble is not None:
            log.warning("the message about run %d was not taken: %s", row[0]["run"]["id"], trouble)
        await connection.execute("SELECT forkless.webhook_done(%s, %s, %s)", (row[0]["id"], trouble, MOST_TRIES))
