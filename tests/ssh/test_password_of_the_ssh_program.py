# SPDX-License-Identifier: GPL-3.0-or-later
"""A password for the ssh program, given by Ansible's own plugin, in a program that is not Ansible's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

import sshd_targets
from forkless.patching import seams

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns, pytest.mark.timeout(600)]

SERVICE = """
import json, os, sys
import forkless

def pipes():
    return [one for one in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{one}") and "pipe:" in os.readlink(f"/proc/self/fd/{one}")]

told = json.loads(sys.argv[1])
spec = dict(playbook="play.yml", inventory="hosts.ini", engine="threads", extra_vars=told)
forkless.run(**spec)
before = pipes()
result = forkless.run(**spec)
print(json.dumps({"rc": result.rc, "stdout": result.stdout, "more": len(pipes()) - len(before)}))
"""


# Up to 2.18 there is one way only, and no variable that chooses.
WAYS = ["sshpass"] if seams.minor(seams.version()) == "2.18" else ["ssh_askpass", "sshpass"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.matrix_ends
def test_it_needs_nothing_in_path_and_leaves_nothing_open(as_root, sshds, tmp_path, way):
    folders = [one for one in os.environ["PATH"].split(":") if not os.path.exists(os.path.join(one, "ansible"))]
    assert shutil.which("ssh", path=":".join(folders)), "the ssh program is missing: apt install openssh-client"
    no_key = "ansible_ssh_args='-o ControlMaster=no -o PubkeyAuthentication=no'"
    (tmp_path / "hosts.ini").write_text(sshds.inventory().replace(f"ansible_ssh_private_key_file={sshds.key}", no_key))
    tasks = "[{ping: }, {copy: {content: x, dest: ~/pw}}]"
    (tmp_path / "play.yml").write_text(f"- hosts: targets[0]\n  gather_facts: false\n  tasks: {tasks}\n")
    (tmp_path / "service.py").write_text(SERVICE)
    told = {
        "ansible_connection": "ssh",
        "ansible_pipelining": True,  # without it each task logs in five times more; copy sends a file all the same
        "ansible_password": sshd_targets.PASSWORD,
        "ansible_ssh_password_mechanism": way,
    }
    done = subprocess.run(
        [sys.executable, "service.py", json.dumps(told)],
        cwd=tmp_path, env={**os.environ, "PATH": ":".join(folders)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["rc"] == 0, said["stdout"]
    assert said["more"] == 0
    assert sshd_targets.PASSWORD not in done.stdout + done.stderr
