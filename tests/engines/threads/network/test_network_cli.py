# SPDX-License-Identifier: GPL-3.0-or-later
"""
network_cli in this process: each device answers for itself, connections last a play, and nothing is started.

From 2.19 on no test here has the mark `spawns`: the fork guard sees that a run on devices starts no process.
"""

from __future__ import annotations

import json
import pathlib
import threading
import time

import pytest

import forkless
from forkless.engines.threads.network import device_connections, device_worker
from forkless.patching import seams
from forkless.ssh import pool
from network_support import results, wait_for

pytestmark = [pytest.mark.interrupts]
if seams.minor(seams.version()) == "2.18":  # there every module of a network collection is a process of its own
    pytestmark.append(pytest.mark.spawns)

ASK = "- {collection}_command: {{commands: [show hostname]}}\n"
IOS = ASK.format(collection="cisco.ios.ios")
TYPES = ("auto", "paramiko", "libssh")


@pytest.fixture(scope="module")
def devices(make_devices):
    return make_devices(
        r1={}, r2={}, c1={}, c2={}, idle={}, e1={"os": "eos"}, e2={"os": "eos"}, locked={"secret": "s3cret"}, slow={"login_delay": 300},
        lagging={"lag": 0.3},
    )  # fmt: skip


@pytest.fixture
def project(on_devices, devices):
    return on_devices(devices)


def said(result, task=None):
    return {host: one.get("stdout", one) for host, one in results(result, task).items()}


@pytest.mark.parametrize("ssh_type", ["auto", "libssh"])
def test_each_device_answers_for_itself(project, ssh_type):
    project.hosts({"all": {"ansible_network_cli_ssh_type": ssh_type}})
    for forks in (2, 1):  # at once; one after the other, where a connection that the module keeps would be found again
        result = project.run(ASK.format(collection="arista.eos.eos"), hosts="e1,e2", forks=forks)
        assert said(result) == {"e1": ["Hostname: e1"], "e2": ["Hostname: e2"]}, result.stdout
    result = project.run(IOS * 3, hosts="r1,r2")
    assert said(result) == {"r1": ["Hostname: r1"], "r2": ["Hostname: r2"]}, result.stdout


def test_each_device_answers_for_itself_with_paramiko(project):
    project.hosts({"all": {"ansible_network_cli_ssh_type": "paramiko"}})
    result = project.run(IOS * 3, hosts="r1,r2")
    assert said(result) == {"r1": ["Hostname: r1"], "r2": ["Hostname: r2"]}, result.stdout


def test_a_line_is_configured_on_the_device_that_lacks_it(project, devices):
    """cisco.ios keeps running-configs in a module-level dict: the second device would be taken for configured."""
    line = "- cisco.ios.ios_config: {lines: [ip domain-name example.org]}\n"
    assert project.run(line, hosts="c1").stats["changed"] == {"c1": 1}
    both = project.run(line, head="serial: 1", hosts="c1,c2")
    assert both.stats["changed"] == {"c2": 1}, both.stdout
    assert "ip domain-name example.org" in devices.commands("c2")
    assert project.run(line, hosts="c1,c2").stats["changed"] == {}


def test_a_connection_lasts_a_play_and_ends_with_a_reset(project, devices):
    before = devices.count("r1", "login")
    spec = project.spec(IOS * 3 + "- meta: reset_connection\n" + IOS * 2, hosts="r1", verbosity=4)
    play = pathlib.Path(spec["playbook"])
    play.write_text(play.read_text() + pathlib.Path(project.write(IOS * 2, hosts="r1", name="second.yml")).read_text())
    result = forkless.run(engine="threads", **spec)
    assert result.rc == 0, result.stdout
    # Before the reset, after it, and in the second play. A plugin that has closed its session could log in again, and is not used again.
    assert devices.count("r1", "login") == before + 3
    assert result.stdout.count("local domain socket does not exist, starting it") == 3
    wait_for(lambda: devices.open_sessions() == 0)


@pytest.mark.parametrize("ssh_type", TYPES)
def test_the_session_of_a_device_that_was_delegated_to_ends_with_the_run(project, devices, ssh_type, monkeypatch):
    """ansible-core ends one connection for each host of a play, the first. Another one's helper process it leaves behind."""
    project.hosts({"all": {"ansible_network_cli_ssh_type": ssh_type}})
    close_all, left = pool.close_all, []

    def look_first(run):
        left.extend(key for key in pool._pool.hosts if key[0] == run)
        close_all(run)

    # What is left of a run's SSH connections is closed after it in any case: that must not be what ends the device's session.
    monkeypatch.setattr(pool, "close_all", look_first)
    before = devices.count("r2", "login")
    result = project.run(IOS + IOS + "  delegate_to: r2\n", hosts="r1")
    assert said(result) == {"r1": ["Hostname: r2"]}, result.stdout
    assert devices.count("r2", "login") == before + 1
    wait_for(lambda: devices.open_sessions() == 0)
    assert not left


