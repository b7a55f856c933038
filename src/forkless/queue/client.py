# SPDX-License-Identifier: GPL-3.0-or-later
"""Queue: launch runs, list and follow them, cancel and relaunch. Everything a program does with a queue but carrying runs out."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import uuid
from typing import TYPE_CHECKING

from forkless.core.events import Event, Status
from forkless.core.result import Result
from forkless.queue import database, event_batches, requests, schedules, schema, secrets
from forkless.queue.errors import DatabaseError, DeliveredError, QueueError, QueueRequestError, UnknownRunError
from forkless.queue.listener import ChangeListener
from forkless.queue.records import ENDED, HostRecap, RunChange, RunRecord, ScheduleRecord, WorkerRecord, columns
from forkless.runs import slices

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncIterator, Collection, Sequence

    from forkless.core.spec import RunSpec
    from forkless.queue.requests import LaunchOptions

__all__ = ["Queue", "QueuedRun", "connect"]

# Seconds for the database's answer.
_PATIENCE = 300.0
_RUN = columns(RunRecord)
# By positions and bytes, not by rows: a run that prints a line now and then has thousands of small rows. The first row always, also behind
# a gap that the retention left.
_EVENTS = """
SELECT root_last, events FROM (
    SELECT root_last, events, sum(size) OVER (ORDER BY root_last) AS bytes, row_number() OVER (ORDER BY root_last) AS number FROM forkless.event_batch
    WHERE root_id = %s AND root_last > %s AND root_last <= greatest(%s,
        (SELECT min(root_last) FROM forkless.event_batch WHERE root_id = %s AND root_last > %s))
) next WHERE number = 1 OR bytes <= %s ORDER BY root_last
"""
_HAS_HOST = (
    "EXISTS (SELECT 1 FROM forkless.host h JOIN forkless.run_view c ON c.id = h.run_id "
    "WHERE h.host = %s AND (c.id = v.id OR c.parent_id = v.id))"
)
_STATUS = {
    "successful": Status.SUCCESSFUL, "failed": Status.FAILED, "canceled": Status.CANCELED, "lost": Status.ERROR,
    "waiting": Status.UNSTARTED, "running": Status.RUNNING,
}  # fmt: skip


@contextlib.asynccontextmanager
async def connect(url: str | None = None) -> AsyncIterator[Queue]:
    """
    A queue for the length of a block: at `url`, FORKLESS_DATABASE, or in the embedded database.

    Raises DatabaseError or SchemaError at once if it cannot be used.
    """
    with contextlib.ExitStack() as around:
        found = await asyncio.to_thread(around.enter_context, database.located(url))
        try:
            await asyncio.to_thread(schema.check, found)
            queue = Queue(found, embedded=found != url and not around_is_given(url))
            try:
                yield queue
            finally:
                await queue.close()
        finally:
            # Stopping the embedded server takes a moment in which the loop must go on.
            await asyncio.to_thread(around.close)


def around_is_given(url: str | None) -> bool:
    return bool(url or os.environ.get("FORKLESS_DATABASE"))


class Queue:
    """One queue of runs. Made by `connect()`; all methods are for the loop that it was made in. Any number of coroutines may use it."""

    def __init__(self, url: str, *, embedded: bool = False) -> None:
        self.url = url
        self.embedded = embedded
        self._pool = database.ConnectionPool(url)
        self._listener = ChangeListener(url)

    async def close(self) -> None:
        await self._listener.close()
        await self._pool.close()

    # -- asking -----------------------------------------------------------------------------------------------

    async def _all(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        # A proxy that is alive and forwards nothing would let it wait for ever. A project of the largest size takes minutes.
        try:
            async with asyncio.timeout(_PATIENCE), self._pool.connection() as connection:
                cursor = await connection.execute(query.encode(), parameters)
                return await cursor.fetchall()
        except TimeoutError as err:
            raise DatabaseError("the database did not answer in time") from err

    async def _value(self, query: str, parameters: Sequence[object] = ()) -> object:
        rows = await self._all(query, parameters)
        return rows[0][0] if rows else None

    async def record(self, number: int) -> RunRecord:
        """The run's row as it is now. Raises UnknownRunError."""
        rows = await self._all(f"SELECT {_RUN} FROM forkless.run_view WHERE id = %s", (number,))  # noqa: S608  # a constant
        if not rows:
            raise UnknownRunError(number)
        return RunRecord(*rows[0])  # type: ignore[arg-type]  # the columns are the record's fields

    async def runs(
        self,
        *,
        status: Collection[str] = (),
        search: str = "",
        host: str = "",
        created_by: str = "",
        before: int | None = None,
        limit: int = 50,
        parent: int | None = None,
    ) -> list[RunRecord]:
        """
        Runs, the newest first; slices only with `parent=`, in order.

        `status` keeps those in one of the states, `search` those whose playbook, limit or launcher has the text, `host` those whose
        recap has the host. For the next page, `before` is the last number of this one.
        """
        unknown = set(status) - ENDED - {"waiting", "running"}
        if unknown:
            raise QueueRequestError(
                f"there is no state '{min(unknown)}'; there are waiting, running, {', '.join(sorted(ENDED))}"
            )
        where: list[str] = ["parent_id = %s" if parent is not None else "parent_id IS NULL"]
        values: list[object] = [parent] if parent is not None else []
        for clause, value in (
            ("status = ANY (%s)", list(status)),
            ("created_by = %s", created_by),
            ("id < %s", before),
            (_HAS_HOST, host),
        ):
            if value:
                where.append(clause)
                values.append(value)
        if search:
            pattern = "%" + re.sub(r"([\\%_])", r"\\\1", search) + "%"
            where.append(
                "(spec ->> 'playbook' ILIKE %s OR spec ->> 'limit' ILIKE %s OR spec ->> 'module' ILIKE %s OR created_by ILIKE %s)"
            )
            values += [pattern] * 4
        order = "slice" if parent is not None else "id DESC"
        rows = await self._all(
            f"SELECT {_RUN} FROM forkless.run_view v WHERE {' AND '.join(where)} ORDER BY {order} LIMIT %s",  # noqa: S608  # constants
            (*values, limit),
        )
        return [RunRecord(*row) for row in rows]  # type: ignore[arg-type]  # the columns are the record's fields

    async def counts(self) -> dict[str, int]:
        """How many runs are in each state."""
        rows = await self._all("SELECT status, count(*) FROM forkless.run_view WHERE parent_id IS NULL GROUP BY status")
        return {str(name): int(str(many)) for name, many in rows}

    async def waits_for(self, number: int) -> str | None:
        """Why a waiting run does not begin; None if nothing but a free worker is missing, or if it does not wait."""
        found = await self._value("SELECT forkless.waits_for(%s)", (number,))
        return None if found is None else str(found)

    async def hosts(self, number: int) -> list[HostRecap]:
        """The recap by host, over all slices of a run."""
        rows = await self._all(
            f"SELECT {columns(HostRecap)} FROM forkless.host WHERE run_id IN "  # noqa: S608  # a constant
            "(SELECT id FROM forkless.run_view WHERE id = %s OR parent_id = %s) ORDER BY host",
            (number, number),
        )
        return [HostRecap(*row) for row in rows]  # type: ignore[arg-type]  # the columns are the record's fields

    async def host_history(self, host: str, limit: int = 50) -> list[HostRecap]:
        """The recaps of one host, the newest run first."""
        rows = await self._all(
            f"SELECT {columns(HostRecap)} FROM forkless.host WHERE host = %s ORDER BY run_id DESC LIMIT %s",  # noqa: S608  # a constant
            (host, limit),
        )
        return [HostRecap(*row) for row in rows]  # type: ignore[arg-type]  # the columns are the record's fields

    async def workers(self) -> list[WorkerRecord]:
        """The workers that the database knows, with the run that each carries out."""
        rows = await self._all(
            "SELECT w.id, w.name, w.host, w.pid, w.labels, w.versions, w.started, w.seen, w.stopping, "
            "extract(epoch FROM now() - w.seen)::float8, (SELECT r.id FROM forkless.run_view r WHERE r.worker_id = w.id AND r.status = 'running' "
            "AND r.slices = 0 LIMIT 1) FROM forkless.worker w ORDER BY w.host, w.id"
        )
        return [WorkerRecord(*row) for row in rows]  # type: ignore[arg-type]  # the columns are the record's fields

    # -- events -----------------------------------------------------------------------------------------------

    async def events(self, number: int, *, after: int = 0, batches: int = 20) -> list[Event]:
        """
        The next events of a run after position `after`, in order and without gaps; empty if there are none yet.

        `Event.counter` is the position in the run's stream: pass the last one to go on. A run in slices has one stream over all; a run
        that began again goes on in the same stream. What is read is at most as much as `batches` full rows, of up to 1000 events each.
        """
        rows = await self._all(
            _EVENTS,
            (
                number,
                after,
                after + batches * event_batches.MOST_EVENTS,
                number,
                after,
                batches * event_batches.MOST_BYTES,
            ),
        )
        found: list[Event] = []
        for last, packed in rows:
            found += event_batches.unpack(packed, int(str(last)), after)  # type: ignore[arg-type]  # bytea is bytes
        return found

    def changes(self, number: int | None = None) -> AsyncIterator[list[RunChange]]:
        """Hints that runs changed: of one run's stream, or of all runs. One database listener serves all callers of this queue."""
        return self._listener.changes(number)

    def heard(self, number: int | None = None) -> int:
        """Grows with each hint about the run, or about any run: see ChangeListener.heard."""
        return self._listener.heard(number)

    async def follow(self, number: int, *, after: int = 0) -> AsyncIterator[Event]:
        """Every event after position `after`, as it is stored; ends when the run has ended and all were yielded."""
        await database.ask_until_back(lambda: self.record(number))
        changes = self.changes(number)
        try:
            async for _ in changes:
                try:
                    over = (await self.record(number)).over  # asked first: events that come after the end do not exist
                    while fresh := await self.events(number, after=after):
                        for event in fresh:
                            yield event
                        after = fresh[-1].counter
                except QueueError as err:
                    if isinstance(err, UnknownRunError) or not database.is_outage(err.__cause__ or err):
                        raise
                    continue  # the database is away; the listener says when it is back
                if over:
                    return
        finally:
            await changes.aclose()  # type: ignore[attr-defined]  # an async generator

    # -- doing ------------------------------------------------------------------------------------------------

    async def launch(self, spec: RunSpec, options: LaunchOptions | None = None, **more: object) -> QueuedRun:
        """
        Queue a run. Options are LaunchOptions' fields: `await queue.launch(spec, retries=1, labels=["site=fra"])`.

        Everything is checked before anything is stored, and the run is stored by one statement: it is there as a whole or not at all.
        Raises DeliveredError if `delivery` was received before.
        """
        options = dataclasses.replace(options or requests.LaunchOptions(), **more)  # type: ignore[arg-type]  # as its constructor checks
        prepared = await asyncio.to_thread(requests.prepare, spec, options)
        await self._check_labels(options.labels)
        request = prepared.request
        if options.delivery is not None:
            request["delivery"] = list(options.delivery)
        if options.slices is not None:
            parts = await self._divide(spec, options)
            request = request | {"slice_hosts": parts if len(parts) > 1 else []}
            if options.slices_anyway:
                request["spec"]["slices_anyway"] = True
        return QueuedRun(self, await self._store(request, prepared))

    async def _divide(self, spec: RunSpec, options: LaunchOptions) -> list[list[str]]:
        if options.git:
            raise QueueRequestError(
                "slices need the playbook and the inventory here, and --git has them elsewhere; launch from a checkout"
            )
        many = options.slices
        if many == "auto":
            many = max(1, sum(not one.stopping and one.away < 60 for one in await self.workers()))
        if isinstance(many, bool) or not isinstance(many, int) or many < 1:
            raise QueueRequestError(f"slices must be a whole number above zero or 'auto', not {many!r}")
        if not spec.playbook:
            raise QueueRequestError("slices are for playbooks; a module on hosts needs none")
        environ = dict(os.environ) | dict(spec.env)
        hosts = await asyncio.to_thread(slices.hosts_of, spec.argv(), spec.cwd, environ, anyway=options.slices_anyway)
        return slices.divide(hosts, many)

    async def _store(self, request: dict[str, object], prepared: requests.Prepared) -> int:
        origin, sealed = await self.seal(prepared.literal)
        await self.put_bundle(prepared)
        number = await self._value("SELECT forkless.launch(%s::jsonb, %s, %s)", (json.dumps(request), sealed, origin))
        if number is None:
            raise DeliveredError("this message was received before")
        return int(str(number))

    async def seal(self, literal: dict[str, object]) -> tuple[uuid.UUID, bytes | None]:
        """Seal what may be secret for the workers' key. Raises if the queue has no key yet."""
        origin = uuid.uuid4()
        if not literal:
            return origin, None
        public = await self._value("SELECT forkless.worker_key()")
        if public is None and self.embedded:
            public = await self.offer_key(
                secrets.public_of(await asyncio.to_thread(secrets.create_key, secrets.key_path()))
            )
        if public is None:
            names = ", ".join(sorted({"args": "arguments such as -e"}.get(name, name) for name in literal))
            raise QueueRequestError(
                f"values that may be secret ({names}) travel sealed for the workers' key, and this queue has none yet: start a worker, or "
                "run `forkless queue key` where workers run; or give references (--secret extra_vars.NAME=env:NAME)"
            )
        return origin, secrets.seal(literal, str(public), origin)

    async def offer_key(self, public: str) -> str:
        """Make `public` the workers' key unless there is one; returns the one that there is."""
        return str(await self._value("SELECT forkless.offer_worker_key(%s)", (public,)))

    async def put_bundle(self, prepared: requests.Prepared) -> None:
        bundle = prepared.bundle
        if bundle is not None and not await self._value("SELECT forkless.keep_bundle(%s)", (bundle.sha256,)):
            await self._value("SELECT forkless.put_bundle(%s, %s)", (bundle.sha256, bundle.content))

    async def _check_labels(self, labels: Sequence[str]) -> None:
        wanted = requests.clean_labels(labels)
        if not wanted:
            return
        rows = await self._all("SELECT DISTINCT unnest(labels) FROM forkless.worker")
        known = {str(row[0]) for row in rows}
        for label in wanted:
            if label not in known:
                there = f"workers have {', '.join(sorted(known))}" if known else "no worker has a label"
                raise QueueRequestError(f"no worker that was seen in the last day has the label '{label}'; {there}")

    async def run(self, number: int) -> QueuedRun:
        """A run that exists, to follow, wait for or cancel."""
        await self.record(number)
        return QueuedRun(self, number)

    async def cancel(self, number: int, *, by: str | None = None) -> str:
        """Ask for the end of a run, and of all its slices. Returns its state: `canceled` if it had not begun."""
        state = await self._value("SELECT forkless.cancel(%s, %s)", (number, by or requests.whoami()))
        if state is None:
            raise UnknownRunError(number)
        return str(state)

    async def relaunch(self, number: int, *, failed: bool = False, by: str | None = None) -> QueuedRun:
        """The same run again, with the same files, values and secrets; with `failed` on the hosts that failed or were not reached."""
        record = await self.record(number)
        if not record.over:
            raise QueueRequestError(f"run {number} is {record.status}; it can be launched again when it has ended")
        before = await self.runs(parent=number, limit=100_000) if record.slices else []
        parts = [one.hosts or [] for one in before]
        only: list[str] | None = None
        if failed:
            only = await self._unfinished(record, before)
            parts = slices.divide(only, len(before))
        new = await self._value(
            "SELECT forkless.relaunch(%s, %s::jsonb, %s::jsonb, %s)",
            (
                number,
                json.dumps(parts if len(parts) > 1 else []),
                None if only is None else json.dumps(only),
                by or requests.whoami(),
            ),
        )
        return QueuedRun(self, int(str(new)))

    async def _unfinished(self, record: RunRecord, its_slices: list[RunRecord]) -> list[str]:
        recaps = await self.hosts(record.id)
        names = {one.host for one in recaps if one.failed or one.unreachable}
        for one in its_slices or [record]:
            if one.status in ("lost", "canceled"):
                if not one.hosts and not any(recap.run_id == one.id for recap in recaps):
                    raise QueueRequestError(
                        f"run {one.id} was {one.status} before its recap; relaunch it on all its hosts"
                    )
                names |= set(one.hosts or ()) - {recap.host for recap in recaps if recap.run_id == one.id}
        if not names:
            raise QueueRequestError(f"no host of run {record.id} failed or was unreachable")
        return sorted(names)

    async def add_schedule(
        self,
        name: str,
        cron: str,
        spec: RunSpec,
        options: LaunchOptions | None = None,
        *,
        time_zone: str = "",
        if_running: str = "skip",
    ) -> dt.datetime:
        """Launch a spec again and again. `if_running="queue"` launches even if the run before has not ended. Returns the next time."""
        options = options or requests.LaunchOptions()
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
            raise QueueRequestError(f"'{name}' is not a name for a schedule: letters, digits and . _ -, 63 at most")
        if if_running not in ("skip", "queue"):
            raise QueueRequestError(f"if_running is 'skip' or 'queue', not '{if_running}'")
        if options.slices is not None or options.at is not None:
            raise QueueRequestError("a schedule launches whole runs at its own times: slices and at do not go with it")
        zone = time_zone or schedules.local_zone()
        due = schedules.next_time(cron, zone)
        prepared = await asyncio.to_thread(requests.prepare, spec, options)
        await self._check_labels(options.labels)
        origin, sealed = await self.seal(prepared.literal)
        await self.put_bundle(prepared)
        number = await self._value(
            "SELECT forkless.put_schedule(%s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s)",
            (
                name,
                cron,
                zone,
                due,
                if_running,
                json.dumps(prepared.request),
                sealed,
                origin,
                options.by or requests.whoami(),
            ),
        )
        if number is None:
            raise QueueRequestError(f"there is a schedule '{name}' already; remove it first, or choose another name")
        return due

    async def remove_schedule(self, name: str) -> None:
        if not await self._value("SELECT forkless.remove_schedule(%s)", (name,)):
            raise QueueRequestError(f"there is no schedule '{name}'")

    async def pause_schedule(self, name: str, *, paused: bool = True) -> None:
        """Pause a schedule, or let it go on from its next time."""
        found = [one for one in await self.schedules() if one.name == name]
        if not found:
            raise QueueRequestError(f"there is no schedule '{name}'")
        due = None if paused else schedules.next_time(found[0].cron, found[0].time_zone)
        await self._value("SELECT forkless.enable_schedule(%s, %s, %s)", (name, not paused, due))

    async def schedules(self) -> list[ScheduleRecord]:
        rows = await self._all(f"SELECT {columns(ScheduleRecord)} FROM forkless.schedule_view ORDER BY name")  # noqa: S608  # a constant
        return [ScheduleRecord(*row) for row in rows]  # type: ignore[arg-type]  # the columns are the record's fields


