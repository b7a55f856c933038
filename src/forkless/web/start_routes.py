# SPDX-License-Identifier: GPL-3.0-or-later
"""The API that starts: what can be started, on which hosts, with which variables; now, again and again, or because of a message."""

# FastAPI evaluates the annotations of its functions: no `from __future__ import annotations`.
import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.exceptions import HTTPException

from forkless.core.spec import RunSpec
from forkless.queue import DeliveredError, LaunchOptions, QueueRequestError, preview
from forkless.web import hooks
from forkless.web.answers import (
    HookAnswer,
    PreviewAnswer,
    ProjectAnswer,
    ProjectsAnswer,
    RunAnswer,
    ScheduleRequest,
    StartRequest,
    VariableAnswer,
    VariablesAnswer,
)
from forkless.web.fleet_answers import ScheduleAnswer
from forkless.web.project_folder import ProjectFolder
from forkless.web.run_routes import Who
from forkless.web.settings import HookSettings

if TYPE_CHECKING:
    from forkless.web.app import PageApp

__all__ = ["add", "projects", "start"]

_NO_PROJECT = "no project is configured; start the server with --project DIR"


async def projects(page: "PageApp") -> ProjectsAnswer:
    def look(project: ProjectFolder) -> ProjectAnswer:
        return ProjectAnswer(
            name=project.name, playbooks=project.playbooks(), inventories=project.inventories(), trouble=project.trouble
        )

    return ProjectsAnswer(projects=[await asyncio.to_thread(look, one) for one in page.projects.values()])


def _project(page: "PageApp", name: str) -> ProjectFolder:
    if not page.projects:
        raise QueueRequestError(_NO_PROJECT)
    found = page.projects.get(name or next(iter(page.projects)))
    if found is None:
        raise QueueRequestError(f"there is no project '{name}'")
    return found


def _spec(project: ProjectFolder, asked: StartRequest) -> RunSpec:
    return project.refresh().spec(asked)


async def start(page: "PageApp", asked: StartRequest, by: str, delivery: tuple[str, str] | None = None) -> RunAnswer:
    project = _project(page, asked.project)
    spec = await asyncio.to_thread(_spec, project, asked)
    slices = None if asked.slices == 1 else asked.slices
    options = LaunchOptions(by=by, slices=slices, retries=asked.retries, home=project.home, delivery=delivery)
    launched = await page.queue.launch(spec, options)
    return RunAnswer.of(await launched.record())


def add(router: APIRouter, page: "PageApp") -> None:
    queue, accounts = page.queue, page.access.accounts
    looking = asyncio.Semaphore(2)  # each look at an inventory is a process

    @router.get("/api/projects", summary="Playbooks and inventories that can be started")
    async def list_projects() -> ProjectsAnswer:
        return await projects(page)

    @router.post("/api/runs", status_code=201, summary="Start a run of a project")
    async def start_run(asked: StartRequest, who: Who) -> RunAnswer:
        run = await start(page, asked, who.name)
        await accounts.note(who.name, "start", run.id, run.title)
        return run

    @router.post("/api/preview", summary="The hosts that a run would have; nothing is started")
    async def preview_run(asked: StartRequest) -> PreviewAnswer:
        spec = await asyncio.to_thread(_spec, _project(page, asked.project), asked)
        async with looking:
            hosts = await asyncio.to_thread(preview.hosts_of, spec)
        return PreviewAnswer(hosts=hosts[:1000], count=len(hosts))

    @router.get("/api/variables", summary="The variables that a playbook asks for: vars_prompt and argument_specs")
    async def list_variables(
        playbook: Annotated[str, Query(min_length=1, max_length=500)],
        project: Annotated[str, Query(max_length=100)] = "",
    ) -> VariablesAnswer:
        folder = _project(page, project)
        found = await asyncio.to_thread(folder.variables, playbook)
        return VariablesAnswer(
            variables=[
                VariableAnswer(**{name: getattr(one, name) for name in VariableAnswer.model_fields}) for one in found
            ]
        )

    @router.post("/api/schedules", status_code=201, summary="Start a run of a project again and again")
    async def add_schedule(asked: ScheduleRequest, who: Who) -> ScheduleAnswer:
        if asked.run.slices != 1:
            raise QueueRequestError("a run of a schedule has no slices")
        project = _project(page, asked.run.project)
        spec = await asyncio.to_thread(_spec, project, asked.run)
        options = LaunchOptions(by=who.name, retries=asked.run.retries, home=project.home)
        await queue.add_schedule(
            asked.name, asked.cron, spec, options, time_zone=asked.time_zone, if_running=asked.if_running
        )
        await accounts.note(who.name, "new schedule", about=asked.name)
        return next(ScheduleAnswer.of(one) for one in await queue.schedules() if one.name == asked.name)

    @router.post("/hooks/{name}", status_code=202, summary="A signed message that starts a configured run")
    async def receive(request: Request, name: Annotated[str, Path(max_length=63)]) -> HookAnswer:
        settings = page.hooks.get(name)
        body = await request.body()
        # One answer for a name that does not exist and a signature that is wrong: nobody learns the names.
        if settings is None or not hooks.is_signed(settings, request.headers, body):
            raise HTTPException(403, "there is no such hook, or its signature is wrong")
        return await _receive(page, name, settings, request, body)


async def _receive(page: "PageApp", name: str, settings: HookSettings, request: Request, body: bytes) -> HookAnswer:
    why_not = hooks.why_not(settings, request.headers, body)
    if why_not:
        return HookAnswer(run=None, why=why_not)
    delivery = hooks.delivery_of(settings, request.headers, body)
    asked = StartRequest(
        project=settings.project, playbook=settings.playbook, inventory=settings.inventory, limit=settings.limit,
        tags=settings.tags, check=settings.check,
    )  # fmt: skip
    try:
        run = await start(page, asked, f"hook {name}", (name, delivery))
    except DeliveredError as err:
        return HookAnswer(run=None, why=str(err))
    await page.access.accounts.note(f"hook {name}", "start", run.id, run.title)
    return HookAnswer(run=run.id, why="")
