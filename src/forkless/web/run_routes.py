# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of runs: list, follow, download, compare, cancel, relaunch."""

# FastAPI evaluates the annotations of its functions: no `from __future__ import annotations`.
import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from forkless.queue import QueueRequestError, RunRecord
from forkless.web import comparison, downloads, search
from forkless.web.access import Identity
from forkless.web.answers import (
    FoundLinesAnswer,
    HostRecapAnswer,
    HostsAnswer,
    RelaunchRequest,
    RunAnswer,
    RunEventsAnswer,
    RunsAnswer,
)
from forkless.web.fleet_answers import ComparisonAnswer, DifferenceAnswer, SlowerAnswer
from forkless.web.streams import RunsFilter

if TYPE_CHECKING:
    from forkless.web.app import PageApp

__all__ = ["STATES", "AskedRuns", "RunNumber", "Who", "add"]

LARGEST = 2**63 - 1
STATES = ("waiting", "running", "successful", "failed", "canceled", "lost")

RunNumber = Annotated[int, Path(ge=1, le=LARGEST, description="The number of a run")]


def _who(request: Request) -> Identity:
    found: Identity = request.state.who
    return found


Who = Annotated[Identity, Depends(_who)]


def without_nul(*texts: str) -> None:
    if any("\0" in text for text in texts):  # PostgreSQL has no such character
        raise QueueRequestError("the text has a control character in it")


