# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a run costs on top of ansible-playbook: time and processor, events per second, memory per run at once.

    python -m bench.runner [--repeats 5] [--at-once 8]

All ways are measured in turn, round after round, in one go, and told as ratios to the bare command: whatever else the
machine does then hits all of them alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import forkless
from forkless.core.process_tree import ProcessTree
from forkless.engines.runner.engine import RunnerEngine

if TYPE_CHECKING:
    from collections.abc import Callable

ONE_TASK = "- hosts: localhost\n  gather_facts: false\n  tasks:\n  - debug: msg=hello\n"
MANY_EVENTS = "- hosts: localhost\n  gather_facts: false\n  tasks:\n  - debug: msg={{ item }}\n    loop: '{{ range(400) | list }}'\n"
ASLEEP = "- hosts: localhost\n  gather_facts: false\n  tasks:\n  - command: sh -c 'touch {mark}/$$; exec sleep 300'\n"


def bare(book: str) -> int:
    command = os.path.join(os.path.dirname(sys.executable), "ansible-playbook")
    subprocess.run([command, book], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return 0


def _ansible_runner(book: str) -> int:
    import ansible_runner

    with tempfile.TemporaryDirectory() as folder:
        run = ansible_runner.run(private_data_dir=folder, playbook=book, quiet=True, cancel_callback=lambda: False)
        assert run.status == "successful", run.status
        return sum(1 for _ in run.events)


def stock_runner(book: str) -> int:
    return _ansible_runner(book)


def patched_runner(book: str) -> int:
    import forkless.runner

    with forkless.runner.patched():
        return _ansible_runner(book)


def by(engine: object) -> Callable[[str], int]:
    def run(book: str) -> int:
        return len(forkless.run(book, engine=engine).raise_for_failures().events)  # type: ignore[arg-type]

    return run


WAYS: dict[str, Callable[[str], int]] = {
    "ansible-playbook": bare,
    "ansible_runner.run, stock": stock_runner,
    "ansible_runner.run, patched": patched_runner,
    "engine runner, child ansible": by(RunnerEngine("ansible")),
    "engine runner, child threads": by(RunnerEngine("threads")),
    "engine threads": by("threads"),
}


def _cpu() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def rounds(book: str, repeats: int) -> dict[str, dict[str, float]]:
    """Medians of wall and processor seconds per way, taken in turn after one round that is thrown away."""
    walls: dict[str, list[float]] = {name: [] for name in WAYS}
    cpus: dict[str, list[float]] = {name: [] for name in WAYS}
    events: dict[str, int] = {}
    for number in range(repeats + 1):
        for name, way in WAYS.items():
            wall, cpu = time.perf_counter(), _cpu()
            events[name] = way(book)
            if number:
                walls[name].append(time.perf_counter() - wall)
                cpus[name].append(_cpu() - cpu)
    return {
        name: {"wall": statistics.median(walls[name]), "cpu": statistics.median(cpus[name]), "events": events[name]}
        for name in WAYS
    }


def raw_events(count: int = 20_000) -> float:
    """Events per second from a child that does nothing else: the ceiling of our side."""
    script = (
        "import base64, json, os, sys\n"
        "folder = os.path.join(os.environ['AWX_ISOLATED_DATA_DIR'], 'job_events'); os.makedirs(folder)\n"
        "def mark(what):\n"
        "    text = base64.b64encode(json.dumps(what).encode()).decode()\n"
        "    return '\\x1b[K' + text + f'\\x1b[{len(text)}D\\x1b[K'\n"
        f"for n in range({count}):\n"
        "    with open(f'{folder}/{n}-partial.json', 'w') as f: f.write('{\"event\": \"runner_on_ok\", \"event_data\": {}}')\n"
        "    sys.stdout.write(mark({'uuid': str(n)}) + f'ok {n}\\n' + mark({}))\n"
    )

    class Printing(RunnerEngine):
        def _command(self, spec: forkless.RunSpec) -> list[str]:  # noqa: ARG002
            return [sys.executable, "-c", script]

    began = time.perf_counter()
    result = forkless.run("x.yml", engine=Printing())
    assert len(result.events) == count, len(result.events)
    return count / (time.perf_counter() - began)


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def memory(folder: str, at_once: int, engine: object) -> dict[str, float]:
    """Megabytes per run, in our process and in its children, with so many runs asleep in a task at once."""
    mark = os.path.join(folder, f"marks-{id(engine)}")
    os.mkdir(mark)
    book = os.path.join(folder, "asleep.yml")
    pathlib.Path(book).write_text(ASLEEP.format(mark=mark))
    mine, threads = _pss(os.getpid()), threading.active_count()
    runs = [forkless.start(book, engine=engine) for _ in range(at_once)]  # type: ignore[arg-type]
    began = time.perf_counter()
    while len(os.listdir(mark)) < at_once:
        time.sleep(0.1)
    started = time.perf_counter() - began
    ours = (_pss(os.getpid()) - mine) / at_once
    children = sum(_pss(pid) for pid in ProcessTree(os.getpid()).alive()) / at_once
    told = {"own": ours / 1e6, "children": children / 1e6, "threads": (threading.active_count() - threads) / at_once}
    for run in runs:
        run.cancel()
    for run in runs:
        run.wait()
    return told | {"started": started}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.runner", description=__doc__.splitlines()[1])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv if argv is not None else [])
    # As if the environment were activated: ansible-runner looks for the command on PATH.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
    told: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        book = os.path.join(folder, "one.yml")
        for title, text, repeats in (
            ("one task", ONE_TASK, options.repeats),
            ("400 items", MANY_EVENTS, max(1, options.repeats // 2)),
        ):
            pathlib.Path(book).write_text(text)
            told[title] = measured = rounds(book, repeats)
            if not options.json:
                table(title, measured)
        told["raw events/s"] = rate = raw_events()
        if not options.json:
            print(f"\nevents that do nothing else: {rate:.0f} per second\n", flush=True)
        for child in ("ansible", "threads"):
            told[f"memory, child {child}"] = used = memory(folder, options.at_once, RunnerEngine(child))
            if not options.json:
                print(
                    f"{options.at_once} runs at once, child {child}: {used['children']:.0f} MB per run in children,"
                    f" {used['own']:.2f} MB in our process, {used['threads']:.0f} threads;"
                    f" all started in {used['started']:.0f} s",
                    flush=True,
                )
    if options.json:
        print(json.dumps(told, indent=1))
    return 0


def table(title: str, measured: dict[str, dict[str, float]]) -> None:
    base = measured["ansible-playbook"]
    print(f"\n{title:30} {'wall':>8} {'ratio':>6} {'cpu':>8} {'ratio':>6} {'events/s':>9}")
    for name, numbers in measured.items():
        rate = numbers["events"] / numbers["wall"] if numbers["events"] else 0
        print(
            f"{name:30} {numbers['wall']:7.2f}s {numbers['wall'] / base['wall']:6.2f}"
            f" {numbers['cpu']:7.2f}s {numbers['cpu'] / base['cpu']:6.2f} {rate:9.0f}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
