# SPDX-License-Identifier: GPL-3.0-or-later
"""
Jobs that outlive their play, on one host: their records in the queue, and runs that ask the host about them, or end them.

The host is asked by a run like any other, on a worker, with the project, inventory and secrets of a run that was on that host: a launcher need
not reach hosts, and what was done is in the list of runs.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from forkless.core.errors import SpecError
from forkless.jobs import CLAIMED, FORGOTTEN
from forkless.jobs.names import segment
from forkless.jobs.record import parse
from forkless.queue import requests
from forkless.queue.client import QueuedRun
from forkless.queue.errors import QueueRequestError

if TYPE_CHECKING:
    import datetime as dt

    from forkless.queue.client import Queue

__all__ = ["HostJob", "JobAnswer", "Operation", "ask", "jobs_of"]

Operation = Literal["status", "output", "kill"]
_MOST_JOBS = 200
_NEWEST = """
SELECT DISTINCT ON (scope, stem) scope, body FROM forkless.job_record WHERE starts_with(stem, %s) ORDER BY scope, stem, revision DESC LIMIT %s
"""
_ASKED = """
SELECT DISTINCT ON (spec -> 'job' ->> 'id') spec -> 'job' ->> 'id', id, spec -> 'job' ->> 'op', ended FROM forkless.run_view
WHERE spec ? 'job' AND spec ->> 'hosts' = %s AND status IN (SELECT unnest(%s::text[])) ORDER BY spec -> 'job' ->> 'id', id DESC
"""
# A run of the same project, best one that was on the host, and rather a playbook's than one that asked about a job before.
_THROUGH = """
SELECT r.id FROM forkless.run_view r
WHERE r.parent_id IS NULL AND r.project ->> 'kind' <> 'folder' AND coalesce(r.project ->> 'home', r.project ->> 'name') = %s
ORDER BY EXISTS (SELECT FROM forkless.host h JOIN forkless.run_view p ON p.id = h.run_id
        WHERE h.host = %s AND h.unreachable = 0 AND coalesce(p.parent_id, p.id) = r.id) DESC,
    r.spec ? 'job', r.id DESC LIMIT 1
"""
# As a pattern such a name means one host, or a group, whose other hosts have no record of the job.
_PLAIN_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """What a host said about a job the last time that it was asked."""

    run: int
    at: dt.datetime | None
    state: str
    why: str
    output: str


@dataclass(frozen=True, slots=True)
class HostJob:
    """The record of a job, with the host's last answer. `asking` is a run that asks the host at the moment, and `asking_for` what it asks for."""

    id: str
    scope: str
    job_name: str
    playbook_name: str
    ansible_job_id: str
    is_claimed: bool
    saved: str
    asking: int | None = None
    asking_for: str = ""
    answer: JobAnswer | None = None


async def jobs_of(queue: Queue, host: str) -> list[HostJob]:
    """The jobs of a host by name; those that were forgotten and records that cannot be read are left out."""
    try:
        prefix = segment(host, "host") + "/"
    except SpecError as err:
        raise QueueRequestError(str(err)) from None
    rows = await queue._all(_NEWEST, (prefix, _MOST_JOBS))
    if not rows:
        return []
    asking = {
        str(name): (int(str(run)), str(op))
        for name, run, op, _ in await queue._all(_ASKED, (host, ["waiting", "running"]))
    }
    over = await queue._all(_ASKED, (host, ["successful", "failed"]))
    answered = {str(name): (int(str(run)), ended) for name, run, _, ended in over}
    found = []
    for scope, body in rows:
        try:
            record = parse(bytes(body))  # type: ignore[call-overload]  # bytea
        except ValueError:
            continue
        if record.state == FORGOTTEN or record.key.host != host:
            continue
        ident = hashlib.sha256(f"{scope}\0{record.key.stem}".encode()).hexdigest()[:16]
        answer = await _answer(queue, host, *answered[ident]) if ident in answered else None  # type: ignore[arg-type]  # a timestamp
        found.append(
            HostJob(
                ident, str(scope), record.key.job_name, record.key.playbook_name, record.ansible_job_id, record.state == CLAIMED,
                record.save_time, asking[ident][0] if ident in asking else None, asking[ident][1] if ident in asking else "", answer,
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (one.job_name, one.playbook_name, one.scope))


async def _answer(queue: Queue, host: str, run: int, ended: dt.datetime | None) -> JobAnswer:
    for event in await queue.events(run):
        if event.host != host or event.event not in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable"):
            continue
        res = event.event_data.get("res")
        if not isinstance(res, dict):
            continue
        job = res.get("job")
        if not isinstance(job, dict):
            return JobAnswer(run, ended, "", str(res.get("msg") or "the host could not be asked"), "")
        output = res.get("output") or "\n".join(str(job[name]) for name in ("stdout", "stderr") if job.get(name))
        return JobAnswer(
            run, ended, str(job.get("state", "")), str(job.get("why") or job.get("msg") or ""), str(output)
        )
    return JobAnswer(run, ended, "", "the host gave no answer", "")


async def ask(queue: Queue, host: str, ident: str, op: Operation, by: str) -> QueuedRun:
    """Launch a run that asks the host about the job, or ends it. It waits for no lock: a job is to be ended beside a run."""
    job = next((one for one in await jobs_of(queue, host) if one.id == ident), None)
    if job is None:
        raise QueueRequestError(f"there is no such job on {host}")
    if not _PLAIN_HOST.fullmatch(host) or any("{" in name for name in (job.job_name, job.playbook_name)):
        raise QueueRequestError(
            "this host or job has a name that Ansible would take for a pattern or a template; use `forkless jobs --store queue:`"
        )
    through = await queue._value(_THROUGH, (job.scope.partition("#")[0], host))
    if through is None:
        raise QueueRequestError("no run of this job's project is left, by which the host could be reached")
    about = {"op": op, "id": ident, "job_name": job.job_name, "playbook_name": job.playbook_name,
             "backend": "queue:" + urllib.parse.quote(job.scope, safe="/:@#")}  # fmt: skip
    new = await queue._value(
        "SELECT forkless.ask_about_job(%s, %s, %s::jsonb, %s)",
        (through, host, json.dumps(about), by or requests.whoami()),
    )
    return QueuedRun(queue, int(str(new)))
