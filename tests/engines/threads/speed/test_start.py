# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run imports, counted: an import that most runs do not need makes every start slower, and no result shows it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from forkless.core import versions
from forkless.patching import seams

pytestmark = [pytest.mark.spawns, pytest.mark.matrix]

MINOR = versions.nearest(seams.version())
PLAY = "- hosts: localhost\n  gather_facts: false\n  tasks:\n  - ansible.builtin.debug: {msg: it ran}\n"
# Stock imports none of these for such a play, and our own are for runs that connect by forkless.ssh, or that are shown.
FEW_NEED = [
    "ansible.module_utils.urls",
    "asyncio",
    "asyncssh",
    "cryptography.x509",
    "forkless.cli.view.timeline",
    "forkless.ssh.pool",
    "forkless.ssh.settings",
    "http.client",
    "urllib.request",
    *(["ssl"] if MINOR != "2.18" else []),  # 2.18 imports it itself
]
RECORD = """
import sys
class Record:
    names = set()
    def find_spec(self, name, path=None, target=None):
        self.names.add(name)
sys.meta_path.insert(0, Record())
from forkless.cli import main
code = main(sys.argv[1:])
print("IMPORTED", *Record.names)
sys.exit(code)
"""


def imported(tmp_path, *arguments):
    """The modules that were looked for in a process of its own: afterwards forkless leaves none of ansible-core's in sys.modules."""
    (tmp_path / "site.yml").write_text(PLAY)
    done = subprocess.run(
        [sys.executable, "-c", RECORD, *arguments, "-i", "localhost,", "-c", "local", "site.yml"], cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=240, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert "it ran" in done.stdout, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("IMPORTED ")]
    return set(line.split())


def test_a_play_of_one_small_task_imports_nothing_that_few_plays_need(tmp_path):
    found = imported(tmp_path, "playbook")
    assert {"ansible.cli.playbook", "ansible.plugins.strategy.linear"} <= found
    assert found.isdisjoint(FEW_NEED), found.intersection(FEW_NEED)
