# SPDX-License-Identifier: GPL-3.0-or-later
"""The application: pages, static files, what an error becomes; the API is in the modules *_routes."""

# FastAPI evaluates the annotations of its functions: no `from __future__ import annotations`.
import contextlib
import hashlib
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated

from forkless import __version__
from forkless.core.errors import UnsupportedError
from forkless.core.events import Event

try:
    import jinja2
    from fastapi import FastAPI, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
    from pydantic import BaseModel
    from starlette.exceptions import HTTPException
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.types import Scope
except ImportError:
    raise UnsupportedError("the page needs fastapi, uvicorn and jinja2: pip install 'forkless[web]'") from None

from forkless.core.errors import SpecError
from forkless.queue import DatabaseError, DatabaseFullError, Queue, QueueError, UnknownRunError
from forkless.web import account_routes, fleet_routes, run_routes, start_routes
from forkless.web.access import Access, AccessMiddleware, Identity
from forkless.web.answers import ErrorAnswer, RunAnswer
from forkless.web.disk_room import DiskRoom
from forkless.web.project_folder import ProjectFolder
from forkless.web.run_routes import LARGEST, STATES, AskedRuns, RunNumber, Who
from forkless.web.settings import HookSettings
from forkless.web.streams import StreamReaders

__all__ = ["PageApp"]

log = logging.getLogger("forkless.serve")

_HERE = os.path.dirname(os.path.abspath(__file__))
_KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
Text = Annotated[str, Query(max_length=300)]
Older = Annotated[int | None, Query(ge=1, le=LARGEST)]
_REFUSALS: dict[int | str, str] = {
    400: "The request cannot be read", 401: "Nobody is known by that token or session", 403: "The role does not allow it", 404: "There is no such thing",
    405: "There is no such method", 413: "The message is too long", 421: "The server has another name", 422: "What was asked cannot be",
    429: "Too many passwords were wrong", 503: "The database is away",
}  # fmt: skip
_AWAY = "the database cannot be used at the moment; the server's log says why"
Report = Callable[[RunAnswer, Sequence[Event]], str]