class QueuedRun:
    """A run of a queue, under way or ended: `events()`, `wait()` and `cancel()` as of any other run."""

    def __init__(self, queue: Queue, number: int) -> None:
        self._queue = queue
        self.number = number

    def __repr__(self) -> str:
        return f"<QueuedRun {self.number}>"

    @property
    def ident(self) -> str:
        return str(self.number)

    async def record(self) -> RunRecord:
        """The run's row as it is now. Raises UnknownRunError."""
        return await self._queue.record(self.number)

    def events(self, *, after: int = 0) -> AsyncIterator[Event]:
        """Yield every event from the first on, as events arrive; ends with the run."""
        return self._queue.follow(self.number, after=after)

    async def wait(self) -> Result:
        """Wait for the end of the run and return its result. Cancelling this wait does not stop the run."""
        events = [event async for event in self.events()]
        return await self.result(events)

    async def result(self, events: Sequence[Event]) -> Result:
        """The result of a run that has ended, with these events of it: one recap over all slices. Waits while the database is away."""
        record = await database.ask_until_back(self.record)
        if record.slices:
            events = _with_one_recap(events)
        return Result(
            status=_STATUS[record.status],
            rc=record.rc if record.rc is not None else 250,
            sentence=record.sentence or "",
            events=events,
            text="".join(event.stdout + "\n" for event in events if event.stdout),
            ident=self.ident,
        )

    async def cancel(self) -> None:
        """Ask the run to stop: one that waits is over at once, one that runs is stopped by its worker."""
        await self._queue.cancel(self.number)


def _with_one_recap(events: Sequence[Event]) -> list[Event]:
    """The events of all slices, with one `playbook_on_stats` at the end in place of one for each slice."""
    kept = [event for event in events if event.event != "playbook_on_stats"]
    recaps = [event for event in events if event.event == "playbook_on_stats"]
    if not recaps:
        return kept
    merged: dict[str, object] = dict(recaps[-1].event_data)
    for key in ("ok", "changed", "dark", "failures", "ignored", "processed", "rescued", "skipped"):
        merged[key] = {host: many for recap in recaps for host, many in recap.event_data.get(key, {}).items()}
    return [*kept, dataclasses.replace(recaps[-1], event_data=merged)]
