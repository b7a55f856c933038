# SPDX-License-Identifier: GPL-3.0-or-later
"""The same playbook by ansible-playbook and by forkless, on devices that are alike: everything that is printed is compared."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import sys

import pytest

from forkless.patching import seams

pytestmark = [pytest.mark.spawns]

SHORT = """\
- name: answers
  cisco.ios.ios_command: {commands: [show hostname, "show lines 40"]}
  register: said
- debug: var=said.stdout
- name: the secret is wrong
  cisco.ios.ios_command: {commands: [show privilege]}
  become: true
  become_method: enable
  vars: {ansible_become_password: wrong}
  ignore_errors: true
- name: after it
  cisco.ios.ios_command: {commands: [show hostname]}
"""
PLAY = """\
- name: answers
  cisco.ios.ios_command: {commands: [show hostname, "show lines 40"]}
  register: said
- debug: var=said.stdout
- name: the secret is wrong
  cisco.ios.ios_command: {commands: [show privilege]}
  become: true
  become_method: enable
  vars: {ansible_become_password: wrong}
  ignore_errors: true
- name: changes, with a difference
  cisco.ios.ios_config: {lines: [description up], parents: interface Gi0/1}
  diff: true
  become: true
  become_method: enable
  vars: {ansible_become_password: s3cret}
- name: a command that does not end
  cisco.ios.ios_command: {commands: [hang]}
  vars: {ansible_command_timeout: 2}
  ignore_errors: true
- name: after it
  cisco.ios.ios_command: {commands: [show hostname]}
  ignore_errors: true
- meta: reset_connection
- name: in a loop, on another device
  cisco.ios.ios_command: {commands: ["show hostname"]}
  delegate_to: "{{ other }}"
  loop: [1, 2]
- name: the device ends the session
  cisco.ios.ios_command: {commands: [drop]}
  ignore_errors: true
- name: and it is gone
  cisco.ios.ios_command: {commands: [show hostname]}
  ignore_errors: true
"""
MORE = """\
- meta: reset_connection
- name: facts
  cisco.ios.ios_facts: {gather_subset: min}
- name: a resource
  cisco.ios.ios_hostname: {config: {hostname: renamed}, state: merged}
  check_mode: true
  become: true
  become_method: enable
  vars: {ansible_become_password: s3cret}
- name: a prompt of the device
  ansible.netcommon.cli_command: {command: show hostname}
- name: one command, cached
  ansible.netcommon.cli_command: {command: show hostname}
  vars: {ansible_network_single_user_mode: true}
  ignore_errors: true  # netcommon 8.2 fails there, with stock too
- wait_for_connection: {timeout: 20}
- name: an error of the device
  cisco.ios.ios_command: {commands: [show wrong]}
  ignore_errors: true
- name: not a module
  cisco.ios.ios_command: {commands: [show hostname], nonsense: 1}
  ignore_errors: true
- name: as a process
  cisco.ios.ios_command: {commands: [show hostname]}
  vars: {ansible_network_import_modules: false}
- name: again, until it says something else
  cisco.ios.ios_command: {commands: [show hostname]}
  register: said
  until: said.stdout[0] == 'something else'
  retries: 2
  delay: 0
  ignore_errors: true
- name: facts of another device
  cisco.ios.ios_facts: {gather_subset: min}
  delegate_to: "{{ other }}"
  delegate_facts: true
  run_once: true
- debug: msg="{{ hostvars[other].ansible_net_model }} {{ ansible_net_model }}"
"""

HTTP = """\
- name: answers
  arista.eos.eos_command: {commands: [show hostname, {command: show version, output: json}]}
  register: said
- debug: var=said.stdout
- name: the secret is wrong
  arista.eos.eos_command: {commands: [show hostname]}
  become: true
  become_method: enable
  vars: {ansible_become_password: wrong}
  ignore_errors: true
- name: an error of the device
  arista.eos.eos_command: {commands: [show wrong]}
  ignore_errors: true
- name: a command that does not end
  arista.eos.eos_command: {commands: [hang]}
  vars: {ansible_command_timeout: 2}
  ignore_errors: true
- name: after it
  arista.eos.eos_command: {commands: [show hostname]}
- name: the device ends the connection
  arista.eos.eos_command: {commands: [drop]}
  ignore_errors: true
