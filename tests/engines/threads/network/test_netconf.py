# SPDX-License-Identifier: GPL-3.0-or-later
"""netconf in this process: ncclient's sessions and their threads belong to the device and end with the play."""

from __future__ import annotations

import re
import threading

import pytest

import forkless
from forkless.engines.threads.network.device_worker import DeviceWorker
from forkless.engines.threads.workers.interrupt import WorkerStopped
from forkless.patching import seams
from network_support import results, wait_for

pytestmark = [pytest.mark.interrupts]
if seams.minor(seams.version()) == "2.18":  # there every module of a network collection is a process of its own
    pytestmark.append(pytest.mark.spawns)

PARAMIKO = "paramiko.transport"
ASK = "- ansible.netcommon.netconf_get: {source: running}\n"
RPC = "- name: NAME\n  ansible.netcommon.netconf_rpc: {rpc: NAME}\n  ignore_errors: true\n"


@pytest.fixture(scope="module")
def devices(make_devices):
    return make_devices(n1={"os": "netconf"}, n2={"os": "netconf"}, slow={"os": "netconf", "login_delay": 300})


@pytest.fixture
def project(on_devices, devices):
    return on_devices(devices)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    wait_for(lambda: not [one for one in threading.enumerate() if one not in before and _of_a_session(one)])


def _of_a_session(thread):
    return thread.name.startswith("forkless-device") or type(thread).__module__.startswith(("ncclient", "paramiko"))


def said(result):
    return {host: re.findall("<hostname>(.*)</hostname>", one["stdout"]) for host, one in results(result).items()}


def test_each_device_answers_for_itself_with_one_login(project, devices):
    before = {name: devices.count(name, "login") for name in ("n1", "n2")}
    result = project.run(ASK * 3, hosts="n1,n2")
    assert said(result) == {"n1": ["n1"], "n2": ["n2"]}, result.stdout
    assert {name: devices.count(name, "login") - count for name, count in before.items()} == {"n1": 1, "n2": 1}
    wait_for(lambda: devices.open_sessions() == 0)


def test_messages_to_a_device_are_not_written_into_the_programs_log(project, caplog):
    """netcommon's plugin sets the level of ncclient's logger to INFO, for the helper process that it expects to be in."""
    assert project.run(ASK, hosts="n1").rc == 0
    assert not [one.name for one in caplog.records if one.name.startswith("ncclient")]


def test_a_reset_ends_the_session(project, devices):
    before = devices.count("n1", "login")
    result = project.run(ASK + "- meta: reset_connection\n" + ASK, hosts="n1")
    assert result.rc == 0, result.stdout
    assert devices.count("n1", "login") == before + 2


def test_an_error_of_the_device_and_a_lost_session_fail_the_task(project):
    result = project.run(RPC.replace("NAME", "wrong") + RPC.replace("NAME", "drop"), hosts="n1")
    assert result.rc == 0, result.stdout
    assert "not known here" in results(result, "wrong")["n1"]["msg"], result.stdout
    assert "Unexpected session close" in results(result, "drop")["n1"]["msg"], result.stdout


def test_a_request_that_takes_too_long_fails_with_netcommons_words(project):
    """ncclient's time-out is as long as the command's; the command's comes first."""
    result = project.run(RPC.replace("NAME", "hang") + "  vars: {ansible_command_timeout: 1}\n", hosts="n1")
    assert "command timeout triggered, timeout value is 1 secs." in results(result)["n1"]["msg"], result.stdout


def test_two_runs_use_their_own_password_for_one_device(project):
    right = project.spec(ASK * 3, hosts="n1", name="right.yml")
    project.hosts({"all": {"ansible_password": "wrong"}})
    (project.folder / "wrong.ini").write_text((project.folder / "hosts.ini").read_text())
    project.hosts({})
    wrong = project.spec(ASK * 3, hosts="n1", name="wrong.yml", inventory=str(project.folder / "wrong.ini"))
    runs = [forkless.start(engine="threads", **one) for one in (right, wrong, right)]
    first, second, third = [run.wait() for run in runs]
    assert (first.rc, third.rc) == (0, 0), first.stdout + third.stdout
    assert second.rc != 0, second.stdout
    assert "uthentication" in second.stdout


def test_a_session_is_closed_though_its_closing_is_interrupted(project, devices, monkeypatch):
    """A stop is repeated after a while, and may arrive while the thread closes what the first one has ended."""

    def interrupted(_self):
        raise WorkerStopped

    monkeypatch.setattr(DeviceWorker, "_shut_down", interrupted)
    before = set(threading.enumerate())
    project.hosts({"all": {"ansible_connect_timeout": 600}})
    run = project.start(ASK, hosts="slow")
    wait_for(lambda: [one for one in threading.enumerate() if one not in before and type(one).__module__ == PARAMIKO])
    run.cancel()
    assert run.wait().status == forkless.Status.CANCELED


@pytest.mark.parametrize("where", ["login", "command"])
def test_cancelling_ends_what_a_device_keeps_waiting(project, devices, where):
    project.hosts({"all": {"ansible_command_timeout": 600, "ansible_connect_timeout": 600}})
    host, event = ("n1", "command") if where == "command" else ("slow", "connected")
    seen = devices.count(host, event)
    run = project.start(RPC.replace("NAME", "hang") if where == "command" else ASK, hosts=host)
    if where == "command":
        wait_for(lambda: "hang" in devices.commands(host)[seen:])
    else:
        wait_for(lambda: devices.count(host, event) > seen)
    run.cancel()
    assert run.wait().status == forkless.Status.CANCELED
