# SPDX-License-Identifier: GPL-3.0-or-later
"""A module that starts itself again under another interpreter of its host, for the user who is logged in and for one that it becomes."""

from __future__ import annotations

import shutil

import pytest

import forkless
import sshd_targets

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns, pytest.mark.timeout(600)]

AGAIN = """#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
import os, pwd, sys
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.respawn import has_respawned, probe_interpreters_for_module, respawn_module
module = AnsibleModule({"other": {"type": "str"}})
if not has_respawned():
    respawn_module(probe_interpreters_for_module([module.params["other"]], "only_there") or "/nowhere")
module.exit_json(name=os.environ["NAME"], user=pwd.getpwuid(os.geteuid()).pw_name, archive=sys.path[0])
"""
PLAY = """
- hosts: targets[0]
  gather_facts: false
  tasks:
    - again: {other: "{{ other }}"}
    - again: {other: "{{ other }}"}
      become: true
    - again: {other: "{{ other }}"}
      become: true
      become_user: nobody
"""


@pytest.mark.parametrize(
    ("connection", "modules"),
    [("forkless.core.ssh", "warm"), ("ssh", "warm"), ("forkless.core.ssh", "in-process"), ("ssh", "cold")],
)
def test_a_module_starts_itself_again(as_root, sshds, connection, modules):
    if connection == "ssh" and not shutil.which("ssh"):
        pytest.fail("the ssh program is missing: apt install openssh-client", pytrace=False)
    folder = sshds.folder / f"again-{connection}-{modules}"
    (folder / "library").mkdir(parents=True)
    (folder / "there").mkdir()
    (folder / "library/again.py").write_text(AGAIN)
    (folder / "there/only_there.py").write_text("")
    other = folder / "python"
    other.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/there:$PYTHONPATH NAME=other exec /usr/bin/python3 "$@"\n')
    other.chmod(0o755)
    (folder / "hosts.ini").write_text(sshds.inventory())
    (folder / "play.yml").write_text(PLAY)
    told = {
        "ansible_connection": connection,
        "ansible_become_password": sshd_targets.PASSWORD,
        "other": str(other),
    }
    env = {} if modules == "warm" else {"ANSIBLE_PIPELINING": "1"}  # a file of the module for nobody would need ACLs
    result = forkless.run(
        playbook="play.yml",
        inventory="hosts.ini",
        cwd=folder,
        engine="threads",
        modules=modules,
        env=env,
        extra_vars=told,
    )
    assert result.rc == 0, result.stdout
    said = [event.event_data["res"] for event in result.events if event.event == "runner_on_ok"]
    assert [one["user"] for one in said] == [sshds.hosts[0].user, "root", "nobody"]
    assert {one["name"] for one in said} == {"other"}
