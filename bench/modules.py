# SPDX-License-Identifier: GPL-3.0-or-later
"""
Modules in forks of a warm interpreter, beside stock ansible-playbook and Mitogen.

    python -m bench modules [--rounds 5] [--only ROW,...] [--json FILE]

Rows: local-modules, setup-local, ssh-modules (needs root and sshd: its hosts are made with namespaces). Contenders take turns within a round;
wall and CPU seconds (children included), medians, ratios.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import sys
import tempfile
from typing import TYPE_CHECKING

from bench import _contenders
from bench._results import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LOCAL = """
- hosts: all
  gather_facts: false
  tasks:
    - ping:
    - stat: {path: /}
    - command: "true"
    - file: {path: "{{ playbook_dir }}/{{ inventory_hostname }}", state: touch, mode: "0644"}
    - copy: {content: "{{ inventory_hostname }}", dest: "{{ playbook_dir }}/{{ inventory_hostname }}", mode: "0644"}
"""
SETUP = "- hosts: all\n  gather_facts: false\n  tasks: [{setup: }]\n"
SSH = (
    "- hosts: all\n  gather_facts: false\n  tasks:\n"
    + "    - ping:\n    - stat: {path: /}\n    - command: 'true'\n    - file: {path: /tmp, state: directory}\n" * 5
)


def _local(row: Row, rounds: int, play: str) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        there = pathlib.Path(folder)
        (there / "play.yml").write_text(play)
        (there / "hosts.ini").write_text(
            f"n[1:20]\n[all:vars]\nansible_connection=local\nansible_python_interpreter={sys.executable}\n"
        )
        _race(row, rounds, _contenders.contenders(), folder)
    return row


def _race(row: Row, rounds: int, contenders: Iterable[_contenders.Contender], folder: str) -> None:
    for _ in range(rounds):
        for who in contenders:
            wall, cpu = _contenders.measured(who, ["-i", "hosts.ini", "-f", "10", "play.yml"], folder)
            row.add("wall", who.name, wall)
            row.add("cpu", who.name, cpu)


def local_modules(rounds: int) -> Row:
    row = Row("local-modules", "20 hosts (local) x 5 modules, forks 10", goals={"stock": 10.0, "Mitogen": 2.0})
    return _local(row, rounds, LOCAL)


def setup_local(rounds: int) -> Row:
    row = Row("setup-local", "setup on 20 local hosts, forks 10", goals={"stock": 3.0, "Mitogen": 1.0})
    return _local(row, rounds, SETUP)


def ssh_modules(rounds: int) -> Row:
    row = Row("ssh-modules", "10 sshd hosts x 20 module tasks, forks 10", goals={"stock": 4.0, "Mitogen": 1.0})
    sys.path.insert(0, str(_contenders.ROOT / "tests"))
    import sshd_targets  # of the tests, and needs what they need

    with contextlib.ExitStack() as around:
        up = around.enter_context(sshd_targets.targets(10))
        folder = around.enter_context(tempfile.TemporaryDirectory())
        args = f"-F none -o UserKnownHostsFile={up.known_hosts} -o IdentityAgent=none"
        lines = [
            f"h{n} ansible_host={one.address} ansible_port={one.port} ansible_user={one.user}"
            for n, one in enumerate(up.hosts)
        ]
        lines += ["[all:vars]", f"ansible_ssh_private_key_file={up.key}", f"ansible_ssh_common_args='{args}'"]
        lines += [f"ansible_python_interpreter={os.path.realpath('/usr/bin/python3')}", ""]
        (pathlib.Path(folder) / "hosts.ini").write_text("\n".join(lines))
        (pathlib.Path(folder) / "play.yml").write_text(SSH)
        # Stock with what makes it fastest: ControlPersist, which is its default, and pipelining.
        ways = [
            dataclasses.replace(one, environ={**one.environ, "ANSIBLE_PIPELINING": "1"})
            for one in _contenders.contenders()
        ]
        ways[-1] = dataclasses.replace(ways[-1], command=[*ways[-1].command, "-c", "forkless.core.ssh"])
        _race(row, rounds, ways, folder)
    return row


ROWS = {"local-modules": local_modules, "setup-local": setup_local, "ssh-modules": ssh_modules}


def rows(rounds: int, only: Iterable[str] = ()) -> Iterator[Row]:
    for name in only or ROWS:
        if name in ROWS:
            yield ROWS[name](rounds)