class PageApp:
    """The ASGI application for one queue. `app` is what a server is given; `report` makes one HTML file of a run."""

    def __init__(
        self,
        queue: Queue,
        access: Access,
        projects: Mapping[str, ProjectFolder],
        hooks: Mapping[str, HookSettings],
        report: Report,
        disks: DiskRoom | None = None,
    ) -> None:
        self.queue, self.access, self.projects, self.hooks, self.report = queue, access, projects, hooks, report
        self.disks = disks or DiskRoom()
        self.readers = StreamReaders(queue, self.disks)
        self._static = {name: _read("static", name) for name in sorted(os.listdir(os.path.join(_HERE, "static")))}
        # One hash for all of them: a module imports another by a relative name, and both must be of one version.
        joined = b"".join(name.encode() + content for name, content in self._static.items())
        self._static_hash = hashlib.sha256(joined).hexdigest()[:16]
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(os.path.join(_HERE, "templates")),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
        )
        # The documentation that FastAPI brings is fetched from a server elsewhere; ours is a page of our own.
        self.app = FastAPI(
            title="forkless",
            version=__version__,
            docs_url=None,
            redoc_url=None,
            openapi_url="/api/openapi.json",
            debug=False,
            responses={status: {"model": ErrorAnswer, "description": about} for status, about in _REFUSALS.items()},
        )
        for routes in (run_routes, start_routes, fleet_routes, account_routes):
            routes.add(self.app.router, self)
        self._add_pages()
        self._add_errors()
        self.app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)
        self.app.add_middleware(
            AccessMiddleware, access=access, refuse=self._refuse, trouble=lambda: self.disks.trouble
        )

    def stream(self, messages: AsyncIterator[bytes]) -> Response:
        if self.readers.is_full:
            raise HTTPException(503, "too many pages are open; close some")
        # `no-transform`, and nginx's own header: a proxy that collects an answer before it sends it on would hide what happens.
        headers = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
        return StreamingResponse(messages, media_type="text/event-stream", headers=headers)

    def still_allowed(self, request: Request) -> Callable[[], Awaitable[bool]]:
        """Whether who opened a stream may still read it: a session that is revoked ends its streams."""
        headers = {name.lower(): value for name, value in request.headers.items()}

        async def ask() -> bool:
            return await self.access.identify(headers) is not None

        return ask

    # -- pages --------------------------------------------------------------------------------------------------

    def _page(self, who: Identity | None, template: str, code: int = 200, **values: object) -> HTMLResponse:
        text = self._templates.get_template(template).render(
            static=f"/static/{self._static_hash}", csrf=who.csrf if who else "", version=__version__, trouble=self.disks.trouble if who else "", who=who, here=template,
            has_login=self.access.login is not None, can_start=bool(self.projects) and who is not None and who.may("operator"), **values,
        )  # fmt: skip
        return HTMLResponse(text, code)

    def _booted(self, who: Identity, template: str, answer: BaseModel, **values: object) -> Response:
        """A page that begins with an answer of the API, and needs no second request for it."""
        return self._page(who, template, 200, boot=_for_script(answer.model_dump_json()), answer=answer, **values)

    def _add_pages(self) -> None:
        page, accounts = self.app.router, self.access.accounts

        @page.get("/", include_in_schema=False)
        async def runs_page(asked: AskedRuns, who: Who) -> Response:
            status, search, host, before, _ = asked
            answer = await self.readers.runs(asked)
            return self._booted(
                who, "runs.html", answer, states=STATES, status=status, search=search, host=host, before=before
            )

        @page.get("/runs/{number}", include_in_schema=False)
        async def run_page(number: RunNumber, who: Who) -> Response:
            run = RunAnswer.of(await self.queue.record(number))
            return self._booted(who, "run.html", run, may_steer=who.may("operator"))

        @page.get("/compare", include_in_schema=False)
        async def compare_page(who: Who) -> Response:
            return self._page(who, "compare.html")

        @page.get("/start", include_in_schema=False)
        async def start_page(who: Who) -> Response:
            return self._booted(who, "start.html", await start_routes.projects(self))

        @page.get("/hosts", include_in_schema=False)
        async def hosts_page(who: Who, search: Text = "", after: Text = "") -> Response:
            return self._booted(who, "hosts.html", await fleet_routes.hosts(self, search, after), search=search)

        @page.get("/host", include_in_schema=False)
        async def host_page(
            who: Who, name: Annotated[str, Query(min_length=1, max_length=300)], before: Older = None
        ) -> Response:
            jobs = _for_script((await fleet_routes.jobs(self, name)).model_dump_json())
            answer = await fleet_routes.host_history(self, name, before)
            return self._booted(who, "host.html", answer, name=name, jobs=jobs, may_steer=who.may("operator"))

        @page.get("/queue", include_in_schema=False)
        async def queue_page(who: Who) -> Response:
            return self._booted(who, "queue.html", await fleet_routes.queue_state(self))

        @page.get("/workers", include_in_schema=False)
        async def workers_page(who: Who) -> Response:
            return self._booted(who, "workers.html", await fleet_routes.workers(self))

        @page.get("/schedules", include_in_schema=False)
        async def schedules_page(who: Who) -> Response:
            return self._booted(
                who, "schedules.html", await fleet_routes.schedules(self), may_steer=who.may("operator")
            )

        @page.get("/me", include_in_schema=False)
        async def me_page(who: Who) -> Response:
            return self._booted(
                who, "me.html", await account_routes.tokens_of(accounts, who.name),
                sessions=_for_script((await account_routes.sessions_of(accounts, who.name)).model_dump_json()),
            )  # fmt: skip

        @page.get("/users", include_in_schema=False)
        async def users_page(who: Who, before: Older = None) -> Response:
            return self._booted(
                who, "users.html", await account_routes.users(accounts),
                sessions=_for_script((await account_routes.sessions_of(accounts, None)).model_dump_json()),
                audit=await account_routes.audit(accounts, before),
            )  # fmt: skip

        @page.get("/login", include_in_schema=False)
        async def login_page(next: Annotated[str, Query(max_length=2000)] = "/") -> Response:  # noqa: A002  # the name in the address
            # Only to a place of this server: neither another host (//host) nor a script (javascript:).
            return self._page(None, "login.html", next=next if re.fullmatch(r"/(?![/\\])[^\x00-\x1f]*", next) else "/")

        @page.get("/api/docs", include_in_schema=False)
        async def docs_page(who: Who) -> Response:
            return self._page(who, "api.html", schema=self.app.openapi())

        @page.get("/static/{version}/{name}", include_in_schema=False)
        async def static_file(version: str, name: str) -> Response:
            content = self._static.get(name)
            if content is None or version != self._static_hash:
                raise HTTPException(404)
            headers = {"cache-control": "public, max-age=31536000, immutable"}
            return Response(content, media_type=_KINDS[os.path.splitext(name)[1]], headers=headers)

    # -- errors -------------------------------------------------------------------------------------------------

    def _add_errors(self) -> None:
        def answering(
            status: int, sentence: Callable[[Exception], str]
        ) -> Callable[[Request, Exception], Awaitable[Response]]:
            async def answer(request: Request, err: Exception) -> Response:
                kind, body = await self._refuse(request.scope, status, sentence(err))
                return Response(body, status, media_type=kind.decode())

            return answer

        async def http(request: Request, err: Exception) -> Response:
            status = err.status_code if isinstance(err, HTTPException) else 500
            sentence = str(getattr(err, "detail", "")) if status != 404 else "there is no such page"
            kind, body = await self._refuse(request.scope, status, sentence)
            return Response(body, status, media_type=kind.decode(), headers=getattr(err, "headers", None))

        add = self.app.add_exception_handler
        add(HTTPException, http)
        add(RequestValidationError, answering(422, _what_is_wrong))
        add(UnknownRunError, answering(404, lambda err: f"there is no run {getattr(err, 'number', '')}"))
        add(DatabaseError, answering(503, self._logged))
        add(QueueError, answering(422, self._without_roots))
        add(SpecError, answering(422, self._without_roots))
        add(Exception, answering(500, lambda _: "the server made an error; its log says which"))

    def _logged(self, err: Exception) -> str:
        log.warning("%s", err)
        if isinstance(err, DatabaseFullError):
            return "the disk of the database is full: nothing was changed; try again when there is room"
        why = self.disks.trouble
        return f"the database cannot be used at the moment: {why}" if why else _AWAY

    def _without_roots(self, err: Exception) -> str:
        text = str(err)
        for project in self.projects.values():
            text = project.hide(text)
        return text

    async def _refuse(self, scope: Scope, status: int, sentence: str) -> tuple[bytes, bytes]:
        """A sentence as JSON for programs, as a page for people."""
        path: str = scope["path"]
        if path.startswith(("/api/", "/hooks/")) and path != "/api/docs":
            return b"application/json", JSONResponse({"error": sentence}).body  # type: ignore[return-value]  # bytes, as rendered
        who = scope.get("state", {}).get("who")
        return b"text/html; charset=utf-8", bytes(self._page(who, "message.html", status, sentence=sentence).body)


def _read(*parts: str) -> bytes:
    with open(os.path.join(_HERE, *parts), "rb") as file:
        return file.read()


def _for_script(text: str) -> str:
    """JSON for a <script type="application/json">: no character in it can end that element."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _what_is_wrong(err: Exception) -> str:
    with contextlib.suppress(AttributeError, LookupError):
        first = err.errors()[0]  # type: ignore[attr-defined]  # a RequestValidationError
        where = ".".join(str(one) for one in first["loc"][1:])
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    return "the request cannot be read"
