# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that are processes of their own reach the device of the run at a socket, and Ansible's own way stays open."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from types import SimpleNamespace

import pytest

import prepare_collections
from forkless.engines.threads.network.device_socket import DeviceSocket
from network_support import SOON, processes, results, wait_for

pytestmark = [pytest.mark.spawns, pytest.mark.interrupts]

ASK = "- cisco.ios.ios_command: {commands: [show hostname]}\n"


@pytest.fixture(scope="module")
def devices(make_devices):
    return make_devices(r1={}, r2={})


@pytest.fixture
def project(on_devices, devices):
    made = on_devices(devices)
    made.hosts({"all": {"ansible_network_cli_ssh_type": "libssh"}})
    return made


def helpers(project):
    """The helper processes that ansible-core started for this project's connections."""
    return processes(project, "ansible_connection_cli_stub")


def test_a_module_in_a_process_and_one_in_the_worker_use_one_login(project, devices, tmp_path):
    before = {name: devices.count(name, "login") for name in ("r1", "r2")}
    sockets = tmp_path / "pc"
    result = project.run(
        ASK + "  vars: {ansible_network_import_modules: false}\n" + ASK + ASK + "  async: 60\n  poll: 1\n",
        env={"ANSIBLE_PERSISTENT_CONTROL_PATH_DIR": str(sockets)},
    )
    assert {host: one.get("stdout") for host, one in results(result).items()} == {
        "r1": ["Hostname: r1"], "r2": ["Hostname: r2"]
    }, result.stdout  # fmt: skip
    assert {name: devices.count(name, "login") - count for name, count in before.items()} == {"r1": 1, "r2": 1}
    assert list(sockets.iterdir()) == []


def test_a_module_that_was_ended_leaves_no_answer_to_the_next(project, devices):
    """The device's thread would go on with the command of a process that is gone, for `persistent_command_timeout` seconds."""
    project.hosts({"all": {"ansible_network_cli_ssh_type": "libssh", "ansible_command_timeout": 600}})
    process = "  vars: {ansible_network_import_modules: false}\n  ignore_errors: true\n"
    seen = len(devices.commands("r1"))
    run = project.start(ASK.replace("show hostname", "hang") + process + ASK, hosts="r1")
    wait_for(lambda: "hang" in devices.commands("r1")[seen:])
    for pid in processes(project, "AnsiballZ_ios_command"):
        os.kill(pid, signal.SIGKILL)
    result = run.wait(SOON)
    assert {host: one.get("stdout") for host, one in results(result).items()} == {"r1": ["Hostname: r1"]}, result.stdout


def test_a_socket_that_cannot_be_made_is_named(project, tmp_path):
    result = project.run(
        ASK + "  vars: {ansible_network_import_modules: false}\n",
        env={"ANSIBLE_PERSISTENT_CONTROL_PATH_DIR": str(tmp_path / ("long" * 40))},
    )
    assert result.rc == 2
    assert "could not be made: AF_UNIX path too long" in results(result)["r1"]["msg"]


def asked(path):
    """What a module in a process of its own is told at that path."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall((2).to_bytes(8, "big") + b"{}")
        size = int.from_bytes(client.recv(8, socket.MSG_WAITALL), "big")
        return client.recv(size, socket.MSG_WAITALL).decode()


def device(path, answer):
    """What a socket needs of a device, which answers at once."""
    answers = {"handle": lambda _data: answer, "ask": lambda work, _wanted: SimpleNamespace(answer=work())}
    return SimpleNamespace(name="device", socket_path=str(path), **answers)


def test_a_module_that_was_stopped_before_it_read_its_answer_does_not_keep_the_device_open(tmp_path):
    path = tmp_path / "pc" / "path"
    made = DeviceSocket(device(path, "long" * 1_000_000))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall((2).to_bytes(8, "big") + b"{}")
        client.recv(1)  # it has begun to answer
        closing = threading.Thread(target=made.close, daemon=True)
        closing.start()
        closing.join(SOON)
        assert not closing.is_alive()


@pytest.mark.parametrize("first_to_close", [0, 1])
def test_the_next_connection_to_a_device_takes_its_path_over_before_the_first_is_closed(tmp_path, first_to_close):
    """A task that has timed out ends its connection, whose thread may get to that after the next task has begun."""
    path = tmp_path / "pc" / "path"
    both = [DeviceSocket(device(path, "first"))]
    assert asked(path) == "first"
    both.append(DeviceSocket(device(path, "second")))
    assert asked(path) == "second"
    both[first_to_close].close()
    assert os.listdir(tmp_path / "pc") == (["path"] if first_to_close == 0 else [])
    if first_to_close == 0:
        assert asked(path) == "second"
    both[1 - first_to_close].close()
    assert os.listdir(tmp_path / "pc") == []


def test_the_switch_gives_ansibles_helper_back(project, devices):
    run = project.start(ASK, hosts="r1", env={"FORKLESS_DISABLE": "network-connections"})
    wait_for(lambda: helpers(project))
    result = run.wait()
    assert result.rc == 0, result.stdout
    wait_for(lambda: not helpers(project))


def test_an_unknown_netcommon_gets_ansibles_helper_and_a_warning(project, tmp_path):
    copied = tmp_path / "collections" / "ansible_collections"
    for name in ("ansible/netcommon", "ansible/utils", "cisco/ios"):
        shutil.copytree(prepare_collections.FOLDER / "ansible_collections" / name, copied / name)
    plugin = copied / "ansible/netcommon/plugins/connection/network_cli.py"
    text = plugin.read_text()
    assert text.count("def set_check_prompt(self, task_uuid):\n") == 1
    plugin.write_text(
        text.replace(
            "def set_check_prompt(self, task_uuid):\n", "def set_check_prompt(self, task_uuid):\n        pass\n"
        )
    )
    result = project.run(ASK, hosts="r1", env={"ANSIBLE_COLLECTIONS_PATH": str(copied.parent)})
    assert result.rc == 0, result.stdout
    warning = " ".join(result.stdout.split())
    assert "is not known to this forkless (connection/network_cli.py: set_check_prompt)" in warning, result.stdout
    wait_for(lambda: not helpers(project))
