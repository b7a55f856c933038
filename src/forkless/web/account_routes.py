# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of people: log in and out, one's own tokens and sessions; users, all sessions and tokens, and the audit log for admins."""

# FastAPI evaluates the annotations of its functions: no `from __future__ import annotations`.
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.exceptions import HTTPException

from forkless.queue import QueueRequestError
from forkless.web.access import Identity
from forkless.web.accounts import Accounts, LoginLimit
from forkless.web.fleet_answers import (
    AuditAnswer,
    AuditsAnswer,
    ChangeUserRequest,
    DoneAnswer,
    LoginRequest,
    MeAnswer,
    NewTokenAnswer,
    NewTokenRequest,
    NewUserRequest,
    PasswordRequest,
    SessionAnswer,
    SessionsAnswer,
    TokenAnswer,
    TokensAnswer,
    UserAnswer,
    UsersAnswer,
)
from forkless.web.run_routes import LARGEST, Who, without_nul

if TYPE_CHECKING:
    from forkless.web.app import PageApp

__all__ = ["add", "sessions_of", "tokens_of", "users"]

Number = Annotated[int, Path(ge=1, le=LARGEST)]
UserName = Annotated[str, Path(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$")]


async def users(accounts: Accounts) -> UsersAnswer:
    return UsersAnswer(users=[UserAnswer.model_validate(one, from_attributes=True) for one in await accounts.users()])


async def sessions_of(accounts: Accounts, name: str | None) -> SessionsAnswer:
    found = await accounts.sessions(name)
    return SessionsAnswer(sessions=[SessionAnswer.model_validate(one, from_attributes=True) for one in found])


async def tokens_of(accounts: Accounts, name: str | None) -> TokensAnswer:
    return TokensAnswer(
        tokens=[TokenAnswer.model_validate(one, from_attributes=True) for one in await accounts.tokens(name)]
    )


async def audit(accounts: Accounts, before: int | None) -> AuditsAnswer:
    found = await accounts.audit(before, 101)
    rows = [AuditAnswer.model_validate(one, from_attributes=True) for one in found[:100]]
    return AuditsAnswer(entries=rows, older=rows[-1].id if len(found) > 100 else None)


def add(router: APIRouter, page: "PageApp") -> None:
    limit = LoginLimit()
    _add_own(router, page, limit)
    _add_admin(router, page)
    if page.access.login is not None and page.access.login.users:
        _add_login(router, page, limit)


async def _is_password(accounts: Accounts, limit: LoginLimit, name: str, password: str) -> bool:
    """Whether it is the user's password. Raises 429 after too many wrong ones, whether they came with a login or with a new password."""
    wait = limit.wait(name)
    if wait:
        raise HTTPException(429, f"too many passwords were wrong; try again in {wait} s", {"retry-after": str(wait)})
    limit.failed(name)  # counted before it is checked: many tries at the same moment count as many
    if not await accounts.is_password(name, password):
        return False
    limit.succeeded(name)
    return True


def _add_login(router: APIRouter, page: "PageApp", limit: LoginLimit) -> None:
    access, accounts = page.access, page.access.accounts

    @router.post("/api/login", summary="A session for a name and a password")
    async def log_in(request: Request, response: Response, asked: LoginRequest) -> MeAnswer:
        without_nul(asked.name, asked.password)
        if not await _is_password(accounts, limit, asked.name, asked.password):
            await accounts.note(asked.name, "login refused")
            raise HTTPException(401, "the name or the password is wrong")
        secret = await accounts.open_session(asked.name, request.headers.get("user-agent", ""))
        await accounts.note(asked.name, "login")
        response.headers["set-cookie"] = access.set_cookie(secret)
        return MeAnswer(name=asked.name, role=await accounts.role_of(asked.name) or "viewer")


def _refuse_token(who: Identity, what: str) -> None:
    """Only sessions have what a page sends along with changes."""
    if not who.csrf:
        raise HTTPException(403, f"{what} in the browser, not by a token")


def _add_own(router: APIRouter, page: "PageApp", limit: LoginLimit) -> None:
    access, accounts = page.access, page.access.accounts

    @router.get("/api/me", summary="Who this is")
    async def me(who: Who) -> MeAnswer:
        return MeAnswer(name=who.name, role=who.role)

    @router.post("/api/me/logout", summary="End this session")
    async def log_out(response: Response, who: Who) -> DoneAnswer:
        if who.session and access.login is not None:
            await accounts.end_session(who.session)
            await accounts.note(who.name, "logout")
        access.end_session(who.session)
        response.headers["set-cookie"] = access.set_cookie("")
        return DoneAnswer()

    @router.post("/api/me/password", summary="A new password; ends all sessions, this one too")
    async def change_password(asked: PasswordRequest, who: Who) -> DoneAnswer:
        without_nul(asked.old, asked.new)
        if not who.session or not await _is_password(accounts, limit, who.name, asked.old):
            await accounts.note(who.name, "change password refused")
            raise HTTPException(403, "the old password is wrong")
        await accounts.change_user(who.name, password=asked.new)
        await accounts.note(who.name, "change password")
        return DoneAnswer()

    @router.get("/api/me/tokens", summary="One's own tokens")
    async def my_tokens(who: Who) -> TokensAnswer:
        return await tokens_of(accounts, who.name)

    @router.post("/api/me/tokens", status_code=201, summary="A new token; it is shown once")
    async def new_token(asked: NewTokenRequest, who: Who) -> NewTokenAnswer:
        _refuse_token(who, "a token is made")  # one that was stolen must not live on in another
        token = await accounts.add_token(who.name, asked.name, asked.role, asked.days)
        await accounts.note(who.name, "new token", about=f"{asked.name}: {asked.role}, {asked.days} days")
        return NewTokenAnswer(token=token)

    @router.delete("/api/me/tokens/{number}", summary="Revoke one's own token")
    async def revoke_my_token(number: Number, who: Who) -> DoneAnswer:
        _refuse_token(who, "a token is revoked")
        await accounts.revoke_token(number, who.name)
        await accounts.note(who.name, "revoke token", about=str(number))
        return DoneAnswer()

    @router.get("/api/me/sessions", summary="One's own sessions")
    async def my_sessions(who: Who) -> SessionsAnswer:
        return await sessions_of(accounts, who.name)

    @router.delete("/api/me/sessions/{number}", summary="End one's own session")
    async def revoke_my_session(number: Number, who: Who) -> DoneAnswer:
        _refuse_token(who, "a session is ended")
        await accounts.revoke_session(number, who.name)
        await accounts.note(who.name, "revoke session", about=str(number))
        return DoneAnswer()


def _add_admin(router: APIRouter, page: "PageApp") -> None:
    accounts = page.access.accounts

    @router.get("/api/users", summary="Users (admin)")
    async def list_users() -> UsersAnswer:
        return await users(accounts)

    @router.post("/api/users", status_code=201, summary="A new user (admin)")
    async def add_user(asked: NewUserRequest, who: Who) -> DoneAnswer:
        without_nul(asked.password or "")
        await accounts.add_user(asked.name, asked.role, asked.password)
        await accounts.note(who.name, "new user", about=f"{asked.name}: {asked.role}")
        return DoneAnswer()

    @router.post("/api/users/{name}", summary="A new role or password for a user (admin)")
    async def change_user(name: UserName, asked: ChangeUserRequest, who: Who) -> DoneAnswer:
        without_nul(asked.password or "")
        if asked.role is None and asked.password is None:
            raise QueueRequestError("neither a role nor a password was given")
        await accounts.change_user(name, role=asked.role, password=asked.password)
        about = ", ".join(filter(None, (asked.role, "password" if asked.password else "")))
        await accounts.note(who.name, "change user", about=f"{name}: {about}")
        return DoneAnswer()

    @router.delete("/api/users/{name}", summary="Remove a user with all sessions and tokens (admin)")
    async def remove_user(name: UserName, who: Who) -> DoneAnswer:
        await accounts.remove_user(name)
        await accounts.note(who.name, "remove user", about=name)
        return DoneAnswer()

    @router.get("/api/sessions", summary="All sessions (admin)")
    async def all_sessions() -> SessionsAnswer:
        return await sessions_of(accounts, None)

    @router.delete("/api/sessions/{number}", summary="Revoke a session (admin)")
    async def revoke_session(number: Number, who: Who) -> DoneAnswer:
        await accounts.revoke_session(number)
        await accounts.note(who.name, "revoke session", about=str(number))
        return DoneAnswer()

    @router.get("/api/tokens", summary="All tokens (admin)")
    async def all_tokens() -> TokensAnswer:
        return await tokens_of(accounts, None)

    @router.delete("/api/tokens/{number}", summary="Revoke a token (admin)")
    async def revoke_token(number: Number, who: Who) -> DoneAnswer:
        await accounts.revoke_token(number)
        await accounts.note(who.name, "revoke token", about=str(number))
        return DoneAnswer()

    @router.get("/api/audit", summary="Who did what (admin)")
    async def read_audit(before: Annotated[int | None, Query(ge=1, le=LARGEST)] = None) -> AuditsAnswer:
        return await audit(accounts, before)
