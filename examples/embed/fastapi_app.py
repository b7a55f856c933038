# SPDX-License-Identifier: GPL-3.0-or-later
"""
A small service that runs playbooks: submit, follow live, cancel.

    PLAYBOOKS=/srv/playbooks uvicorn fastapi_app:app

    curl -X POST localhost:8000/runs -H 'content-type: application/json' -d '{"playbook": "site.yml"}'
    curl -N localhost:8000/runs/<ident>/events         # server-sent events, from the first on, until the run ends
    curl -X DELETE localhost:8000/runs/<ident>         # stop it; answers when all its processes are gone
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

import forkless

PLAYBOOKS = pathlib.Path(os.environ.get("PLAYBOOKS", ".")).resolve()

runs: dict[str, forkless.AsyncRun] = {}
tasks: set[asyncio.Task[None]] = set()


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    with forkless.limit(8):
        yield
        # The service stops: so do its runs, and we wait until they are quiet.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


app = FastAPI(lifespan=lifespan)


class Request(BaseModel):
    playbook: str
    inventory: str | None = None
    extra_vars: dict[str, Any] = {}
    check: bool = False


@app.post("/runs", status_code=202)
async def submit(request: Request) -> dict[str, str]:
    playbook = (PLAYBOOKS / request.playbook).resolve()
    if not playbook.is_relative_to(PLAYBOOKS) or not playbook.is_file():
        raise HTTPException(404, "there is no such playbook")
    started: asyncio.Future[forkless.AsyncRun] = asyncio.get_running_loop().create_future()

    async def carry_out() -> None:
        try:
            async with forkless.open_run(
                playbook,
                engine="runner",
                inventory=request.inventory,
                extra_vars=request.extra_vars,
                check=request.check,
            ) as run:
                runs[run.ident] = run
                started.set_result(run)
        except forkless.ForklessError as err:
            if not started.done():
                started.set_exception(HTTPException(422, str(err)))

    task = asyncio.create_task(carry_out())
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return {"ident": (await started).ident}


def find(ident: str) -> forkless.AsyncRun:
    if ident not in runs:
        raise HTTPException(404, "there is no such run")
    return runs[ident]


@app.get("/runs/{ident}")
async def show(ident: str) -> dict[str, str]:
    return {"ident": ident, "status": find(ident).status}


@app.get("/runs/{ident}/events")
async def events(ident: str) -> StreamingResponse:
    run = find(ident)

    async def stream() -> AsyncIterator[str]:
        async for event in run.events():
            yield f"id: {event.counter}\nevent: {event.event}\ndata: {json.dumps(event.as_dict())}\n\n"
        yield f"event: end\ndata: {json.dumps({'status': run.status})}\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


@app.delete("/runs/{ident}")
async def cancel(ident: str) -> dict[str, str]:
    run = find(ident)
    run.cancel()
    with contextlib.suppress(forkless.ForklessError):
        await run.wait()
    return {"ident": ident, "status": run.status}
