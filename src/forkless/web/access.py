# SPDX-License-Identifier: GPL-3.0-or-later
"""Access control: a token in the first address or a login, then a session cookie; roles; the check of Host; the refusal of other sites."""

from __future__ import annotations

import hashlib
import hmac
import http.cookies
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from starlette.exceptions import HTTPException

from forkless.queue import DatabaseError
from forkless.web.accounts import role_allows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from forkless.web.accounts import Accounts
    from forkless.web.settings import LoginSettings

__all__ = ["CSRF_HEADER", "Access", "AccessMiddleware", "Identity", "needed_role"]

CSRF_HEADER = "x-forkless-csrf"
PROXY_SECRET_HEADER = "x-forkless-proxy-secret"  # noqa: S105  # the name of a header
# Sessions of the token that are remembered; the oldest is forgotten. A session is a browser that was opened with the token.
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
# Bytes of a request.
_MOST_BODY = 1 << 20
_TOO_LONG = "a message has at most 1 MB"
_READS = ("GET", "HEAD")
# What only an admin may look at.
_ADMIN_PATHS = ("/users", "/api/users", "/api/sessions", "/api/tokens", "/api/audit")
_OPERATOR_PATHS = ("/api/runs", "/api/hosts/jobs", "/api/schedules", "/api/preview", "/api/variables")
# Without an identity: the login itself, and messages of other programs, which have a signature of their own.
_OPEN = ("/login", "/api/login")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who makes a request. `csrf` is what a change must send; empty for a program with a token, to which no browser adds anything."""

    name: str
    role: str
    csrf: str = ""
    session: str = ""

    def may(self, role: str) -> bool:
        return role_allows(self.role, role)


def needed_role(method: str, path: str) -> str:
    """The role that a request needs. A change that is not named here is for admins."""
    if _is_below(path, ("/api/me",)):
        return "viewer"
    if _is_below(path, _ADMIN_PATHS):
        return "admin"
    if method in _READS:
        return "viewer"
    return "operator" if _is_below(path, _OPERATOR_PATHS) else "admin"


def _is_below(path: str, tops: Collection[str]) -> bool:
    return any(path == top or path.startswith(top + "/") for top in tops)


class Access:
    """
    Who may use one server. For one event loop.

    Without a login there is a token, and who has it is an admin. With a login there is none: users have sessions and tokens of their
    own, or a reverse proxy says who they are.
    """

    def __init__(
        self,
        hosts: Collection[str],
        accounts: Accounts,
        owner: str,
        login: LoginSettings | None = None,
        *,
        https: bool = False,
    ) -> None:
        self.hosts = frozenset(one.lower() for one in hosts)
        self.accounts, self.owner, self.login, self.https = accounts, owner, login, https
        self.token = secrets.token_urlsafe(32) if login is None else ""
        if login is not None:
            self.cookie = "__Host-forkless" if https else "forkless-session"
        else:
            # Cookies are shared by all ports of a host: two servers must not overwrite each other's.
            self.cookie = "forkless-" + hashlib.sha256(self.token.encode()).hexdigest()[:8]
        self._sessions: dict[str, None] = {}

    # -- the token --------------------------------------------------------------------------------------------------

    def is_token(self, given: str) -> bool:
        return bool(self.token) and hmac.compare_digest(given.encode(), self.token.encode())

    def open_session(self) -> str:
        session = secrets.token_urlsafe(32)
        self._sessions[session] = None
        while len(self._sessions) > _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return session

    def end_session(self, session: str) -> None:
        self._sessions.pop(session, None)

    # -- who it is --------------------------------------------------------------------------------------------------

    async def identify(self, headers: dict[str, str]) -> Identity | None:
        """None: nobody that is known. Raises DatabaseError if that cannot be found out."""
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            if self.is_token(bearer.strip()):
                return Identity(self.owner, "admin")
            found = await self.accounts.token(bearer.strip())
            return Identity(*found) if found is not None else None
        session = self._session(headers.get("cookie", ""))
        if self.login is None:
            return Identity(self.owner, "admin", _csrf(session), session) if session in self._sessions else None
        if self.login.proxy_header and self._is_from_proxy(headers):
            name = headers.get(self.login.proxy_header.lower(), "")
            role = (await self.accounts.role_of(name) or self.login.proxy_role) if name else ""
            return Identity(name, role, _csrf(self.login.proxy_secret + "\n" + name)) if role else None
        if not session or not self.login.users:
            return None
        found = await self.accounts.session(session)
        return Identity(*found, _csrf(session), session) if found is not None else None

    def _is_from_proxy(self, headers: dict[str, str]) -> bool:
        """Any program of this machine can send the header with the name; only the proxy knows the secret."""
        assert self.login is not None  # noqa: S101  # for the type checker
        given = headers.get(PROXY_SECRET_HEADER, "")
        return hmac.compare_digest(given.encode(), self.login.proxy_secret.encode())

    def _session(self, cookies: str) -> str:
        try:
            found = http.cookies.SimpleCookie(cookies).get(self.cookie)
        except http.cookies.CookieError:
            return ""
        return found.value if found is not None else ""

    def set_cookie(self, session: str) -> str:
        """The value of Set-Cookie; an empty session removes the cookie."""
        secure = "; Secure" if self.https else ""
        gone = "; Max-Age=0" if not session else ""
        # Strict would show the login to who follows a link to a run in a mail; changes are guarded by more than the cookie.
        same_site = "Strict" if self.login is None else "Lax"
        return f"{self.cookie}={session}; HttpOnly; SameSite={same_site}; Path=/{secure}{gone}"


def _csrf(session: str) -> str:
    """What a page of this session must send with each change. Another site can send the cookie, but cannot read this."""
    return hmac.new(session.encode(), b"forkless csrf", "sha256").hexdigest()


class AccessMiddleware:
    """
    Lets a request through only if its Host is ours and it is of somebody who may; a change of a browser only from our own page.

    `scope["state"]["who"]` is the Identity; it is not there for the login and for messages of other programs.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        refuse: Callable[[Scope, int, str], Awaitable[tuple[bytes, bytes]]],
        trouble: Callable[[], str],
    ) -> None:
        self._app, self._access, self._refuse, self._trouble = app, access, refuse, trouble

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = self._guarded(scope, send)
        headers: dict[str, str] = {}
        login = self._access.login
        once = (PROXY_SECRET_HEADER, "host", "authorization", login.proxy_header.lower() if login is not None else "")
        for name, value in scope["headers"]:
            key = name.decode("latin-1").lower()
            if key in headers and key in once:
                await self._answer(scope, send, 400, f"the header {key} is there twice")
                return
            headers[key] = value.decode("latin-1")
        problem = await self._problem(scope, send, headers)
        if problem is None and _declared_length(headers) > _MOST_BODY:
            problem = 413, _TOO_LONG
        if problem is None:
            await self._app(scope, _bounded(receive), send)
        elif problem[0]:
            await self._answer(scope, send, *problem)

    def _guarded(self, scope: Scope, send: Send) -> Send:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                names = {name.lower() for name, _ in headers}
                headers += _ALWAYS
                if "who" in scope.get("state", {}) and (trouble := self._trouble()):
                    headers.append((b"x-forkless-trouble", trouble.encode("ascii", "replace")))
                if self._access.https:
                    headers.append((b"strict-transport-security", b"max-age=31536000"))
                if b"cache-control" not in names:
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        return send_guarded

    async def _problem(self, scope: Scope, send: Send, headers: dict[str, str]) -> tuple[int, str] | None:
        """Why a request is refused; None if it may go on, status 0 if it was answered."""
        path, method, access = str(scope["path"]), str(scope["method"]), self._access
        host = headers.get("host", "").lower()
        if host not in access.hosts:
            return 421, "this server does not answer for that host name"
        if path.startswith(("/static/", "/hooks/")):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if access.login is None and given is not None and method == "GET" and not path.startswith("/api/"):
            return await self._open(scope, send, given, urlencode([pair for pair in query if pair[0] != "token"]))
        if access.login is not None and path in _OPEN:
            ours = method in _READS or _is_same_origin(headers, host)
            return None if ours else (403, "the request did not come from a page of this server")
        try:
            who = await access.identify(headers)
        except DatabaseError:
            return 503, "the database cannot be used at the moment, and so nobody can be recognised"
        if who is None:
            return await self._unknown(scope, send, method, path)
        if (
            method not in _READS
            and who.csrf
            and not (
                _is_same_origin(headers, host)
                and hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), who.csrf.encode())
            )
        ):
            return 403, "the request did not come from a page of this server"
        needed = needed_role(method, path)
        if not who.may(needed):
            return (
                403,
                f"this needs the role {needed}, and {who.name} is {'an' if who.role == 'operator' else 'a'} {who.role}",
            )
        scope.setdefault("state", {})["who"] = who
        return None

    async def _unknown(self, scope: Scope, send: Send, method: str, path: str) -> tuple[int, str]:
        login = self._access.login
        if login is None:
            return 401, "open the address that `forkless serve` printed: it has the token"
        if not login.users:
            return 401, "the reverse proxy did not say who you are, or you may not use this page"
        if method != "GET" or path.startswith("/api/"):
            return 401, "log in, or send a token: Authorization: Bearer TOKEN"
        wanted = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        await _redirect(send, "/login" + (f"?next={quote(wanted, safe='/')}" if wanted != "/" else ""))
        return 0, ""

    async def _open(self, scope: Scope, send: Send, given: str, rest: str) -> tuple[int, str]:
        """A first address: its token becomes a session, and disappears from the address."""
        if not self._access.is_token(given):
            return 401, "the token is not that of this server; `forkless serve` prints it at its start"
        # Quoted: a backslash after the first slash would lead to another server, and a line break into the next header.
        where = "/" + quote(scope["path"].lstrip("/\\"), safe="/") + (f"?{rest}" if rest else "")
        await _redirect(send, where, self._access.set_cookie(self._access.open_session()))
        return 0, ""

    async def _answer(self, scope: Scope, send: Send, status: int, sentence: str) -> None:
        kind, body = await self._refuse(scope, status, sentence)
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _declared_length(headers: dict[str, str]) -> int:
    given = headers.get("content-length", "")
    return int(given) if given.isascii() and given.isdigit() else 0


def _bounded(receive: Receive) -> Receive:
    """The same messages, of at most `_MOST_BODY` bytes: a body is read into memory, that of a login without knowing whose it is."""
    seen = 0

    async def receive_bounded() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > _MOST_BODY:
                raise HTTPException(413, _TOO_LONG)
        return message

    return receive_bounded


async def _redirect(send: Send, where: str, cookie: str = "") -> None:
    headers = [(b"location", where.encode("latin-1", "replace")), (b"content-length", b"0")]
    if cookie:
        headers.append((b"set-cookie", cookie.encode()))
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _is_same_origin(headers: dict[str, str], host: str) -> bool:
    if headers.get("origin", "").lower() not in (f"http://{host}", f"https://{host}"):
        return False
    return headers.get("sec-fetch-site", "same-origin") == "same-origin"
