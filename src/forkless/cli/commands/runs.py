# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless runs: list, show, follow, cancel and relaunch queued runs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from forkless.cli import queue_view, server_client
from forkless.cli.command_parser import CommandParser
from forkless.cli.jobs_view import print_table

if TYPE_CHECKING:
    from forkless.queue import Queue

__all__ = ["main", "parser"]

# Those of queue.records, which is not imported for --help.
_STATES = ("waiting", "running", "successful", "failed", "canceled", "lost")

EXAMPLES = """\
examples:
  forkless runs list --status running --status waiting
  forkless runs show 17
  forkless runs follow 17                  the output as it comes; the exit code is the run's
  forkless runs cancel 17
  forkless runs relaunch 17 --failed       the same files and values again, on the hosts that failed
  forkless runs workers                    worker processes, and what each one runs

FORKLESS_SERVER=https://... and FORKLESS_TOKEN use the page of a queue instead of its database.
"""


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"'{text}' is not the number of a run; `forkless runs list` shows them")
    return int(text)


def _how_many(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of runs above zero")
    return int(text)


def parser() -> argparse.ArgumentParser:
    made = CommandParser(
        prog="forkless runs",
        description="Runs of the queue.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = CommandParser(add_help=False)
    one.add_argument("run", type=_number, help="the run's number")
    form = CommandParser(add_help=False)
    form.add_argument("--format", choices=["pretty", "json"], default="pretty")
    listing = commands.add_parser("list", parents=[form], help="the newest runs")
    listing.add_argument(
        "--status",
        action="append",
        default=[],
        metavar="STATE",
        help=f"only those in this state: {', '.join(_STATES)} (may be repeated)",
    )
    listing.add_argument(
        "--search", default="", metavar="TEXT", help="only those whose playbook, limit or launcher has the text"
    )
    listing.add_argument("--host", default="", help="only those whose recap has the host")
    listing.add_argument("--before", type=int, metavar="RUN", help="only runs older than this one")
    listing.add_argument("-n", type=_how_many, default=30, dest="limit", help="how many (default: 30)")
    commands.add_parser("show", parents=[one, form], help="everything about one run but its output")
    following = commands.add_parser(
        "follow", parents=[one], help="print a run's output from its beginning, as it comes"
    )
    following.add_argument("--format", choices=["pretty", "jsonl"], default="pretty")
    following.add_argument("--after", type=int, default=0, metavar="POSITION", help="only events after this one")
    commands.add_parser("cancel", parents=[one], help="end a run")
    again = commands.add_parser("relaunch", parents=[one], help="run the same again")
    again.add_argument("--failed", action="store_true", help="only on hosts that failed or were unreachable")
    again.add_argument("--follow", action="store_true", help="print the output as it comes")
    commands.add_parser("workers", parents=[form], help="worker processes that were seen in the last day")
    return made


def main(argv: list[str]) -> int:
    asked = parser().parse_args(argv)
    server = server_client.given()
    return server_client.runs(server, asked) if server is not None else asyncio.run(_main(asked))


async def _main(asked: argparse.Namespace) -> int:
    from forkless import queue

    async with queue.connect() as opened:
        return await _do(opened, asked)


async def _do(queue: Queue, asked: argparse.Namespace) -> int:
    if asked.command == "list":
        records = await queue.runs(
            status=asked.status, search=asked.search, host=asked.host, before=asked.before, limit=asked.limit
        )
        queue_view.print_runs(records, asked.format)
        return 0
    if asked.command == "show":
        return await queue_view.show(queue, asked.run, asked.format)
    if asked.command == "follow":
        return await queue_view.follow(queue, asked.run, asked.format, asked.after)
    if asked.command == "cancel":
        return await _cancel(queue, asked.run)
    if asked.command == "workers":
        return await _workers(queue, asked.format)
    run = await queue.relaunch(asked.run, failed=asked.failed)
    if not asked.follow:
        sys.stdout.write(f"{run.number}\n")
        return 0
    sys.stderr.write(f"forkless: run {run.number}\n")
    return await queue_view.follow(queue, run.number)


async def _cancel(queue: Queue, number: int) -> int:
    before = await queue.record(number)
    if before.over:
        sys.stderr.write(f"forkless runs: run {number} has ended: {before.status}\n")
        return 1
    state = await queue.cancel(number)
    sys.stdout.write(f"run {number} is {state}\n" if state == "canceled" else f"run {number} was asked to stop\n")
    return 0


async def _workers(queue: Queue, form: str) -> int:
    workers = await queue.workers()
    if form == "json":
        import json

        json.dump([queue_view.as_json(one) for one in workers], sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif not workers:
        sys.stdout.write("no workers; `forkless worker` starts one\n")
    else:
        print_table(["WORKER", "HOST", "LABELS", "RUN", "SEEN", "ANSIBLE-CORE", "PYTHON"], [
            [one.name, f"{one.host}:{one.pid}", ", ".join(one.labels), str(one.run_id or ""), queue_view.ago(one.seen),
             str(one.versions.get("ansible_core", "")), str(one.versions.get("python", ""))]
            for one in workers
        ])  # fmt: skip
    return 0
