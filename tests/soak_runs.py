# SPDX-License-Identifier: GPL-3.0-or-later
"""
Short runs, one after the other, in a program full of threads: is the recap there every time?

    python tests/soak_runs.py --how engine --runs 500      # forkless.run(engine="runner")
    python tests/soak_runs.py --how patched --runs 100     # ansible_runner.run() with forkless.runner.patch()
    python tests/soak_runs.py --how stock --runs 40        # ansible_runner.run() as it is

The load is that of soak_spawn.py, but calm enough to leave a core for the runs (--hard: the full load). A child that is
still a fork of this program after --patience seconds is hung; it is killed and counted. A line on stderr every --every
seconds shows the progress; the last line is the report.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from soak_spawn import Load, children_of, zombies

BOOK = "- hosts: localhost\n  gather_facts: false\n  tasks:\n  - debug: msg=hello\n"


def by_engine(book):
    import forkless

    result = forkless.run(book, engine="runner")
    return str(result.status), [one.event for one in result.events]


def by_ansible_runner(book):
    import ansible_runner

    with tempfile.TemporaryDirectory() as folder:
        run = ansible_runner.run(private_data_dir=folder, playbook=book, quiet=True, cancel_callback=lambda: False)
        return run.status, [event["event"] for event in run.events]


class Soak:
    def __init__(self, options, book):
        self.way = by_engine if options.how == "engine" else by_ansible_runner
        self.book, self.left, self.patience = book, options.runs, options.patience
        self.deadline = time.monotonic() + options.seconds
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(("runs", "hung", "lost", "failed"), 0)
        self.workers = []
        self.started, self.wanted = time.monotonic(), options.runs

    def progress(self):
        with self.lock:
            counts = ", ".join(f"{value} {name}" for name, value in self.counts.items())
        return f"{time.monotonic() - self.started:5.0f} s: {counts} of {self.wanted}"

    def work(self):
        while True:
            with self.lock:
                if self.left <= 0 or time.monotonic() > self.deadline:
                    return
                self.left -= 1
            try:
                status, events = self.way(self.book)
            except Exception as err:
                status, events = repr(err), []
            with self.lock:
                self.counts["runs"] += 1
                self.counts["failed"] += status != "successful"
                self.counts["lost"] += status == "successful" and events[-1:] != ["playbook_on_stats"]

    def watch(self, over, every):
        told = self.started
        ours = pathlib.Path("/proc/self/cmdline").read_bytes()
        since = {}
        while not over.wait(0.2):
            if time.monotonic() - told >= every:
                told = time.monotonic()
                print(self.progress(), file=sys.stderr, flush=True)
            for worker in self.workers:
                for pid in children_of(worker.native_id):
                    with contextlib.suppress(OSError):
                        if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() != ours:
                            continue
                        if time.monotonic() - since.setdefault(pid, time.monotonic()) > self.patience:
                            os.kill(pid, signal.SIGKILL)
                            self.counts["hung"] += 1
                            since.pop(pid)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--how", choices=("engine", "patched", "stock"), default="engine")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--patience", type=float, default=4)
    parser.add_argument("--load", default="log,import,alloc,lock,tls")
    parser.add_argument("--every", type=float, default=10, help="seconds between two lines of progress")
    parser.add_argument("--hard", action="store_true", help="a load that takes all of a core")
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    if options.how == "patched":
        import forkless.runner

        forkless.runner.patch()
    over, started = threading.Event(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        book = os.path.join(folder, "play.yml")
        pathlib.Path(book).write_text(BOOK)
        soak = Soak(options, book)
        if options.how != "stock":
            soak.way(book)  # objects that are created once per process exist before the count begins
        with Load([kind for kind in options.load.split(",") if kind], calm=not options.hard):
            watch = threading.Thread(target=soak.watch, args=[over, options.every], daemon=True)
            threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
            soak.workers = [threading.Thread(target=soak.work) for _ in range(options.at_once)]
            for worker in soak.workers:
                worker.start()
            watch.start()
            for worker in soak.workers:
                worker.join()
            over.set()
            watch.join()
            gc.collect()
            leaked = {
                "descriptors": len(os.listdir("/proc/self/fd")) - descriptors,
                "zombies": zombies(),
                "threads": threading.active_count() - threads,
            }
    report = {"how": options.how, "python": sys.version.split()[0], **soak.counts, "leaked": leaked}
    print(json.dumps(report | {"seconds": round(time.monotonic() - started, 1)}))
    bad = soak.counts["hung"] or soak.counts["lost"] or soak.counts["failed"] or any(leaked.values())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
