# SPDX-License-Identifier: GPL-3.0-or-later
"""
The race: stock Ansible, Mitogen, pyinfra and forkless, each in a virtual environment that this bench makes, at the same work.

    python -m bench race --rounds 5 --json docs/race.json
    RACE_HOSTS=25,100 RACE_FORKS=5 RACE_DELAYS=80 python -m bench race --only race-25,far-80 --json docs/race.json

Rows: race-N (four operations on N hosts: a directory, a touched file, a file that is put there, a shell command), race-N-forks-F, far-MS (the same
on ten hosts that are MS milliseconds away), delegate, run-once, throttle, become, start-N-KIND and -memory, and those of _race_work.ON_THE_CONTROLLER.

Needs Python 3.13 (of PATH or pyenv); what goes over SSH needs root and Debian's openssh-server. Candidates take turns within a round. "wall" and "cpu" are
those of the controller with the processes that it starts, "total" adds the hosts' CPU seconds. Far hosts are behind a proxy in this process, which counts
bytes and round trips. A candidate that fails or exceeds RACE_LIMIT seconds has its reason in the row, and the row goes on. The row is told after every
cell, so a race that is broken off keeps what it has.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from bench import _contenders
from bench import _race_work as work
from bench._latency import far_away
from bench._race_hosts import ROOT, children_cpu, end_masters, hosts, tree_cpu
from bench._results import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench._race_hosts import Hosts

HOME = ROOT / ".nox" / "race"
CORE, MITOGEN, PYINFRA = "ansible-core==2.21.*", "mitogen==0.3.*", "pyinfra==3.*"
LIMIT = float(os.environ.get("RACE_LIMIT", "600"))
FAR_HOSTS = 10
# Goals of the rows over SSH: at least pyinfra's wall, more where the hosts are far away, and at most 1.3 times its CPU on the controller.
AHEAD = {80: 1.5, 270: 2.0}


class CellError(Exception):
    """A candidate failed, or did not end in time."""


def _python() -> str:
    pyenv = os.path.join(
        os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")), "versions", "3.13.*", "bin", "python"
    )
    for found in filter(None, [*sorted(glob.glob(pyenv)), shutil.which("python3.13")]):
        # pyenv's shims exist for versions that are not chosen, too, and fail.
        if not subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
            return found
    raise SystemExit("the race needs Python 3.13, on PATH or among pyenv's")


def _installed(name: str, *packages: str) -> str:
    """The bin folder of a virtual environment with these packages; made when it is missing."""
    venv = HOME / name
    if not (venv / "ready").exists():
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([_python(), "-m", "venv", str(venv)], check=True)
        subprocess.run([str(venv / "bin/pip"), "install", "--quiet", *packages], check=True)
        (venv / "ready").touch()
    return str(venv / "bin")


@dataclass(frozen=True)
class Candidate:
    name: str
    line: list[str]
    environ: dict[str, str] = field(default_factory=dict)

    def _everything(self, folder: pathlib.Path) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
        # Each candidate may take its time to connect: 25 logins at once exceed ten seconds on a busy machine.
        ansible = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_TIMEOUT": "120", "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp")}
        return {**kept, **ansible, **self.environ}

    def run(self, folder: pathlib.Path) -> tuple[float, float]:
        """Wall and CPU seconds, or CellError."""
        before, start = children_cpu(), time.perf_counter()
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                self.line, cwd=folder, env=self._everything(folder), stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                raise CellError(f"more than {LIMIT:g} s") from None
            finally:
                wall = time.perf_counter() - start
                if process.returncode != 0:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if process.returncode:
                said.seek(0)
                raise CellError(f"exit status {process.returncode}: {_reason(said.read())}")
        return wall, children_cpu() - before

    def peak(self, folder: pathlib.Path) -> float:
        who = _contenders.Contender(self.name, self.line, {**self._everything(folder), "PYTHONPATH": ""})
        try:
            return _contenders.peak(who, [], str(folder))
        except SystemExit as failed:
            raise CellError(str(failed)) from failed


def _reason(said: str) -> str:
    """The line that tells why, of all that a failed candidate printed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line for word in ("UNREACHABLE!", "FAILED!", "ERROR", "Error"))]
    return (telling or lines or ["no output"])[0][:200]


