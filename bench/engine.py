# SPDX-License-Identifier: GPL-3.0-or-later
"""
The threads engine beside stock ansible-playbook and Mitogen, where the controller is what the time goes to.

    python -m bench engine [--rounds 5] [--only ROW,...] [--json FILE]

Rows: controller-bound, many-tasks, warm-run, memory, growth. Contenders take turns within a round; wall and CPU seconds (children included), medians,
ratios. Mitogen is measured where it is installed beside this Python: `pip install mitogen`.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from bench import _contenders, _results
from bench._results import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONTROLLER = """
- hosts: all
  gather_facts: false
  vars: {base: "{{ inventory_hostname }}-x", items_: [1, 2, 3]}
  tasks:
    - debug: {msg: "hello {{ base }}"}
    - set_fact: {one: "{{ base }}-1"}
    - assert: {that: ["one == inventory_hostname ~ '-x-1'"]}
    - debug: {msg: "{{ item }} {{ one }}"}
      loop: "{{ items_ }}"
    - set_fact: {two: "{{ one | upper | length }}"}
      when: one is defined
    - debug: {msg: "{{ two }}"}
    - assert: {that: ["two | int > 0", "inventory_hostname in groups['all']"]}
    - debug: {msg: done}
"""
MANY = "- hosts: all\n  gather_facts: false\n  tasks:\n" + "".join(
    f'    - debug: {{msg: "task {n}"}}\n' for n in range(1000)
)
ONE = "- hosts: all\n  gather_facts: false\n  tasks: [{debug: {msg: hi}}]\n"
GROWTH = (50, 200, 800)
# A worker that is there for a while: tasks like those above are over before the next worker has begun, and 50 are never at work at once.
LINGER = """
import time
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        time.sleep(2)
        return {}
"""

# Second and later runs in one process, each told in wall and CPU seconds.
WARM = """
import sys, time
import forkless
spec = dict(playbook="play.yml", inventory="hosts.ini", engine="threads")
forkless.run(**spec).raise_for_failures()
for _ in range(int(sys.argv[1])):
    used, start = time.process_time(), time.perf_counter()
    forkless.run(**spec).raise_for_failures()
    print(time.perf_counter() - start, time.process_time() - used)
"""


def run_context(folder: str, play: str, hosts: int, forks: int) -> list[str]:
    """Write the play and its inventory; returns the arguments."""
    there = pathlib.Path(folder)
    (there / "play.yml").write_text(play)
    (there / "hosts.ini").write_text(
        f"n[1:{hosts}]\n[all:vars]\nansible_connection=local\nansible_python_interpreter={sys.executable}\n"
    )
    return ["-i", "hosts.ini", "-f", str(forks), "play.yml"]


def _plays(row: Row, rounds: int, play: str, hosts: int, forks: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        arguments = run_context(folder, play, hosts, forks)
        for _ in range(rounds):
            for who in _contenders.contenders():
                wall, cpu = _contenders.measured(who, arguments, folder)
                row.add("wall", who.name, wall)
                row.add("cpu", who.name, cpu)
    return row


def controller_bound(rounds: int) -> Row:
    title = "200 hosts x 8 controller-side tasks, forks 10"
    row = Row("controller-bound", title, goals={"stock": 5.0, "Mitogen": 1.0})
    return _plays(row, rounds, CONTROLLER, 200, 10)


def many_tasks(rounds: int) -> Row:
    row = Row("many-tasks", "1 host x 1,000 small tasks", goals={"stock": 5.0, "Mitogen": 1.0})
    return _plays(row, rounds, MANY, 1, 5)


def warm_run(rounds: int) -> Row:
    row = Row("warm-run", "second run of one debug task, against a cold ansible-playbook", goals={"stock": 30.0})
    with tempfile.TemporaryDirectory() as folder:
        arguments = run_context(folder, ONE, 1, 5)
        stock = _contenders.contenders()[0]
        line = [sys.executable, "-c", WARM, "1"]
        for _ in range(rounds):
            wall, cpu = _contenders.measured(stock, arguments, folder)
            row.add("wall", "stock", wall)
            row.add("cpu", "stock", cpu)
            said = subprocess.run(
                line, cwd=folder, env=_contenders.environ({}), capture_output=True, text=True, check=True
            ).stdout
            wall, cpu = map(float, said.split())
            row.add("wall", "forkless", wall)
            row.add("cpu", "forkless", cpu)
    return row


def memory(rounds: int) -> Row:
    title = "peak memory of controller and workers, 200 hosts, 50 workers at work at once"
    row = Row("memory", title, unit="MB", goals={"stock": 3.0, "Mitogen": 1.0})
    with tempfile.TemporaryDirectory() as folder:
        arguments = run_context(folder, f"{CONTROLLER}    - linger:\n", 200, 50)
        plugins = pathlib.Path(folder) / "action_plugins"
        plugins.mkdir()
        (plugins / "linger.py").write_text(LINGER)
        for _ in range(rounds):
            for who in _contenders.contenders():
                row.add("peak", who.name, _contenders.peak(who, arguments, folder))
    return row


def growth(rounds: int) -> Row:
    most = f"{GROWTH[-1]} hosts"
    # Flat within 20 %: the few hosts' time for a task on a host is at least 1/1.2 of the many's.
    row = Row(
        "growth",
        f"time for a task on a host, from {GROWTH[0]} to {GROWTH[-1]} hosts (8 controller-side tasks, forks 10)",
        unit="ms",
        subject=most,
        goals={f"{GROWTH[0]} hosts": round(1 / 1.2, 3)},
    )
    ours = _contenders.contenders()[-1]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            idle = _contenders.measured(ours, run_context(folder, ONE, 1, 10), folder)
            for hosts in GROWTH:
                figures = _contenders.measured(ours, run_context(folder, CONTROLLER, hosts, 10), folder)
                for measure, figure, start in zip(("wall", "cpu"), figures, idle, strict=True):
                    row.add(measure, f"{hosts} hosts", (figure - start) / (hosts * 8) * 1000)
    return row


ROWS = {
    "controller-bound": controller_bound,
    "many-tasks": many_tasks,
    "warm-run": warm_run,
    "memory": memory,
    "growth": growth,
}


def rows(rounds: int = 5, only: Iterable[str] = ()) -> Iterator[Row]:
    for name, measure in ROWS.items():
        if not only or name in only:
            yield measure(rounds)


def main() -> None:
    for row in rows():
        print(_results.table(row), flush=True)


if __name__ == "__main__":
    main()
