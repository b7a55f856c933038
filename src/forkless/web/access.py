# SPDX-License-Identifier: GPL-3.0-or-later
"""Access control: a token in the first address, then a session cookie; the check of the Host header; and the refusal of requests from other sites."""

from __future__ import annotations

import hashlib
import hmac
import http.cookies
import secrets
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CSRF_HEADER", "Access", "AccessMiddleware"]

CSRF_HEADER = "x-forkless-csrf"
# Sessions that are remembered; the oldest is forgotten. A session is a browser that was opened with the token.
_MOST_SESSIONS = 200

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_ALWAYS = (
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Access:
    """The token of one server and the sessions that were opened with it. For one event loop."""

    def __init__(self, hosts: Collection[str], token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self.hosts = frozenset(one.lower() for one in hosts)
        # Cookies are shared by all ports of a host: two servers must not overwrite each other's.
        self.cookie = "forkless-" + hashlib.sha256(self.token.encode()).hexdigest()[:8]
        self._sessions: dict[str, None] = {}

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def open_session(self) -> str:
        session = secrets.token_urlsafe(32)
        self._sessions[session] = None
        while len(self._sessions) > _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return session

    def is_session(self, given: str) -> bool:
        return given in self._sessions

    def csrf(self, session: str) -> str:
        """What a page of this session must send with each change. Another site can send the cookie, but cannot read this."""
        return hmac.new(self.token.encode(), session.encode(), "sha256").hexdigest()


class AccessMiddleware:
    """
    Lets a request through only if its Host is ours and it has the token or a session; a change with a session only from our own page.

    The session of a request is in `scope["state"]["session"]`, empty for a program that sent the token.
    """

    def __init__(
        self, app: ASGIApp, access: Access, refuse: Callable[[Scope, int, str], Awaitable[tuple[bytes, bytes]]]
    ) -> None:
        self._app, self._access, self._refuse = app, access, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                names = {name.lower() for name, _ in headers}
                headers += _ALWAYS
                if b"cache-control" not in names:
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        host = headers.get("host", "").lower()
        if host not in self._access.hosts:
            await self._answer(scope, send_guarded, 421, "this server does not answer for that host name")
            return
        if path.startswith("/static/"):
            await self._app(scope, receive, send_guarded)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None and scope["method"] == "GET" and not path.startswith("/api/"):
            await self._open(scope, send_guarded, given, urlencode([pair for pair in query if pair[0] != "token"]))
            return
        session = self._session(headers.get("cookie", ""))
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._access.is_token(bearer.strip()):
            session = ""  # a program: no browser adds this header by itself
        elif not session:
            await self._answer(
                scope, send_guarded, 401, "open the address that `forkless serve` printed: it has the token"
            )
            return
        elif scope["method"] not in ("GET", "HEAD") and not self._is_our_page(headers, host, session):
            await self._answer(scope, send_guarded, 403, "the request did not come from a page of this server")
            return
        scope.setdefault("state", {})["session"] = session
        await self._app(scope, receive, send_guarded)

    def _session(self, cookies: str) -> str:
        try:
            found = http.cookies.SimpleCookie(cookies).get(self._access.cookie)
        except http.cookies.CookieError:
            return ""
        return found.value if found is not None and self._access.is_session(found.value) else ""

    def _is_our_page(self, headers: dict[str, str], host: str, session: str) -> bool:
        if headers.get("origin", "").lower() not in (f"http://{host}", f"https://{host}"):
            return False
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return False
        return hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), self._access.csrf(session).encode())

    async def _open(self, scope: Scope, send: Send, given: str, rest: str) -> None:
        """A first address: its token becomes a session, and disappears from the address."""
        if not self._access.is_token(given):
            await self._answer(
                scope, send, 401, "the token is not that of this server; `forkless serve` prints it at its start"
            )
            return
        where = "/" + scope["path"].lstrip("/") + (f"?{rest}" if rest else "")
        cookie = f"{self._access.cookie}={self._access.open_session()}; HttpOnly; SameSite=Strict; Path=/"
        headers = [
            (b"location", where.encode("latin-1", "replace")),
            (b"set-cookie", cookie.encode()),
            (b"content-length", b"0"),
        ]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, scope: Scope, send: Send, status: int, sentence: str) -> None:
        kind, body = await self._refuse(scope, status, sentence)
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
