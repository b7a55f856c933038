# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task changes on a host is seen by the next one, although both run in forks of one interpreter; and what a module is given as stdin."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).parents[3] / "src"
PLAYBOOK = [sys.executable, "-m", "forkless", "playbook"]

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600)]
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux",
    reason="changes the host's name, or who may become whom, in a namespace",
)

RENAMED = """
- hosts: all
  gather_facts: false
  tasks:
    - setup: {gather_subset: ["!all", min]}
    - command: hostname renamed-by-a-task
    - setup: {gather_subset: ["!all", min]}
    - assert: {that: [ansible_facts.nodename == "renamed-by-a-task", ansible_facts.hostname == "renamed-by-a-task"]}
"""

ESCALATION = """
- hosts: all
  gather_facts: false
  become: true
  vars: {ansible_become_user: root}
  tasks:
    - shell: echo "$PATH"
      register: before
    - copy: {dest: /etc/sudoers.d/there, content: "Defaults secure_path=/first:/usr/sbin:/usr/bin:/sbin:/bin\\n", mode: "0440"}
    - shell: echo "$PATH"
      register: added
    - shell: sed 's/first/second/' /etc/sudoers.d/there > {{ playbook_dir }}/edited && cat {{ playbook_dir }}/edited > /etc/sudoers.d/there
    - shell: echo "$PATH"
      register: edited
    - assert:
        that: [not before.stdout.startswith("/first"), added.stdout.startswith("/first"), edited.stdout.startswith("/second")]
    - copy: {dest: /etc/sudoers.d/zz-nobody-may, content: "root ALL=(ALL) !ALL\\n", mode: "0440"}
    - command: echo nobody may do this
      ignore_errors: true
      register: refused
    - assert: {that: [refused is failed, "'not allowed' in refused.msg"]}
      become: false
"""

STDIN = """
- hosts: all
  gather_facts: false
  tasks:
    - shell: test -p /dev/stdin && cat
"""


def play(folder, text, *around, **environ):
    (folder / "play.yml").write_text(text)
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "ANSIBLE_NOCOLOR": "1", **environ}
    return subprocess.run(
        [*around, *PLAYBOOK, "-v", "-i", "here,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", "play.yml"],
        cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


@needs_root
def test_the_facts_after_a_task_that_renamed_the_host_have_its_new_name(tmp_path):
    done = play(tmp_path, RENAMED, "unshare", "--uts")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_root
def test_a_change_of_who_may_become_whom_and_with_what_counts_for_the_next_task(tmp_path):
    """In a mount namespace with a copy of /etc."""
    own = 'cp -a /etc "$0" && mount --bind "$0/etc" /etc && exec "$@"'
    done = play(
        tmp_path, ESCALATION, "unshare", "--mount", "sh", "-c", own, str(tmp_path), ANSIBLE_BECOME_ALLOW_SAME_USER="1"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_stdin_of_a_module_is_a_pipe_that_has_ended_as_with_stock(tmp_path):
    done = play(tmp_path, STDIN)
    assert done.returncode == 0, done.stdout + done.stderr
