# SPDX-License-Identifier: GPL-3.0-or-later
"""Users of the page, their passwords, sessions and tokens, and what they did. In the queue's database, so several servers share them."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import re
import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkless.core.errors import UnsupportedError
from forkless.queue import DatabaseError, QueueRequestError, database

try:
    import argon2
except ImportError:
    raise UnsupportedError("users of the page need argon2-cffi: pip install 'forkless[web]'") from None

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

__all__ = ["ROLES", "Accounts", "AuditEntry", "LoginLimit", "PageUser", "SessionRecord", "TokenRecord", "role_allows"]

ROLES = ("viewer", "operator", "admin")
TOKEN_PREFIX = "fkl_"  # noqa: S105  # the beginning of every token, so that scanners recognise one that was published
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_LEAST_PASSWORD, _MOST_PASSWORD = 10, 500
# A session ends after so long, and after so long without a request.
_SESSION = dt.timedelta(days=7)
_IDLE = dt.timedelta(hours=12)
_MOST_TOKEN_DAYS = 366
# Seconds for the database's answer.
_PATIENCE = 15.0


def role_allows(role: str, needed: str) -> bool:
    return ROLES.index(role) >= ROLES.index(needed)


@dataclass(frozen=True, slots=True)
class PageUser:
    """`last_seen` is the newest sign of a session or token of the user."""

    name: str
    role: str
    has_password: bool
    created: dt.datetime
    last_seen: dt.datetime | None


@dataclass(frozen=True, slots=True)
class SessionRecord:
    id: int
    user_name: str
    about: str
    created: dt.datetime
    seen: dt.datetime
    ends: dt.datetime


@dataclass(frozen=True, slots=True)
class TokenRecord:
    id: int
    user_name: str
    name: str
    role: str
    created: dt.datetime
    seen: dt.datetime | None
    ends: dt.datetime


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: int
    at: dt.datetime
    who: str
    what: str
    run_id: int | None
    about: str


class LoginLimit:
    """Counts wrong passwords: at most 10 for one name and 100 in all within five minutes. For one event loop."""

    _WINDOW = 300.0

    def __init__(self, for_name: int = 10, for_all: int = 100) -> None:
        self._most = for_name
        self._most_in_all = for_all
        self._failed: deque[tuple[float, str]] = deque()

    def wait(self, name: str) -> int:
        """Seconds until this name may be tried; 0 if it may be now."""
        now = time.monotonic()
        while self._failed and now - self._failed[0][0] > self._WINDOW:
            self._failed.popleft()
        mine = [when for when, whose in self._failed if whose == name.lower()]
        since = [mine[-self._most]] if len(mine) >= self._most else []
        if len(self._failed) >= self._most_in_all:
            since.append(self._failed[-self._most_in_all][0])
        return max((int(self._WINDOW - (now - one)) + 1 for one in since), default=0)

    def failed(self, name: str) -> None:
        self._failed.append((time.monotonic(), name.lower()))

    def succeeded(self, name: str) -> None:
        """Takes back what `failed` counted last for this name."""
        for place in range(len(self._failed) - 1, -1, -1):
            if self._failed[place][1] == name.lower():
                del self._failed[place]
                return


class Accounts:
    """For the event loop that it was made in. Raises DatabaseError where the database is away: nobody gets in then."""

    def __init__(self, url: str) -> None:
        self._pool = database.ConnectionPool(url, 2)
        self._hasher = argon2.PasswordHasher()
        # Each check of a password takes 64 MB for a moment.
        self._checking = asyncio.Semaphore(2)
        self._nobody = ""

    async def close(self) -> None:
        await self._pool.close()

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[database.AsyncConnection]:
        """A proxy that is alive and forwards nothing would keep every request waiting for ever."""
        try:
            async with asyncio.timeout(_PATIENCE), self._pool.connection() as connection:
                yield connection
        except TimeoutError as err:
            raise DatabaseError("the database did not answer in time") from err

    async def _all(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        async with self._connection() as connection:
            cursor = await connection.execute(query.encode(), parameters)
            return await cursor.fetchall() if cursor.description else []

    # -- users ------------------------------------------------------------------------------------------------------

    async def users(self) -> list[PageUser]:
        rows = await self._all(
            "SELECT name, role, password IS NOT NULL, created, greatest((SELECT max(seen) FROM forkless.page_session WHERE user_name = u.name), "
            "(SELECT max(seen) FROM forkless.page_token WHERE user_name = u.name)) FROM forkless.page_user u ORDER BY name"
        )
        return [PageUser(*row) for row in rows]  # type: ignore[arg-type]  # the columns are the record's fields

    async def role_of(self, name: str) -> str | None:
        rows = await self._all("SELECT role FROM forkless.page_user WHERE name = %s", name)
        return str(rows[0][0]) if rows else None

    async def add_user(self, name: str, role: str, password: str | None) -> None:
        if not _NAME.fullmatch(name):
            raise QueueRequestError(f"'{name}' is not a name for a user: letters, digits and . _ @ + -, 100 at most")
        _check_role(role)
        hashed = await self._hash(password) if password is not None else None
        made = await self._all(
            "INSERT INTO forkless.page_user (name, role, password) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING RETURNING name",
            name, role, hashed,
        )  # fmt: skip
        if not made:
            raise QueueRequestError(f"there is a user '{name}' already")

    async def change_user(self, name: str, *, role: str | None = None, password: str | None = None) -> None:
        """A new role or password. A new password ends all sessions of the user; tokens stay. The last admin stays one."""
        await self._must_exist(name)
        if role is not None:
            _check_role(role)
            async with self._keeping_an_admin(name if role != "admin" else None) as connection:
                await connection.execute("UPDATE forkless.page_user SET role = %s WHERE name = %s", (role, name))
        if password is not None:
            await self._all(
                "WITH ended AS (DELETE FROM forkless.page_session WHERE user_name = %s) "
                "UPDATE forkless.page_user SET password = %s WHERE name = %s",
                name, await self._hash(password), name,
            )  # fmt: skip

    async def remove_user(self, name: str) -> None:
        """With all sessions and tokens. What the user did stays in the audit log."""
        await self._must_exist(name)
        async with self._keeping_an_admin(name) as connection:
            await connection.execute("DELETE FROM forkless.page_user WHERE name = %s", (name,))

    async def _must_exist(self, name: str) -> None:
        if await self.role_of(name) is None:
            raise QueueRequestError(f"there is no user '{name}'")

    @contextlib.asynccontextmanager
    async def _keeping_an_admin(self, leaving: str | None) -> AsyncIterator[database.AsyncConnection]:
        """A transaction, one at a time over all servers: two admins who remove each other would leave none."""
        async with self._connection() as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(718281828, 5)")
            found = await connection.execute("SELECT name FROM forkless.page_user WHERE role = 'admin'")
            if leaving is not None and await found.fetchall() == [(leaving,)]:
                raise QueueRequestError(f"'{leaving}' is the last admin; make another one first")
            yield connection

    async def _hash(self, password: str) -> str:
        if not _LEAST_PASSWORD <= len(password) <= _MOST_PASSWORD:
            raise QueueRequestError(f"a password has {_LEAST_PASSWORD} to {_MOST_PASSWORD} characters")
        async with self._checking:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def is_password(self, name: str, password: str) -> bool:
        """Takes as long for a name that does not exist as for one that does."""
        rows = await self._all("SELECT password FROM forkless.page_user WHERE name = %s", name)
        known = str(rows[0][0]) if rows and rows[0][0] is not None else None
        if not self._nobody:
            self._nobody = await self._hash(secrets.token_urlsafe(16))
        async with self._checking:
            try:
                await asyncio.to_thread(self._hasher.verify, known or self._nobody, password[: _MOST_PASSWORD + 1])
            except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
                return False
        return known is not None

    # -- sessions ---------------------------------------------------------------------------------------------------

    async def open_session(self, name: str, about: str) -> str:
        """The secret for the cookie. Sessions that have ended are removed on the way."""
        secret = secrets.token_urlsafe(32)
        await self._all("DELETE FROM forkless.page_session WHERE ends < now() OR seen < now() - %s", _IDLE)
        await self._all(
            "INSERT INTO forkless.page_session (hash, user_name, about, ends) VALUES (%s, %s, %s, now() + %s)",
            _hash_of(secret), name, about[:200], _SESSION,
        )  # fmt: skip
        return secret

    async def session(self, secret: str) -> tuple[str, str] | None:
        """The user and role of a session; None if it has ended or was revoked. Its last sign is kept to the minute."""
        rows = await self._all(
            "SELECT u.name, u.role, s.seen < now() - interval '1 minute' FROM forkless.page_session s JOIN forkless.page_user u ON u.name = s.user_name "
            "WHERE s.hash = %s AND s.ends > now() AND s.seen > now() - %s",
            _hash_of(secret), _IDLE,
        )  # fmt: skip
        if not rows:
            return None
        if rows[0][2]:
            await self._all("UPDATE forkless.page_session SET seen = now() WHERE hash = %s", _hash_of(secret))
        return str(rows[0][0]), str(rows[0][1])

    async def end_session(self, secret: str) -> None:
        await self._all("DELETE FROM forkless.page_session WHERE hash = %s", _hash_of(secret))

    async def sessions(self, name: str | None = None) -> list[SessionRecord]:
        rows = await self._all(
            "SELECT id, user_name, about, created, seen, ends FROM forkless.page_session "
            "WHERE ends > now() AND seen > now() - %s AND (%s::text IS NULL OR user_name = %s) ORDER BY seen DESC",
            _IDLE, name, name,
        )  # fmt: skip
        return [SessionRecord(*row) for row in rows]  # type: ignore[arg-type]  # the columns are the record's fields

    async def revoke_session(self, number: int, name: str | None = None) -> None:
        """With `name` only if it is that user's."""
        await self._remove("page_session", number, name, "session")

    # -- tokens -----------------------------------------------------------------------------------------------------

    async def add_token(self, name: str, title: str, role: str, days: int) -> str:
        """The token; it cannot be shown again. Its role is at most its user's, now and later."""
        _check_role(role)
        if not 1 <= days <= _MOST_TOKEN_DAYS:
            raise QueueRequestError(f"a token ends after 1 to {_MOST_TOKEN_DAYS} days")
        held = await self.role_of(name)
        if held is None or not role_allows(held, role):
            raise QueueRequestError(f"'{name}' may not make a token for the role {role}")
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        await self._all(
            "INSERT INTO forkless.page_token (hash, user_name, name, role, ends) VALUES (%s, %s, %s, %s, now() + %s)",
            _hash_of(token), name, title[:100], role, dt.timedelta(days=days),
        )  # fmt: skip
        return token

    async def token(self, token: str) -> tuple[str, str] | None:
        """The user and role of a token; None if it has ended, was revoked or never was."""
        if not token.startswith(TOKEN_PREFIX):
            return None
        rows = await self._all(
            "SELECT u.name, t.role, u.role, coalesce(t.seen < now() - interval '1 minute', true) FROM forkless.page_token t "
            "JOIN forkless.page_user u ON u.name = t.user_name WHERE t.hash = %s AND t.ends > now()",
            _hash_of(token),
        )
        if not rows:
            return None
        if rows[0][3]:
            await self._all("UPDATE forkless.page_token SET seen = now() WHERE hash = %s", _hash_of(token))
        lesser = min(str(rows[0][1]), str(rows[0][2]), key=ROLES.index)
        return str(rows[0][0]), lesser

    async def tokens(self, name: str | None = None) -> list[TokenRecord]:
        rows = await self._all(
            "SELECT id, user_name, name, role, created, seen, ends FROM forkless.page_token WHERE %s::text IS NULL OR user_name = %s ORDER BY ends",
            name, name,
        )  # fmt: skip
        return [TokenRecord(*row) for row in rows]  # type: ignore[arg-type]  # the columns are the record's fields

    async def revoke_token(self, number: int, name: str | None = None) -> None:
        await self._remove("page_token", number, name, "token")

    async def _remove(self, table: str, number: int, name: str | None, what: str) -> None:
        gone = await self._all(
            f"DELETE FROM forkless.{table} WHERE id = %s AND (%s::text IS NULL OR user_name = %s) RETURNING id",  # noqa: S608  # a constant
            number, name, name,
        )  # fmt: skip
        if not gone:
            raise QueueRequestError(f"there is no such {what}")

    # -- what was done ----------------------------------------------------------------------------------------------

    async def note(self, who: str, what: str, run: int | None = None, about: str = "") -> None:
        await self._all(
            "INSERT INTO forkless.page_audit (who, what, run_id, about) VALUES (%s, %s, %s, %s)",
            who,
            what,
            run,
            about[:500],
        )

    async def audit(self, before: int | None = None, limit: int = 100) -> Sequence[AuditEntry]:
        rows = await self._all(
            "SELECT id, at, who, what, run_id, about FROM forkless.page_audit WHERE %s::bigint IS NULL OR id < %s ORDER BY id DESC LIMIT %s",
            before, before, limit,
        )  # fmt: skip
        return [AuditEntry(*row) for row in rows]  # type: ignore[arg-type]  # the columns are the record's fields


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise QueueRequestError(f"there is no role '{role}'; there are {', '.join(ROLES)}")


def _hash_of(secret: str) -> bytes:
    """Secrets that are long and random need no slow hash."""
    return hashlib.sha256(secret.encode()).digest()
