# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless playbook: what `ansible-playbook` does, with workers as threads."""

from __future__ import annotations

from forkless.cli.ansible_command import run_command

__all__ = ["main"]


def main(argv: list[str]) -> int:
    if any(word == "--slices" or word.startswith("--slices=") for word in argv):
        from forkless.cli import sliced_playbook

        return sliced_playbook.main(argv)
    return run_command("ansible-playbook", argv)
