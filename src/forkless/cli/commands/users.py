# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless users: who may use the page of the queue."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import sys
from typing import TYPE_CHECKING

from forkless.cli import queue_view
from forkless.cli.jobs_view import print_table
from forkless.core.errors import SpecError

if TYPE_CHECKING:
    from forkless.web.accounts import Accounts

__all__ = ["main", "parser"]

EXAMPLES = """\
examples:
  forkless users add ada --role admin              asks for the password
  forkless users add ci --role operator --no-password     for a name that a reverse proxy vouches for
  forkless users role bob operator
  forkless users password bob                      ends all sessions of bob
  forkless users remove bob                        with all sessions and tokens

viewer: looks; operator: also starts and cancels runs; admin: also users. The page asks for a login if its configuration has [login].
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="forkless users",
        description="Users of `forkless serve`.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    roles = ("viewer", "operator", "admin")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    adding = commands.add_parser("add", help="a new user")
    adding.add_argument("name")
    adding.add_argument("--role", choices=roles, default="viewer", help="default: viewer")
    adding.add_argument(
        "--no-password", action="store_true", help="only a reverse proxy can say that somebody is this user"
    )
    listing = commands.add_parser("list", help="all users")
    listing.add_argument("--format", choices=["pretty", "json"], default="pretty")
    changing = commands.add_parser("role", help="change a user's role")
    changing.add_argument("name")
    changing.add_argument("role", choices=roles)
    for name, text in (("password", "a new password, asked for or read from stdin"), ("remove", "remove a user")):
        commands.add_parser(name, help=text).add_argument("name")
    return made


def main(argv: list[str]) -> int:
    return asyncio.run(_main(parser().parse_args(argv)))


def _password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    given = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != given:
        raise SpecError("the two passwords differ")
    return given


async def _main(asked: argparse.Namespace) -> int:
    from forkless import queue
    from forkless.web.accounts import Accounts

    async with queue.connect() as opened:
        accounts = Accounts(opened.url)
        try:
            await _do(accounts, asked)
        finally:
            await accounts.close()
    return 0


async def _do(accounts: Accounts, asked: argparse.Namespace) -> None:
    from forkless.queue.requests import whoami

    if asked.command == "list":
        users = await accounts.users()
        if asked.format == "json":
            json.dump([queue_view.as_json(one) for one in users], sys.stdout, indent=2)
            sys.stdout.write("\n")
        else:
            print_table(["NAME", "ROLE", "LOGS IN BY", "LAST SEEN"], [
                [one.name, one.role, "password" if one.has_password else "proxy", queue_view.ago(one.last_seen)] for one in users
            ])  # fmt: skip
        return
    if asked.command == "add":
        await accounts.add_user(asked.name, asked.role, None if asked.no_password else _password())
    elif asked.command == "role":
        await accounts.change_user(asked.name, role=asked.role)
    elif asked.command == "password":
        await accounts.change_user(asked.name, password=_password())
    else:
        await accounts.remove_user(asked.name)
    about = asked.name + (f": {asked.role}" if asked.command in ("add", "role") else "")
    await accounts.note(whoami(), f"users {asked.command}", about=about)
