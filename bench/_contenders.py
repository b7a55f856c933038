# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is measured, and with what: programs with their children, in wall and CPU seconds and in memory at the peak."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parent.parent
# How often memory is looked at. A worker of stock lives for about 50 ms.
BEAT = 0.02


@dataclass(frozen=True)
class Contender:
    name: str
    command: list[str]
    environ: dict[str, str] = field(default_factory=dict)


def contenders() -> list[Contender]:
    """Stock, Mitogen where it is installed beside this Python, and forkless."""
    stock = [str(pathlib.Path(sys.executable).with_name("ansible-playbook"))]
    found = [Contender("stock", stock)]
    spec = importlib.util.find_spec("ansible_mitogen")
    if spec is not None:
        plugins = os.path.join(os.path.dirname(str(spec.origin)), "plugins", "strategy")
        environ = {"ANSIBLE_STRATEGY_PLUGINS": plugins, "ANSIBLE_STRATEGY": "mitogen_linear"}
        found.append(Contender("Mitogen", stock, environ))
    found.append(Contender("forkless", [sys.executable, "-m", "forkless", "playbook"]))
    return found


def environ(more: dict[str, str]) -> dict[str, str]:
    # Without bytecode on disk every program would compile ansible-core first, and that would be what is measured.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "ANSIBLE_NOCOLOR": "1", **more}


def measured(who: Contender, arguments: list[str], folder: str) -> tuple[float, float]:
    """Wall and CPU seconds of a program and its children."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [*who.command, *arguments], cwd=folder, env=environ(who.environ), capture_output=True, text=True, check=False
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{who.name} failed:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak(who: Contender, arguments: list[str], folder: str) -> float:
    """Megabytes at the peak: the proportional shares (Pss) of a program and all that it started, summed at each look."""
    process = subprocess.Popen(
        [*who.command, *arguments],
        cwd=folder,
        env=environ(who.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    most = 0.0
    while process.poll() is None:
        most = max(most, sum(_pss(pid) for pid in [process.pid, *offspring(process.pid)]) / 1024)
        time.sleep(BEAT)
    if process.returncode:
        raise SystemExit(f"{who.name} failed with {process.returncode} while its memory was measured")
    return most


def offspring(pid: int) -> list[int]:
    found: list[int] = []
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                text = pathlib.Path(f"/proc/{one}/task/{task}/children").read_text()
                waiting += [int(child) for child in text.split()]
                found += [int(child) for child in text.split()]
        except (OSError, ValueError):
            continue  # it ended while we looked
    return found


def _pss(pid: int) -> int:
    try:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        pass  # it ended while we looked
    return 0
