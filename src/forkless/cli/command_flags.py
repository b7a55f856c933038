# SPDX-License-Identifier: GPL-3.0-or-later
"""The flags that `forkless playbook` and `forkless adhoc` add to Ansible's parser, their help, and how programs do not see them."""

from __future__ import annotations

import argparse
from typing import Any

from forkless.cli.view import run_view
from forkless.core import platform

__all__ = ["EXAMPLES", "NAMES", "add_flags", "add_slice_flags", "explain", "hide_flags"]

# Ansible's commands, and forkless's for each.
NAMES = {"ansible-playbook": "playbook", "ansible": "adhoc", "ansible-console": "console"}

EXAMPLES = {
    "ansible-playbook": """\
examples:
  forkless playbook site.yml -i hosts.ini --limit web --check
  forkless playbook site.yml --report run.html       one HTML file: timeline, slowest tasks, failures
  forkless playbook site.yml --profile               where the time went, at the end
  forkless playbook site.yml --slices auto           the hosts split over processes, one for each core
  forkless playbook site.yml --live-output           what tasks print, while they run
  forkless playbook site.yml --format jsonl | jq .event
""",
    "ansible-console": """\
examples:
  forkless console -i hosts.ini web
  forkless console all --become
""",
    "ansible": """\
examples:
  forkless adhoc all -i hosts.ini -m ping
  forkless adhoc web -i hosts.ini -m command -a uptime --format jsonl
""",
}


def add_flags(parser: argparse.ArgumentParser) -> list[str]:
    """Add forkless's flags to Ansible's parser, and return the names of their values. Abbreviations of Ansible's own flags keep their meaning."""
    group = parser.add_argument_group("forkless")
    group.add_argument(
        "--stuck-after",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="name a worker that has been at one task for so long, with its stack; 0 for never (default: 600)",
    )
    group.add_argument(
        "--modules",
        choices=["auto", "warm", "cold", "in-process"],
        default="auto",
        help="how modules run: in an interpreter that is kept warm on the host; cold, each in one of its own; in this process "
        "where it can be (local connection); or (auto) warm, and in this process where no program can be started",
    )
    # The runner engine passes `answers` to its child by this flag; it is not for users.
    group.add_argument("--answers-file", default=None, help=argparse.SUPPRESS)
    # Likewise: the number of a descriptor, to which what tasks print while they run is written.
    group.add_argument("--output-descriptor", type=int, default=None, help=argparse.SUPPRESS)
    run_view.add_flags(group)
    ours = list(group._group_actions)  # since 2.19 `add_argument` of Ansible's groups returns None
    found = parser._get_option_tuples

    def without_ours(option_string: str) -> Any:
        tuples = found(option_string)
        theirs = [one for one in tuples if one[0] not in ours]
        return theirs or tuples

    parser._get_option_tuples = without_ours  # type: ignore[method-assign]
    return [one.dest for one in ours]


def add_slice_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `forkless playbook` that Ansible's parser never sees: each slice is a process with a command line of its own."""
    group = parser.add_argument_group("forkless, in several processes")
    group.add_argument(
        "--slices",
        type=_number_of_slices,
        metavar="N|auto",
        help="split the hosts over so many processes with one output; auto: one for each core",
    )
    group.add_argument("--slices-anyway", action="store_true", help="also where slices change what the playbook means")


def _number_of_slices(text: str) -> int:
    if text == "auto":
        return platform.cores()
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is neither a whole number above zero nor auto")
    return int(text)


def _slices_help() -> str:
    parser = argparse.ArgumentParser(add_help=False, usage=argparse.SUPPRESS)
    add_slice_flags(parser)
    return parser.format_help().strip() + "\n\n"


def explain(parser: argparse.ArgumentParser, command: str) -> None:
    """Give --help the name of the forkless command, all of its flags, and examples. Errors and --version stay exactly Ansible's."""
    upstream = parser.format_help

    def format_help() -> str:
        name, parser.prog = parser.prog, f"forkless {NAMES[command]}"
        try:
            slices = _slices_help() if command == "ansible-playbook" else ""
            return f"{upstream().rstrip()}\n\n{slices}{EXAMPLES[command]}"
        finally:
            parser.prog = name

    parser.format_help = format_help  # type: ignore[method-assign]


def hide_flags(parser: argparse.ArgumentParser) -> None:
    """Leave forkless's flags out of the help and the usage of a parser, which then are stock's. They are still understood."""
    for group in parser._action_groups:
        if group.title == "forkless":
            for action in group._group_actions:
                action.help = argparse.SUPPRESS
