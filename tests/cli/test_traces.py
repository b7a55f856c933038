# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said besides results, and what is left on the machine: as by ansible-playbook."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import stat
import subprocess
import sys

import pytest

from forkless.modules.warm import payload

SOURCE = pathlib.Path(__file__).parent.parent.parent / "src"
COMMANDS = {
    "stock": [str(pathlib.Path(sys.executable).parent / "ansible-playbook")],
    "ours": [sys.executable, "-m", "forkless", "playbook"],
}
pytestmark = [pytest.mark.spawns, pytest.mark.timeout(300)]


def call(name, folder, tasks, *more, **environ):
    (folder / "play.yml").write_text(f"- hosts: localhost\n  gather_facts: false\n  tasks:\n{tasks}")
    words = [*COMMANDS[name], "-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}"]
    path = f"{SOURCE}:{folder}/lib"
    env = {**os.environ, "PYTHONPATH": path, "ANSIBLE_LOCALHOST_WARNING": "0", **environ}
    done = subprocess.run(
        [*words, *more, "play.yml"], cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.matrix
def test_a_library_that_prints_in_a_worker_is_told_of_by_ansible_itself(tmp_path):
    if importlib.metadata.version("ansible-core").startswith("2.18."):
        pytest.skip("up to 2.18 it prints straight through")
    (tmp_path / "lib").mkdir()
    (tmp_path / "filter_plugins").mkdir()
    (tmp_path / "lib/fk_noisy.py").write_text(
        "import sys, warnings\ndef shout():\n    print('said')\n    sys.stderr.write('complained\\n')\n    warnings.warn('old', stacklevel=1)\n"
    )
    (tmp_path / "filter_plugins/loud.py").write_text(
        "import fk_noisy\nclass FilterModule:\n    def filters(self):\n        return {'loud': lambda value: fk_noisy.shout() or value}\n"
    )
    said = {name: call(name, tmp_path, "    - debug: {msg: \"{{ 'a' | loud }}\"}\n") for name in COMMANDS}
    assert "errantly sent data directly to stderr" in said["stock"][1]
    assert said["ours"] == said["stock"]


@pytest.mark.matrix
def test_the_heads_of_a_diff_are_those_of_stock(tmp_path):
    (tmp_path / "made.j2").write_text("one {{ 1 }}\n")
    heads = {}
    for name in COMMANDS:
        (tmp_path / "made").write_text("old\n")
        out, _ = call(name, tmp_path, "    - template: {src: made.j2, dest: '{{ playbook_dir }}/made'}\n", "--diff")
        found = [line for line in out.splitlines() if line.startswith(("---", "+++"))]
        heads[name] = [re.sub(r"ansible-local-\d+\w{8}/tmp\w{8}", "TEMPORARY", line) for line in found]
    assert any("TEMPORARY" in line for line in heads["stock"])
    assert heads["ours"] == heads["stock"]


@pytest.mark.matrix
def test_the_folder_for_temporary_files_is_there_after_a_module(tmp_path):
    modes = {}
    for name in COMMANDS:
        folder = tmp_path / name / "above" / "tmp"
        call(name, tmp_path, "    - ping:\n", "-e", f"ansible_remote_tmp={folder}")
        modes[name] = [stat.S_IMODE(place.stat().st_mode) for place in (folder, folder.parent)]
        assert not list(folder.iterdir())
    assert modes["ours"] == modes["stock"]


def test_no_code_is_written_beside_what_is_sent_to_hosts(tmp_path, monkeypatch):
    (tmp_path / "sent.py").write_text("VALUE = 1\n")
    monkeypatch.setattr(payload, "_core_file", lambda path, digest: str(tmp_path / "sent.py"))
    assert payload._code("ansible_collections/ns/c/plugins/modules/sent.py", b"VALUE = 1\n").co_names == ("VALUE",)
    assert [path.name for path in tmp_path.iterdir()] == ["sent.py"]