def _filter(
    status: Annotated[list[str] | None, Query(description="Keep runs in one of these states")] = None,
    search: Annotated[
        str, Query(max_length=200, description="Keep runs whose playbook, limit or launcher has the text")
    ] = "",
    host: Annotated[str, Query(max_length=300, description="Keep runs on this host")] = "",
    before: Annotated[int | None, Query(ge=1, le=LARGEST, description="The next page: `older` of this one")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> RunsFilter:
    without_nul(search, host)
    wanted = tuple(one for one in status or () if one)
    for one in wanted:
        if one not in STATES:
            raise QueueRequestError(f"there is no such state; there are {', '.join(STATES)}")
    return wanted, search, host, before, limit


AskedRuns = Annotated[RunsFilter, Depends(_filter)]


def add(router: APIRouter, page: "PageApp") -> None:
    queue, readers = page.queue, page.readers

    @router.get("/api/runs", summary="Runs, the newest first")
    async def list_runs(asked: AskedRuns) -> RunsAnswer:
        return await readers.runs(asked)

    @router.get(
        "/api/runs/stream", summary="The same, sent again whenever it changes", response_class=StreamingResponse
    )
    async def stream_runs(request: Request, asked: AskedRuns) -> Response:
        return page.stream(readers.list_stream(asked, page.still_allowed(request)))

    @router.get("/api/compare", summary="What is in a second run that was not in a first")
    async def compare_runs(
        first: Annotated[int, Query(ge=1, le=LARGEST)], second: Annotated[int, Query(ge=1, le=LARGEST)]
    ) -> ComparisonAnswer:
        return await _compare(page, first, second)

    @router.get("/api/runs/{number}", summary="One run")
    async def one_run(number: RunNumber) -> RunAnswer:
        return RunAnswer.of(await queue.record(number))

    @router.get("/api/runs/{number}/hosts", summary="The recap by host, when the run has ended")
    async def run_hosts(number: RunNumber) -> HostsAnswer:
        await queue.record(number)
        return HostsAnswer(hosts=[HostRecapAnswer.of(one) for one in await queue.hosts(number)])

    @router.get("/api/runs/{number}/events", summary="The next events after a position")
    async def run_events(number: RunNumber, after: Annotated[int, Query(ge=0, le=LARGEST)] = 0) -> RunEventsAnswer:
        return await readers.events(number, after)

    @router.get(
        "/api/runs/{number}/stream", response_class=StreamingResponse,
        summary="Events as they come (server-sent events); Last-Event-ID or `after` says where to go on",
    )  # fmt: skip
    async def stream_run(
        request: Request,
        number: RunNumber,
        after: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
        last_event_id: Annotated[str | None, Header(max_length=19, pattern=r"^\d*$")] = None,
    ) -> Response:
        await queue.record(number)
        begin = min(LARGEST, int(last_event_id)) if last_event_id else after
        return page.stream(readers.run_stream(number, begin, page.still_allowed(request)))

    @router.get(
        "/api/runs/{number}/events.jsonl",
        response_class=StreamingResponse,
        summary="All events, one JSON object on each line",
    )
    async def download_events(number: RunNumber) -> Response:
        record = await queue.record(number)
        lines = downloads.event_lines(queue, record)
        return StreamingResponse(lines, media_type="application/jsonl", headers=_as_file(f"run-{number}.jsonl"))

    @router.get("/api/runs/{number}/search", summary="Lines of the output that contain a text, in upper or lower case")
    async def search_run(
        number: RunNumber,
        text: Annotated[str, Query(min_length=1, max_length=200)],
        after: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    ) -> FoundLinesAnswer:
        return await search.find_lines(queue, await queue.record(number), text, after)

    @router.get("/api/runs/{number}/log", response_class=StreamingResponse, summary="What Ansible printed, as text")
    async def download_log(number: RunNumber) -> Response:
        record = await queue.record(number)
        text = downloads.log_text(queue, record)
        return StreamingResponse(text, media_type="text/plain; charset=utf-8", headers=_as_file(f"run-{number}.log"))

    @router.get("/api/runs/{number}/report", response_class=Response, summary="One HTML file about the run, to keep")
    async def download_report(number: RunNumber) -> Response:
        record = await queue.record(number)
        return Response(await _report(page, record), media_type="text/html", headers=_as_file(f"run-{number}.html"))

    @router.get(
        "/api/runs/{number}/artifacts", response_class=Response, summary="ansible-runner's artifact folder as a zip"
    )
    async def download_artifacts(number: RunNumber) -> Response:
        packed = await downloads.artifacts(queue, await queue.record(number))
        return Response(packed, media_type="application/zip", headers=_as_file(f"run-{number}.zip"))

    @router.post("/api/runs/{number}/cancel", summary="Ask for the end of a run")
    async def cancel_run(number: RunNumber, who: Who) -> RunAnswer:
        await queue.cancel(number, by=who.name)
        await page.access.accounts.note(who.name, "cancel", number)
        return RunAnswer.of(await queue.record(number))

    @router.post("/api/runs/{number}/relaunch", status_code=201, summary="The same run again")
    async def relaunch_run(number: RunNumber, asked: RelaunchRequest, who: Who) -> RunAnswer:
        launched = await queue.relaunch(number, failed=asked.failed, by=who.name)
        about = f"run {number} again" + (" on failed hosts" if asked.failed else "")
        await page.access.accounts.note(who.name, "relaunch", launched.number, about)
        return RunAnswer.of(await launched.record())


def _as_file(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


async def _report(page: "PageApp", record: RunRecord) -> str:
    if not record.over:
        raise QueueRequestError(f"run {record.id} is {record.status}; its report can be made when it has ended")
    events = await downloads.clean_events(page.queue, record, comparison.MOST_EVENTS)
    return await asyncio.to_thread(page.report, RunAnswer.of(record), events)


async def _outline(page: "PageApp", record: RunRecord) -> comparison.RunOutline:
    if record.counter > comparison.MOST_EVENTS:
        raise QueueRequestError(f"run {record.id} has {record.counter} events: too many to compare")
    made, after = comparison.RunOutline(), 0
    while found := await page.queue.events(record.id, after=after, batches=2):
        after = found[-1].counter
        await asyncio.to_thread(made.add, found, record.project)
    return made


async def _compare(page: "PageApp", first: int, second: int) -> ComparisonAnswer:
    records = await page.queue.record(first), await page.queue.record(second)
    outlines = [await _outline(page, record) for record in records]
    found, slower, hosts = await asyncio.to_thread(comparison.compare, *outlines)
    rows = {kind: [DifferenceAnswer(**vars(one)) for one in some] for kind, some in found.items()}
    return ComparisonAnswer(
        first=RunAnswer.of(records[0]), second=RunAnswer.of(records[1]), failed=rows["failed"], recovered=rows["recovered"],
        changed=rows["changed"], unchanged=rows["unchanged"], slower=[SlowerAnswer(**vars(one)) for one in slower],
        only_first=hosts["only_first"], only_second=hosts["only_second"],
    )  # fmt: skip
