# SPDX-License-Identifier: GPL-3.0-or-later
"""A run as a file: its events, its log, a report, ansible-runner's folder. Without the folders of the worker."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import re
import zipfile
from typing import TYPE_CHECKING

from forkless.queue import QueueRequestError
from forkless.web.answers import plain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from forkless.core.events import Event
    from forkless.queue import Queue, RunRecord

__all__ = ["artifacts", "clean_events", "event_lines", "log_text"]

# The artifacts have a file for each event, and are made in memory.
_MOST_FILES = 50_000


async def clean_events(queue: Queue, record: RunRecord, most: int | None = None) -> list[Event]:
    """All events of a run, without the folders of the worker. Raises if there are more than `most`."""
    if most is not None and record.counter > most:
        raise QueueRequestError(
            f"run {record.id} has {record.counter} events, and this is for up to {most}; download its events"
        )
    events, after = [], 0
    while found := await queue.events(record.id, after=after, batches=5):
        after = found[-1].counter
        events += await asyncio.to_thread(_clean, found, record.project)
    return events


def _clean(events: Iterable[Event], project: Mapping[str, object]) -> list[Event]:
    return [
        dataclasses.replace(event, stdout=plain(event.stdout, project), event_data=_without_paths(event.event_data, project))  # type: ignore[arg-type]  # a mapping stays one
        for event in events
    ]  # fmt: skip


def _without_paths(thing: object, project: Mapping[str, object]) -> object:
    """The same, with all strings in it without the folder of the worker."""
    if isinstance(thing, str):
        return plain(thing, project) if "/" in thing else thing
    if isinstance(thing, dict):
        return {key: _without_paths(value, project) for key, value in thing.items()}
    if isinstance(thing, list):
        return [_without_paths(one, project) for one in thing]
    return thing


async def event_lines(queue: Queue, record: RunRecord) -> AsyncIterator[bytes]:
    after = 0
    while found := await queue.events(record.id, after=after, batches=2):
        after = found[-1].counter
        cleaned = await asyncio.to_thread(_clean, found, record.project)
        yield "".join(json.dumps(event.as_dict()) + "\n" for event in cleaned).encode()


async def log_text(queue: Queue, record: RunRecord) -> AsyncIterator[bytes]:
    after = 0
    while found := await queue.events(record.id, after=after, batches=2):
        after = found[-1].counter
        yield "".join(plain(event.stdout, record.project) + "\n" for event in found if event.stdout).encode()


async def artifacts(queue: Queue, record: RunRecord) -> bytes:
    """The folder that ansible-runner would have written, as a zip."""
    events = await clean_events(queue, record, _MOST_FILES)
    return await asyncio.to_thread(_zip, events, record)


def _zip(events: list[Event], record: RunRecord) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for event in events:
            name = re.sub(r"[^0-9A-Za-z-]", "", event.uuid)
            archive.writestr(f"{record.id}/job_events/{event.counter}-{name}.json", json.dumps(event.as_dict()))
        archive.writestr(f"{record.id}/stdout", "".join(event.stdout + "\n" for event in events if event.stdout))
        archive.writestr(f"{record.id}/status", record.status)
        archive.writestr(f"{record.id}/rc", "" if record.rc is None else str(record.rc))
    return made.getvalue()
