# SPDX-License-Identifier: GPL-3.0-or-later
"""A plugin that forks by itself: its child is a process of its own, and ends as one."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spawns]

ACTION = """
import os, signal
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        reading, writing = os.pipe()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            os.write(writing, f"{{os.getppid() == parent}} {{ignored}}".encode())
            {leave}
        os.close(writing)
        said = os.read(reading, 100).decode()
        os.close(reading)
        _, status = os.waitpid(child, 0)
        return {{"said": said, "code": os.waitstatus_to_exitcode(status)}}
"""


# A child that comes back from the task ends with a code of Ansible's own; that it ends is what counts.
@pytest.mark.parametrize(("leave", "code"), [("os._exit(7)", "it.code == 7"), ("raise ValueError", "it.code >= 0")])
def test_a_child_that_a_plugin_forks_ends_as_a_process_of_its_own(project, leave, code):
    project.write("action_plugins/forks.py", ACTION.format(leave=leave))
    spec = project.spec(f"- forks:\n  register: it\n- assert: {{that: [it.said == 'True True', {code}]}}\n")
    # In a process of its own: a child that does not end would go on with a copy of the tests.
    line = [sys.executable, "-W", "ignore", "-m", "forkless", "playbook", "-i", spec["inventory"], spec["playbook"]]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PLAY RECAP") == 1
