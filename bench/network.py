# SPDX-License-Identifier: GPL-3.0-or-later
"""
Network devices: stock, forkless, nornir with netmiko, and scrapli, at the same commands on the same devices.

    python -m bench network --rounds 3 --json docs/network.json
    python -m bench network --rounds 1 --only network-10
    python -m bench network --rounds 1 --only 2x3                   2 devices, 3 tasks: whether everything works

Devices are those of tests/network_device.py, on loopback, in a process that is not counted. Each task asks a device for one command.
"wall" and "cpu" are those of the program with all processes that it starts, helpers that leave their parent included; "peak" is the sum
of their proportional memory, looked at five times a second. Each contender is started once before it is measured, so that its bytecode is
on disk. nornir and scrapli are installed into virtual environments. NETWORK_WITHOUT="nornir;network-50:stock, libssh" leaves contenders
out, of all sizes or of one. Stock needs minutes where the others need seconds: it is measured in the first round only and, unless
NETWORK_WITHOUT says something else, not with 50 devices.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from bench._results import Row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from network_support import Devices, NetworkProject

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOME = ROOT / ".nox" / "network"
PR_SET_CHILD_SUBREAPER = 36
TASK = "- cisco.ios.ios_command: {commands: [show hostname]}\n"
ECHOES = {"echo": "typed"}
# name: (devices, tasks)
SIZES = {"network-10": (10, 10), "network-50": (50, 10), "network-100-tasks": (1, 100)}
SLOW = "network-50:stock, libssh;network-50:stock, paramiko;network-100-tasks:stock, paramiko"
GOALS = {
    **{f"cpu stock, {one}": 20.0 for one in ("libssh", "paramiko")},
    **{f"wall stock, {one}": 8.0 for one in ("libssh", "paramiko")},
    "cpu nornir": 1 / 1.5,
}
NORNIR = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from nornir.core import Nornir
from nornir.core.inventory import Defaults, Groups, Host, Hosts, Inventory
from nornir.core.plugins.connections import ConnectionPluginRegister
from nornir.plugins.runners import ThreadedRunner
from nornir_netmiko import netmiko_send_command

ports, tasks = json.loads(sys.argv[1]), int(sys.argv[2])
ConnectionPluginRegister.auto_register()
hosts = Hosts({
    name: Host(name=name, hostname="127.0.0.1", port=port, username="admin", password="pw", platform="cisco_ios")
    for name, port in ports.items()
})
nornir = Nornir(inventory=Inventory(hosts=hosts, groups=Groups(), defaults=Defaults()), runner=ThreadedRunner(num_workers=len(ports)))
for _ in range(tasks):
    said = nornir.run(task=netmiko_send_command, command_string="show hostname")
    wrong = {name: str(one[0].result) for name, one in said.items() if f"Hostname: {name}" not in str(one[0].result)}
    assert not wrong, wrong
nornir.close_connections()
"""

# The transport is paramiko, as for netmiko: scrapli's own starts the program ssh. It waits for the echo of
# what it has typed before it ends the line.
SCRAPLI = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from scrapli.driver.core import IOSXEDriver

ports, tasks = json.loads(sys.argv[1]), int(sys.argv[2])

def ask(name):
    device = IOSXEDriver(
        host="127.0.0.1", port=ports[name], auth_username="admin", auth_password="pw", auth_strict_key=False, transport="paramiko",
        timeout_socket=60, timeout_transport=60, timeout_ops=60,
    )
    device.open()
    for _ in range(tasks):
        said = device.send_command("show hostname").result
        assert f"Hostname: {name}" in said, said
    device.close()

with ThreadPoolExecutor(len(ports)) as pool:
    list(pool.map(ask, ports))
"""


def _installed(name: str, *packages: str) -> str:
    """The Python of a virtual environment with these packages; made when it is missing."""
    venv = HOME / name
    if not (venv / "ready").exists():
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(venv / "bin/pip"), "install", "--quiet", *packages], check=True)
        (venv / "ready").touch()
    return str(venv / "bin/python")


def _contenders(project: NetworkProject, devices: Devices, tasks: int) -> dict[str, list[str]]:
    import json

    bin_folder = pathlib.Path(sys.executable).parent
    stock, forkless = [str(bin_folder / "ansible-playbook")], [str(bin_folder / "forkless"), "playbook"]
    play = project.write(TASK * tasks)
    found = {}
    for ssh_type in ("paramiko", "libssh", "auto"):
        project.hosts({"all": {"ansible_network_cli_ssh_type": ssh_type}})
        inventory = project.folder / f"{ssh_type}.ini"
        (project.folder / "hosts.ini").rename(inventory)
        words = ["-i", str(inventory), "-f", str(len(devices.ports)), play]
        if ssh_type != "auto":  # for stock, it is libssh
            found[f"stock, {ssh_type}"] = [*stock, *words]
        found["forkless" if ssh_type == "auto" else f"forkless, {ssh_type}"] = [*forkless, *words]
    for name, text, packages in (
        ("nornir", NORNIR, ("nornir", "nornir-netmiko", "netmiko")),
        ("scrapli", SCRAPLI, ("scrapli[paramiko]<2026",)),
    ):
        script = project.folder / f"with_{name}.py"
        script.write_text(text)
        found[name] = [_installed(name, *packages), str(script), json.dumps(devices.ports), str(tasks)]
    return found


class Memory:
    """The largest sum of the proportional memory of all processes below this one but the devices', in MB."""

    def __init__(self, without: tuple[int, ...]) -> None:
        self.peak, self._without = 0.0, without
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.2):
            self.peak = max(self.peak, sum(map(_pss, self._below(os.getpid()))))

    def _below(self, pid: int) -> list[int]:
        found = []
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            try:
                children = [int(one) for one in (task / "children").read_text().split()]
            except OSError:
                continue
            for child in children:
                if child not in self._without:
                    found += [child, *self._below(child)]
        return found

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()


