# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless schedule: launch a playbook again and again."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

from forkless.cli import queue_view
from forkless.cli.command_parser import CommandParser
from forkless.cli.jobs_view import print_table
from forkless.cli.queue_launch import add_ansible_flags, add_queue_flags, options_of, spec_of

if TYPE_CHECKING:
    from forkless.queue import ScheduleRecord

__all__ = ["main", "parser"]

EXAMPLES = """\
examples:
  forkless schedule add nightly --cron '0 3 * * *' site.yml -i hosts.ini
  forkless schedule add hourly --cron '0 * * * *' --time-zone Europe/Berlin check.yml -i hosts.ini --check
  forkless schedule list
  forkless schedule pause nightly
  forkless schedule resume nightly
  forkless schedule remove nightly

The project is packed once, now: a schedule runs the same files each time (--git fetches the commit that REF is now). A time that is missed
by more than ten minutes is left out; so is one at which the run before has not ended, unless --if-running queue.
"""


def parser() -> argparse.ArgumentParser:
    made = CommandParser(
        prog="forkless schedule",
        description="Launch a playbook again and again.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    adding = commands.add_parser("add", help="a new schedule", allow_abbrev=False)
    adding.add_argument("name")
    adding.add_argument("--cron", required=True, metavar="'M H D M W'", help="minute, hour, day, month, weekday")
    adding.add_argument("--time-zone", default="", metavar="ZONE", help="as in Europe/Berlin (default: this machine's)")
    adding.add_argument(
        "--if-running",
        choices=["skip", "queue"],
        default="skip",
        help="if the run before has not ended (default: skip)",
    )
    add_ansible_flags(adding)
    add_queue_flags(adding)
    listing = commands.add_parser("list", help="all schedules")
    listing.add_argument("--format", choices=["pretty", "json"], default="pretty")
    for name, text in (
        ("pause", "launch nothing until resumed"),
        ("resume", "go on with the next time"),
        ("remove", "delete it; its runs stay"),
    ):
        commands.add_parser(name, help=text).add_argument("name")
    return made


def main(argv: list[str]) -> int:
    return asyncio.run(_main(parser().parse_args(argv)))


async def _main(asked: argparse.Namespace) -> int:
    from forkless import queue

    spec, options = (spec_of(asked), options_of(asked)) if asked.command == "add" else (None, None)
    async with queue.connect() as opened:
        if spec is not None:
            due = await opened.add_schedule(
                asked.name, asked.cron, spec, options, time_zone=asked.time_zone, if_running=asked.if_running
            )
            sys.stdout.write(f"{asked.name}: next at {due:%Y-%m-%d %H:%M %Z}\n")
        elif asked.command == "remove":
            await opened.remove_schedule(asked.name)
        elif asked.command in ("pause", "resume"):
            await opened.pause_schedule(asked.name, paused=asked.command == "pause")
        else:
            _print(await opened.schedules(), asked.format)
    return 0


def _print(found: list[ScheduleRecord], form: str) -> None:
    if form == "json":
        json.dump([queue_view.as_json(one) for one in found], sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif not found:
        sys.stdout.write("no schedules\n")
    else:
        print_table(["NAME", "CRON", "ZONE", "NEXT", "LAST RUN", "NOTE"], [
            [one.name, one.cron, one.time_zone, f"{one.due:%Y-%m-%d %H:%M %Z}" if one.due else "paused", str(one.last_run or ""), one.note or ""]
            for one in found
        ])  # fmt: skip
