# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in a program whose stdin, stdout and stderr are not what a command's are: a daemon's, or an event loop's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spawns

PROGRAM = """
import json, os
for number in (0, 1, 2):
    {change}
import forkless
try:
    result = forkless.run({playbook!r}, inventory={inventory!r}, cwd={cwd!r}, engine="threads", limit="h1")
    said = [result.status, result.stdout]
except Exception as error:
    said = ["raised", str(error)]
with open({said!r}, "w") as file:
    json.dump(said, file)
"""


@pytest.mark.matrix_ends
@pytest.mark.parametrize("change", ["os.close(number)", "os.set_blocking(number, False)"])
def test_a_run_needs_none_of_the_programs_streams(project, tmp_path, change):
    spec = project.spec("- command: echo said by a program\n  register: out\n- debug: {var: out.stdout}\n")
    said = tmp_path / "said.json"
    text = PROGRAM.format(**{**spec, "change": change, "said": str(said)})
    subprocess.run([sys.executable, "-c", text], stdin=subprocess.PIPE, capture_output=True, timeout=240, check=False)
    status, output = json.loads(said.read_text())
    assert status == "successful", output
    assert "said by a program" in output
