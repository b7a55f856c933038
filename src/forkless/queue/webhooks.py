# SPDX-License-Identifier: GPL-3.0-or-later
"""The message at the end of a run: signed, sent by whichever worker is first, tried again until it is taken."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import json
import logging
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from forkless.core.errors import ForklessError
from forkless.queue import secrets

if TYPE_CHECKING:
    from forkless.queue.database import AsyncConnection
    from forkless.queue.records import Json

__all__ = ["MOST_TRIES", "deliver_due", "sign"]

log = logging.getLogger("forkless.worker")

# With pauses that double from 15 s to an hour, about nine hours.
MOST_TRIES = 16
_PATIENCE = 10.0


def sign(body: bytes, secret: str) -> str:
    """The value of the header X-Forkless-Signature: HMAC-SHA256 of the body, in hexadecimal."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead a signed message to another place; it counts as a failure."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _send(message: dict[str, Json]) -> str | None:
    """Send one message; the reason if it was not taken."""
    body = json.dumps({"run": message["run"], "delivery": message["id"]}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "forkless", "X-Forkless-Delivery": str(message["id"])}
    try:
        if message["secret"]:
            headers["X-Forkless-Signature"] = sign(body, secrets.resolve(message["secret"]))
        asked = urllib.request.Request(message["url"], body, headers, method="POST")  # noqa: S310  # http(s) was checked at launch
        with urllib.request.build_opener(_NoRedirects).open(asked, timeout=_PATIENCE):
            return None
    except urllib.error.HTTPError as err:
        return f"it answered {err.code}"
    except (OSError, ValueError, ForklessError, http.client.HTTPException) as err:
        return str(getattr(err, "reason", None) or err)[:200]


async def deliver_due(connection: AsyncConnection, most: int = 5) -> None:
    """Send up to `most` messages that are due. For workers; a slow receiver delays this worker's tick, and no run."""
    for _ in range(most):
        row = await (await connection.execute("SELECT forkless.take_webhook()")).fetchone()
        if row is None or row[0] is None:
            return
        trouble = await asyncio.to_thread(_send, row[0])
        if trouble is not None:
            log.warning("the message about run %d was not taken: %s", row[0]["run"]["id"], trouble)
        await connection.execute("SELECT forkless.webhook_done(%s, %s, %s)", (row[0]["id"], trouble, MOST_TRIES))
