# SPDX-License-Identifier: GPL-3.0-or-later
"""network_cli with `ssh_type: auto` over forkless's own SSH connections: which client logs in, jumps, old algorithms, host keys, files."""

from __future__ import annotations

import pathlib
import sys

import pytest

import network_support
from forkless.patching import seams
from network_support import results, wait_for

pytestmark = [pytest.mark.interrupts]
OLD_CORE = seams.minor(seams.version()) == "2.18"
if OLD_CORE:  # there every module of a network collection is a process of its own
    pytestmark.append(pytest.mark.spawns)

ASK = "- cisco.ios.ios_command: {commands: [show hostname]}\n"
GROUP_1 = "diffie-hellman-group1-sha1"


@pytest.fixture(scope="module")
def devices(make_devices):
    return make_devices(
        r1={},
        r2={},
        jump={"asks": False},
        old={"algorithms": {"encryption_algs": ["aes128-cbc"], "mac_algs": ["hmac-sha1"]}},
        ancient={"algorithms": {"kex_algs": [GROUP_1]}},
    )


@pytest.fixture
def project(on_devices, devices):
    return on_devices(devices)


def client(devices, name):
    return devices.events(name, "login")[-1]["client"].lower()


def said(result):
    return {host: one.get("stdout") for host, one in results(result).items()}


@pytest.mark.parametrize("ssh_type", ["auto", "libssh", "paramiko"])
def test_auto_is_asyncssh_and_others_stay_what_they_are(project, devices, ssh_type):
    project.hosts({"all": {"ansible_network_cli_ssh_type": ssh_type}})
    result = project.run(ASK * 2, hosts="r1,r2")
    assert said(result) == {"r1": ["Hostname: r1"], "r2": ["Hostname: r2"]}, result.stdout
    assert ("asyncssh" if ssh_type == "auto" else ssh_type) in client(devices, "r1")
    wait_for(lambda: devices.open_sessions() == 0)


def test_the_switch_gives_netcommons_choice_back(project, devices):
    result = project.run(ASK, hosts="r1", env={"FORKLESS_DISABLE": "network-asyncssh"})
    assert said(result) == {"r1": ["Hostname: r1"]}, result.stdout
    assert "libssh" in client(devices, "r1")


def test_a_device_behind_a_jump_is_reached_without_a_program(project, devices):
    way = "ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -W %h:%p -p {} any@127.0.0.1"
    command = way.format(devices.ports["jump"])
    project.hosts({"r1": {"ansible_ssh_common_args": f'-o ProxyCommand="{command}"'}})
    result = project.run(ASK, hosts="r1")
    assert said(result) == {"r1": ["Hostname: r1"]}, result.stdout
    assert [one["to"] for one in devices.events("jump", "jump")] == [devices.ports["r1"]]


# cryptography warns of what is asked for here.
@pytest.mark.filterwarnings("ignore:Diffie-Hellman over finite fields")
def test_a_device_with_old_ciphers_is_reached_and_older_key_exchanges_on_request(project):
    result = project.run(ASK, hosts="old,ancient")
    assert said(result)["old"] == ["Hostname: old"], result.stdout
    # What the device offers, unless it has ended the connection before asyncssh looks at its offer.
    why = results(result)["ancient"]["msg"]
    assert GROUP_1 in why or "only older algorithms, name them: KexAlgorithms" in why, result.stdout
    by_name = {"ansible_libssh_key_exchange_algorithms": GROUP_1}
    if OLD_CORE:  # its netcommon has no such variable
        by_name = {"ansible_ssh_common_args": f"-o KexAlgorithms={GROUP_1}"}
    project.hosts({"ancient": by_name})
    result = project.run(ASK, hosts="ancient")
    assert said(result) == {"ancient": ["Hostname: ancient"]}, result.stdout


def test_an_unknown_host_key_is_refused_before_the_password_is_sent(project, devices):
    # Not the user's own file: paramiko writes down there what it is not to check, which another test may have let it do.
    unknown = f"-o UserKnownHostsFile={project.folder}/known_hosts"
    project.hosts({"r1": {"ansible_host_key_checking": True, "ansible_ssh_common_args": unknown}})
    before = devices.count("r1", "login")
    result = project.run(ASK, hosts="r1")
    assert "is not known" in results(result)["r1"]["msg"], result.stdout
    assert devices.count("r1", "login") == before


@pytest.mark.parametrize("protocol", ["sftp", "scp"])
def test_files_are_put_on_the_device_and_fetched(project, tmp_path, protocol):
    (project.folder / "sent.cfg").write_text("hostname {{ not_a_template }}\n")
    there, back = tmp_path / "there.cfg", tmp_path / "back.cfg"
    tasks = (
        f"- ansible.netcommon.net_put: {{src: sent.cfg, dest: {there}, protocol: {protocol}}}\n"
        f"- ansible.netcommon.net_get: {{src: {there}, dest: {back}, protocol: {protocol}}}\n"
    )
    result = project.run(tasks, hosts="r1")
    assert result.rc == 0, result.stdout
    assert back.read_text() == "hostname {{ not_a_template }}\n"


@pytest.mark.skipif(OLD_CORE, reason="there every module of a network collection is a process of its own")
@pytest.mark.skipif(sys.platform != "linux", reason="the seal is a filter of the Linux kernel")
@pytest.mark.spawns
def test_devices_are_configured_where_nothing_may_be_started(project, devices):
    play = project.write("- cisco.ios.ios_config: {lines: [ip domain-name sealed.example]}\n" + ASK, hosts="r1,r2")
    seal = pathlib.Path(network_support.TESTS) / "sealing.py"
    done = project.command(
        sys.executable, str(seal), "-m", "forkless", "playbook", "-i", str(project.folder / "hosts.ini"), play
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "asyncssh" in client(devices, "r1")
    assert all("ip domain-name sealed.example" in devices.commands(name) for name in ("r1", "r2"))
