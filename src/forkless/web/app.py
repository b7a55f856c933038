# SPDX-License-Identifier: GPL-3.0-or-later
"""The application: pages, the HTTP API, static files, and what an error becomes."""

# FastAPI evaluates the annotations of its functions: no `from __future__ import annotations`.
import asyncio
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

from forkless import __version__
from forkless.core.errors import UnsupportedError

try:
    import jinja2
    from fastapi import Depends, FastAPI, Header, Path, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
    from starlette.exceptions import HTTPException
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.types import Scope
except ImportError:
    raise UnsupportedError("the page needs fastapi, uvicorn and jinja2: pip install 'forkless[web]'") from None

from forkless.queue import DatabaseError, Queue, QueueError, QueueRequestError, UnknownRunError
from forkless.web.access import Access, AccessMiddleware
from forkless.web.answers import (
    HostRecapAnswer,
    HostsAnswer,
    ProjectAnswer,
    RelaunchRequest,
    RunAnswer,
    RunEventsAnswer,
    RunsAnswer,
    StartRequest,
    plain,
)
from forkless.web.project_folder import ProjectFolder
from forkless.web.streams import RunsFilter, StreamReaders

__all__ = ["PageApp"]

log = logging.getLogger("forkless.serve")

_HERE = os.path.dirname(os.path.abspath(__file__))
_KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_LARGEST = 2**63 - 1
_STATES = ("waiting", "running", "successful", "failed", "canceled", "lost")

RunNumber = Annotated[int, Path(ge=1, le=_LARGEST, description="The number of a run")]


