# SPDX-License-Identifier: GPL-3.0-or-later
"""Schedules: when one is due next, and launching what is due. Every worker looks; the database lets one of them launch."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.resources
import logging
import os
import re
import zoneinfo
from typing import TYPE_CHECKING

import psycopg

from forkless.queue import database
from forkless.queue.errors import QueueRequestError

if TYPE_CHECKING:
    from forkless.queue.database import AsyncConnection

__all__ = ["fire_due", "local_zone", "next_time"]

log = logging.getLogger("forkless.worker")


def local_zone() -> str:
    """
    The name of this machine's time zone, by TZ and /etc/localtime; UTC if neither says anything. Raises QueueRequestError if there is a
    time zone that has no name: a schedule by another clock would run at the wrong hour.
    """
    if "TZ" not in os.environ:
        return _zone_of_file(_LOCAL_TIME) if os.path.exists(_LOCAL_TIME) else "UTC"
    given = os.environ["TZ"].lstrip(":") or "UTC"  # an empty TZ is UTC to the C library
    if os.path.isabs(given):
        return _zone_of_file(given)
    if _is_zone(given):
        return given
    if fixed := _FIXED.fullmatch(given):
        hours, minutes = int(fixed.group(2)), int(fixed.group(3) or 0)
        sign = "-" if fixed.group(1) == "-" else "+"
        if not minutes and _is_zone(name := f"Etc/GMT{sign}{hours}" if hours else "UTC"):
            return name
    raise QueueRequestError(f"the time zone of TZ='{given}' has no name; say which one you mean, like Europe/Berlin")


_LOCAL_TIME = "/etc/localtime"
# POSIX's form without summer time, as in UTC+3 or <+03>-3. Its sign is that of Etc/GMT+3: hours that are to be added for UTC.
_FIXED = re.compile(r"(?:[A-Za-z]{3,}|<[+-]?\w+>)([+-]?)(\d{1,2})(?::?(\d\d))?")


def _is_zone(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return False
    return True


def _zone_of_file(path: str) -> str:
    """The name of the zone that a file describes: by where it lies, else by its content."""
    name = os.path.realpath(path).partition("zoneinfo/")[2].removeprefix("posix/")
    if name and _is_zone(name):
        return name
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as err:
        raise QueueRequestError(
            f"the time zone in {path} cannot be read: {err.strerror}; name one, like Europe/Berlin"
        ) from None
    for name in sorted(zoneinfo.available_timezones(), key=lambda one: ("/" not in one, one)):
        if _content_of(name) == content:
            return name
    raise QueueRequestError(f"the time zone in {path} has no name; say which one you mean, like Europe/Berlin")


def _content_of(name: str) -> bytes | None:
    """The file of a zone, from where zoneinfo has it: the system, else the package tzdata."""
    for place in zoneinfo.TZPATH:
        with contextlib.suppress(OSError), open(os.path.join(place, name), "rb") as file:
            return file.read()
    with contextlib.suppress(ImportError, OSError):
        return importlib.resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    return None


def next_time(cron: str, zone: str, after: dt.datetime | None = None) -> dt.datetime:
    """
    The next time after `after` (now). Raises QueueRequestError for an expression that is wrong or never true.

    A time that the clocks skip in spring is moved; one that they repeat in autumn happens once.
    """
    from cronsim import CronSim, CronSimError

    try:
        where = zoneinfo.ZoneInfo(zone)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise QueueRequestError(f"there is no time zone '{zone}'; they are called like Europe/Berlin") from None
    start = (after or dt.datetime.now(dt.UTC)).astimezone(where)
    try:
        return next(CronSim(cron, start))
    except CronSimError:
        if _without_month(cron):
            raise QueueRequestError(f"'{cron}' never happens: no month of it has that day") from None
        raise QueueRequestError(
            f"'{cron}' is not a time of a schedule: minute, hour, day, month and weekday, as in '0 3 * * *' for every night at three"
        ) from None
    except StopIteration:
        raise QueueRequestError(f"'{cron}' never happens: no day is like that") from None


def _without_month(cron: str) -> bool:
    """Whether the expression is right but for its month: cronsim refuses the 31st of February as if it were not an expression."""
    from cronsim import CronSim, CronSimError

    fields = cron.split()
    if len(fields) != 5:
        return False
    try:
        CronSim(" ".join((*fields[:3], "*", fields[4])), dt.datetime.now(dt.UTC))
        CronSim(f"0 0 1 {fields[3]} *", dt.datetime.now(dt.UTC))
    except CronSimError:
        return False
    return True


async def fire_due(connection: AsyncConnection) -> None:
    """
    Launch every schedule that is due, once for each due time. For workers.

    A due time that lies beyond the next time was set while the database's clock was ahead. It is set back: the schedule would be
    silent until then.
    """
    rows = await (
        await connection.execute("SELECT id, name, cron, time_zone, due, now() FROM forkless.schedule WHERE enabled")
    ).fetchall()
    for number, name, cron, zone, due, now in rows:
        try:
            following = next_time(cron, zone, after=now)
        except QueueRequestError as err:
            log.error("schedule %s: %s", name, err)  # noqa: TRY400  # a sentence, not a traceback
            continue
        if now < due <= following:
            continue
        try:
            row = await (
                await connection.execute("SELECT forkless.fire_schedule(%s, %s, %s)", (number, due, following))
            ).fetchone()
        except psycopg.Error as err:
            if connection.closed or database.is_outage(err):
                raise
            # The other schedules are launched nevertheless.
            log.error("schedule %s: %s", name, err.diag.message_primary or err)  # noqa: TRY400  # a sentence, not a traceback
            continue
        if row and row[0] is not None:
            log.info("schedule %s launched run %d", name, row[0])
