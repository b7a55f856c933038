# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of hosts, workers, the queue and schedules."""

# FastAPI evaluates the annotations of its functions: no `from __future__ import annotations`.
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query

from forkless.queue import RunRecord, history, host_jobs
from forkless.web.answers import RunAnswer, plain
from forkless.web.fleet_answers import (
    DoneAnswer,
    HostHistoryAnswer,
    HostJobAnswer,
    HostJobsAnswer,
    HostRunAnswer,
    HostSummariesAnswer,
    HostSummaryAnswer,
    QueueAnswer,
    ScheduleAnswer,
    SchedulesAnswer,
    WaitingRun,
    WorkerAnswer,
    WorkersAnswer,
)
from forkless.web.run_routes import LARGEST, Who, without_nul

if TYPE_CHECKING:
    from forkless.web.app import PageApp

__all__ = ["ScheduleName", "add", "host_history", "hosts", "jobs", "queue_state", "schedules", "workers"]

ScheduleName = Annotated[str, Path(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
HostName = Annotated[str, Query(min_length=1, max_length=300)]
_HOSTS_PAGE = 100


async def hosts(page: "PageApp", search: str, after: str) -> HostSummariesAnswer:
    without_nul(search, after)
    found = await history.hosts(page.queue, search=search, after=after, limit=_HOSTS_PAGE + 1)
    rows = [HostSummaryAnswer.of(one) for one in found[:_HOSTS_PAGE]]
    return HostSummariesAnswer(hosts=rows, after=rows[-1].host if len(found) > _HOSTS_PAGE else None)


async def host_history(page: "PageApp", host: str, before: int | None) -> HostHistoryAnswer:
    without_nul(host)
    found = await history.host_runs(page.queue, host, before=before, limit=51)
    rows = [HostRunAnswer.of(one) for one in found[:50]]
    return HostHistoryAnswer(host=host, runs=rows, older=rows[-1].run if len(found) > 50 else None)


async def jobs(page: "PageApp", host: str) -> HostJobsAnswer:
    without_nul(host)
    return HostJobsAnswer(host=host, jobs=[HostJobAnswer.of(one) for one in await host_jobs.jobs_of(page.queue, host)])


async def workers(page: "PageApp") -> WorkersAnswer:
    found = await page.queue.workers()
    runs = await history.runs_of(page.queue, [one.run_id for one in found if one.run_id is not None])
    return WorkersAnswer(workers=[WorkerAnswer.of(one, _answer(runs.get(one.run_id or 0))) for one in found])


def _answer(record: RunRecord | None) -> RunAnswer | None:
    return None if record is None else RunAnswer.of(record)


async def queue_state(page: "PageApp") -> QueueAnswer:
    there = (await workers(page)).workers
    free = sum(one.state == "idle" for one in there)
    waiting = []
    for record, obstacle in await history.waiting(page.queue):
        why = None if obstacle is None else plain(obstacle, record.project)
        if why is None:
            why = "for a free worker" if there else "for a worker: none is there; `forkless worker` starts one"
        waiting.append(WaitingRun(run=RunAnswer.of(record), why=why))
    running = [RunAnswer.of(one) for one in await page.queue.runs(status=["running"], limit=200)]
    limits = await history.label_limits(page.queue)
    return QueueAnswer(running=running, waiting=waiting, free_workers=free, limits=limits)


async def schedules(page: "PageApp") -> SchedulesAnswer:
    return SchedulesAnswer(schedules=[ScheduleAnswer.of(one) for one in await page.queue.schedules()])


def add(router: APIRouter, page: "PageApp") -> None:
    queue, accounts = page.queue, page.access.accounts

    @router.get("/api/hosts", summary="Hosts, with their last run, failure and change")
    async def list_hosts(
        search: Annotated[str, Query(max_length=300)] = "",
        after: Annotated[str, Query(max_length=300, description="The next page: `after` of this one")] = "",
    ) -> HostSummariesAnswer:
        return await hosts(page, search, after)

    @router.get("/api/hosts/history", summary="The runs of one host, the newest first")
    async def one_host(
        host: HostName,
        before: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
    ) -> HostHistoryAnswer:
        return await host_history(page, host, before)

    @router.get(
        "/api/hosts/jobs", summary="Jobs of one host that outlive their runs, as their project keeps them in the queue"
    )
    async def list_jobs(host: HostName) -> HostJobsAnswer:
        return await jobs(page, host)

    @router.post(
        "/api/hosts/jobs/{job}/{operation}",
        status_code=201,
        summary="Start a run that asks the host about a job, or ends the job",
    )
    async def ask_about_job(
        job: Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")], operation: host_jobs.Operation, host: HostName, who: Who
    ) -> RunAnswer:
        without_nul(host)
        launched = await host_jobs.ask(queue, host, job, operation, who.name)
        record = await launched.record()
        await accounts.note(who.name, f"{operation} of a job", record.id, record.title)
        return RunAnswer.of(record)

    @router.get("/api/workers", summary="Worker processes that were seen in the last day, and what each does now")
    async def list_workers() -> WorkersAnswer:
        return await workers(page)

    @router.get("/api/queue", summary="What is under way, and what waits for what")
    async def show_queue() -> QueueAnswer:
        return await queue_state(page)

    @router.get("/api/schedules", summary="Schedules")
    async def list_schedules() -> SchedulesAnswer:
        return await schedules(page)

    @router.post("/api/schedules/{name}/pause", summary="Launch nothing until resumed")
    async def pause_schedule(name: ScheduleName, who: Who) -> DoneAnswer:
        await queue.pause_schedule(name)
        await accounts.note(who.name, "pause schedule", about=name)
        return DoneAnswer()

    @router.post("/api/schedules/{name}/resume", summary="Go on with the next time")
    async def resume_schedule(name: ScheduleName, who: Who) -> DoneAnswer:
        await queue.pause_schedule(name, paused=False)
        await accounts.note(who.name, "resume schedule", about=name)
        return DoneAnswer()

    @router.delete("/api/schedules/{name}", summary="Remove a schedule; its runs stay")
    async def remove_schedule(name: ScheduleName, who: Who) -> DoneAnswer:
        await queue.remove_schedule(name)
        await accounts.note(who.name, "remove schedule", about=name)
        return DoneAnswer()
