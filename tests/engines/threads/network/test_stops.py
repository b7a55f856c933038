# SPDX-License-Identifier: GPL-3.0-or-later
"""
Devices that keep a connection waiting before a word is said, end it, or reboot: a run ends at once when it is stopped, a task fails
with a reason, and no thread of a device is left.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import pytest

import forkless
from forkless.patching import seams
from network_support import SOON, results, wait_for

pytestmark = [pytest.mark.interrupts]
if seams.minor(seams.version()) == "2.18":  # there every module of a network collection is a process of its own
    pytestmark.append(pytest.mark.spawns)

# "auto" is forkless's own asyncssh.
KINDS = ("auto", "paramiko", "libssh", "httpapi", "netconf", "grpc")
SPECS = {
    "auto": {},
    "paramiko": {},
    "libssh": {},
    "httpapi": {"os": "eos", "speaks": "http"},
    "netconf": {"os": "netconf"},
    "grpc": {"os": "iosxr", "speaks": "grpc"},
}
FATES = ("silent", "reset", "close")
# The task for each kind of device, and the hosts that run it.
TASKS = {
    "ssh": ("- cisco.ios.ios_command: {commands: [COMMAND]}\n", "ansible_network_os == 'cisco.ios.ios'"),
    "http": ("- arista.eos.eos_command: {commands: [COMMAND]}\n", "ansible_network_os == 'arista.eos.eos'"),
    "netconf": ("- ansible.netcommon.netconf_rpc: {rpc: COMMAND}\n", "ansible_network_os == 'default'"),
    "grpc": (
        "- ansible.netcommon.grpc_get: {command: COMMAND, display: text}\n",
        "ansible_network_os == 'lab.devices.iosxr'",
    ),
}
LONG = {"ansible_command_timeout": 600, "ansible_connect_timeout": 600, "ansible_timeout": 600}


def ask(command="get", *, more=""):
    """The same request to each kind of device."""
    return "".join(
        task.replace("COMMAND", command if command != "get" or kind == "netconf" else "show hostname")
        + f"  when: {when}\n{more}"
        for kind, (task, when) in TASKS.items()
    )


@pytest.fixture(scope="module")
def devices(make_devices):
    made = {f"{fate}_{kind}": {**SPECS[kind], "accept": fate} for fate in FATES for kind in KINDS}
    return make_devices(**made, **{f"{fate}_{kind}": SPECS[kind] for fate in ("up", "reboot") for kind in KINDS})


@pytest.fixture
def project(on_devices, devices):
    return on_devices(devices)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    wait_for(lambda: not [one for one in threading.enumerate() if one not in before and _of_a_device(one)])


def _of_a_device(thread):
    return thread.name.startswith("forkless-device") or type(thread).__module__.startswith(("ncclient", "paramiko"))


def hosts(project, variables):
    """The inventory, with more variables for the devices that do not work."""
    own = {}
    for name in project.devices.ports:
        fate, _, kind = name.partition("_")
        own[name] = LONG if fate == "up" else variables
        if kind in ("auto", "paramiko", "libssh"):
            own[name] = {**own[name], "ansible_network_cli_ssh_type": kind}
    project.hosts(own)


def blocked(devices, names, before):
    return all(devices.count(name, "connected") > before[name] for name in names)


def wait_until_closed(devices, names):
    """Wait until the devices have seen the end of each connection; a failure names those that have not."""

    def still_open():
        return [name for name in names if devices.count(name, "closed") != devices.count(name, "connected")]

    wait_for(lambda: not still_open(), said=lambda: f"still connected: {still_open()}")


# libssh holds the interpreter's lock while it connects: nothing of this process can end that wait but its own time-out.
WAITING = [f"silent_{kind}" for kind in KINDS if kind != "libssh"]


def test_cancelling_ends_a_connection_that_is_not_answered(project, devices):
    hosts(project, LONG)
    before = {name: devices.count(name, "connected") for name in WAITING}
    run = project.start(ask(), hosts=",".join(WAITING), head="strategy: free")
    wait_for(lambda: blocked(devices, WAITING, before))
    run.cancel()
    assert run.wait(SOON).status == forkless.Status.CANCELED
    wait_until_closed(devices, WAITING)


def test_the_time_limit_of_a_task_ends_a_connection_that_is_not_answered(project, devices):
    hosts(project, LONG)
    result = project.run(
        ask(more="  timeout: 3\n  ignore_errors: true\n"), hosts=",".join(WAITING), head="strategy: free"
    )
    found = {host: one["msg"] for host, one in results(result).items() if not one.get("skipped")}
    assert set(found) == set(WAITING), result.stdout
    said = "expected time frame (3)" if seams.minor(seams.version()) == "2.18" else "Timed out after 3 second(s)"
    assert all(said in one for one in found.values()), result.stdout
    wait_until_closed(devices, WAITING)


@pytest.mark.spawns
def test_ctrl_c_ends_a_connection_that_is_not_answered(project, devices):
    hosts(project, LONG)
    before = {name: devices.count(name, "connected") for name in WAITING}
    play = project.write(ask(), hosts=",".join(WAITING), head="strategy: free")
    program = pathlib.Path(sys.executable).parent / "forkless"
    started = subprocess.Popen(
        [program, "playbook", "-i", str(project.folder / "hosts.ini"), play],
        cwd=project.folder, env={**os.environ, **project.env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_for(lambda: blocked(devices, WAITING, before))
        started.send_signal(signal.SIGINT)
        output, _ = started.communicate(timeout=SOON)
    finally:
        started.kill()
        started.wait()
    assert started.returncode == 99, output
    assert "User interrupted execution" in output
    wait_until_closed(devices, WAITING)


@pytest.mark.parametrize("fate", FATES)
def test_a_device_that_ends_the_connection_fails_its_task_alone(project, fate):
    hosts(project, {"ansible_network_cli_retries": 0, "ansible_timeout": 1, "ansible_command_timeout": 2})
    names = [f"{fate}_{kind}" for kind in KINDS]
    well = [f"up_{kind}" for kind in KINDS]
    result = project.run(ask(), hosts=",".join([*names, *well]), head="strategy: free")
    failed = {**result.stats.get("failures", {}), **result.stats.get("dark", {})}
    assert set(failed) == set(names), result.stdout
    assert {host for host, count in result.stats["ok"].items() if count} == set(well), result.stdout


def test_a_device_that_reboots_in_a_command_is_lost_to_the_next_task(project, devices):
    """In each kind of connection: the task with the command ends, and the next one says that there is no device."""
    hosts(project, {"ansible_network_cli_retries": 0})
    names = [f"reboot_{kind}" for kind in KINDS]
    on = "  ignore_errors: true\n  ignore_unreachable: true\n"
    tasks = ask("reboot", more=on) + "- meta: reset_connection\n" + ask(more=on)
    result = project.run(tasks, hosts=",".join(names))
    assert {one["device"] for one in devices.events(event="rebooted")} == set(names), result.stdout
    # The whole result: where modules are processes, the reason is in their output.
    found = {host: str(one) for host, one in results(result).items() if not one.get("skipped")}
    assert set(found) == set(names), result.stdout
    # In the words of urllib, libssh and grpcio, of paramiko, of ncclient, and of forkless.
    words = "refused|Unable to connect|not open socket|Not connected to NETCONF|cannot be reached"
    assert not {host: one for host, one in found.items() if not re.search(words, one)}
