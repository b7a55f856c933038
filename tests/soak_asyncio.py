# SPDX-License-Identifier: GPL-3.0-or-later
"""
Fifty real plays from one asyncio program, with a limit: does each tell its own story, and is nothing left?

    python tests/soak_asyncio.py                                   # runs in children, then runs on threads
    python tests/soak_asyncio.py --engine threads --runs 50 --limit 8

Every play has a greeting of its own, writes artifacts into one folder shared by all, and is followed event by event. A few
plays are cancelled while they run. The soak counts plays that delivered another play's events, lost an event or their recap,
or wrote artifacts that differ from their events; the longest delay of the event loop; and what is left at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import pathlib
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import forkless
from soak_spawn import zombies

BOOK = """
- hosts: all
  gather_facts: false
  tasks:
  - debug: msg="greeting {{ number }} at {{ inventory_hostname }}"
  - command: sh -c 'echo said {{ number }}{{ "; exec sleep 300" if cancelled | bool else "" }}'
    register: said
  - assert: that=said.stdout=="said "~number
"""
HOSTS = """\
one
two
[all:vars]
ansible_connection=local
ansible_python_interpreter="{{ ansible_playbook_python }}"
"""


class Soak:
    def __init__(self, options, engine, folder):
        self.engine, self.folder, self.runs, self.limit = engine, folder, options.runs, options.limit
        self.counts = dict.fromkeys(("runs", "successful", "canceled", "failed", "mixed up", "lost", "artifacts"), 0)
        self.under_way = self.most = 0
        self.lag = 0.0
        self.examples = []

    async def one(self, number):
        cancelled = number % 10 == 9
        fields = {
            "engine": self.engine,
            "cwd": self.folder,
            "inventory": "hosts.ini",
            "artifacts": "artifacts",
            "ident": f"{self.engine}-{number}",
            "extra_vars": {"number": number, "cancelled": cancelled},
        }
        events = []
        async with forkless.open_run("site.yml", **fields) as run:
            async for event in run.events():
                if not events:
                    self.under_way += 1
                    self.most = max(self.most, self.under_way)
                events.append(event)
                if cancelled and event.event == "runner_on_start" and event.task == "command":
                    run.cancel()
            result = await run.wait()
        self.under_way -= bool(events)
        self.judge(number, cancelled, events, result)

    def judge(self, number, cancelled, events, result):
        status = str(result.status)
        self.counts["runs"] += 1
        self.counts[status if status in self.counts else "failed"] += 1
        if (status == "canceled") != cancelled:
            self.examples.append(f"{number} ended as {status}: {result.stdout[-300:]}")
        told = {f"greeting {number} at {host}" for host in ("one", "two")}
        said = {word for event in events for word in [event.event_data.get("res", {}).get("msg")] if word}
        self.counts["mixed up"] += not cancelled and {word for word in said if "greeting" in word} != told
        whole = [event.counter for event in events] == list(range(1, len(events) + 1))
        self.counts["lost"] += not whole or (not cancelled and events[-1].event != "playbook_on_stats")
        home = pathlib.Path(self.folder, "artifacts", f"{self.engine}-{number}")
        names = list((home / "job_events").iterdir())
        self.counts["artifacts"] += len(names) != len(events) or (home / "status").read_text() != status

    async def watch_the_loop(self):
        while True:
            since = time.monotonic()
            await asyncio.sleep(0.05)
            self.lag = max(self.lag, time.monotonic() - since - 0.05)

    async def all(self):
        watch = asyncio.create_task(self.watch_the_loop())
        with forkless.limit(self.limit):
            await asyncio.gather(*(self.one(number) for number in range(self.runs)))
        watch.cancel()


def left():
    gc.collect()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "zombies": zombies(),
        "threads": threading.active_count(),
    }


def soak(options, engine):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "site.yml").write_text(BOOK)
        pathlib.Path(folder, "hosts.ini").write_text(HOSTS)
        fields = {"engine": engine, "cwd": folder, "inventory": "hosts.ini"}
        # Objects that are created once per process exist before the count begins.
        forkless.run("site.yml", **fields, extra_vars={"number": -1, "cancelled": False}).raise_for_failures()
        before, started = left(), time.monotonic()
        it = Soak(options, engine, folder)
        asyncio.run(it.all())
        seconds = round(time.monotonic() - started, 1)
        patience = time.monotonic() + 10
        while max((leaked := {what: count - before[what] for what, count in left().items()}).values()) > 0:
            if time.monotonic() > patience:
                break
            time.sleep(0.05)
    leaked = {what: max(0, count) for what, count in leaked.items()}
    report = {"engine": engine, "python": sys.version.split()[0], "limit": options.limit, **it.counts}
    report |= {"most at once": it.most, "leaked": leaked, "loop lag (s)": round(it.lag, 2), "seconds": seconds}
    print(json.dumps(report | ({"examples": it.examples[:3]} if it.examples else {})), flush=True)
    bad = [it.counts[what] for what in ("failed", "mixed up", "lost", "artifacts")]
    return not (any(bad) or it.examples or any(leaked.values()) or it.counts["runs"] != options.runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--engine", choices=("runner", "threads"), action="append")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--limit", type=int, default=8)
    options = parser.parse_args()
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    fine = [soak(options, engine) for engine in options.engine or ("runner", "threads")]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
