# SPDX-License-Identifier: GPL-3.0-or-later
"""
Runs that are cancelled at a random moment, one after the other in one process: does anything outlive them?

    python tests/soak_cancel.py                          # 150 cold and 80 warm runs, by three connections
    python tests/soak_cancel.py --cold 20 --warm 0 --connections ssh --seed 7

Connections: local, ssh (the program) and forkless.core.ssh. The moments are drawn between 0 and the seconds that a run takes which is not
cancelled (fewer once a run has ended before its moment), by a generator with the seed of --seed, which the report names. After each run there must be no process of it, neither here nor on the host,
no new thread, no new descriptor and no temporary file of the controller. What is found is printed with the number and the moment of its run, and
counted. The last line is the report.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import sshd_targets

CONNECTIONS = ("local", "ssh", "forkless.core.ssh")
# Each command has the run's mark among its words, so that its processes are found on whatever machine they run.
BOOK = """
- hosts: targets
  gather_facts: false
  tasks:
  - command: sh -c 'sleep 0.3; true' {{ mark }}
  - shell: "(sh -c 'sleep 0.4; true' {{ mark }} | cat) & sh -c 'sleep 0.2; true' {{ mark }}; wait"
  - copy: {content: "{{ mark }}", dest: "{{ folder }}/copied-{{ inventory_hostname }}"}
  - script: "{{ folder }}/script.sh {{ mark }}"
  - command: sh -c 'sleep 0.5; true' {{ mark }}
    async: 60
    poll: 1
  - raw: sh -c 'sleep 0.2; true' {{ mark }}
  - debug: msg="{{ lookup('pipe', 'sh -c "sleep 0.3; true" ' ~ mark) }}"
  - command: sh -c 'sleep 0.3; true' {{ mark }}
    loop: [1, 2]
"""


def processes_with(mark):
    """Command lines of all processes that have the mark among their words, but for this one."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if mark.encode() in words:
                    found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace")[:160]
    return found


def children():
    found = set()
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


class Belongings:
    """What this process has: compared before and after a run."""

    def __init__(self, folder):
        self.threads = set(threading.enumerate())
        self.descriptors = descriptors()
        self.children = children()
        self.files = {str(one) for one in (folder / "local").rglob("*")}

    def new_since(self, before):
        lost = [f"thread {one.name}" for one in self.threads - before.threads if one.is_alive()]
        lost += [
            f"descriptor {fd} -> {target}"
            for fd, target in self.descriptors.items()
            if before.descriptors.get(fd) != target and not target.startswith("/proc/")
        ]
        lost += [f"child {pid}" for pid in self.children - before.children]
        return lost + [f"file {path}" for path in sorted(self.files - before.files)]


class Soak:
    def __init__(self, options, folder, hosts):
        self.options, self.folder, self.hosts = options, folder, hosts
        self.random = random.Random(options.seed)  # noqa: S311  # moments, not secrets
        self.counts = collections.Counter()
        self.found = []
        self.longest = {}

    def inventory(self, connection):
        path = self.folder / f"{connection}.ini"
        if connection == "local":
            path.write_text(
                f"[targets]\none\ntwo\n[targets:vars]\nansible_connection=local\nansible_python_interpreter={sys.executable}\n"
            )
        else:
            # A control connection outlives a run on purpose, and could not be told from one that was lost.
            path.write_text(self.hosts.inventory(connection, "ansible_ssh_args=-o ControlMaster=no"))
        return str(path)

    def start(self, number, connection, modules):
        import forkless

        self.mark = f"fkcancel-{os.getpid()}-{number}-x"
        return forkless.start(
            str(self.folder / "play.yml"),
            inventory=self.inventory(connection),
            modules=modules,
            extra_vars={"mark": self.mark, "folder": str(self.folder)},
            env={
                **os.environ,
                "ANSIBLE_LOCAL_TEMP": str(self.folder / "local"),
                "ANSIBLE_HOME": str(self.folder / "home"),
            },
        )

    def whole(self, connection, modules):
        """A run that is not cancelled: its seconds. What is made once for a process is made here."""
        began = time.monotonic()
        result = self.start(0, connection, modules).wait()
        if str(result.status) != "successful":
            raise RuntimeError(f"{connection}, {modules}: {result.status}\n{result.stdout}")
        self.longest[connection, modules] = time.monotonic() - began

    def cancelled(self, number, connection, modules):
        if (connection, modules) not in self.longest:
            self.whole(connection, modules)
        before = Belongings(self.folder)
        moment = self.random.uniform(0, self.longest[connection, modules])
        run = self.start(number, connection, modules)
        with contextlib.suppress(TimeoutError):
            run.wait(moment)
        run.cancel()
        status = str(run.wait().status)
        self.counts[status] += 1
        if status == "successful":  # the machine has become faster
            self.longest[connection, modules] = moment
        lost = self._left(before)
        if lost:
            self.counts["runs that left something"] += 1
            self.found.append([number, connection, modules, round(moment, 2), status, lost])
            print(json.dumps(self.found[-1]), file=sys.stderr, flush=True)
            for pid in processes_with(self.mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _left(self, before):
        deadline = time.monotonic() + self.options.patience
        while True:
            lost = Belongings(self.folder).new_since(before)
            lost += [f"process {pid}: {words}" for pid, words in processes_with(self.mark).items()]
            for host in self.hosts.hosts:
                lost += [f"{host.name}: session {pid}" for pid in sshd_targets.descendants(host.process.pid)]
            if not lost or time.monotonic() > deadline:
                return lost
            gc.collect()
            time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--cold", type=int, default=150)
    parser.add_argument("--warm", type=int, default=80)
    parser.add_argument("--connections", default=",".join(CONNECTIONS))
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=7200, help="begin no run after these")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds that what a run has started may take to end"
    )
    parser.add_argument("--every", type=float, default=30, help="seconds between two lines of progress")
    options = parser.parse_args()
    connections = options.connections.split(",")
    began = told = time.monotonic()
    with sshd_targets.targets(2) as hosts:
        folder = pathlib.Path(tempfile.mkdtemp(dir=hosts.folder))
        folder.chmod(0o777)
        (folder / "play.yml").write_text(BOOK)
        (folder / "script.sh").write_text("#!/bin/sh\nsleep 0.2\n")
        (folder / "local").mkdir()
        soak = Soak(options, folder, hosts)
        modes = ["cold"] * options.cold + ["warm"] * options.warm
        done = 0
        for number, modules in enumerate(modes, 1):
            if time.monotonic() - began > options.seconds:
                break
            soak.cancelled(number, connections[number % len(connections)], modules)
            done = number
            if time.monotonic() - told > options.every:
                told = time.monotonic()
                print(
                    f"{told - began:5.0f} s: {done} of {len(modes)}, {dict(soak.counts)}", file=sys.stderr, flush=True
                )
    report = {
        "python": sys.version.split()[0],
        "seed": options.seed,
        "runs": done,
        "wanted": len(modes),
        **soak.counts,
        "left": soak.found,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(report))
    return 1 if soak.found or done < len(modes) else 0


if __name__ == "__main__":
    sys.exit(main())
