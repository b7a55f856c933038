# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task on a host prints is seen while it runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import forkless

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns, pytest.mark.timeout(600)]

BOOK = """
- hosts: all
  gather_facts: false
  become: "{{ becoming }}"
  tasks:
    - name: Say
      shell: "echo first; sleep 1.5; id -un; exit 3"
      ignore_errors: true
    - command: echo hidden
      no_log: true
    - shell: echo by a job
      async: 300
      poll: 1
"""


@pytest.mark.parametrize("becoming", [False, True], ids=["as the user", "as root"])
@pytest.mark.parametrize("connection", ["forkless.core.ssh", "ssh"])
def test_lines_of_a_host_come_while_its_task_runs(tmp_path, sshds, sshd, as_root, connection, becoming):
    (tmp_path / "play.yml").write_text(BOOK)
    variables = {
        "ansible_connection": connection,
        "ansible_host": sshd.address,
        "ansible_port": sshd.port,
        "ansible_user": sshd.user,
        "ansible_ssh_private_key_file": str(sshds.key),
        "ansible_ssh_common_args": f"-F none -o UserKnownHostsFile={sshds.known_hosts} -o IdentityAgent=none",
        "ansible_python_interpreter": "/usr/bin/python3",
        "becoming": becoming,
    }
    result = forkless.run(
        "play.yml", inventory="target,", cwd=tmp_path, engine="threads", extra_vars=variables, live_output=True
    )
    assert result.rc == 0, result.stdout
    told = [one.event_data["text"] for one in result.events if one.event == "runner_on_output"]
    failed = next(one for one in result.events if one.event == "runner_on_failed").event_data["res"]
    first, user = failed["stdout_lines"]
    assert (user == "root") is becoming
    assert told == [first, user, "by a job"]  # one by one: told at the end, they would have come together


def test_json_lines_have_it_before_the_result_of_its_task(tmp_path, sshds, sshd):
    (tmp_path / "play.yml").write_text("- hosts: all\n  gather_facts: false\n  tasks: [{command: echo said}]\n")
    common = f"-F none -o UserKnownHostsFile={sshds.known_hosts} -o IdentityAgent=none"
    line = ["-i", f"{sshd.address},", "-c", "forkless.core.ssh", "-u", sshd.user, "--key-file", str(sshds.key)]
    line += ["-e", json.dumps({"ansible_port": sshd.port, "ansible_python_interpreter": "/usr/bin/python3"})]
    done = subprocess.run(
        [sys.executable, "-m", "forkless", "playbook", "--format", "jsonl", *line, "--ssh-common-args", common, "play.yml"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(one) for one in done.stdout.splitlines()]
    told = [(one["event"], one["event_data"].get("text")) for one in events if one["event"].startswith("runner_on_o")]
    assert told == [("runner_on_output", "said"), ("runner_on_ok", None)]
