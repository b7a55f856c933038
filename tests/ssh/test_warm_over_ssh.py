# SPDX-License-Identifier: GPL-3.0-or-later
"""Warm modules on real sshds: one interpreter for each host and user, by a channel of ours and by the ssh program."""

from __future__ import annotations

import shutil

import pytest

import forkless
import sshd_targets

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns, pytest.mark.timeout(600)]

WHO = """#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
import os, pwd
from ansible.module_utils.basic import AnsibleModule
AnsibleModule({}).exit_json(parent=os.getppid(), user=pwd.getpwuid(os.geteuid()).pw_name, task=os.environ.get("TASK"), cwd=os.getcwd())
"""
PLAY = """
- hosts: targets[0]
  gather_facts: false
  tasks:
    - who:
    - who:
      environment: {TASK: its own}
    - who:
      become: true
    - who:
      become: true
    - meta: reset_connection
    - who:
"""


@pytest.mark.parametrize("connection", ["forkless.core.ssh", "ssh"])
def test_one_interpreter_serves_a_host_and_user_until_the_connection_is_reset(as_root, sshds, tmp_path, connection):
    if connection == "ssh" and not shutil.which("ssh"):
        pytest.fail("the ssh program is missing: apt install openssh-client", pytrace=False)
    (tmp_path / "library").mkdir()
    (tmp_path / "library/who.py").write_text(WHO)
    (tmp_path / "hosts.ini").write_text(sshds.inventory())
    (tmp_path / "play.yml").write_text(PLAY)
    with sshd_targets.accounts():
        result = forkless.run(
            playbook="play.yml", inventory="hosts.ini", cwd=tmp_path, engine="threads", extra_vars={"ansible_connection": connection}
        )  # fmt: skip
    assert result.rc == 0, result.stdout
    said = [event.event_data["res"] for event in result.events if event.event == "runner_on_ok"]
    first, second, root, root_again, after = said
    assert first["parent"] == second["parent"]
    assert (first["task"], second["task"]) == (None, "its own")
    assert root["parent"] == root_again["parent"] != first["parent"]
    assert (first["user"], root["user"]) == (sshds.hosts[0].user, "root")
    assert after["parent"] != first["parent"]


OTHER_USER = """
- hosts: targets[0]
  gather_facts: false
  tasks:
    - who:
    - who:
      become: true
      become_user: nobody
      register: as_nobody
    - who:
      become: true
      become_user: nobody
    - stat: {path: "/proc/{{ as_nobody.parent }}"}
      vars: {ansible_ssh_extra_args: "-o ServerAliveInterval=33"}  # another connection to the same machine
    - who:
"""


@pytest.mark.parametrize("connection", ["forkless.core.ssh", "ssh"])
def test_an_interpreter_of_a_user_who_may_be_removed_stays_until_another_comes(as_root, sshds, tmp_path, connection):
    (tmp_path / "library").mkdir()
    (tmp_path / "library/who.py").write_text(WHO)
    (tmp_path / "hosts.ini").write_text(sshds.inventory())
    (tmp_path / "play.yml").write_text(OTHER_USER)
    told = {"ansible_connection": connection, "ansible_become_password": sshd_targets.PASSWORD}
    with sshd_targets.accounts():
        result = forkless.run(
            playbook="play.yml", inventory="hosts.ini", cwd=tmp_path, engine="threads", extra_vars=told
        )  # fmt: skip
    assert result.rc == 0, result.stdout
    said = [event.event_data["res"] for event in result.events if event.event == "runner_on_ok"]
    first, as_nobody, again, seen, last = said
    assert as_nobody["user"] == again["user"] == "nobody"
    assert as_nobody["parent"] == again["parent"]
    assert not seen["stat"]["exists"]
    assert last["parent"] == first["parent"]
