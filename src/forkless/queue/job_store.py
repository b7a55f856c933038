# SPDX-License-Identifier: GPL-3.0-or-later
"""
Records of jobs that outlive a play, in the database of a queue: `queue:SCOPE`.

A project that travels is unpacked for one attempt and removed after it, and the next attempt may be on another machine. So a worker keeps
what would be in a folder of the project in the database instead, under a scope that names the folder in which the run was launched.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import urllib.parse
from typing import TYPE_CHECKING, LiteralString

import psycopg

from forkless.core.errors import StoreError
from forkless.jobs.stores.store import QUEUE_SCOPE, RevisionLog
from forkless.queue import database, embedded
from forkless.queue.errors import QueueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forkless.queue.records import Json

__all__ = ["QueueJobStore", "open_store", "scope_of_folder", "scope_of_project", "use_database"]

# Seconds in which a statement is tried again while the database is away.
_PATIENCE = 30.0
# Seconds for one statement.
_STATEMENT = 15.0
# The address for stores of this process: plays must not find it in their environment.
_ADDRESS: list[str] = []


def use_database(url: str) -> None:
    """Let `queue:` stores of this process be in this database. For a worker process, which has taken the address out of its environment."""
    _ADDRESS[:] = [url]


def scope_of_folder(path: str) -> str:
    """The scope for runs that are launched from a folder of this machine."""
    return f"{socket.gethostname()}:{path}"


def scope_of_project(project: Mapping[str, Json]) -> dict[str, str]:
    """The environment by which a run keeps its records in the queue; empty if the project's folder outlasts the run."""
    if project["kind"] == "folder":
        return {}
    return {QUEUE_SCOPE: str(project.get("home") or project["name"])}


def open_store(name: str, state_dir: str) -> QueueJobStore:
    """The store for `queue:NAME`; without a name, that of runs which were launched from the current folder."""
    scope = urllib.parse.unquote(name) or os.environ.get(QUEUE_SCOPE) or scope_of_folder(os.getcwd())
    return QueueJobStore(scope + (f"#{state_dir}" if state_dir else ""))


class QueueJobStore(RevisionLog):
    """For one thread. The connection is made by the first request."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self.url = f"queue:{urllib.parse.quote(scope, safe='/:@#')}"
        self._around = contextlib.ExitStack()
        self._connection: database.Connection | None = None

    def close(self) -> None:
        self._around.close()
        self._connection = None

    def revisions(self, host: str = "") -> dict[str, int | None]:
        rows = self._ask(
            "be listed",
            "SELECT stem, max(revision) FROM forkless.job_record WHERE scope = %s AND (%s = '' OR starts_with(stem, %s)) GROUP BY stem",
            (self._scope, host, f"{host}/"),
        )
        return dict(sorted((stem, number) for stem, number in rows))

    # -- what RevisionLog needs

    def _numbers(self, stem: str) -> list[int]:
        rows = self._ask(
            "be listed",
            "SELECT revision FROM forkless.job_record WHERE scope = %s AND stem = %s ORDER BY revision",
            (self._scope, stem),
        )
        return [number for (number,) in rows]

    def _get(self, stem: str, revision: int) -> bytes | None:
        rows = self._ask(
            "be read",
            "SELECT body FROM forkless.job_record WHERE scope = %s AND stem = %s AND revision = %s",
            (self._scope, stem, revision),
        )
        return bytes(rows[0][0]) if rows else None

    def _create(self, stem: str, revision: int, body: bytes) -> bool:
        rows = self._ask(
            "be written",
            "INSERT INTO forkless.job_record (scope, stem, revision, body) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING true",
            (self._scope, stem, revision, body),
        )
        return bool(rows)

    def _erase(self, stem: str, revision: int) -> None:
        self._ask(
            "be tidied up",
            "DELETE FROM forkless.job_record WHERE scope = %s AND stem = %s AND revision = %s RETURNING true",
            (self._scope, stem, revision),
        )

    # -- requests

    def _open(self) -> database.Connection:
        if self._connection is None or self._connection.closed:
            self._around.close()
            given = _ADDRESS[0] if _ADDRESS else os.environ.get("FORKLESS_DATABASE")
            if not given and (os.environ.get(QUEUE_SCOPE) or not embedded.exists()):
                raise QueueError("the queue is not known here: set FORKLESS_DATABASE=postgresql://user@host/name")
            url = self._around.enter_context(database.located(given))
            self._connection = self._around.enter_context(database.connect(url))
        return self._connection

    def _ask(self, what: str, query: LiteralString, values: Sequence[object]) -> list[tuple[Json, ...]]:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                connection = self._open()
                with database.limited(connection, _STATEMENT):
                    return connection.execute(query, values).fetchall()
            except (psycopg.Error, QueueError) as err:
                self.close()
                cause = err.__cause__ or err
                if not database.is_outage(cause) or time.monotonic() > deadline:
                    said = err if isinstance(err, QueueError) else database.sentence_of(err, "")
                    raise StoreError(f"the jobs in {self.url} could not {what}: {said}") from err
                time.sleep(0.5)
