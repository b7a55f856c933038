# SPDX-License-Identifier: GPL-3.0-or-later
"""Ten routers of FRR behind one sshd: real software that is configured, by every transport, and hung."""

from __future__ import annotations

import os
import signal

import pytest

import forkless
import frr_routers
from network_support import ENVIRONMENT, results

pytestmark = [
    pytest.mark.interrupts,
    pytest.mark.spawns,
    pytest.mark.skipif("FORKLESS_NETWORK" not in os.environ, reason="make network runs it: it takes minutes"),
    pytest.mark.skipif(not frr_routers.there(), reason=frr_routers.MISSING),
]

CONFIGURE = """\
- hosts: all
  gather_facts: false
  tasks:
    - name: configure
      cisco.ios.ios_config:
        parents: router bgp 65001
        lines: ["neighbor 192.0.2.1 description to {{ inventory_hostname }}"]
    - name: again
      cisco.ios.ios_config:
        parents: router bgp 65001
        lines: ["neighbor 192.0.2.1 description to {{ inventory_hostname }}"]
    - name: read
      cisco.ios.ios_command: {commands: [show running-config]}
"""
HANG = """\
- hosts: rtr1,rtr2
  gather_facts: false
  tasks:
    - name: read
      cisco.ios.ios_command: {commands: [show bgp summary]}
      vars: {ansible_command_timeout: "{{ 5 if inventory_hostname == 'rtr1' else 300 }}"}
      ignore_errors: true
"""
# libssh holds the interpreter's lock while it logs in, so the last of ten routers waits for nine others, on a busy machine more than 30 s.
PATIENT = {"ansible_command_timeout": 300, "ansible_connect_timeout": 300, "ansible_timeout": 300}


@pytest.fixture(scope="module")
def routers(tmp_path_factory):
    made = frr_routers.Routers(tmp_path_factory.mktemp("frr") / "routers", 10)
    yield made
    made.close()


def run(routers, tmp_path, play, **variables):
    path = tmp_path / "play.yml"
    path.write_text(play)
    return forkless.run(
        path,
        engine="threads",
        inventory=routers.inventory(**PATIENT, **variables),
        cwd=tmp_path,
        forks=20,
        env=ENVIRONMENT,
    )


@pytest.mark.parametrize("ssh_type", ["auto", "paramiko", "libssh"])
def test_each_router_is_configured_once_and_says_so_itself(routers, tmp_path, ssh_type):
    undo = CONFIGURE.replace('lines: ["neighbor', 'lines: ["no neighbor').split("    - name: again")[0]
    result = run(routers, tmp_path, CONFIGURE, ansible_network_cli_ssh_type=ssh_type)
    assert result.rc == 0, result.stdout
    for name, one in results(result, "read").items():
        assert f"neighbor 192.0.2.1 description to {name}" in one["stdout"][0], result.stdout
    assert result.stats["changed"] == dict.fromkeys(routers.addresses, 1), result.stdout
    assert run(routers, tmp_path, undo, ansible_network_cli_ssh_type=ssh_type).rc == 0


def test_a_router_that_hangs_does_not_keep_another_waiting(routers, tmp_path):
    hung = routers.processes["rtr1"]
    hung.send_signal(signal.SIGSTOP)
    try:
        result = run(routers, tmp_path, HANG)
    finally:
        hung.send_signal(signal.SIGCONT)
    found = results(result, "read")
    assert "command timeout triggered, timeout value is 5 secs." in found["rtr1"]["msg"], result.stdout
    assert "stdout" in found["rtr2"], result.stdout
