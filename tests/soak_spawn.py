# SPDX-License-Identifier: GPL-3.0-or-later
"""
The soak: spawn after spawn in a program that does everything which makes a fork dangerous.

    python tests/soak_spawn.py --spawn ours --spawns 5000
    python tests/soak_spawn.py --spawn stock --spawns 200 --seconds 60

Threads log, import, allocate and hold locks. Other threads are idle, but own an object whose finalizer logs; a forked copy
of the program runs this finalizer before exec. Every child prints a known text, and the output is compared with it. A spawn
that has not returned after --patience seconds is hung: its child is killed and counted, and the soak continues.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import itertools
import json
import logging
import os
import pathlib
import re
import signal
import sys
import threading
import time
import warnings

LINES = 40
TEXT = "".join(f"line {n} of the soak, {'x' * 60}\r\n" for n in range(LINES)) + "END\r\n"
COMMAND = [
    "/bin/sh",
    "-c",
    f'i=0; while [ $i -lt {LINES} ]; do echo "line $i of the soak, {"x" * 60}"; i=$((i+1)); done; echo END; exit 7',
]


class Load:
    """
    Threads that keep the program busy in the ways that make a fork dangerous.

    A `calm` load takes a small share of one core: its threads work less often, and hold their lock while they sleep, as a
    thread that waits for a disk or a server does. So the lock is held as often when a fork happens, and the child has a core.
    """

    def __init__(self, kinds, *, calm=False):
        self._calm = calm
        self._slower = 20 if calm else 1
        self._over = threading.Event()
        self._local = threading.local()
        self._pool_lock = threading.Lock()
        self._log = logging.getLogger("soak")
        self._log.propagate = False
        self._log.addHandler(logging.StreamHandler(open(os.devnull, "w")))
        self._log.setLevel(logging.INFO)
        jobs = {
            "log": [self._logging] * 2,
            "import": [self._importing],
            "alloc": [self._allocating],
            "lock": [self._holding],
            "tls": [self._idle] * 8,
        }
        self._threads = [threading.Thread(target=job, daemon=True) for kind in kinds for job in jobs[kind]]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _logging(self):
        while not self._over.wait(0.0005 * self._slower):
            for _ in range(50):
                self._log.info("busy %s", time.monotonic())

    def _importing(self):
        while not self._over.wait(0.002 * self._slower):
            sys.modules.pop("this_is_nothing", None)
            with contextlib.suppress(ImportError):
                importlib.import_module("this_is_nothing")
            sys.modules.pop("colorsys", None)
            importlib.import_module("colorsys")

    def _allocating(self):
        while not self._over.wait(0.001 * self._slower):
            ring = [[None] for _ in range(500)]
            for one, other in itertools.pairwise(ring):
                one[0] = other
            ring[-1][0] = ring[0]

    def _holding(self):
        while not self._over.wait(0.0005):
            with self._pool_lock:
                if self._calm:
                    self._over.wait(0.002)
                else:
                    sum(range(5000))

    def _idle(self):
        soak = self

        class Connection:
            def __del__(self):
                soak._log.info("a connection of an idle thread goes back to its pool")
                with soak._pool_lock:
                    pass

        self._local.connection = Connection()
        self._over.wait()
        del self._local.connection


def spawn_class(name):
    import pexpect

    if name == "stock":
        return pexpect.spawn
    from forkless.runner import RunnerSpawn

    return RunnerSpawn


class Soak:
    def __init__(self, options):
        self.spawn = spawn_class(options.spawn)
        self.patience = options.patience
        self.deadline = time.monotonic() + options.seconds
        self.left = options.spawns
        self.lock = threading.Lock()
        self.under_way = {}
        self.counts = dict.fromkeys(("spawns", "hung", "lost", "status"), 0)
        self.examples = []

    def take(self):
        with self.lock:
            if self.left <= 0 or time.monotonic() > self.deadline:
                return False
            self.left -= 1
            return True

    def once(self):
        import pexpect

        got = []

        class Log:
            write = staticmethod(got.append)
            flush = staticmethod(lambda: None)

        me = threading.get_native_id()
        self.under_way[me] = time.monotonic()
        try:
            child = self.spawn(
                COMMAND[0],
                COMMAND[1:],
                echo=False,
                encoding="utf-8",
                codec_errors="replace",
                use_poll=True,
                ignore_sighup=True,
            )
            child.logfile_read = Log
            # The same patterns as in ansible-runner.
            patterns = [re.compile("^never$", re.MULTILINE), pexpect.TIMEOUT, pexpect.EOF]
            while child.isalive():
                child.expect(patterns, timeout=5, searchwindowsize=100)
            child.expect(pexpect.EOF, timeout=5)
            child.close()
        except Exception as err:
            got.append(repr(err))  # cannot be mistaken for the expected text
        hung = self.under_way.pop(me, None) is None
        with self.lock:
            self.counts["spawns"] += 1
            if hung:
                self.counts["hung"] += 1
            elif "".join(got) != TEXT:
                self.counts["lost"] += 1
                self.examples.append("".join(got)[-200:])
            elif child.exitstatus != 7:
                self.counts["status"] += 1
                self.examples.append(repr((child.exitstatus, child.signalstatus)))

    def work(self):
        while self.take():
            self.once()

    def watch(self, over):
        """Kill hung children until `over` is set; otherwise the soak would stop at the first one."""
        while not over.wait(0.2):
            now = time.monotonic()
            for thread, since in list(self.under_way.items()):
                if now - since > self.patience and self.under_way.pop(thread, None):
                    for pid in children_of(thread):
                        os.kill(pid, signal.SIGKILL)


def children_of(thread):
    with contextlib.suppress(OSError):
        return [int(pid) for pid in pathlib.Path(f"/proc/self/task/{thread}/children").read_text().split()]
    return []


def zombies():
    found = 0
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += len((task / "children").read_text().split())
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--spawn", choices=("ours", "stock"), default="ours")
    parser.add_argument("--spawns", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--patience", type=float, default=4)
    parser.add_argument("--load", default="log,import,alloc,lock,tls")
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)  # the stock spawn warns about its fork on Python 3.12 and later
    soak = Soak(options)
    if options.spawn == "ours":
        soak.once()  # objects that are created once per process exist before the count begins
        soak.counts["spawns"] = 0
    over = threading.Event()
    started = time.monotonic()
    with Load(options.load.split(",")):
        watch = threading.Thread(target=soak.watch, args=[over], daemon=True)
        watch.start()
        threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
        workers = [threading.Thread(target=soak.work) for _ in range(options.threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        # The load opens and closes files as well: only a descriptor that stays open is a leak.
        patience = time.monotonic() + 10
        while True:
            gc.collect()
            leaked = {
                "descriptors": len(os.listdir("/proc/self/fd")) - descriptors,
                "zombies": zombies(),
                "threads": threading.active_count() - threads,
            }
            if max(leaked.values()) <= 0 or time.monotonic() > patience:
                break
            time.sleep(0.05)
        leaked = {what: max(0, count) for what, count in leaked.items()}
        over.set()
        watch.join()
    report = {
        "spawn": options.spawn,
        "python": sys.version.split()[0],
        **soak.counts,
        "leaked": leaked,
        "seconds": round(time.monotonic() - started, 1),
    }
    if soak.examples:
        report["examples"] = soak.examples[:3]
    print(json.dumps(report))
    clean = not (soak.counts["hung"] or soak.counts["lost"] or soak.counts["status"] or any(leaked.values()))
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
