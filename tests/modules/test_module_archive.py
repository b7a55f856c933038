# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that start themselves again under another interpreter, or ask where their code lies: the archive is there, as on stock."""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import re
import subprocess
import sys
import tempfile

import pytest

import forkless

SOURCE = pathlib.Path(__file__).parent.parent.parent / "src"
pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600)]

AGAIN = """#!/usr/bin/python
import os, sys
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.respawn import has_respawned, probe_interpreters_for_module, respawn_module
module = AnsibleModule({"other": {"type": "str"}})
if not has_respawned():
    found = probe_interpreters_for_module(["/nowhere/python", module.params["other"]], "only_there")
    if found:
        respawn_module(found)
module.exit_json(respawned=has_respawned(), name=os.environ.get("NAME"), user=os.geteuid(), archive=sys.path[0])
"""
WHERE = """#!/usr/bin/python
import importlib, inspect, os, pathlib, pkgutil, subprocess, sys, zipfile
import ansible.module_utils
from ansible.module_utils import basic
from ansible.module_utils.common import respawn
from ansible.module_utils.near import near, HERE
package = ansible.module_utils
place = str(pathlib.Path(respawn.__file__).parents[3])  # 2.18.0 has no name for it
child = [sys.executable, "-c", "import ansible.module_utils.basic as it; print(it.__file__)"]
basic.AnsibleModule({}).exit_json(
    place=place, exists=os.path.isfile(place), first=sys.path[0] == place, path=list(package.__path__),
    files=[__file__, basic.__file__, HERE], specs=[basic.__spec__.origin, __spec__.origin, list(package.__spec__.submodule_search_locations)],
    codes=[basic.AnsibleModule.exit_json.__code__.co_filename, near.__code__.co_filename],
    source=[inspect.getsource(near), inspect.getsource(basic.get_platform), inspect.getsourcefile(basic)],
    modules=sorted(one.name for one in pkgutil.iter_modules(package.__path__)),
    data=pkgutil.get_data("ansible.module_utils", "near.py").decode(), module_path=basic.get_module_path(),
    loader=[basic.__loader__.archive, basic.__loader__.prefix, package.__loader__.prefix],
    inside=sorted(zipfile.ZipFile(place).namelist()), main=[sys.modules["__main__"]._module_fqn, sys.modules["__main__"]._modlib_path],
    child=subprocess.check_output(child, env={**os.environ, "PYTHONPATH": place}).decode(),
)
"""
NEAR = "HERE = __file__\ndef near():\n    return 'beside the module'\n"


@pytest.fixture
def project():
    """A module that respawns under an interpreter that is the only one with a certain library, and has no ansible-core of its own."""
    with tempfile.TemporaryDirectory(prefix="forkless-archive-") as folder:  # which any user may enter
        yield filled(pathlib.Path(folder).resolve())


def filled(tmp_path):
    for folder in ("library", "module_utils", "there", "tmp"):
        (tmp_path / folder).mkdir()
    tmp_path.chmod(0o755)
    (tmp_path / "tmp").chmod(0o1777)
    (tmp_path / "library/again.py").write_text(AGAIN)
    (tmp_path / "library/where.py").write_text(WHERE)
    (tmp_path / "module_utils/near.py").write_text(NEAR)
    (tmp_path / "there/only_there.py").write_text("")
    other = tmp_path / "python"
    other.write_text(
        f'#!/bin/sh\nPYTHONPATH={tmp_path}/there:$PYTHONPATH NAME=other exec ${{BASE:-{sys._base_executable}}} "$@"\n'
    )
    other.chmod(0o755)
    (tmp_path / "hosts").write_text(f"h ansible_connection=local ansible_python_interpreter={sys.executable}\n")
    return tmp_path


def results(result):
    return [event.event_data["res"] for event in result.events if event.event == "runner_on_ok"]


@pytest.mark.matrix_ends
@pytest.mark.parametrize("modules", ["warm", "in-process", "cold"])
def test_a_module_starts_itself_again_under_another_interpreter(project, modules):
    (project / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  environment: {TMPDIR: '{{ playbook_dir }}/tmp'}\n  tasks:\n"
        "    - again: {other: '{{ playbook_dir }}/python'}\n    - again: {other: '{{ playbook_dir }}/python'}\n"
    )
    result = forkless.run(playbook="play.yml", inventory="hosts", cwd=project, engine="threads", modules=modules)
    result.raise_for_failures()
    for said in results(result):
        assert (said["respawned"], said["name"]) == (True, "other")
        assert said["archive"].startswith(str(project / "tmp"))
    assert len(results(result)) == 2
    assert not list((project / "tmp").iterdir()), "the archive is removed when its module has ended"


