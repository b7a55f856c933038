# SPDX-License-Identifier: GPL-3.0-or-later
"""What forkless is, in under a minute: a playbook on twenty local hosts, carried out by threads of this very process."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time

import forkless

HERE = pathlib.Path(__file__).parent / "demo"


def main() -> int:
    forks = []
    sys.addaudithook(lambda event, _: forks.append(event) if event in ("os.fork", "os.forkpty") else None)
    folder = tempfile.mkdtemp(prefix="forkless-demo-")
    print(
        f"ansible-core in process {os.getpid()}, with {os.path.relpath(HERE / 'site.yml')} on 20 hosts, 10 at a time:\n"
    )
    began = time.monotonic()
    run = forkless.start(
        HERE / "site.yml", inventory=HERE / "hosts.ini", forks=10, env={"FORKLESS_DEMO": folder}, engine="threads"
    )
    most, done, tasks = 0, 0, 0
    for event in run.events():
        most = max(most, threading.active_count())
        if event.event == "playbook_on_task_start":
            tasks += 1
            print(f"  {time.monotonic() - began:5.1f} s  {event.task}", flush=True)
        done += event.event.startswith("runner_on_") and event.event != "runner_on_start"
    result = run.wait()
    shutil.rmtree(folder, ignore_errors=True)
    recap = result.stdout[result.stdout.rindex("PLAY RECAP") :].splitlines()
    print("\n" + "\n".join([*recap[:4], f"... and {len(result.hosts) - 3} more"]))
    print(
        f"\n{result.status}: {done} results of {tasks} tasks in {time.monotonic() - began:.1f} s; "
        f"up to {most} threads, {len(forks)} forks of this process."
    )
    return result.rc


if __name__ == "__main__":
    sys.exit(main())
