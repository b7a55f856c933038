# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless queue: the schema of the database, the workers' key, limits, and what is kept."""

from __future__ import annotations

import argparse
import sys

from forkless.cli.command_parser import CommandParser
from forkless.core.errors import SpecError

__all__ = ["main", "parser"]

EXAMPLES = """\
examples:
  FORKLESS_DATABASE=postgresql://admin@db/forkless forkless queue init --roles
  forkless queue check                     can this machine use the queue?
  forkless queue upgrade                   bring the tables to this release; workers go on meanwhile
  forkless queue key                       make the workers' key here, or say where it is
  forkless queue limit site=fra 4          at most four runs with that label at once (0: no limit)
  forkless queue limit                     the limits that there are
  forkless queue keep --events 30 --runs 365    delete events and runs so many days after the run's end (0: never)
  forkless queue prune --older-than 30     delete runs that ended more than 30 days ago
"""


def parser() -> argparse.ArgumentParser:
    made = CommandParser(
        prog="forkless queue",
        description="The queue's database.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    first = commands.add_parser("init", help="create the tables")
    first.add_argument(
        "--roles",
        action="store_true",
        help="create the roles forkless_launcher, forkless_worker, forkless_reader and forkless_page, too",
    )
    later = commands.add_parser("upgrade", help="bring the tables to this release")
    later.add_argument("--roles", action="store_true", help="grant the roles what they need, too")
    commands.add_parser("check", help="whether this machine can use the queue")
    commands.add_parser("key", help="make the workers' key, unless it is there")
    limit = commands.add_parser("limit", help="how many runs with a label may be under way at once")
    limit.add_argument("label", nargs="?", help="as in site=fra (default: all limits are shown)")
    limit.add_argument("most", nargs="?", type=int, help="how many at once (0: no limit)")
    keep = commands.add_parser("keep", help="how long events and runs are kept; workers delete them")
    keep.add_argument("--events", type=float, metavar="DAYS", help="days after the end of their run (0: for ever)")
    keep.add_argument(
        "--runs",
        type=float,
        metavar="DAYS",
        help="days after their end; their events and recap are deleted, too (0: for ever)",
    )
    prune = commands.add_parser("prune", help="delete old runs with their events")
    prune.add_argument("--older-than", type=float, required=True, metavar="DAYS", help="days after the end of the run")
    return made


def main(argv: list[str]) -> int:
    asked = parser().parse_args(argv)
    from forkless.queue import database, schema, worker_key

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")

    with database.located() as url:
        if asked.command == "init":
            say(f"created, version {schema.VERSION}" if schema.create(url) else "the tables are there already")
        elif asked.command == "upgrade":
            before, after = schema.upgrade(url)
            say(f"version {before}, as needed" if before == after else f"upgraded from version {before} to {after}")
            if not asked.roles and (missing := schema.incomplete_roles(url)):
                say(missing)
        if asked.command in ("init", "upgrade"):
            if asked.roles:
                schema.apply_roles(url)
                say("roles: forkless_launcher, forkless_worker, forkless_reader, forkless_page")
            return 0
        found = schema.check(url)
        if asked.command == "check":
            say(
                f"version {found.version}"
                + ("" if found.current else f"; this forkless has other functions (version {schema.VERSION}): upgrade")
            )
            for line in (*database.describe(url), *schema.describe_sizes(url)):
                say(line)
            say(worker_key.describe(url))
            return 0
        if asked.command == "key":
            say(worker_key.for_worker(url))
            return 0
        with database.connect(url) as connection, database.translated(url):
            if asked.command == "limit":
                if asked.label is None:
                    limits = connection.execute(
                        "SELECT label, most FROM forkless.label_limit ORDER BY label"
                    ).fetchall()
                    for label, most in limits or [("no label", "no limit")]:
                        say(f"{label}: {most}")
                    return 0
                if asked.most is None or asked.most < 0:
                    raise SpecError(
                        f"say how many runs with the label {asked.label} may be under way at once: 0 (no limit) or more"
                    )
                from forkless.queue.requests import clean_labels

                connection.execute("SELECT forkless.limit_label(%s, %s)", (clean_labels([asked.label])[0], asked.most))
                say(f"{asked.label}: {asked.most or 'no limit'}")
            elif asked.command == "keep":
                for days in (asked.events, asked.runs):
                    if days is not None and not 0 <= days < 1e6:
                        raise SpecError("the days that something is kept are 0 (for ever) or more")
                connection.execute("SELECT forkless.set_retention(%s, %s)", (asked.events, asked.runs))
                say(schema.describe_sizes(url)[-1])
            else:
                if not 0 <= asked.older_than < 1e6:  # before now, or every run would be deleted
                    raise SpecError("--older-than is a number of days, 0 or more")
                row = connection.execute(
                    "SELECT forkless.prune(now() - make_interval(secs => %s))", (asked.older_than * 86400,)
                ).fetchone()
                many = row[0] if row else 0
                say("1 run deleted" if many == 1 else f"{many} runs deleted")
    return 0
