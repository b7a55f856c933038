# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless launch: queue a playbook for workers, with ansible-playbook's own flags."""

from __future__ import annotations

import argparse
import asyncio
import sys

from forkless.cli import queue_view, server_client
from forkless.cli.command_parser import CommandParser
from forkless.cli.queue_launch import add_ansible_flags, add_queue_flags, options_of, spec_of

__all__ = ["main", "parser"]

EXAMPLES = """\
examples:
  forkless launch site.yml -i hosts.ini --limit web --follow
  forkless launch site.yml -i hosts.ini --slices 8                       hosts split over eight runs
  forkless launch site.yml -i hosts.ini --label site=fra --priority 10   only on workers with that label, before others
  forkless launch site.yml -i hosts.ini --at 2026-01-31T03:00
  forkless launch site.yml -i hosts.ini --secret vault=env:VAULT_PASSWORD
  forkless launch site.yml -i hosts.ini --git https://example.com/infra.git --commit main

The current folder travels, without what .gitignore and .forklessignore name. FORKLESS_DATABASE=postgresql://user@host/name says where
the queue is; without it a PostgreSQL of your own is started. The number of the run is printed.
FORKLESS_SERVER=https://... and FORKLESS_TOKEN launch a playbook of a project of that server, with its page instead of the database.
"""


def parser() -> argparse.ArgumentParser:
    made = CommandParser(
        prog="forkless launch",
        description="Queue a playbook; a worker carries it out.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_ansible_flags(made)
    add_queue_flags(made)
    made.add_argument("--at", metavar="TIME", help="not before: 2026-01-31T03:00, or +2h")
    made.add_argument("--follow", action="store_true", help="print the output as it comes; the exit code is the run's")
    return made


def main(argv: list[str]) -> int:
    asked = parser().parse_args(argv)
    server = server_client.given()
    return server_client.launch(server, asked) if server is not None else asyncio.run(_launch(asked))


async def _launch(asked: argparse.Namespace) -> int:
    from forkless import queue

    spec, options = spec_of(asked), options_of(asked)
    async with queue.connect() as opened:
        run = await opened.launch(spec, options)
        if not asked.follow:
            sys.stdout.write(f"{run.number}\n")
            return 0
        sys.stderr.write(f"forkless: run {run.number}\n")
        return await queue_view.follow(opened, run.number)