class Candidates:
    """Those who take part, each in its own virtual environment."""

    def __init__(self) -> None:
        self._stock = _installed("stock", CORE)
        self._mitogen = _installed("mitogen", CORE, MITOGEN)
        self._pyinfra = _installed("pyinfra", PYINFRA)
        self._forkless = _installed("forkless", CORE, "-e", f"{ROOT}[ssh]")

    def on_the_controller(self, *arguments: str) -> list[Candidate]:
        return [
            Candidate("stock", [f"{self._stock}/ansible-playbook", *arguments]),
            Candidate("forkless", [f"{self._forkless}/forkless", "playbook", *arguments]),
        ]

    def over_ssh(self, forks: int, environ: dict[str, str] | None = None) -> list[Candidate]:
        arguments, more = ["-f", str(forks), "play.yml"], environ or {}
        place = "lib/python3.*/site-packages/ansible_mitogen/plugins/strategy"
        strategy = glob.glob(f"{os.path.dirname(self._mitogen)}/{place}")[0]
        mitogen = {"ANSIBLE_STRATEGY_PLUGINS": strategy, "ANSIBLE_STRATEGY": "mitogen_linear", **more}
        ours = [f"{self._forkless}/forkless", "playbook", "-i"]
        return [
            Candidate("stock", [f"{self._stock}/ansible-playbook", "-i", "ssh.ini", *arguments], more),
            Candidate("Mitogen", [f"{self._mitogen}/ansible-playbook", "-i", "ssh.ini", *arguments], mitogen),
            Candidate("forkless", [*ours, "ssh.ini", *arguments], more),
            Candidate("forkless.core.ssh", [*ours, "own.ini", *arguments], more),
        ]

    def pyinfra(self, forks: int) -> Candidate:
        line = [f"{self._pyinfra}/pyinfra", "-y", "--parallel", str(forks), "inventory.py", "deploy.py"]
        return Candidate("pyinfra", line)


class _Load:
    """CPU seconds of all that this process started while a block was executed, and the cores that other programs used."""

    def __enter__(self) -> Self:
        self._start, self._busy, self._tree = time.monotonic(), _busy(), tree_cpu()
        return self

    def __exit__(self, *_: object) -> None:
        self.own = tree_cpu() - self._tree
        self.cores = round(max(0.0, (_busy() - self._busy - self.own) / (time.monotonic() - self._start)), 2)


