# SPDX-License-Identifier: GPL-3.0-or-later
"""
httpapi in this process: eAPI of arista.eos, whose modules run in the worker, and fortinet.fortios, whose modules are processes.

A request to one device never has the credentials of another, and sessions end with the play.
"""

from __future__ import annotations

import textwrap
import threading

import pytest

import forkless
from forkless.patching import seams
from network_support import results, wait_for

pytestmark = [pytest.mark.interrupts]
if seams.minor(seams.version()) == "2.18":  # there every module of a network collection is a process of its own
    pytestmark.append(pytest.mark.spawns)

ASK = "- arista.eos.eos_command: {commands: [show hostname]}\n"
STATUS = "- fortinet.fortios.fortios_monitor_fact: {selector: system_status, access_token: ''}\n"


@pytest.fixture(scope="module")
def devices(make_devices):
    eos, forti = {"os": "eos", "speaks": "http"}, {"os": "fortios", "speaks": "http"}
    return make_devices(h1=eos, h2=eos, locked={**eos, "secret": "s3cret"}, f1=forti, f2=forti)


@pytest.fixture
def project(on_devices, devices):
    return on_devices(devices)


def said(result):
    return {host: one["stdout"] for host, one in results(result).items()}


def test_each_device_answers_for_itself(project):
    result = project.run(ASK * 3, hosts="h1,h2")
    assert said(result) == {"h1": ["Hostname: h1"], "h2": ["Hostname: h2"]}, result.stdout


def test_a_wrong_password_and_a_wrong_command_fail_with_the_devices_words(project):
    project.hosts({"h2": {"ansible_password": "wrong"}})
    wrong = ASK.replace("show hostname", "show wrong")
    result = project.run(wrong, hosts="h1,h2")
    found = {host: str(one) for host, one in results(result).items()}
    assert "Invalid input" in found["h1"], result.stdout
    assert "HTTP Error 401" in found["h2"], result.stdout


def test_enable_is_sent_with_the_secret_of_the_task(project):
    become = "  become: true\n  become_method: enable\n  vars: {ansible_become_password: %s}\n  ignore_errors: true\n"
    result = project.run(ASK + become % "s3cret", hosts="locked")
    assert said(result) == {"locked": ["Hostname: locked"]}, result.stdout
    result = project.run(ASK + become % "wrong", hosts="locked")
    assert "Bad secret" in str(results(result)["locked"]), result.stdout


def test_a_request_that_takes_too_long_fails_with_netcommons_words(project):
    """urllib's time-out is as long as the command's; the command's comes first."""
    hang = "- arista.eos.eos_command: {commands: [hang]}\n  vars: {ansible_command_timeout: 1}\n  ignore_errors: true\n"
    result = project.run(f"- name: slow\n  {hang[2:]}" + ASK, hosts="h1")
    failed = results(result, "slow")["h1"]
    assert "command timeout triggered, timeout value is 1 secs." in str(failed), result.stdout
    assert said(result) == {"h1": ["Hostname: h1"]}, result.stdout


@pytest.mark.spawns
def test_modules_that_are_processes_share_the_devices_session(project, devices):
    before = {name: (devices.count(name, "login"), devices.count(name, "closed")) for name in ("f1", "f2")}
    result = project.run(STATUS * 2 + "- meta: reset_connection\n" + STATUS, hosts="f1,f2")
    assert result.rc == 0, result.stdout
    found = {host: one["meta"]["results"]["hostname"] for host, one in results(result).items()}
    assert found == {"f1": "f1", "f2": "f2"}
    after = {name: (devices.count(name, "login"), devices.count(name, "closed")) for name in ("f1", "f2")}
    assert after == {name: (logins + 2, ends + 2) for name, (logins, ends) in before.items()}


def test_two_runs_use_their_own_password_for_one_device(project):
    right = project.spec(ASK * 4, hosts="h1", name="right.yml")
    project.hosts({"all": {"ansible_password": "wrong"}})
    (project.folder / "wrong.ini").write_text((project.folder / "hosts.ini").read_text())
    project.hosts({})
    wrong = project.spec(ASK * 4, hosts="h1", name="wrong.yml", inventory=str(project.folder / "wrong.ini"))
    runs = [forkless.start(engine="threads", **one) for one in (right, wrong, right)]
    first, second, third = [run.wait() for run in runs]
    assert (first.rc, third.rc) == (0, 0), first.stdout + third.stdout
    assert "HTTP Error 401" in second.stdout


def test_a_request_is_sent_with_its_own_opener(project, devices):
    """h1 has made its opener and has not used it yet when h2 makes another: the password of h1 is known to the first alone."""
    (project.folder / "lookup_plugins").mkdir()
    (project.folder / "lookup_plugins" / "ask.py").write_text(
        textwrap.dedent(
            """\
            import json, os, time
            from ansible.module_utils.urls import open_url
            from ansible.plugins.lookup import LookupBase

            class Agent(str):
                wait_for = ""

                def __bool__(self):
                    deadline = time.monotonic() + 120
                    while self.wait_for and not os.path.exists(self.wait_for):
                        assert time.monotonic() < deadline, "the other request was not sent"
                        time.sleep(0.01)
                    return True

            class LookupModule(LookupBase):
                def run(self, terms, variables=None, **kwargs):
                    url, done, agent = terms[0], terms[1], Agent("ask")
                    agent.wait_for = terms[2]
                    body = '{"id": 1, "params": {"cmds": ["show hostname"], "format": "text"}}'
                    answer = open_url(url, data=body, http_agent=agent, url_username="admin", url_password="pw")
                    open(done, "w").close()
                    return [json.loads(answer.read())["result"][0]["output"]]
            """
        )
    )
    ask = (
        "- debug: msg=\"{{ lookup('ask', url, done, wait) }}\"\n"
        "  vars:\n"
        '    url: "http://127.0.0.1:{{ ansible_port }}/command-api"\n'
        '    done: "{{ playbook_dir }}/{{ inventory_hostname }}.done"\n'
        "    wait: \"{{ playbook_dir ~ '/h2.done' if inventory_hostname == 'h1' else '' }}\"\n"
    )
    result = project.run(ask, hosts="h1,h2")
    found = {host: one["msg"] for host, one in results(result).items()}
    assert found == {"h1": "Hostname: h1\n", "h2": "Hostname: h2\n"}, result.stdout


def test_cancelling_ends_a_request_that_is_not_answered(project, devices):
    project.hosts({"all": {"ansible_command_timeout": 600, "ansible_connect_timeout": 600}})
    seen = len(devices.commands("h1"))
    run = project.start("- arista.eos.eos_command: {commands: [hang]}\n", hosts="h1")
    wait_for(lambda: "hang" in devices.commands("h1")[seen:])
    run.cancel()
    assert run.wait().status == forkless.Status.CANCELED
    wait_for(lambda: not [one for one in threading.enumerate() if one.name.startswith("forkless-device")])