def test_enable_is_entered_and_left_by_task(project, devices):
    become = "  become: true\n  become_method: enable\n  vars: {ansible_become_password: s3cret}\n"
    ask = "- name: N\n  cisco.ios.ios_command: {commands: [show privilege]}\n"
    before = devices.count("locked", "login")
    result = project.run(ask.replace("N", "a") + ask.replace("N", "b") + become + ask.replace("N", "c"), hosts="locked")
    levels = [said(result, name)["locked"][0][-2:].strip() for name in "abc"]
    assert levels == ["1", "15", "1"], result.stdout
    assert devices.count("locked", "login") == before + 1


def test_a_wrong_secret_fails_the_task_and_not_the_host(project):
    become = (
        "  become: true\n  become_method: enable\n  vars: {ansible_become_password: wrong}\n  ignore_errors: true\n"
    )
    result = project.run(IOS + become + "- debug: msg=on\n", hosts="locked")
    assert result.rc == 0, result.stdout
    assert "failed to elevate privilege to enable mode" in result.stdout


def test_what_a_device_has_to_say_is_shown_with_the_task_that_fails(project):
    become = (
        "  become: true\n  become_method: enable\n  vars: {ansible_become_password: wrong}\n  ignore_errors: true\n"
    )
    result = project.run(IOS + IOS + become, hosts="locked", verbosity=4)
    assert "failed to elevate privilege to enable mode" in result.stdout
    before = result.stdout.partition("failed to elevate privilege to enable mode")[0]
    assert "updating play_context for connection" in before, result.stdout


@pytest.mark.parametrize("ssh_type", TYPES)
def test_a_command_that_takes_too_long_fails_with_netcommons_words(project, ssh_type):
    project.hosts({"all": {"ansible_network_cli_ssh_type": ssh_type}})
    hang = "- cisco.ios.ios_command: {commands: [hang]}\n  vars: {ansible_command_timeout: 1}\n"
    result = project.run(hang, hosts="r1")
    assert results(result)["r1"]["msg"].startswith("command timeout triggered, timeout value is 1 secs.\n"), (
        result.stdout
    )


def test_a_task_that_times_out_leaves_no_answer_to_the_next(project, devices):
    hang = "- cisco.ios.ios_command: {commands: [sleep 300]}\n  timeout: 3\n  ignore_errors: true\n"
    before = devices.count("r1", "login")
    result = project.run(IOS + hang + IOS, hosts="r1")
    assert said(result) == {"r1": ["Hostname: r1"]}, result.stdout
    if seams.minor(seams.version()) != "2.18":  # there a module is a process, which may not have begun after 3 s
        assert devices.count("r1", "login") == before + 2


@pytest.mark.parametrize("ssh_type", ["auto", "paramiko"])
def test_a_device_whose_thread_is_late_answers_for_each_command(project, monkeypatch, ssh_type):
    """The clock takes each short alarm, which ends a wait for more output, for overdue: as on a machine whose load keeps threads waiting."""
    monkeypatch.setattr(device_worker, "OVERDUE", -5)
    monkeypatch.setattr(device_connections, "TICK", 0.005)
    project.hosts({"all": {"ansible_network_cli_ssh_type": ssh_type}})
    result = project.run(IOS * 2, hosts="lagging")
    assert said(result) == {"lagging": ["Hostname: lagging"]}, result.stdout


def test_an_idle_connection_is_closed_and_opened_again(project, devices):
    """An action of the project's own asks the device: where modules are processes, one may need longer to start than the idle time."""
    project.hosts({"idle": {"ansible_connect_timeout": 5}})
    (project.folder / "action_plugins").mkdir()
    (project.folder / "action_plugins" / "ask_device.py").write_text(
        "from ansible.module_utils.connection import Connection\n"
        "from ansible.plugins.action import ActionBase\n"
        "class ActionModule(ActionBase):\n"
        "    def run(self, tmp=None, task_vars=None):\n"
        "        said = Connection(self._connection.socket_path).get('show hostname')\n"
        "        return {**super().run(tmp, task_vars), 'stdout': said}\n"
    )
    ask, go_on = "- ask_device:\n", project.folder / "go-on"
    wait = "- debug: msg=waits\n  until: go_on is exists\n  retries: 3000\n  delay: 0.1\n"
    before = devices.count("idle", "login"), devices.count("idle", "closed")
    run = project.start(ask + wait + ask, hosts="idle", extra_vars={"go_on": str(go_on)})
    wait_for(lambda: devices.count("idle", "closed") > before[1])
    go_on.touch()
    result = run.wait()
    assert said(result) == {"idle": "Hostname: idle"}, result.stdout
    assert devices.count("idle", "login") == before[0] + 2


