# SPDX-License-Identifier: GPL-3.0-or-later
"""grpc in this process, with what cisco.iosxr has for it: each device has a channel, calls end when they must, and channels end with the play."""

from __future__ import annotations

import pathlib
import threading

import pytest

import forkless
from forkless.patching import seams
from network_support import results, wait_for

pytest.importorskip("grpc", reason="grpcio has no wheel for this Python yet")
pytestmark = [pytest.mark.interrupts]
if seams.minor(seams.version()) == "2.18":  # there every module of a network collection is a process of its own
    pytestmark.append(pytest.mark.spawns)

ASK = "- ansible.netcommon.grpc_get: {command: show hostname, display: text}\n"
# The answer to a command is a stream, which grpcio waits for in Python; the answer to a change is one message, waited for in C.
TASKS = {
    "stream": "- name: NAME\n  ansible.netcommon.grpc_get: {command: NAME, display: text}\n  ignore_errors: true\n",
    "one message": "- name: NAME\n  ansible.netcommon.grpc_config: {config: '{\"NAME\": 1}', state: merged}\n  ignore_errors: true\n",
}


@pytest.fixture(scope="module")
def devices(make_devices):
    one = {"os": "iosxr", "speaks": "grpc"}
    return make_devices(x1=one, x2=one)


@pytest.fixture
def project(on_devices, devices):
    return on_devices(devices)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    wait_for(lambda: not set(threading.enumerate()) - before)


def said(result):
    return {host: one.get("stdout", one) for host, one in results(result).items()}


def open_connections(port):
    """The number of TCP connections from this machine to the port that are established."""
    lines = [line.split() for line in pathlib.Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(remote == f"0100007F:{port:04X}" and state == "01" for _, _, remote, state, *_ in lines)


def test_each_device_answers_for_itself_on_one_channel(project, devices):
    before = {name: devices.count(name, "login") for name in ("x1", "x2")}
    result = project.run(ASK * 3, hosts="x1,x2")
    assert said(result) == {"x1": "Hostname: x1", "x2": "Hostname: x2"}, result.stdout
    assert {name: devices.count(name, "login") - count for name, count in before.items()} == {"x1": 1, "x2": 1}


def test_a_channel_ends_with_its_run(project, devices):
    """netcommon's plugin fails to close its channel, so a reset and the end of a play have no effect, with stock neither."""
    before = devices.count("x1", "login")
    spec = project.spec(ASK + "- meta: reset_connection\n" + ASK, hosts="x1")
    play = pathlib.Path(spec["playbook"])
    play.write_text(play.read_text() + pathlib.Path(project.write(ASK, hosts="x1", name="second.yml")).read_text())
    result = forkless.run(engine="threads", **spec)
    assert said(result) == {"x1": "Hostname: x1"}, result.stdout
    assert devices.count("x1", "login") == before + 1
    assert open_connections(devices.ports["x1"]) == 0


def test_a_line_is_configured_on_each_device(project, devices):
    result = project.run(TASKS["one message"].replace("NAME", "banner"), hosts="x1,x2")
    assert result.stats["changed"] == {"x1": 1, "x2": 1}, result.stdout
    assert all('{"banner": 1}' in devices.commands(name) for name in ("x1", "x2"))


def test_two_users_of_one_device_share_no_connection(project, devices):
    """grpcio would let all channels of a process to one address share it, and a device may keep what it knows of a user by connection."""
    before = devices.count("x1", "login")
    project.hosts({"x2": {"ansible_port": devices.ports["x1"], "ansible_user": "other"}})
    result = project.run(ASK, hosts="x1,x2")
    assert said(result)["x1"] == "Hostname: x1", result.stdout
    assert "these credentials are not known here" in results(result)["x2"]["msg"], result.stdout
    assert devices.count("x1", "login") == before + 2


def test_errors_of_a_device_fail_the_task_with_its_words(project):
    project.hosts({"x2": {"ansible_password": "wrong"}})
    result = project.run(TASKS["stream"].replace("NAME", "show wrong"), hosts="x1,x2")
    found = {host: one["msg"] for host, one in results(result).items()}
    assert "invalid input detected" in found["x1"], result.stdout
    assert "these credentials are not known here" in found["x2"], result.stdout


@pytest.mark.parametrize("kind", TASKS)
def test_a_call_that_takes_too_long_fails_with_netcommons_words(project, devices, kind):
    """The plugin has told grpcio another limit, that of the task that opened the channel. The channel goes on with the next task."""
    before, ended = devices.count("x1", "login"), devices.count("x1", "cancelled")
    project.hosts({"x1": {"ansible_command_timeout": 600}})
    hang = TASKS[kind].replace("NAME", "hang") + "  vars: {ansible_command_timeout: 1}\n"
    result = project.run(ASK + hang + ASK, hosts="x1")
    assert "command timeout triggered, timeout value is 1 secs." in results(result, "hang")["x1"]["msg"], result.stdout
    assert said(result) == {"x1": "Hostname: x1"}, result.stdout
    assert devices.count("x1", "login") == before + 1
    wait_for(lambda: devices.count("x1", "cancelled") == ended + 1)


def test_two_runs_use_their_own_password_for_one_device(project):
    project.hosts({"all": {"ansible_password": "wrong"}})
    (project.folder / "wrong.ini").write_text((project.folder / "hosts.ini").read_text())
    project.hosts({})
    right = project.spec(ASK * 3, hosts="x1", name="right.yml")
    wrong = project.spec(ASK * 3, hosts="x1", name="wrong.yml", inventory=str(project.folder / "wrong.ini"))
    runs = [forkless.start(engine="threads", **one) for one in (right, wrong, right)]
    first, second, third = [run.wait() for run in runs]
    assert (first.rc, third.rc) == (0, 0), first.stdout + third.stdout
    assert "these credentials are not known here" in second.stdout


@pytest.mark.parametrize("kind", TASKS)
def test_cancelling_ends_a_call_that_is_not_answered(project, devices, kind):
    project.hosts({"all": {"ansible_command_timeout": 600, "ansible_connect_timeout": 600}})
    seen, ended = len(devices.commands("x1")), devices.count("x1", "cancelled")
    run = project.start(TASKS[kind].replace("NAME", "hang"), hosts="x1")
    wait_for(lambda: any("hang" in one for one in devices.commands("x1")[seen:]))
    run.cancel()
    assert run.wait(60).status == forkless.Status.CANCELED
    wait_for(lambda: devices.count("x1", "cancelled") == ended + 1)
