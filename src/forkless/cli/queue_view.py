# SPDX-License-Identifier: GPL-3.0-or-later
"""How runs of the queue are printed: tables, one run, and its output while it comes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import json
import signal
import sys
from typing import TYPE_CHECKING

from forkless.cli import terminal_text
from forkless.cli.jobs_view import print_table
from forkless.cli.sliced_playbook import SlicedOutput
from forkless.core.errors import ForklessError

if TYPE_CHECKING:
    from forkless.queue import Queue, RunRecord

__all__ = ["ago", "as_json", "follow", "print_runs", "show"]

# Seconds after which a run that waits for a worker is explained.
_PATIENCE = 3.0


def as_json(record: object) -> dict[str, object]:
    assert dataclasses.is_dataclass(record) and not isinstance(record, type)  # noqa: S101, PT018  # for the type checker
    whole = dataclasses.asdict(record)
    return {key: value.isoformat() if isinstance(value, dt.datetime) else value for key, value in whole.items()}


def ago(moment: dt.datetime | None) -> str:
    if moment is None:
        return "-"
    return _span((dt.datetime.now(dt.UTC) - moment).total_seconds()) + " ago"


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _took(record: RunRecord) -> str:
    if record.started is None:
        return "-"
    end = record.ended or dt.datetime.now(dt.UTC)
    return _span((end - record.started).total_seconds())


def _state(record: RunRecord) -> str:
    more = [f"{record.slices} slices"] if record.slices else []
    if record.status == "waiting" and record.not_before is not None and record.not_before > dt.datetime.now(dt.UTC):
        more.append(f"begins {record.not_before:%Y-%m-%d %H:%M %Z}")
    return record.status + (f" ({', '.join(more)})" if more else "")


def _limit(record: RunRecord) -> str:
    """The hosts to which the run is limited: by `--limit`, or as a slice or a relaunch of what failed, which have a list of names."""
    names = record.hosts or []
    if not names:
        return str(record.spec.get("limit") or "")
    return ",".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def print_runs(records: list[RunRecord], form: str) -> None:
    if form == "json":
        json.dump([as_json(record) for record in records], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    if not records:
        sys.stdout.write("no runs\n")
        return
    rows = [
        [
            str(record.id), _state(record), record.title,
            _limit(record), record.created_by, ago(record.created), _took(record), record.worker_name or "",
        ]
        for record in records
    ]  # fmt: skip
    print_table(["RUN", "STATE", "PLAYBOOK", "LIMIT", "BY", "LAUNCHED", "TOOK", "WORKER"], rows)


async def show(queue: Queue, number: int, form: str) -> int:
    record = await queue.record(number)
    slices = await queue.runs(parent=number, limit=10_000) if record.slices else []
    hosts = await queue.hosts(number)
    if form == "json":
        whole = as_json(record) | {
            "hosts_recap": [as_json(one) for one in hosts],
            "slices_of": [as_json(one) for one in slices],
        }
        json.dump(whole, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    facts = {
        "run": str(record.id), "state": record.status + (f" (exit code {record.rc})" if record.rc is not None else ""),
        "playbook": record.title, "inventory": ", ".join(map(str, record.spec.get("inventory", []))),
        "limit": _limit(record), "again": f"after run {record.relaunch_of}" if record.relaunch_of else "", "project": " ".join(str(record.project[key]) for key in ("kind", "name", "commit") if record.project.get(key)),
        "launched": f"{record.created:%Y-%m-%d %H:%M:%S %Z} by {record.created_by}", "took": _took(record),
        "worker": record.worker_name or "", "attempt": str(record.attempt) if record.attempt else "",
        "lock": record.lock or "", "labels": ", ".join(record.labels), "waits": (await queue.waits_for(number) or "for a free worker") if record.status == "waiting" else "",
        "at": record.place or "", "why": record.sentence or "", "note": record.note or "",
        "secrets": ", ".join(map(str, record.spec.get("names", []))),
    }  # fmt: skip
    for name, value in facts.items():
        if value.strip():
            sys.stdout.write(f"{name + ':':<11}{terminal_text.printable(value)}\n")  # others chose the names in it
    if slices:
        sys.stdout.write("\n")
        print_table(["SLICE", "RUN", "STATE", "HOSTS", "TOOK", "WORKER"], [
            [str(one.slice), str(one.id), one.status, str(len(one.hosts or ())), _took(one), one.worker_name or ""] for one in slices
        ])  # fmt: skip
    if hosts:
        sys.stdout.write("\n")
        print_table(["HOST", "OK", "CHANGED", "UNREACHABLE", "FAILED", "SKIPPED"], [
            [one.host, str(one.ok), str(one.changed), str(one.unreachable), str(one.failed), str(one.skipped)] for one in hosts
        ])  # fmt: skip
    return 0


async def follow(queue: Queue, number: int, form: str = "pretty", after: int = 0) -> int:
    """Print a run's output as it comes; the exit code is the run's. Ctrl-C leaves the run alone."""
    from forkless.queue.database import ask_until_back  # this module serves those without the queue's packages, too

    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # for the type checker
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    explaining = loop.create_task(_explain(queue, number))
    last, at_terminal = after, sys.stdout.isatty()
    # The output of slices is that of one run: each header once, one recap.
    whole = SlicedOutput() if form == "pretty" and (await queue.record(number)).slices else None
    try:
        async for event in queue.follow(number, after=after):
            last = event.counter
            if form == "jsonl":
                sys.stdout.write(json.dumps(event.as_dict()) + "\n")
            elif whole is not None:
                whole.event(event.as_dict() | ({"stdout": terminal_text.coloured(event.stdout)} if at_terminal else {}))
            elif event.stdout:
                text = terminal_text.coloured(event.stdout) if at_terminal else event.stdout
                sys.stdout.write(text + "\n")
            sys.stdout.flush()
        if whole is not None:
            whole.recap()
    except asyncio.CancelledError:
        sys.stderr.write(f"\nforkless: run {number} goes on; `forkless runs cancel {number}` ends it\n")
        return 0
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        explaining.cancel()
        # What it could not find out is no failure of the run.
        with contextlib.suppress(asyncio.CancelledError, ForklessError):
            await explaining
    record = await ask_until_back(lambda: queue.record(number))  # as the events, which were followed through an outage
    if last < record.counter:
        sys.stderr.write(
            f"forkless: the events of run {number} were deleted after the time that the queue keeps them\n"
        )
    if record.sentence:
        sys.stderr.write(f"forkless: run {number} is {record.status}: {terminal_text.escaped(record.sentence)}\n")
    elif record.status != "successful":
        sys.stderr.write(f"forkless: run {number} is {record.status}\n")
    return record.rc if record.rc is not None else 250


async def _explain(queue: Queue, number: int) -> None:
    """Say once why a run does not begin."""
    from forkless.queue.database import ask_until_back

    await asyncio.sleep(_PATIENCE)
    if why := await ask_until_back(lambda: _why_waiting(queue, number)):
        sys.stderr.write(f"forkless: run {number} waits: {terminal_text.escaped(why)}\n")


async def _why_waiting(queue: Queue, number: int) -> str:
    if (await queue.record(number)).status != "waiting":
        return ""
    why = await queue.waits_for(number)
    if why is not None:
        return why
    return "every worker is busy" if await queue.workers() else "there is no worker; start one with `forkless worker`"