def test_a_task_waits_once_to_tell_an_open_connection_its_options(project, monkeypatch):
    """The options, the play context and the prompt of a task, and the messages of the plugin, are four requests; the thread is asked once."""
    asked, requests = [], []
    ask, handle = device_worker.DeviceWorker.ask, device_worker.DeviceWorker.handle

    def count_asked(device, *args):
        asked.append(device.name)
        return ask(device, *args)

    def count_requests(device, data):
        requests.append(json.loads(data)["method"])
        return handle(device, data)

    monkeypatch.setattr(device_worker.DeviceWorker, "ask", count_asked)
    monkeypatch.setattr(device_worker.DeviceWorker, "handle", count_requests)
    counts = []
    for tasks in (2, 5):
        asked.clear()
        requests.clear()
        result = project.run(IOS * tasks, hosts="r1")
        assert result.rc == 0, result.stdout
        counts.append((len(asked), len(requests)))
        for method in ("set_options", "update_play_context", "set_check_prompt"):
            assert requests.count(method) == tasks - 1
    (asked_by_two, requests_of_two), (asked_by_five, requests_of_five) = counts
    assert requests_of_five - requests_of_two - (asked_by_five - asked_by_two) == 3 * 3


def test_two_runs_use_their_own_password_for_one_device(project, devices):
    """The run with the wrong password begins and ends while the other one is logged in."""
    go_on, seen = project.folder / "go-on", devices.count("r1", "login")
    wait = "- debug: msg=waits\n  until: go_on is exists\n  retries: 3000\n  delay: 0.1\n"
    project.hosts({"all": {"ansible_password": "wrong"}})
    (project.folder / "wrong.ini").write_text((project.folder / "hosts.ini").read_text())
    project.hosts({"r1": {"ansible_connect_timeout": 600}})
    first = project.start(IOS + wait + IOS, hosts="r1", name="right.yml", extra_vars={"go_on": str(go_on)})
    try:
        wait_for(lambda: devices.count("r1", "login") > seen)
        second = project.run(IOS * 2, hosts="r1", name="wrong.yml", inventory=str(project.folder / "wrong.ini"))
        third = project.run(IOS * 2, hosts="r1", name="also_right.yml")
    finally:
        go_on.touch()
    result = first.wait()
    assert (result.rc, third.rc) == (0, 0), result.stdout + third.stdout
    assert second.rc != 0, second.stdout
    assert "uthenticat" in second.stdout
    assert devices.count("r1", "login") == seen + 2


def test_warnings_of_one_device_are_not_in_the_result_of_another(project):
    warn = "- cisco.ios.ios_config: {lines: [ntp server 192.0.2.1]}\n  when: inventory_hostname == 'r1'\n"
    result = project.run(warn + IOS, hosts="r1,r2")
    found = results(result)
    assert result.rc == 0
    assert not found["r2"].get("warnings"), result.stdout
    assert not found["r1"].get("warnings"), result.stdout


@pytest.mark.parametrize("where", ["login", "command"])
@pytest.mark.parametrize("ssh_type", ["auto", "paramiko"])
def test_cancelling_ends_what_a_device_keeps_waiting(project, devices, where, ssh_type):
    project.hosts(
        {
            "all": {
                "ansible_network_cli_ssh_type": ssh_type,
                "ansible_command_timeout": 600,
                "ansible_connect_timeout": 600,
            }
        }
    )
    task = "- cisco.ios.ios_command: {commands: [hang]}\n" if where == "command" else IOS
    host = "r1" if where == "command" else "slow"
    seen = devices.count(host, "command") if where == "command" else devices.count(host, "connected")
    run = project.start(task, hosts=host)
    if where == "command":
        wait_for(lambda: "hang" in devices.commands(host)[seen:])
    else:
        wait_for(lambda: devices.count(host, "connected") > seen)
    begun = time.monotonic()
    run.cancel()
    assert run.wait().status == forkless.Status.CANCELED
    # 3 s are promised on a quiet machine; the wait itself would last 600 s.
    assert time.monotonic() - begun < 60
    wait_for(lambda: not [one for one in threading.enumerate() if one.name.startswith("forkless-device")])


@pytest.mark.parametrize("name", ["forkless-device-", "forkless-network-clock-"])
def test_a_device_whose_thread_could_not_start_is_tried_again_by_the_next_task(project, monkeypatch, name):
    """The thread limit may be reached for a moment only."""
    start, refused = threading.Thread.start, []

    def start_later(thread):
        if not refused and thread.name.startswith(name):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    again = "".join(f"{IOS}  name: {number}\n  ignore_errors: true\n" for number in ("first", "second"))
    result = project.run(again, hosts="r1")
    assert refused, result.stdout
    assert "can't start new thread" in results(result, "first")["r1"]["msg"], result.stdout
    assert said(result, "second") == {"r1": ["Hostname: r1"]}, result.stdout
