# SPDX-License-Identifier: GPL-3.0-or-later
"""The workers' key: made by the first worker of a queue, copied to the machines of the others."""

from __future__ import annotations

import os

from forkless.queue import secrets
from forkless.queue.database import connect, translated
from forkless.queue.errors import QueueError

__all__ = ["describe", "for_worker"]


def _public(url: str) -> str | None:
    with connect(url) as connection, translated(url):
        row = connection.execute("SELECT forkless.worker_key()").fetchone()
        return row[0] if row else None


def for_worker(url: str) -> str:
    """
    The path of the key on this machine. The first worker of a queue makes it.

    Raises QueueError if the queue has a key and this machine has another one, or none: it could not open what launchers seal.
    """
    path = secrets.key_path()
    public = _public(url)
    if public is None:
        with connect(url) as connection, translated(url):
            own = secrets.public_of(secrets.create_key(path))
            row = connection.execute("SELECT forkless.offer_worker_key(%s)", (own,)).fetchone()
            public = row[0] if row else None
    if not os.path.exists(path):
        raise QueueError(
            f"launches of this queue are sealed for a key that another worker made; copy that worker's key to {path} (mode 600), or "
            f"name it with {secrets.KEY_VARIABLE}"
        )
    if secrets.public_of(secrets.load_key(path)) != public:
        raise QueueError(f"the key {path} is not that of this queue's workers; name theirs with {secrets.KEY_VARIABLE}")
    return path


def describe(url: str) -> str:
    public, path = _public(url), secrets.key_path()
    if public is None:
        return "workers' key: none yet; the first worker makes one"
    here = os.path.exists(path) and secrets.public_of(secrets.load_key(path)) == public
    return f"workers' key: {public}; " + (
        f"its private half is in {path}" if here else "its private half is not on this machine"
    )
