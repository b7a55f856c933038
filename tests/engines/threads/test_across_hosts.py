# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands against slices of a run, as each ansible-core keeps it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.matrix, pytest.mark.spawns]

REGISTERED = """
from ansible.playbook.task import Task
from forkless.engines.threads import across_hosts

values = across_hosts.Values()
values.add(Task.load({"debug": None, "register": "first"}))
values.add(Task.load({"debug": None}))
print([values.read_in("{{ hostvars.web2." + name + ".rc }}") for name in ("first", "second")])
"""


def test_a_registered_name_is_known_as_one_that_hosts_get_during_the_run():
    done = subprocess.run([sys.executable, "-c", REGISTERED], capture_output=True, text=True, check=False, timeout=240)
    assert done.stdout == "['first', '']\n", done.stderr
