# SPDX-License-Identifier: GPL-3.0-or-later
"""netconf against a server that is not ours, the package `netconf` of PyPI: edit-config, locks, a wrong password, and stock's words."""

from __future__ import annotations

import fcntl
import os
import pathlib
import re
import subprocess
import sys

import pytest

from network_support import TESTS, NetworkProject, results

pytestmark = [
    pytest.mark.interrupts,
    pytest.mark.spawns,
    pytest.mark.skipif("FORKLESS_NETWORK" not in os.environ, reason="make network runs it: it installs a server"),
]

VENV = TESTS.parent / ".nox" / "network" / "netconf"
RENAME = """\
- name: rename
  ansible.netcommon.netconf_config:
    content: <config><system xmlns="urn:example:system"><hostname>NAME</hostname></system></config>
"""
READ = "- name: read\n  ansible.netcommon.netconf_get:\n"
HOLD = """\
- ansible.netcommon.netconf_rpc:
    rpc: lock
    content: <target xmlns="urn:ietf:params:xml:ns:netconf:base:1.0"><running/></target>
  when: inventory_hostname == 'n1'
"""
RELEASE = HOLD.replace("rpc: lock", "rpc: unlock")
GO_ON = "  ignore_errors: true\n"


class NetconfServer:
    """The server as the devices n1 and n2: one user of it each, so that each has a session of its own."""

    specs = {"n1": {"os": "netconf"}, "n2": {"os": "netconf"}}  # noqa: RUF012  # not changed

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir()
        self._process = subprocess.Popen(
            [str(VENV / "bin" / "python"), str(TESTS / "netconf_server.py"), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.ports = dict.fromkeys(self.specs, int(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(240)


@pytest.fixture(scope="module", autouse=True)
def installed():
    VENV.parent.mkdir(parents=True, exist_ok=True)
    with open(VENV.parent / "netconf.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest may run the tests of this file in several processes
        if not (VENV / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
            # paramiko 4 has no DSS keys, which sshutil imports.
            subprocess.run([str(VENV / "bin/pip"), "install", "-q", "netconf==2.1.0", "paramiko<4"], check=True)
            (VENV / "ready").touch()


@pytest.fixture
def make_project(tmp_path):
    made = []

    def make(name):
        made.append(NetconfServer(tmp_path / f"server-{name}"))
        project = NetworkProject(tmp_path / name, made[-1])
        project.hosts({"n2": {"ansible_user": "other"}})
        return project

    yield make
    for one in made:
        one.close()


def said(result, task):
    found = {host: one["stdout"] for host, one in results(result, task).items()}
    return {host: tuple(re.findall("<(hostname|locked)>(.*?)</", text)) for host, text in found.items()}


def test_a_configuration_is_edited_under_a_lock_and_the_second_time_nothing_changes(make_project):
    result = make_project("edit").run(RENAME.replace("NAME", "new") * 2 + READ, hosts="n1")
    assert result.rc == 0, result.stdout
    assert result.stats["changed"] == {"n1": 1}, result.stdout
    assert said(result, "read") == {"n1": (("hostname", "new"), ("locked", "2"))}


def test_what_one_session_has_locked_another_cannot_edit_until_it_is_released(make_project):
    project = make_project("lock")
    edit = RENAME.replace("NAME", "taken") + "  when: inventory_hostname == 'n2'\n"
    refused = project.run(HOLD + edit + GO_ON + RELEASE + edit.replace("rename", "again"))
    assert refused.rc == 0, refused.stdout
    assert "denied" in results(refused, "rename")["n2"]["msg"], refused.stdout
    assert results(refused, "again")["n2"]["changed"], refused.stdout


def test_a_wrong_password_is_refused(make_project):
    project = make_project("password")
    project.hosts({"all": {"ansible_password": "wrong"}})
    result = project.run(READ, hosts="n1")
    assert result.rc != 0, result.stdout
    assert "uthentication" in result.stdout


def test_stock_and_forkless_print_the_same(make_project):
    printed = {}
    wrong = "- ansible.netcommon.netconf_rpc: {rpc: no-such-rpc}\n" + GO_ON
    tasks = RENAME.replace("NAME", "new") + HOLD + READ + wrong + RENAME.replace("NAME", "other") + GO_ON
    for name, words in {"stock": ["ansible-playbook"], "forkless": ["forkless", "playbook"]}.items():
        project = make_project(name)
        program = pathlib.Path(sys.executable).parent / words[0]
        play = project.write(tasks + "- debug: var=ansible_play_hosts\n", head="throttle: 1\n")
        done = project.command(str(program), *words[1:], "-i", str(project.folder / "hosts.ini"), "--diff", play)
        printed[name] = re.sub(f"{re.escape(str(project.folder))}|urn:uuid:[-0-9a-f]*", "", done.stdout + done.stderr)
    assert "lock" in printed["stock"]
    assert printed["forkless"] == printed["stock"]
