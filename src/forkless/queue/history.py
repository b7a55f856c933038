# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tables say over many runs: hosts with their last failure and change, and why runs wait. Reading only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkless.queue.records import RunRecord, columns

if TYPE_CHECKING:
    import datetime as dt

    from forkless.queue.client import Queue

__all__ = ["HostRun", "HostSummary", "host_runs", "hosts", "label_limits", "runs_of", "waiting"]

_RUN = "coalesce(r.parent_id, r.id)"
_RECAP = "h.ok, h.changed, h.unreachable, h.failed, h.skipped, h.rescued, h.ignored"
# One step of an index for each host, however many runs there are: a GROUP BY would read every recap.
_HOSTS = f"""
WITH RECURSIVE names AS (
    (SELECT host FROM forkless.host WHERE host > %s ORDER BY host LIMIT 1)
    UNION ALL
    SELECT (SELECT h.host FROM forkless.host h WHERE h.host > names.host ORDER BY h.host LIMIT 1) FROM names WHERE names.host IS NOT NULL
), page AS (SELECT host FROM names WHERE host IS NOT NULL AND host ILIKE %s LIMIT %s)
SELECT page.host, newest.run, newest.at, newest.failures, bad.run, bad.at, changed.run, changed.at
FROM page
CROSS JOIN LATERAL (SELECT {_RUN} AS run, r.ended AS at, h.failed + h.unreachable AS failures FROM forkless.host h
    JOIN forkless.run_view r ON r.id = h.run_id WHERE h.host = page.host ORDER BY h.run_id DESC LIMIT 1) newest
LEFT JOIN LATERAL (SELECT {_RUN} AS run, r.ended AS at FROM forkless.host h JOIN forkless.run_view r ON r.id = h.run_id
    WHERE h.host = page.host AND h.failed + h.unreachable > 0 ORDER BY h.run_id DESC LIMIT 1) bad ON true
LEFT JOIN LATERAL (SELECT {_RUN} AS run, r.ended AS at FROM forkless.host h JOIN forkless.run_view r ON r.id = h.run_id
    WHERE h.host = page.host AND h.changed > 0 ORDER BY h.run_id DESC LIMIT 1) changed ON true
ORDER BY page.host
"""  # noqa: S608  # constants
_HOST_RUNS = f"""
SELECT {_RUN}, p.status, p.spec, p.project, r.started, r.ended, {_RECAP}
FROM forkless.host h JOIN forkless.run_view r ON r.id = h.run_id JOIN forkless.run_view p ON p.id = {_RUN}
WHERE h.host = %s AND (%s::bigint IS NULL OR h.run_id < %s) ORDER BY h.run_id DESC LIMIT %s
"""  # noqa: S608  # constants


@dataclass(frozen=True, slots=True)
class HostSummary:
    """A host over all runs that are kept: its newest run, and the last one in which it failed or changed."""

    host: str
    run: int
    at: dt.datetime | None
    failures: int
    failed_run: int | None
    failed_at: dt.datetime | None
    changed_run: int | None
    changed_at: dt.datetime | None


@dataclass(frozen=True, slots=True)
class HostRun:
    """One run of one host."""

    run: int
    status: str
    spec: dict[str, object]
    project: dict[str, object]
    started: dt.datetime | None
    ended: dt.datetime | None
    ok: int
    changed: int
    unreachable: int
    failed: int
    skipped: int
    rescued: int
    ignored: int


async def hosts(queue: Queue, *, search: str = "", after: str = "", limit: int = 100) -> list[HostSummary]:
    """Hosts by name, those after `after`, whose name has the text `search`."""
    pattern = "%" + re.sub(r"([\\%_])", r"\\\1", search) + "%"
    rows = await queue._all(_HOSTS, (after, pattern, limit))
    return [HostSummary(*row) for row in rows]  # type: ignore[arg-type]  # the columns are the record's fields


async def runs_of(queue: Queue, numbers: list[int]) -> dict[int, RunRecord]:
    """The rows of runs, slices among them, by number; those that do not exist are left out."""
    asked = f"SELECT {columns(RunRecord)} FROM forkless.run_view WHERE id = ANY (%s)"  # noqa: S608  # a constant
    rows = [RunRecord(*row) for row in await queue._all(asked, (numbers,))] if numbers else []  # type: ignore[arg-type]  # the columns are the record's fields
    return {row.id: row for row in rows}


async def host_runs(queue: Queue, host: str, *, before: int | None = None, limit: int = 50) -> list[HostRun]:
    """The runs of one host, the newest first."""
    rows = await queue._all(_HOST_RUNS, (host, before, before, limit))
    return [HostRun(*row) for row in rows]  # type: ignore[arg-type]  # the columns are the record's fields


async def waiting(queue: Queue, limit: int = 200) -> list[tuple[RunRecord, str | None]]:
    """Runs that wait, in the order in which they would begin, each with its reason; None if only a free worker is missing."""
    rows = await queue._all(
        f"SELECT {columns(RunRecord)}, forkless.waits_for(id) FROM forkless.run_view WHERE status = 'waiting' AND parent_id IS NULL "  # noqa: S608  # constants
        "ORDER BY priority DESC, id LIMIT %s",
        (limit,),
    )
    return [(RunRecord(*row[:-1]), None if row[-1] is None else str(row[-1])) for row in rows]  # type: ignore[arg-type]


async def label_limits(queue: Queue) -> dict[str, int]:
    rows = await queue._all("SELECT label, most FROM forkless.label_limit ORDER BY label")
    return {str(label): int(str(most)) for label, most in rows}
