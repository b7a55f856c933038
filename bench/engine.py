# SPDX-License-Identifier: GPL-3.0-or-later
"""
The threads engine beside stock ansible-playbook: wall and CPU seconds, interleaved, medians, as ratios.

    python -m bench engine [rounds]
"""

from __future__ import annotations

import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

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
MODULES = """
- hosts: all
  gather_facts: false
  tasks:
    - ping:
    - stat: {path: /}
    - command: "true"
    - file: {path: "{{ folder }}/{{ inventory_hostname }}", state: touch, mode: "0644"}
    - copy: {content: "{{ inventory_hostname }}", dest: "{{ folder }}/{{ inventory_hostname }}", mode: "0644"}
"""
MANY = "- hosts: all\n  gather_facts: false\n  tasks:\n" + "".join(
    f'    - debug: {{msg: "task {n}"}}\n' for n in range(200)
)
ONE = "- hosts: all\n  gather_facts: false\n  tasks: [{debug: {msg: hi}}]\n"

STOCK = [str(pathlib.Path(sys.executable).with_name("ansible-playbook"))]
OURS = [sys.executable, "-m", "forkless", "playbook"]
WORK = {
    "200 hosts x 8 controller-side tasks, forks 10": (CONTROLLER, 200, 10),
    "20 hosts x 5 local modules, forks 10": (MODULES, 20, 10),
    "1 host x 200 tasks": (MANY, 1, 5),
}


def measured(line: list[str], folder: str) -> tuple[float, float]:
    """Wall and CPU seconds of a program and its children."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(line, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def row(name: str, stock: list[tuple[float, float]], ours: list[tuple[float, float]]) -> str:
    middle = [[statistics.median(column) for column in zip(*rows, strict=True)] for rows in (stock, ours)]
    (stock_wall, stock_cpu), (our_wall, our_cpu) = middle
    return (
        f"{name:<48} {stock_wall:8.2f} {our_wall:8.2f} {stock_wall / our_wall:7.2f}x   "
        f"{stock_cpu:8.2f} {our_cpu:8.2f} {stock_cpu / our_cpu:7.2f}x"
    )


WARM = """
import resource, sys, time
import forkless
spec = dict(playbook="play.yml", inventory="hosts.ini", engine="threads")
forkless.run(**spec).raise_for_failures()
for _ in range(int(sys.argv[1])):
    used, start = time.process_time(), time.perf_counter()
    forkless.run(**spec).raise_for_failures()
    print(time.perf_counter() - start, time.process_time() - used)
"""


def main(rounds: int = 5) -> None:
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else rounds
    print(f"{'':<48} {'stock s':>8} {'ours s':>8} {'faster':>8}   {'stock cpu':>8} {'ours cpu':>8} {'less':>8}")
    with tempfile.TemporaryDirectory() as folder:
        there = pathlib.Path(folder)
        for name, (play, hosts, forks) in WORK.items():
            (there / "play.yml").write_text(play)
            (there / "hosts.ini").write_text(
                f"n[1:{hosts}]\n[all:vars]\nansible_connection=local\nansible_python_interpreter={sys.executable}\nfolder={folder}\n"
            )
            rest = ["-i", "hosts.ini", "-f", str(forks), "play.yml"]
            stock, ours = [], []
            for _ in range(rounds):
                stock.append(measured([*STOCK, *rest], folder))
                ours.append(measured([*OURS, *rest], folder))
            print(row(name, stock, ours), flush=True)
        (there / "play.yml").write_text(ONE)
        (there / "hosts.ini").write_text("n1 ansible_connection=local\n")
        cold = [measured([*STOCK, "-i", "hosts.ini", "play.yml"], folder) for _ in range(rounds)]
        line = [sys.executable, "-c", WARM, str(rounds)]
        text = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
        warm = [tuple(map(float, pair.split())) for pair in text.splitlines()]
        print(row("warm second run, against a cold ansible-playbook", cold, warm), flush=True)


if __name__ == "__main__":
    main()