def _pss(pid: int) -> float:
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(text.partition("\nPss:")[2].split()[0]) / 1024
    except (OSError, IndexError):  # it has ended
        return 0.0


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _reap(without: tuple[int, ...]) -> None:
    """Wait for the helpers that a program has left behind; they end when their play does."""
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children")
    while left := [int(one) for one in children.read_text().split() if int(one) not in without]:
        os.waitpid(left[0], 0)


def _measured(words: list[str], project: NetworkProject, without: tuple[int, ...]) -> tuple[float, float, float]:
    before, begin = _used(), time.perf_counter()
    # Without bytecode on disk each process would compile ansible-core, paramiko or asyncssh first, and that would be what is measured.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with Memory(without) as memory:
        done = subprocess.run(
            words, cwd=project.folder, env={**kept, **project.env}, capture_output=True, text=True, check=False
        )
    wall = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    _reap(without)
    return wall, _used() - before, memory.peak


def _sizes(only: list[str]) -> dict[str, tuple[int, int]]:
    """The sizes that are asked for, by name or as DEVICESxTASKS; all that have a name if none is."""
    found = {}
    for one in only:
        devices, _, tasks = one.partition("x")
        if one not in SIZES and not (devices.isdigit() and tasks.isdigit()):
            raise SystemExit(f"{one} is neither one of {', '.join(SIZES)} nor DEVICESxTASKS")
        found[one if one in SIZES else f"network-{one}"] = SIZES.get(one) or (int(devices), int(tasks))
    return found or SIZES


def rows(rounds: int, only: list[str]) -> Iterator[Row]:
    sys.path.insert(0, str(ROOT / "tests"))
    from network_support import Devices, NetworkProject

    sizes = _sizes(only)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    skipped = [one for one in os.environ.get("NETWORK_WITHOUT", SLOW).split(";") if one]
    warm: set[str] = set()
    for name, (number, tasks) in sizes.items():
        what = f"{number} device{'s' * (number > 1)} x {tasks} tasks"
        time_row = Row(name, what, goals=GOALS)
        memory_row = Row(
            f"{name}-memory", f"{what}, memory", unit="MB", goals={"stock, libssh": 10.0, "stock, paramiko": 10.0}
        )
        with tempfile.TemporaryDirectory() as folder:
            devices = Devices(pathlib.Path(folder) / "devices", {f"d{one:03}": ECHOES for one in range(number)})
            first = Devices(pathlib.Path(folder) / "first", {"d000": ECHOES})
            try:
                project = NetworkProject(pathlib.Path(folder) / "project", devices)
                once = NetworkProject(pathlib.Path(folder) / "once", first)
                ignored = (devices.pid, first.pid)
                for contender, words in _contenders(once, first, 1).items():
                    if not {contender, f"{name}:{contender}"} & {*skipped, *warm}:
                        _measured(words, once, ignored)
                        warm.add(contender)
                for number_of_round in range(rounds):
                    for contender, words in _contenders(project, devices, tasks).items():
                        if {contender, f"{name}:{contender}"} & {*skipped}:
                            continue
                        if number_of_round and contender.startswith("stock"):
                            continue
                        logins = len(devices.events(event="login"))
                        wall, cpu, peak = _measured(words, project, ignored)
                        made = len(devices.events(event="login")) - logins
                        print(f"  {contender}: {wall:.1f} s, {cpu:.1f} s of CPU, {peak:.0f} MB, {made} logins, load {os.getloadavg()[0]:.0f}", flush=True)  # fmt: skip
                        time_row.add("wall", contender, wall)
                        time_row.add("cpu", contender, cpu)
                        time_row.add("logins", contender, made)
                        memory_row.add("peak", contender, peak)
            finally:
                devices.close()
                first.close()
        yield time_row
        yield memory_row
