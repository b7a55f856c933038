# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless playbook: what `ansible-playbook` does, with workers as threads."""

from __future__ import annotations

from forkless.cli._ansible import run_command

__all__ = ["main"]


def main(argv: list[str]) -> int:
    return run_command("ansible-playbook", argv)