def _busy() -> float:
    """CPU seconds of the machine without this process's own."""
    fields = [int(one) for one in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK") - time.process_time()


def _over_ssh(
    row: Row, up: Hosts, play: str, candidates: list[Candidate], rounds: int, milliseconds: float = 0
) -> Iterator[Row]:
    for _ in range(rounds):
        for one in candidates:
            with tempfile.TemporaryDirectory() as at, far_away(up.addresses, milliseconds) as (ports, traffic):
                folder = pathlib.Path(at)
                up.write_project(folder, ports if milliseconds else [port for _, port in up.addresses], play)
                try:
                    for run in ("first", "second"):
                        traffic.clear()
                        with _Load() as load:
                            wall, cpu = one.run(folder)
                        row.add(f"wall {run}", one.name, wall)
                        row.add(f"cpu {run}", one.name, cpu)
                        row.add(f"total {run}", one.name, load.own)
                        row.others.append(load.cores)
                        if milliseconds:
                            row.add(f"round trips {run}", one.name, traffic.round_trips)
                            row.add(f"kB sent {run}", one.name, traffic.sent / 1000)
                            row.add(f"kB received {run}", one.name, traffic.received / 1000)
                except CellError as why:
                    row.failed[one.name] = str(why)
                finally:
                    end_masters(folder)
            yield row


def _locally(row: Row, candidates: list[Candidate], folder: pathlib.Path, rounds: int) -> Iterator[Row]:
    for _ in range(rounds):
        for one in candidates:
            try:
                if row.unit == "MB":
                    row.add("peak", one.name, one.peak(folder))
                else:
                    with _Load() as load:
                        wall, cpu = one.run(folder)
                    row.add("wall", one.name, wall)
                    row.add("cpu", one.name, cpu)
                    row.others.append(load.cores)
            except CellError as why:
                row.failed[one.name] = str(why)
            yield row


def circumstances(rounds: int) -> dict[str, object]:
    """The versions in the candidates' virtual environments, which are not this program's."""
    Candidates()
    ask = (
        "import sys, importlib.metadata as m; print(sys.version.split()[0], *(m.version(one) for one in sys.argv[1:]))"
    )
    found = {
        venv: subprocess.run(
            [str(HOME / venv / "bin/python"), "-c", ask, package], capture_output=True, text=True, check=True
        ).stdout.split()
        for venv, package in (("stock", "ansible-core"), ("mitogen", "mitogen"), ("pyinfra", "pyinfra"))
    }
    versions = {"ansible_core": found["stock"][1], "mitogen": found["mitogen"][1], "pyinfra": found["pyinfra"][1]}
    return {"python": found["stock"][0], **versions, "cores": os.cpu_count(), "rounds": rounds}


def _numbers(name: str, default: str) -> list[int]:
    return [int(one) for one in os.environ.get(name, default).split(",") if one]


def rows(rounds: int, only: list[str] | None = None) -> Iterator[Row]:
    """The rows of the race, or those named in `only`; each again and again, whenever one of its cells is filled."""
    candidates = Candidates()

    def wanted(name: str) -> bool:
        return not only or name in only

    for count, kind in ((100, "ini"), (10000, "ini"), (10000, "yaml"), (10000, "constructed")):
        name, title = f"start-{count}-{kind}", f"one debug task, {count:,} hosts, inventory: {kind}"
        goals = {"stock": 1.0 if count == 100 else 2.0}
        with tempfile.TemporaryDirectory() as at:
            folder = pathlib.Path(at)
            (folder / "one.yml").write_text(work.START)
            lines = candidates.on_the_controller(*work.inventory(folder, kind, count), "one.yml")
            if wanted(name):
                yield from _locally(Row(name, title, goals=goals), lines, folder, rounds)
            if wanted(f"{name}-memory"):
                yield from _locally(Row(f"{name}-memory", title, unit="MB", goals=goals), lines, folder, rounds)
    for name, (make, title, sizes, goal) in work.ON_THE_CONTROLLER.items():
        for size in sizes:
            if wanted(name) or wanted(f"{name}-{size}"):
                with tempfile.TemporaryDirectory() as at:
                    folder = pathlib.Path(at)
                    lines = candidates.on_the_controller(*make(folder, size))
                    row = Row(f"{name}-{size}", title.format(count=f"{size:,}"), goals={"stock": goal})
                    yield from _locally(row, lines, folder, rounds)
    yield from _ssh_rows(candidates, rounds, wanted)


def _ssh_rows(candidates: Candidates, rounds: int, wanted: Callable[[str], bool]) -> Iterator[Row]:
    near = [(f"race-{count}", count, count, 0) for count in _numbers("RACE_HOSTS", "25")]
    near += [
        (f"race-{count}-forks-{forks}", count, forks, 0)
        for count in _numbers("RACE_HOSTS", "25")
        for forks in _numbers("RACE_FORKS", "")
    ]
    far = [(f"far-{delay}", FAR_HOSTS, FAR_HOSTS, delay) for delay in _numbers("RACE_DELAYS", "5,80,270")]
    for name, count, forks, delay in near + far:
        if wanted(name):
            title = f"{count} hosts x 4 operations, forks {forks}" + (f", {delay} ms round trip" if delay else "")
            goals = {
                "wall pyinfra": AHEAD.get(delay, 1.0),
                "cpu pyinfra": 1 / 1.3,
                "wall stock": 8.0,
                "wall Mitogen": 4.0,
            }
            with hosts(count) as up:
                line_up = [*candidates.over_ssh(forks), candidates.pyinfra(forks)]
                yield from _over_ssh(Row(name, title, goals=goals), up, work.FOUR_OPERATIONS, line_up, rounds, delay)
    for name, (title, _) in work.KEYWORDS.items():
        if wanted(name):
            with hosts(FAR_HOSTS) as up, up.become_users():
                # Without pipelining, a module of an unprivileged become user needs ACLs or files that all may read.
                line_up = candidates.over_ssh(FAR_HOSTS, {"ANSIBLE_PIPELINING": "1"})
                row = Row(name, title, goals={"wall stock": 1.0})
                yield from _over_ssh(row, up, work.keyword_play(name), line_up, rounds)
