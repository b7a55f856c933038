# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a playbook in parts, for runs at the same time; refused where that would change what the playbook means."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from forkless.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["divide", "hosts_in", "hosts_of"]

# Seconds that reading a playbook and its inventory may take; a dynamic inventory asks other machines.
_PATIENCE = 600


def divide(hosts: list[str], many: int) -> list[list[str]]:
    """The hosts in at most `many` parts, none of them empty, neighbours in different ones: similar hosts often stand side by side."""
    return [hosts[k::many] for k in range(min(many, len(hosts)))]


def hosts_of(
    argv: Sequence[str], cwd: str, environ: Mapping[str, str], *, anyway: bool = False, with_implicit: bool = False
) -> list[str]:
    """
    The hosts of `ansible-playbook ARGV` after its limit. Raises SpecError with file and line of what cannot be in slices, unless `anyway`.
    `with_implicit`: also a localhost that is in no inventory, which no slice can have.

    The playbook and the inventory are read once, here, so that all slices agree about the hosts.
    """
    # Passed by stdin: every user of the machine can list the arguments of a process.
    asked = {"cwd": cwd, "argv": list(argv)}
    # Templates of the playbook are evaluated there: they must not find the password of the queue's database.
    environ = {name: value for name, value in environ.items() if name != "FORKLESS_DATABASE"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "forkless.engines.threads.slicing"],
            input=json.dumps(asked), capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False, env=environ,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as err:
        raise SpecError(f"the playbook could not be read for slices: {type(err).__name__}") from None
    if done.returncode or not done.stdout:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise SpecError(
            f"the playbook could not be read for slices: {lines[-1] if lines else 'Ansible did not say why'}"
        )
    return hosts_in(done.stdout, cwd, anyway=anyway, with_implicit=with_implicit)


def hosts_in(told: str, cwd: str, *, anyway: bool = False, with_implicit: bool = False) -> list[str]:
    """The hosts in an answer of engines/threads/slicing.py; raises as `hosts_of` does."""
    answer = json.loads(told)
    if "error" in answer:
        raise SpecError(f"the playbook could not be read for slices: {' '.join(answer['error'].split())}")
    if answer["against"] and not anyway:
        found = "; ".join(f"{_short(where, cwd)}: {why}" for where, why in answer["against"][:5])
        more = f"; and {len(answer['against']) - 5} more" if len(answer["against"]) > 5 else ""
        raise SpecError(f"this playbook cannot be split: {found}{more}. Run it whole, or insist with --slices-anyway")
    hosts: list[str] = answer["hosts"] + (answer["implicit"] if with_implicit else [])
    if not hosts:
        raise SpecError("no host is left to split: the limit or the inventory leaves none")
    return hosts


def _short(where: str, cwd: str) -> str:
    return where.removeprefix(cwd + os.sep)
