# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices in a process of their own, and a project whose hosts they are, for the tests of network devices."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
import time

import forkless
import prepare_collections

TESTS = pathlib.Path(__file__).resolve().parent
OS = {
    "ios": "cisco.ios.ios",
    "eos": "arista.eos.eos",
    "fortios": "fortinet.fortios.fortios",
    "netconf": "default",
    "iosxr": "lab.devices.iosxr",
}
HTTP = {"ansible_connection": "ansible.netcommon.httpapi", "ansible_httpapi_use_ssl": False}
SOON = 200
# The same in every test: for another configuration ansible-core is imported anew.
ENVIRONMENT = {
    "ANSIBLE_COLLECTIONS_PATH": f"{prepare_collections.FOLDER}:{TESTS / 'network_collections'}",
    "ANSIBLE_HOST_KEY_CHECKING": "0",
    "ANSIBLE_DEPRECATION_WARNINGS": "0",
    # What cisco.iosxr has for gRPC was compiled in 2018; newer protobufs take it in this mode only.
    "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
}


def wait_for(condition, seconds=SOON, said=lambda: "it did not happen"):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, said()
        time.sleep(0.02)


class Devices:
    """A process with some devices, and what they have seen."""

    def __init__(self, folder: pathlib.Path, specs: dict) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.specs = specs
        self._log = folder / "events.jsonl"
        self._log.touch()
        self._process = subprocess.Popen(
            [sys.executable, str(TESTS / "network_device.py"), json.dumps(specs), str(self._log)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.pid = self._process.pid
        self.ports = json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(240)

    def events(self, device=None, event=None):
        lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [one for one in lines if device in (None, one["device"]) and event in (None, one["event"])]

    def count(self, device, event):
        return len(self.events(device, event))

    def commands(self, device):
        return [one["line"] for one in self.events(device, "command")]

    def open_sessions(self):
        return len(self.events(event="connected")) - len(self.events(event="closed"))


class NetworkProject:
    """Files of a project whose hosts are the devices, and its runs."""

    def __init__(self, folder: pathlib.Path, devices: Devices) -> None:
        self.folder, self.devices = folder, devices
        folder.mkdir(parents=True, exist_ok=True)
        self.env = ENVIRONMENT
        self.hosts({})

    def hosts(self, variables: dict, only=None) -> None:
        """Write the inventory, with more variables for some hosts; the name "all" means each."""
        lines = []
        for name, port in self.devices.ports.items():
            if only and name not in only:
                continue
            spec = self.devices.specs[name]
            given = {
                "ansible_host": "127.0.0.1", "ansible_port": port, "ansible_user": "admin", "ansible_password": "pw", "ansible_timeout": 60,
                "ansible_connection": "ansible.netcommon.network_cli", "ansible_network_os": OS[spec.get("os", "ios")],
                **({**HTTP, "ansible_httpapi_port": port} if spec.get("speaks") == "http" else {}),
                **({"ansible_connection": "ansible.netcommon.grpc"} if spec.get("speaks") == "grpc" else {}),
                **({"ansible_connection": "ansible.netcommon.netconf"} if spec.get("os") == "netconf" else {}),
                **variables.get("all", {}), **variables.get(name, {}),
            }  # fmt: skip
            lines.append(f"{name} {' '.join(f'{key}={value!r}' for key, value in given.items())}")
        (self.folder / "hosts.ini").write_text("\n".join(lines) + "\n")

    def write(self, tasks: str, *, name="play.yml", hosts="all", head="") -> str:
        lead = textwrap.indent(textwrap.dedent(head).rstrip(), "  ") + "\n" if head else ""
        body = textwrap.indent(textwrap.dedent(tasks), "    ")
        path = self.folder / name
        path.write_text(f"- hosts: {hosts}\n  gather_facts: false\n{lead}  tasks:\n{body}\n")
        return str(path)

    def spec(self, tasks: str, *, name="play.yml", hosts="all", head="", **fields) -> dict:
        fields["env"] = {**self.env, **fields.get("env", {})}
        fields.setdefault("inventory", str(self.folder / "hosts.ini"))
        return {
            "playbook": self.write(tasks, name=name, hosts=hosts, head=head), "cwd": str(self.folder), "forks": 20, **fields
        }  # fmt: skip

    def run(self, tasks: str, **fields) -> forkless.Result:
        return forkless.run(engine="threads", **self.spec(tasks, **fields))

    def start(self, tasks: str, **fields) -> forkless.Run:
        return forkless.start(engine="threads", **self.spec(tasks, **fields))

    def command(self, *words: str, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            words, cwd=self.folder, env={**os.environ, **self.env, **env}, capture_output=True, text=True, timeout=240, check=False
        )  # fmt: skip


def results(result, task=None):
    """The result of each host, by the event: the last one, or that of the given task."""
    found = {}
    for event in result.events:
        if event.event in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable") and task in (None, event.task):
            found[event.host] = event.event_data["res"]
    return found


def processes(project, name):
    """The processes of this project's runs whose command contains the name."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd").startswith(str(project.folder)):
                if name in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
        except OSError:
            continue
    return found
