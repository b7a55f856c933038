# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder for temporary files on the host, which later tasks may rely on: made by whom, and with which mode, as stock makes it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import sshd_targets

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "src"
STOCK = [str(pathlib.Path(sys.executable).parent / "ansible-playbook")]
OURS = [sys.executable, "-m", "forkless", "playbook"]
PLAY = """
- hosts: targets[0]
  gather_facts: false
  vars: {ansible_become_password: "%s"}
  tasks:
    - raw: rm -rf {{ at }}/.ansible {{ at }}/tmp
    - shell: stat -c "%%n %%U %%a" {{ at }}/.ansible {{ at }}/.ansible/tmp 2>/dev/null || echo none
      become: true
      become_user: "{{ becomes }}"
      register: seen
    - debug: {msg: "SEEN {{ seen.stdout_lines | join('|') }} END"}
"""

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns, pytest.mark.timeout(300)]


def made(command, sshds, folder, connection, becomes, *, named):
    """What is there, as the first task of the become user sees it."""
    (folder / "play.yml").write_text(PLAY % sshd_targets.PASSWORD)
    inventory = sshds.inventory()
    user = sshds.hosts[0].user
    if not named:  # the login's name is in ~/.ssh/config only
        assert f"ansible_user={user}" in inventory
        inventory = inventory.replace(f"ansible_user={user}", f"ansible_ssh_extra_args='-o User={user}'")
    (folder / "hosts.ini").write_text(inventory)
    given = {"ansible_connection": connection, "becomes": becomes, "at": f"~{user}"}
    words = [word for name, value in given.items() for word in ("-e", f"{name}={value}")]
    done = subprocess.run(
        [*command, "-i", "hosts.ini", "play.yml", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return re.search("SEEN (.*) END", done.stdout)[1]


@pytest.mark.parametrize(
    ("connection", "becomes", "named"),
    [("ssh", "root", True), ("forkless.core.ssh", "root", True), ("ssh", "root", False), ("ssh", "nobody", True)],
)
def test_the_folder_is_the_login_users_also_for_a_task_of_another_user(
    as_root, sshds, tmp_path, connection, becomes, named
):
    ours = made(OURS, sshds, tmp_path, connection, becomes, named=named)
    if (
        becomes == "nobody"
    ):  # stock takes a folder of the system for such a user, and needs ACLs, which are not everywhere
        assert ours == "none"
        return
    assert ours == made(STOCK, sshds, tmp_path, "ssh", becomes, named=named)
    assert ours.count(f" {sshds.hosts[0].user} 700") == 2


UNUSABLE = """
- hosts: targets[0]
  gather_facts: false
  vars: {ansible_become_password: "%s"}
  tasks:
    - command: touch {{ trace }}
      become: "{{ becomes }}"
"""


@pytest.mark.parametrize("becomes", [False, True], ids=["login user, cannot be made", "root, closed to the login user"])
def test_a_host_without_a_usable_folder_is_unreachable_and_runs_no_module(as_root, sshds, tmp_path, becomes):
    (tmp_path / "play.yml").write_text(UNUSABLE % sshd_targets.PASSWORD)
    (tmp_path / "hosts.ini").write_text(sshds.inventory("ssh"))
    trace, closed = sshds.folder / f"trace-{becomes}", sshds.folder / "closed"
    closed.mkdir(mode=0o700, exist_ok=True)
    told = {"ansible_remote_tmp": str(closed) if becomes else "/dev/null/tmp", "trace": str(trace), "becomes": becomes}
    said = []
    for command in (STOCK, OURS):
        done = subprocess.run(
            [*command, "-i", "hosts.ini", "play.yml", "-e", json.dumps(told)],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said.append((done.returncode, re.sub(r"ansible-tmp-[\d.-]+", "#", done.stdout), done.stderr))
    assert said[1] == said[0]
    assert said[0][0] == 4, said[0]
    assert not trace.exists()
