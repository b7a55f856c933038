# SPDX-License-Identifier: GPL-3.0-or-later
"""`make demo` needs nothing of whoever runs it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spawns

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_demo_writes_to_its_own_folder_only_so_that_users_without_a_home_can_run_it_too(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    command = [sys.executable, "-m", "forkless", "playbook", "--plain", "examples/demo/site.yml"]
    done = subprocess.run(
        [*command, "-i", "examples/demo/hosts.ini", "--limit", "node01"],
        cwd=ROOT,
        env={**os.environ, "FORKLESS_DEMO": str(folder), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Where Ansible puts its modules, which is below the user's home unless the play says otherwise.
    assert [path.name for path in folder.iterdir()] == ["tmp"]
