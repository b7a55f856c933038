# SPDX-License-Identifier: GPL-3.0-or-later
"""
The race: stock Ansible, Mitogen, pyinfra and forkless, each in a virtual environment that this bench makes, at the same work.

    python -m bench race --rounds 5 --json docs/race.json
    RACE_HOSTS=25,100 RACE_DELAYS=5,80,270 python -m bench race --only race-25,far-80

Needs root, Debian's openssh-server, and a Python 3.13 (of PATH or pyenv). Four operations on every host: a directory, a touched file, a file that is
put there, a shell command. Candidates take turns within a round. "wall" and "cpu" are those of the controller with the processes that it starts, "total"
adds the hosts' CPU seconds. Far hosts are behind a proxy in this process, which counts bytes and round trips.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from bench._latency import far_away
from bench._results import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOME = ROOT / ".nox" / "race"
CORE, MITOGEN, PYINFRA = "ansible-core==2.21.*", "mitogen==0.3.*", "pyinfra==3.*"
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - file: {path: ~/race/folder, state: directory}
    - file: {path: ~/race/folder/touched, state: touch}
    - copy: {src: payload.txt, dest: ~/race/folder/payload.txt}
    - shell: cat ~/race/folder/payload.txt > ~/race/folder/out
"""
DEPLOY = """
from pyinfra.operations import files, server
files.directory(path="race/folder")
files.file(path="race/folder/touched", touch=True)
files.put(src="payload.txt", dest="race/folder/payload.txt")
server.shell(commands=["cat race/folder/payload.txt > race/folder/out"])
"""
ONE_TASK = "- hosts: h1\n  gather_facts: false\n  tasks: [{debug: {msg: hello}}]\n"
LOOP = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars: {forkless_loop_workers: 8, ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  tasks:
    - {command: sleep 0.2, loop: "{{ range(50) | list }}"}
"""
PR_SET_CHILD_SUBREAPER = 36


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


class Candidates:
    """name -> (command line, environment), for an inventory of Ansible's and one of pyinfra's."""

    def __init__(self) -> None:
        self.stock = _installed("stock", CORE)
        self.mitogen = _installed("mitogen", CORE, MITOGEN)
        self.pyinfra = _installed("pyinfra", PYINFRA)
        self.forkless = _installed("forkless", CORE, "-e", f"{ROOT}[ssh]")

    def ansible(self, *arguments: str) -> dict[str, tuple[list[str], dict[str, str]]]:
        plugins = glob.glob(
            f"{os.path.dirname(self.mitogen)}/lib/python3.*/site-packages/ansible_mitogen/plugins/strategy"
        )[0]
        strategy = {"ANSIBLE_STRATEGY_PLUGINS": plugins, "ANSIBLE_STRATEGY": "mitogen_linear"}
        return {
            "stock": ([f"{self.stock}/ansible-playbook", *arguments], {}),
            "Mitogen": ([f"{self.mitogen}/ansible-playbook", *arguments], strategy),
            "forkless": ([f"{self.forkless}/forkless", "playbook", *arguments], {}),
        }

    def over_ssh(self, forks: int) -> dict[str, tuple[list[str], dict[str, str]]]:
        found = self.ansible("-i", "ssh.ini", "-f", str(forks), "play.yml")
        ours = [f"{self.forkless}/forkless", "playbook", "-i", "own.ini", "-f", str(forks), "play.yml"]
        pyinfra = [f"{self.pyinfra}/pyinfra", "-y", "--parallel", str(forks), "inventory.py", "deploy.py"]
        return {**found, "pyinfra": (pyinfra, {}), "forkless.core.ssh": (ours, {})}


def _measured(line: list[str], folder: pathlib.Path, more: dict[str, str]) -> tuple[float, float]:
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    environ = {**kept, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"), **more}
    process = subprocess.Popen(
        line, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    start = time.perf_counter()
    said = process.communicate()[0]
    wall = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(line)} failed:\n{said[-3000:]}")
    return wall, _children()


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Hosts:
    """sshd hosts, and their CPU seconds: sessions whose sshd ended before them are this process's children."""

    def __init__(self, up: Any) -> None:
        self.up = up
        self._servers = {host.process.pid for host in up.hosts}

    def cpu(self) -> float:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in self._servers:
                    raise SystemExit("an sshd ended")
                os.waitpid(ended.si_pid, 0)
        ticks = 0
        for pid in self._servers:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK") + _children()

    def write_inventories(self, folder: pathlib.Path, ports: list[int]) -> None:
        up = self.up
        known = [
            f"[{host.address}]:{port} {(host.folder / 'host_key.pub').read_text()}"
            for host, port in zip(up.hosts, ports, strict=True)
        ]
        (folder / "known_hosts").write_text("".join(known))
        before = [host.port for host in up.hosts]
        for host, port in zip(up.hosts, ports, strict=True):
            host.port = port
        for name, connection in (("ssh.ini", "ssh"), ("own.ini", "forkless.core.ssh")):
            text = up.inventory(connection).replace(up.known_hosts, str(folder / "known_hosts"))
            (folder / name).write_text(text)
        for host, port in zip(up.hosts, before, strict=True):
            host.port = port
        hosts = [
            (host.name, {"ssh_hostname": host.address, "ssh_port": port, "ssh_user": up.user, "ssh_key": up.key,
                         "ssh_known_hosts_file": str(folder / "known_hosts")})
            for host, port in zip(up.hosts, ports, strict=True)
        ]  # fmt: skip
        (folder / "inventory.py").write_text(f"hosts = {hosts!r}\n")
        (folder / "play.yml").write_text(PLAY)
        (folder / "deploy.py").write_text(DEPLOY)
        (folder / "payload.txt").write_text("a line of some length, as in a file of settings\n" * 40)


def _end_masters(folder: pathlib.Path) -> None:
    for socket in (folder / "cp").glob("*"):
        subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={socket}", "x"], capture_output=True, check=False)


def _over_ssh(row: Row, hosts: Hosts, candidates: Candidates, rounds: int, milliseconds: float) -> Row:
    targets = [(host.address, host.port) for host in hosts.up.hosts]
    for _ in range(rounds):
        for name, (line, environ) in candidates.over_ssh(len(targets)).items():
            with tempfile.TemporaryDirectory() as at, far_away(targets, milliseconds) as (ports, traffic):
                folder = pathlib.Path(at)
                hosts.write_inventories(folder, ports if milliseconds else [port for _, port in targets])
                for run in ("first", "second"):
                    traffic.clear()
                    total, before = hosts.cpu(), _children()
                    wall, after = _measured(line, folder, environ)
                    row.add(f"wall {run}", name, wall)
                    row.add(f"cpu {run}", name, after - before)
                    row.add(f"total {run}", name, hosts.cpu() - total)
                    if milliseconds:
                        row.add(f"round trips {run}", name, traffic.round_trips)
                        row.add(f"kB sent {run}", name, traffic.sent / 1000)
                        row.add(f"kB received {run}", name, traffic.received / 1000)
                _end_masters(folder)
    return row


def _locally(row: Row, lines: dict[str, tuple[list[str], dict[str, str]]], folder: pathlib.Path, rounds: int) -> Row:
    for _ in range(rounds):
        for name, (line, environ) in lines.items():
            before = _children()
            wall, after = _measured(line, folder, environ)
            row.add("wall", name, wall)
            row.add("cpu", name, after - before)
    return row


def _numbers(name: str, default: str) -> list[int]:
    return [int(one) for one in os.environ.get(name, default).split(",") if one]


def rows(rounds: int, only: list[str] | None = None) -> Iterator[Row]:
    """Every row of the race, or those named in `only`."""
    candidates = Candidates()
    with tempfile.TemporaryDirectory() as at:
        folder = pathlib.Path(at)
        (folder / "one.yml").write_text(ONE_TASK)
        (folder / "loop.yml").write_text(LOOP)
        for count, goal in ((100, 1.0), (10000, 2.0)):
            row = Row(f"start-{count}", f"one debug task, {count} hosts in an INI inventory", goals={"stock": goal})
            if not only or row.name in only:
                (folder / "hosts.ini").write_text(
                    "\n".join(f"h{number} ansible_connection=local" for number in range(1, count + 1)) + "\n"
                )
                lines = candidates.ansible("-i", "hosts.ini", "one.yml")
                yield _locally(row, {name: lines[name] for name in ("stock", "forkless")}, folder, rounds)
        row = Row("loop-items", "50 items of 0.2 s, 8 at once with forkless", goals={"stock": 6.0})
        if not only or row.name in only:
            lines = candidates.ansible("-i", "localhost,", "loop.yml")
            yield _locally(row, {name: lines[name] for name in ("stock", "forkless")}, folder, rounds)
    near, far = _numbers("RACE_HOSTS", "25"), _numbers("RACE_DELAYS", "5,80,270")
    wanted = {f"race-{count}": (count, 0) for count in near} | {f"far-{delay}": (10, delay) for delay in far}
    wanted = {name: what for name, what in wanted.items() if not only or name in only}
    if wanted and os.geteuid():
        raise SystemExit("the hosts of the race need root")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.path.insert(0, str(ROOT / "tests"))
    import sshd_targets

    for name, (count, delay) in wanted.items():
        title = f"{count} hosts x 4 operations" + (f", {delay} ms round trip" if delay else "")
        goals = {"pyinfra": 1.5 if delay == 80 else 2.0 if delay == 270 else 1.0, "stock": 8.0, "Mitogen": 4.0}
        with sshd_targets.targets(count) as up:
            yield _over_ssh(Row(name, title, goals=goals), Hosts(up), candidates, rounds, delay)
