# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said besides results, and what is left on the machine: as by ansible-playbook."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

import pytest

import shim_support

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


@pytest.mark.matrix_ends
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


@pytest.mark.matrix_ends
def test_the_folder_for_temporary_files_is_there_after_a_module(tmp_path):
    modes = {}
    for name in COMMANDS:
        folder = tmp_path / name / "above" / "tmp"
        call(name, tmp_path, "    - ping:\n", "-e", f"ansible_remote_tmp={folder}")
        modes[name] = [stat.S_IMODE(place.stat().st_mode) for place in (folder, folder.parent)]
        assert not list(folder.iterdir())
    assert modes["ours"] == modes["stock"]


INSTALLED = {
    "modules/sent.py": "#!/usr/bin/python\nfrom ansible.module_utils.basic import AnsibleModule\n"
    "from ansible_collections.ns.c.plugins.module_utils.beside import VALUE\nAnsibleModule({}).exit_json(value=VALUE)\n",
    "module_utils/beside.py": "VALUE = 'from beside'\n",
    "filter/loud.py": "from ansible_collections.ns.c.plugins.plugin_utils.upper import upper\n"
    "class FilterModule:\n    def filters(self):\n        return {'loud': upper}\n",
    "plugin_utils/upper.py": "def upper(value):\n    return value.upper()\n",
}


def test_no_code_is_written_into_a_collection_that_is_installed_in_site_packages(tmp_path):
    bin_ = shim_support.environment(tmp_path / "env")
    (site,) = (tmp_path / "env").glob("lib/*/site-packages")
    (site / "ansible").symlink_to(
        shim_support.PACKAGES / "ansible"
    )  # the folder where the package `ansible` has its collections
    plugins = site / "ansible_collections/ns/c/plugins"
    for path, text in INSTALLED.items():
        shim_support.script(plugins / path, text)
    (tmp_path / "play.yml").write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - ns.c.sent:\n      register: said\n"
        '    - debug: {msg: "{{ said.value | ns.c.loud }}"}\n'
    )
    env = shim_support.environ(tmp_path)  # without PYTHONDONTWRITEBYTECODE
    words = ["-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={bin_}/python", "play.yml"]
    there = {}
    for name, command in {"stock": ["ansible-playbook"], "ours": ["python", "-m", "forkless", "playbook"]}.items():
        command[0] = f"{bin_}/{command[0]}"
        done = shim_support.call([*command, *words], env, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "FROM BESIDE" in done.stdout
        there[name] = sorted(str(path.relative_to(plugins)) for path in plugins.rglob("*.pyc"))
        for folder in list(plugins.rglob("__pycache__")):
            shutil.rmtree(folder)
    assert set(there["ours"]) <= set(there["stock"])  # ansible-core's loader writes one for a filter
