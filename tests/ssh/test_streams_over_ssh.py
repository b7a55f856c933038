# SPDX-License-Identifier: GPL-3.0-or-later
"""What a module says besides its result, over the ssh program: there is a terminal on stock, and its one stream."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).parent.parent.parent / "src"
COMMANDS = {
    "stock": [str(pathlib.Path(sys.executable).parent / "ansible-playbook")],
    "ours": [sys.executable, "-m", "forkless", "playbook"],
}
pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns, pytest.mark.timeout(600)]

SAYS = """#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
import os, sys
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"way": {"type": "str"}})
way = module.params["way"]
if way == "crashes":
    raise RuntimeError("the module's own")
if way == "ends":
    print("out, first")
    sys.stderr.write("err, then\\n")
    print("out, last")
    sys.exit(3)
if way == "complains":
    sys.stderr.write("err, before\\n")
module.exit_json(way=way, term=os.environ.get("TERM"))
"""
PLAY = """
- hosts: targets[0]
  gather_facts: false
  ignore_errors: true
  tasks:
    - {says: {way: crashes}, register: crashes}
    - {says: {way: ends}, register: ends}
    - {says: {way: complains}, register: complains}
    - {says: {way: ends}, register: pipelined, vars: {ansible_pipelining: true}}
    - copy: {content: "{{ [crashes, ends, complains, pipelined] | to_json }}", dest: "{{ playbook_dir }}/{{ name }}.json"}
      delegate_to: localhost
      vars: {ansible_connection: local, ansible_python_interpreter: "{{ ansible_playbook_python }}"}
"""


def plain(value):
    """Without the frames of tracebacks: there is one less of a wrapper here."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if key != "frame"}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return re.sub(r"(Traceback[^\n]*\n)(?: .*\n)*", r"\1", value) if isinstance(value, str) else value


@pytest.mark.matrix_ends
def test_what_is_not_pipelined_has_the_one_stream_of_a_terminal(as_root, sshds, tmp_path):
    (tmp_path / "library").mkdir()
    (tmp_path / "library/says.py").write_text(SAYS)
    (tmp_path / "hosts.ini").write_text(sshds.inventory("ssh"))
    (tmp_path / "play.yml").write_text(PLAY)
    found = {}
    for name, command in COMMANDS.items():
        done = subprocess.run(
            [*command, "-i", "hosts.ini", "-e", f"name={name}", "play.yml"], cwd=tmp_path, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm-test"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        found[name] = [plain(one) for one in json.loads((tmp_path / f"{name}.json").read_text())]
    for theirs, ours in zip(found["stock"], found["ours"], strict=True):
        assert ours == theirs
    assert found["ours"][2]["term"] == "xterm-test", "Python asks for it before it colours a traceback"
    assert "err, then" in found["ours"][1]["module_stdout"]
    assert "err, then" in found["ours"][3]["module_stderr"]