def _filter(
    status: Annotated[list[str] | None, Query(description="Keep runs in one of these states")] = None,
    search: Annotated[
        str, Query(max_length=200, description="Keep runs whose playbook, limit or launcher has the text")
    ] = "",
    host: Annotated[str, Query(max_length=300, description="Keep runs on this host")] = "",
    before: Annotated[int | None, Query(ge=1, le=_LARGEST, description="The next page: `older` of this one")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> RunsFilter:
    if "\0" in search + host:  # PostgreSQL has no such character
        raise QueueRequestError("the text to search for has a control character in it")
    wanted = tuple(one for one in status or () if one)
    for one in wanted:
        if one not in _STATES:
            raise QueueRequestError(f"there is no such state; there are {', '.join(_STATES)}")
    return wanted, search, host, before, limit


AskedRuns = Annotated[RunsFilter, Depends(_filter)]


class PageApp:
    """The ASGI application for one queue. `app` is what a server is given."""

    def __init__(self, queue: Queue, access: Access, project: ProjectFolder | None) -> None:
        self.queue, self.access, self.project = queue, access, project
        self.readers = StreamReaders(queue)
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
        )
        self._add_api()
        self._add_pages()
        self._add_errors()
        self.app.add_middleware(GZipMiddleware, minimum_size=1000)
        self.app.add_middleware(AccessMiddleware, access=access, refuse=self._refuse)

    # -- pages --------------------------------------------------------------------------------------------------

    def _page(self, request: Request | None, template: str, code: int = 200, **values: object) -> HTMLResponse:
        session = getattr(request.state, "session", "") if request is not None else ""
        text = self._templates.get_template(template).render(
            static=f"/static/{self._static_hash}", csrf=self.access.csrf(session) if session else "", version=__version__,
            can_start=self.project is not None, **values,
        )  # fmt: skip
        return HTMLResponse(text, code)

    def _add_pages(self) -> None:
        app = self.app

        @app.get("/", include_in_schema=False)
        async def runs_page(request: Request, asked: AskedRuns) -> Response:
            status, search, host, before, _ = asked
            answer = await self.readers.runs(asked)
            return self._page(
                request, "runs.html", answer=answer, boot=_for_script(answer.model_dump_json()), states=_STATES, status=status, search=search,
                host=host, before=before,
            )  # fmt: skip

        @app.get("/runs/{number}", include_in_schema=False)
        async def run_page(request: Request, number: RunNumber) -> Response:
            run = RunAnswer.of(await self.queue.record(number))
            return self._page(request, "run.html", run=run, boot=_for_script(run.model_dump_json()))

        @app.get("/start", include_in_schema=False)
        async def start_page(request: Request) -> Response:
            return self._page(request, "start.html", project=await self._project())

        @app.get("/api/docs", include_in_schema=False)
        async def docs_page(request: Request) -> Response:
            return self._page(request, "api.html", schema=app.openapi())

        @app.get("/static/{version}/{name}", include_in_schema=False)
        async def static_file(version: str, name: str) -> Response:
            content = self._static.get(name)
            if content is None or version != self._static_hash:
                raise HTTPException(404)
            headers = {"cache-control": "public, max-age=31536000, immutable"}
            return Response(content, media_type=_KINDS[os.path.splitext(name)[1]], headers=headers)

    # -- the API ------------------------------------------------------------------------------------------------

    def _add_api(self) -> None:
        app, readers = self.app, self.readers

        @app.get("/api/runs", summary="Runs, the newest first")
        async def list_runs(asked: AskedRuns) -> RunsAnswer:
            return await readers.runs(asked)

        @app.get(
            "/api/runs/stream", summary="The same, sent again whenever it changes", response_class=StreamingResponse
        )
        async def stream_runs(asked: AskedRuns) -> Response:
            return self._stream(readers.list_stream(asked))

        @app.post("/api/runs", status_code=201, summary="Start a run of the project")
        async def start_run(asked: StartRequest) -> RunAnswer:
            project = self.project
            if project is None:
                raise QueueRequestError("no project is configured; start the server with --project DIR")
            spec = await asyncio.to_thread(project.spec, asked)
            launched = await self.queue.launch(spec)
            return RunAnswer.of(await launched.record())

        @app.get("/api/project", summary="Playbooks and inventories that can be started")
        async def project_files() -> ProjectAnswer:
            return await self._project()

        @app.get("/api/runs/{number}", summary="One run")
        async def one_run(number: RunNumber) -> RunAnswer:
            return RunAnswer.of(await self.queue.record(number))

        @app.get("/api/runs/{number}/hosts", summary="The recap by host, when the run has ended")
        async def run_hosts(number: RunNumber) -> HostsAnswer:
            await self.queue.record(number)
            return HostsAnswer(hosts=[HostRecapAnswer.of(one) for one in await self.queue.hosts(number)])

        @app.get("/api/runs/{number}/events", summary="The next events after a position")
        async def run_events(number: RunNumber, after: Annotated[int, Query(ge=0, le=_LARGEST)] = 0) -> RunEventsAnswer:
            return await readers.events(number, after)

        @app.get(
            "/api/runs/{number}/stream", response_class=StreamingResponse,
            summary="Events as they come (server-sent events); Last-Event-ID or `after` says where to go on",
        )  # fmt: skip
        async def stream_run(
            number: RunNumber,
            after: Annotated[int, Query(ge=0, le=_LARGEST)] = 0,
            last_event_id: Annotated[str | None, Header(max_length=19, pattern=r"^\d*$")] = None,
        ) -> Response:
            await self.queue.record(number)
            return self._stream(
                readers.run_stream(number, min(_LARGEST, int(last_event_id)) if last_event_id else after)
            )

        @app.get(
            "/api/runs/{number}/events.jsonl",
            response_class=StreamingResponse,
            summary="All events, one JSON object on each line",
        )
        async def download_events(number: RunNumber) -> Response:
            record = await self.queue.record(number)

            async def lines() -> AsyncIterator[bytes]:
                after = 0
                while found := await self.queue.events(number, after=after, batches=2):
                    after = found[-1].counter
                    yield "".join(
                        json.dumps(_without_paths(event.as_dict(), record.project)) + "\n" for event in found
                    ).encode()

            return _download(lines(), "application/jsonl", f"run-{number}.jsonl")

        @app.get("/api/runs/{number}/log", response_class=StreamingResponse, summary="What Ansible printed, as text")
        async def download_log(number: RunNumber) -> Response:
            record = await self.queue.record(number)

            async def text() -> AsyncIterator[bytes]:
                after = 0
                while found := await self.queue.events(number, after=after, batches=2):
                    after = found[-1].counter
                    yield "".join(
                        plain(event.stdout, record.project) + "\n" for event in found if event.stdout
                    ).encode()

            return _download(text(), "text/plain; charset=utf-8", f"run-{number}.log")

        @app.post("/api/runs/{number}/cancel", summary="Ask for the end of a run")
        async def cancel_run(number: RunNumber) -> RunAnswer:
            await self.queue.cancel(number)
            return RunAnswer.of(await self.queue.record(number))

        @app.post("/api/runs/{number}/relaunch", status_code=201, summary="The same run again")
        async def relaunch_run(number: RunNumber, asked: RelaunchRequest) -> RunAnswer:
            launched = await self.queue.relaunch(number, failed=asked.failed)
            return RunAnswer.of(await launched.record())

    def _stream(self, messages: AsyncIterator[bytes]) -> Response:
        if self.readers.is_full:
            raise HTTPException(503, "too many pages are open; close some")
        # `no-transform`, and nginx's own header: a proxy that collects an answer before it sends it on would hide what happens.
        headers = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
        return StreamingResponse(messages, media_type="text/event-stream", headers=headers)

    async def _project(self) -> ProjectAnswer:
        project = self.project
        if project is None:
            return ProjectAnswer(name="", playbooks=[], inventories=[])
        playbooks, inventories = await asyncio.to_thread(lambda: (project.playbooks(), project.inventories()))
        return ProjectAnswer(name=project.name, playbooks=playbooks, inventories=inventories)

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
            return Response(body, status, media_type=kind.decode())

        add = self.app.add_exception_handler
        add(HTTPException, http)
        add(RequestValidationError, answering(422, _what_is_wrong))
        add(UnknownRunError, answering(404, lambda err: f"there is no run {getattr(err, 'number', '')}"))
        add(QueueRequestError, answering(422, self._without_root))
        add(DatabaseError, answering(503, _logged))
        add(QueueError, answering(422, self._without_root))
        add(Exception, answering(500, lambda _: "the server made an error; its log says which"))

    def _without_root(self, err: Exception) -> str:
        text = str(err)
        return (
            text.replace(self.project.root + "/", "").replace(self.project.root, self.project.name)
            if self.project
            else text
        )

    async def _refuse(self, scope: Scope, status: int, sentence: str) -> tuple[bytes, bytes]:
        """A sentence as JSON for programs, as a page for people."""
        path: str = scope["path"]
        if path.startswith("/api/") and path != "/api/docs":
            return b"application/json", JSONResponse({"error": sentence}).body  # type: ignore[return-value]  # bytes, as rendered
        return b"text/html; charset=utf-8", bytes(self._page(None, "message.html", status, sentence=sentence).body)


def _read(*parts: str) -> bytes:
    with open(os.path.join(_HERE, *parts), "rb") as file:
        return file.read()


def _for_script(text: str) -> str:
    """JSON for a <script type="application/json">: no character in it can end that element."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _download(content: AsyncIterator[bytes], kind: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(content, media_type=kind, headers=headers)


def _without_paths(thing: object, project: object) -> object:
    """The same, with all strings in it without the folder of the worker."""
    where = project if isinstance(project, dict) else None
    if isinstance(thing, str):
        return plain(thing, where) if "/" in thing else thing
    if isinstance(thing, dict):
        return {key: _without_paths(value, where) for key, value in thing.items()}
    if isinstance(thing, list):
        return [_without_paths(one, where) for one in thing]
    return thing


def _what_is_wrong(err: Exception) -> str:
    with contextlib.suppress(AttributeError, LookupError):
        first = err.errors()[0]  # type: ignore[attr-defined]  # a RequestValidationError
        where = ".".join(str(one) for one in first["loc"][1:])
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    return "the request cannot be read"


def _logged(err: Exception) -> str:
    log.warning("%s", err)
    return "the database cannot be used at the moment; the server's log says why"