- meta: reset_connection
- name: the password is wrong
  arista.eos.eos_command: {commands: [show hostname]}
  vars: {ansible_password: wrong}
  ignore_errors: true
- name: as a process
  arista.eos.eos_command: {commands: [show hostname]}
  vars: {ansible_network_import_modules: false}
"""
NETCONF = """\
- name: answers
  ansible.netcommon.netconf_get: {source: running}
  register: said
- debug: var=said.stdout
- name: an error of the device
  ansible.netcommon.netconf_rpc: {rpc: wrong}
  ignore_errors: true
- name: a request that does not end
  ansible.netcommon.netconf_rpc: {rpc: hang}
  vars: {ansible_command_timeout: 2}
  ignore_errors: true
- meta: reset_connection
- name: after it
  ansible.netcommon.netconf_get: {source: running}
- name: the device ends the session
  ansible.netcommon.netconf_rpc: {rpc: drop}
  ignore_errors: true
- name: and it is gone
  ansible.netcommon.netconf_get: {source: running}
  ignore_errors: true
"""
GRPC = """\
- name: answers
  ansible.netcommon.grpc_get: {command: show hostname, display: text}
  register: said
- debug: var=said.stdout
- name: data
  ansible.netcommon.grpc_get: {section: '{"interfaces": [null]}', data_type: config}
- name: an error of the device
  ansible.netcommon.grpc_get: {command: show wrong, display: text}
  ignore_errors: true
- name: a change
  ansible.netcommon.grpc_config: {config: '{"banner": "text"}', state: merged}
  diff: true
- name: a change that is refused
  ansible.netcommon.grpc_config: {config: '{"wrong": "text"}', state: replaced}
  ignore_errors: true
- name: a command that does not end
  ansible.netcommon.grpc_get: {command: hang, display: text}
  vars: {ansible_command_timeout: 2}
  ignore_errors: true
- name: a change that does not end
  ansible.netcommon.grpc_config: {config: '{"hang": "text"}', state: merged}
  vars: {ansible_command_timeout: 2}
  ignore_errors: true
- name: after it
  ansible.netcommon.grpc_get: {command: show hostname, display: text}
- name: what cisco.iosxr itself lacks
  ansible.netcommon.grpc_get: {command: show hostname, display: text}
  vars: {ansible_network_os: cisco.iosxr.iosxr}
  ignore_errors: true
- name: the device ends the call
  ansible.netcommon.grpc_get: {command: drop, display: text}
  ignore_errors: true
- meta: reset_connection
- name: the password is wrong
  ansible.netcommon.grpc_get: {command: show hostname, display: text}
  vars: {ansible_password: wrong}
  ignore_errors: true
- name: as a process
  ansible.netcommon.grpc_get: {command: show hostname, display: text}
  vars: {ansible_network_import_modules: false}
"""


def programs():
    folder = pathlib.Path(sys.executable).parent
    return {"stock": [str(folder / "ansible-playbook")], "forkless": [str(folder / "forkless"), "playbook"]}


def printed(done, name):
    """What a command printed, without what is different for any two devices, or in any two runs."""
    text = done.stdout + done.stderr
    for found, put in (
        (r"executable location = .*", "executable location"),
        (r"(stuck_after|modules|format): .*\n", ""),
        (r"[^ ]*/pc/[0-9a-f]+", "SOCKET"),
        (r"(?m)^(<127.0.0.1> )?(?:Loading collection|redirecting) .*\n", ""),
        (r"ansible-local-\w+/[\w-]+(?:\.\d+-\d+-\d+)?|ansible-tmp-[\w.-]+|tmp\w{8}", "TEMPORARY"),
        (r"_payload_\w{8}/", "_payload/"),
        (r"<127.0.0.1> (EXEC|PUT) .*\n", ""),
        (r"p=\d+", "p=PID"),
        (r" at 0x[0-9a-f]+", " at ADDRESS"),
        (r'"elapsed": \d+', '"elapsed": SECONDS'),
        # A device that ends the session may do so before its last words are read.
        (r"window: b'[^']*'", "window: LAST"),
        # libssh itself writes to the stderr of stock's worker which files it does not find; on a thread it is silent.
        (r"(?m)^\[WARNING\]: WorkerProcess for .* errantly sent data .*\n(?:    ssh_strict_fopen: .*\n)+\n?", ""),
        (r"(?m)^ssh_strict_fopen: .*\n?", ""),  # on 2.18 without the warning around it
        # The first frame of a traceback is in ansible-core's helper process, or in forkless.
        (
            r"(Traceback .*\n)  File .*(?:connection_cli_stub|network/patches)\.py\", .*\n    conn.*\n(?:    [ ~^]+\n)?",
            r"\1",
        ),
        (r"auth_timeout|ESTABLISH LOCAL CONNECTION FOR USER: .*", ""),
        (name, "DEVICE"),  # last: a hexadecimal number may contain the name
    ):
        text = re.sub(found, put, text)
    return text


def end_helpers(mark):
    """Stock leaves the helper process of a host that was delegated to; its folder is /, but it has the environment of the command."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"PARITY={mark}".encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGTERM)
        except OSError:
            continue