AS_OTHERS = """
- hosts: all
  gather_facts: false
  become: true
  environment: {TMPDIR: '{{ playbook_dir }}/tmp', BASE: /usr/bin/python3}
  tasks:
    - again: {other: '{{ playbook_dir }}/python'}
    - again: {other: '{{ playbook_dir }}/python'}
      become_user: nobody
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user without a password, which only root may")
@pytest.mark.parametrize("modules", ["warm", "in-process", "cold"])
def test_a_module_starts_itself_again_for_the_user_whom_its_task_becomes(project, modules):
    (project / "play.yml").write_text(AS_OTHERS)
    result = forkless.run(
        playbook="play.yml", inventory="hosts", cwd=project, engine="threads", modules=modules,
        env={"ANSIBLE_PIPELINING": "1"}, extra_vars={"ansible_python_interpreter": "/usr/bin/python3"},
    )  # fmt: skip
    result.raise_for_failures()
    said = results(result)
    assert [(one["respawned"], one["name"]) for one in said] == [(True, "other")] * 2
    assert [one["user"] for one in said] == [0, pwd.getpwnam("nobody").pw_uid]
    assert not list((project / "tmp").iterdir()), "the archive is removed when its module has ended"


def has_apt():
    words = ["/usr/bin/python3", "-c", "import apt, apt_pkg"]
    return os.path.exists(words[0]) and subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="apt asks for root")
@pytest.mark.parametrize("modules", ["warm", "in-process"])
def test_the_real_apt_finds_the_interpreter_that_has_its_library(project, modules):
    if not has_apt():
        pytest.skip("python3-apt is not here; the module of this test's own does what apt does")
    # In check mode: without its library apt would try to install it.
    (project / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - apt: {name: dpkg}\n      check_mode: true\n"
    )
    result = forkless.run(playbook="play.yml", inventory="hosts", cwd=project, engine="threads", modules=modules)
    result.raise_for_failures()
    assert [said["changed"] for said in results(result)] == [False]
    assert "cache_updated" in results(result)[0], "it read apt's cache"


def plain(value):
    return re.sub(r"ansible_where_payload_\w+", "FOLDER", json.dumps(value, sort_keys=True))


@pytest.mark.matrix_ends
def test_what_a_module_finds_out_about_its_own_code_is_as_on_stock(project):
    (project / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  environment: {TMPDIR: '{{ playbook_dir }}/tmp'}\n  tasks:\n"
        "    - ping:\n    - where:\n      register: found\n"
        "    - copy: {content: '{{ found | to_json }}', dest: '{{ playbook_dir }}/{{ name }}.json'}\n"
    )
    found = {}
    stock = str(pathlib.Path(sys.executable).parent / "ansible-playbook")
    for name, command in (("stock", [stock]), ("ours", [sys.executable, "-m", "forkless", "playbook"])):
        env = {**os.environ, "PYTHONPATH": str(SOURCE), "ANSIBLE_PIPELINING": "1"}
        words = [*command, "-i", "hosts", "-e", f"name={name}", "play.yml"]
        done = subprocess.run(words, env=env, cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found[name] = json.loads((project / f"{name}.json").read_text())
    assert found["ours"]["exists"] and found["ours"]["first"]
    assert plain(found["ours"]) == plain(found["stock"])
    assert not list((project / "tmp").iterdir())


def test_no_archive_is_written_for_a_module_that_does_not_ask(project):
    (project / "library/plain.py").write_text(
        "#!/usr/bin/python\nimport os, sys\nfrom ansible.module_utils.basic import AnsibleModule\n"
        "AnsibleModule({}).exit_json(there=os.listdir(os.environ['TMPDIR']), before=len(sys.modules))\n"
    )
    (project / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  environment: {TMPDIR: '{{ playbook_dir }}/tmp'}\n  tasks:\n    - plain:\n"
    )
    result = forkless.run(playbook="play.yml", inventory="hosts", cwd=project, engine="threads")
    assert [said["there"] for said in results(result)] == [[]]
