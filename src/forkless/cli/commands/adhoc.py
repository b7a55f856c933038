# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless adhoc: what `ansible` does, with workers as threads."""

from __future__ import annotations

from forkless.cli.ansible_command import run_command

__all__ = ["main"]


def main(argv: list[str]) -> int:
    return run_command("ansible", argv)