def compare(devices, project, play, options=(), **variables):
    outputs = {}
    # On a busy machine, stock may be idle for longer than 30 s.
    variables = {"ansible_connect_timeout": 600, **variables}
    if (
        seams.minor(seams.version()) == "2.18"
    ):  # there forkless lets every module be a process, as Ansible does where it is asked to
        variables["ansible_network_import_modules"] = False
    for (program, words), name in zip(programs().items(), ("aaaa", "bbbb"), strict=True):
        project.hosts({name: {"other": f"other{name}", **variables}, f"other{name}": variables})
        port = str(devices.ports[name])
        path = project.write(play, name=f"{name}.yml", hosts=name)
        done = project.command(
            *words, "-i", str(project.folder / "hosts.ini"), path, *options, PARITY=str(project.folder)
        )
        outputs[program] = printed(done, name).replace(port, "PORT")
        end_helpers(str(project.folder))
        assert "PLAY RECAP" in done.stdout, done.stdout + done.stderr
    assert outputs["forkless"] == outputs["stock"]
    counts = [devices.count(name, "login") for name in ("aaaa", "bbbb")]
    assert counts[0] == counts[1], "logins"
    return outputs["stock"]


@pytest.fixture
def pair(tmp_path):
    from network_support import Devices, NetworkProject

    locked = {"secret": "s3cret"}
    devices = Devices(tmp_path / "devices", {"aaaa": locked, "bbbb": locked, "otheraaaa": {}, "otherbbbb": {}})
    project = NetworkProject(tmp_path / "project", devices)
    yield devices, project
    devices.close()


def test_stock_and_forkless_print_the_same(pair):
    devices, project = pair
    text = compare(devices, project, SHORT, ansible_network_cli_ssh_type="libssh")
    assert "failed to elevate privilege to enable mode" in text


at_length = pytest.mark.skipif("FORKLESS_NETWORK" not in os.environ, reason="make network runs it: it takes minutes")


@at_length
@pytest.mark.parametrize("options", [(), ("-vvvv",)])
@pytest.mark.parametrize(
    ("spec", "play"),
    [
        ({"os": "eos", "speaks": "http"}, HTTP),
        ({"os": "netconf"}, NETCONF),
        ({"os": "iosxr", "speaks": "grpc"}, GRPC),
    ],
    ids=["httpapi", "netconf", "grpc"],
)
def test_stock_and_forkless_print_the_same_over_other_connections(tmp_path, spec, play, options):
    from network_support import Devices, NetworkProject

    devices = Devices(tmp_path / "devices", {"aaaa": spec, "bbbb": spec, "otheraaaa": spec, "otherbbbb": spec})
    try:
        text = compare(devices, NetworkProject(tmp_path / "project", devices), play, options)
    finally:
        devices.close()
    assert "command timeout triggered, timeout value is 2 secs" in text


@at_length
@pytest.mark.parametrize("ssh_type", ["paramiko", "libssh"])
@pytest.mark.parametrize("options", [(), ("-vvvv",), ("--check", "--diff")])
def test_stock_and_forkless_print_the_same_at_length(pair, ssh_type, options):
    text = compare(*pair, PLAY + MORE, options, ansible_network_cli_ssh_type=ssh_type)
    if "--check" not in options:  # there ios_command sends nothing but commands that show something
        assert "command timeout triggered, timeout value is 2 secs" in text
        assert "cli prompt is not identified" in text
    assert "WS-C2960 WS-C2960" in text, "the play did not come to its end"
