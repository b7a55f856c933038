# SPDX-License-Identifier: GPL-3.0-or-later
"""
Runs on many devices at once, one run after the other in one process: does each device answer for itself, and is anything left?

    python tests/soak_devices.py --devices 200 --runs 20
    python tests/soak_devices.py --devices 200 --runs 1 --how stock

Devices are those of network_device.py, on loopback, in a process of their own. A run asks each device twice. After each run there must
be as many threads and open descriptors as after the first, and no session may be open. The last line is the report; --how stock
runs ansible-playbook on the same devices, for its figures.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from network_support import Devices, NetworkProject, results, wait_for

PATIENCE = 300


def memory() -> float:
    """Resident MB of this process."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Watch:
    """The most threads and MB of this process while a run lasts."""

    def __init__(self):
        self.threads, self.megabytes = 0, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self):
        while not self._over.wait(0.2):
            self.threads = max(self.threads, threading.active_count())
            self.megabytes = max(self.megabytes, memory())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self._over.set()
        self._thread.join()


def left():
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def soak(project, devices, options):
    tasks = "- cisco.ios.ios_command: {commands: [show hostname]}\n" * 2
    project.hosts({"all": {"ansible_network_cli_ssh_type": options.ssh_type, "ansible_command_timeout": PATIENCE}})
    rounds, first = [], None
    for number in range(options.runs):
        wall, cpu = time.monotonic(), time.process_time()
        with Watch() as watch:
            result = project.run(tasks, forks=options.devices)
        spent = time.monotonic() - wall, time.process_time() - cpu
        found = {host: one.get("stdout", one) for host, one in results(result).items()}
        wrong = {host: said for host, said in found.items() if said != [f"Hostname: {host}"]}
        assert not wrong, f"run {number + 1}, wrong answers: {wrong}"
        assert result.rc == 0, result.stdout[-4000:]
        assert len(found) == options.devices, f"{len(found)} devices answered"
        wait_for(lambda: devices.open_sessions() == 0, PATIENCE)
        first = first or left()
        wait_for(lambda first=first: all(now <= then for now, then in zip(left(), first, strict=True)), PATIENCE)
        rounds.append({"seconds": spent[0], "cpu": spent[1], "threads": watch.threads, "peak_mb": watch.megabytes, "mb": memory()})  # fmt: skip
        print(
            json.dumps({"run": number + 1, **{name: round(value, 1) for name, value in rounds[-1].items()}}), flush=True
        )
    logins = len(devices.events(event="login"))
    assert logins == options.devices * options.runs, f"{logins} logins"
    return {"threads_and_descriptors_left": first, "logins": logins, "mb_after_run_2": rounds[min(1, len(rounds) - 1)]["mb"], "mb_at_the_end": memory()}  # fmt: skip


def by_stock(project, devices, options):
    tasks = "- cisco.ios.ios_command: {commands: [show hostname]}\n" * 2
    project.hosts({"all": {"ansible_network_cli_ssh_type": options.ssh_type.replace("auto", "libssh")}})
    play = project.write(tasks)
    begin = time.monotonic()
    done = subprocess.run(
        [str(pathlib.Path(sys.executable).parent / "ansible-playbook"), "-i", str(project.folder / "hosts.ini"), "-f", str(options.forks), play],
        cwd=project.folder, env={**os.environ, **project.env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "rc": done.returncode, "seconds": time.monotonic() - begin, "cpu_without_helpers": used.ru_utime + used.ru_stime,
        "logins": len(devices.events(event="login")),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--forks", type=int, default=10, help="of stock, which has a process for each")
    parser.add_argument("--ssh-type", default="auto", choices=["auto", "paramiko", "libssh"])
    parser.add_argument("--how", default="forkless", choices=["forkless", "stock"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        devices = Devices(pathlib.Path(folder) / "devices", {f"d{number:03}": {} for number in range(options.devices)})
        try:
            project = NetworkProject(pathlib.Path(folder) / "project", devices)
            report = (soak if options.how == "forkless" else by_stock)(project, devices, options)
        finally:
            devices.close()
    print(
        json.dumps(
            {"how": options.how, "devices": options.devices, "runs": options.runs, "load": os.getloadavg()[0], **report}
        )
    )


if __name__ == "__main__":
    main()
