# SPDX-License-Identifier: GPL-3.0-or-later
"""The command. Each subcommand is a module of this folder with `main(argv) -> int`, loaded when it is called."""

from __future__ import annotations

import importlib
import sys

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "playbook": "run a playbook, with ansible-playbook's own arguments",
    "adhoc": "run one module on hosts, with ansible's own arguments",
    "jobs": "list, follow, stop and tidy up jobs that outlive their play",
    "doctor": "tell what this machine can do, and which engine will be used",
}


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    return "usage: forkless COMMAND ...\n\ncommands:\n" + "\n".join(lines) + "\n\nforkless COMMAND --help tells more.\n"


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(_usage())
        return 0
    if argv[0] not in COMMANDS:
        sys.stderr.write(f"forkless: there is no command '{argv[0]}'; there are {', '.join(COMMANDS)}\n")
        return 2
    command = importlib.import_module(f"forkless.cli.{argv[0]}")
    code: int = command.main(argv[1:])
    return code
