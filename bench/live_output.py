# SPDX-License-Identifier: GPL-3.0-or-later
"""
What output while a task runs costs: a task that prints nothing, 1,000 and 1,000,000 lines, with and without `live_output`.

    python -m bench.live_output [ROUNDS]
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import sys
import tempfile
import time

import forkless

# Prints at a pace of 100,000 lines a second, as far as its reader lets it.
PACED = """
import sys, time
lines, begin = int(sys.argv[1]), time.monotonic()
for number in range(0, lines, 1000):
    sys.stdout.write("".join(f"line {one:07} of a long build\\n" for one in range(number, number + 1000)))
    sys.stdout.flush()
    time.sleep(max(0.0, begin + (number + 1000) / 100_000 - time.monotonic()))
open(sys.argv[2], "w").close()
"""


def while_it_prints(action: str, lines: int, *, live: bool) -> tuple[float, float]:
    """
    Wall seconds and CPU seconds of this process until the task has printed its last line.

    What Ansible does with the result afterwards costs more than all of that, with and without `live_output`.
    """
    with tempfile.TemporaryDirectory() as folder:
        book, program, end = (pathlib.Path(folder) / name for name in ("play.yml", "paced.py", "end"))
        program.write_text(PACED)
        task = {action: f"{sys.executable} {program} {lines} {end}"}
        book.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
        variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        wall, own = time.perf_counter(), time.process_time()
        run = forkless.start(str(book), inventory="localhost,", extra_vars=variables, live_output=live)
        while not end.exists() and not run.status.ended:
            time.sleep(0.02)
        spent = time.perf_counter() - wall, time.process_time() - own
        run.wait().raise_for_failures()
        return spent


def measured(lines: int, *, live: bool) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds of this process, CPU seconds of the children that have ended."""
    with tempfile.TemporaryDirectory() as folder:
        book = pathlib.Path(folder) / "play.yml"
        task = {"shell": f"seq 1 {lines} 2>/dev/null" if lines else "true"}
        book.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
        variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall, own = time.perf_counter(), time.process_time()
        forkless.run(str(book), inventory="localhost,", extra_vars=variables, live_output=live).raise_for_failures()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
        return time.perf_counter() - wall, time.process_time() - own, spent


def main(rounds: int = 3) -> None:
    os.environ.setdefault("ANSIBLE_LOCALHOST_WARNING", "0")
    measured(0, live=False)  # imports ansible-core
    print(
        f"{'lines':>9}  {'':7}  {'wall':>7}  {'controller':>10}  {'host':>7}   (seconds, the last two of CPU, best of {rounds})"
    )
    for lines in (0, 1_000, 1_000_000):
        for live in (False, True):
            best = [min(column) for column in zip(*(measured(lines, live=live) for _ in range(rounds)), strict=True)]
            print(f"{lines:>9}  {'live' if live else 'without':7}  {best[0]:7.2f}  {best[1]:10.2f}  {best[2]:7.2f}")
    print("100,000 lines a second: this process while the task prints")
    for action, lines in (("shell", 200_000), ("raw", 1_000_000)):
        for live in (False, True):
            wall, own = while_it_prints(action, lines, live=live)
            how = "live" if live else "without"
            print(f"{lines:>9}  {action:5}  {how:7}  {wall:7.2f}  {own:7.2f}  {own / wall:6.1%} of a core")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
