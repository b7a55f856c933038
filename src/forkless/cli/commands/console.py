# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless console: what `ansible-console` does, with workers as threads and interpreters on the hosts that stay warm between commands."""

from __future__ import annotations

from forkless.cli.ansible_command import run_command

__all__ = ["main"]


def main(argv: list[str]) -> int:
    return run_command("ansible-console", argv)
