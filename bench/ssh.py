# SPDX-License-Identifier: GPL-3.0-or-later
"""
SSH without a program beside the ssh program, and modules in this process beside modules in one of their own.

    python -m bench ssh                                          all of it
    python bench/ssh.py [--hosts 10] [--tasks 20] [--rounds 3]   with other numbers

Needs root and Debian's openssh-server and openssh-client: the hosts are real sshds, each in namespaces of its own. Candidates take turns, the
table has medians of wall and CPU seconds (children included; the sshds' own are not) and the ratio to stock with ControlPersist and
pipelining, all of one run. Mitogen is measured where it is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

STOCK = [str(pathlib.Path(sys.executable).with_name("ansible-playbook"))]
OURS = [sys.executable, "-m", "forkless", "playbook"]
# OpenSSH's newest key exchange costs 0.1 s of CPU on each side, and the library does not have it: the same one for all.
KEX = "-o KexAlgorithms=curve25519-sha256@libssh.org"
KINDS = (
    "command: 'true'",
    "copy: {content: '{{ inventory_hostname }} N', dest: '~/bench-N'}",
    "stat: {path: '~/bench-N'}",
    "file: {path: '~/bench-N', mode: '0600'}",
)
LOCAL = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - {name: PLAIN, file: {path: "{{ place }}", state: directory}, loop: "{{ range(COUNT) | list }}"}
"""


def play(tasks: int) -> str:
    lines = ["- hosts: all", "  gather_facts: false", "  tasks:"]
    lines += ["    - " + KINDS[number % len(KINDS)].replace("N", str(number // len(KINDS))) for number in range(tasks)]
    return "\n".join(lines) + "\n"


def measured(line: list[str], folder: pathlib.Path, environ: dict[str, str]) -> tuple[float, float]:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        line, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environ}, capture_output=True, text=True, check=False
    )  # fmt: skip
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)} failed:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def candidates(mitogen: str | None) -> dict[str, tuple[list[str], str, dict[str, str]]]:
    """name -> (command, connection, environment). The first is what the others are compared with."""
    fast = "-o ControlMaster=auto -o ControlPersist=60s " + KEX
    found = {
        "stock ssh, ControlPersist + pipelining": (STOCK, "ssh", {"ANSIBLE_PIPELINING": "1", "ANSIBLE_SSH_ARGS": fast}),
        "stock ssh, plain": (
            STOCK,
            "ssh",
            {"ANSIBLE_SSH_ARGS": "-o ControlMaster=no " + KEX, "ANSIBLE_PIPELINING": "0"},
        ),
        "forkless.core.ssh on forkless, pipelining": (
            OURS,
            "forkless.core.ssh",
            {"ANSIBLE_PIPELINING": "1", "ANSIBLE_SSH_ARGS": KEX},
        ),
        "forkless.core.ssh on forkless": (
            OURS,
            "forkless.core.ssh",
            {"ANSIBLE_PIPELINING": "0", "ANSIBLE_SSH_ARGS": KEX},
        ),
        "stock's own ssh on forkless, as the first": (
            OURS,
            "ssh",
            {"ANSIBLE_PIPELINING": "1", "ANSIBLE_SSH_ARGS": fast},
        ),
    }
    if mitogen:
        plugins = os.path.join(mitogen, "plugins", "strategy")
        found["Mitogen"] = (
            STOCK,
            "ssh",
            {"ANSIBLE_STRATEGY_PLUGINS": plugins, "ANSIBLE_STRATEGY": "mitogen_linear", "ANSIBLE_SSH_ARGS": KEX},
        )
    return found


def table(title: str, rows: dict[str, list[tuple[float, float]]]) -> None:
    print(f"\n{title}")
    print(f"  {'':<44} {'wall s':>8} {'ratio':>7} {'CPU s':>8} {'ratio':>7}")
    medians = {name: [statistics.median(one) for one in zip(*values, strict=True)] for name, values in rows.items()}
    base = next(iter(medians.values()))
    for name, (wall, cpu) in medians.items():
        print(f"  {name:<44} {wall:8.2f} {base[0] / wall:6.2f}x {cpu:8.2f} {base[1] / cpu:6.2f}x")


def end_masters(folder: pathlib.Path) -> None:
    """Close ControlPersist's connections, so that each round begins with none."""
    for socket in (folder / "cp").glob("*"):
        subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={socket}", "x"], capture_output=True, check=False)


def bench_plays(up: object, folder: pathlib.Path, hosts: int, tasks: int, rounds: int, mitogen: str | None) -> None:
    (folder / "play.yml").write_text(play(tasks))
    rows: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for name, (command, connection, environ) in candidates(mitogen).items():
            inventory = folder / f"{connection}.ini"
            inventory.write_text(up.inventory(connection))  # type: ignore[attr-defined]
            environ = {**environ, "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"), "ANSIBLE_NOCOLOR": "1"}  # noqa: PLW2901
            line = [*command, "-i", str(inventory), "-f", str(hosts), "play.yml"]
            try:
                rows.setdefault(name, []).append(measured(line, folder, environ))
            except SystemExit as err:
                if name != "Mitogen":
                    raise
                print(f"Mitogen does not work here and is left out: {str(err)[-300:]}")
                mitogen = None
                rows.pop(name, None)
            end_masters(folder)
    table(f"{hosts} hosts x {tasks} tasks, forks {hosts}, {rounds} rounds", rows)


def bench_transport(up: object, count: int) -> None:
    """Without Ansible: how many connections, and how many commands on one, in a second."""
    from forkless import ssh

    target = up.hosts[0]  # type: ignore[attr-defined]
    args = f"-F none -o UserKnownHostsFile={up.known_hosts} {KEX}"  # type: ignore[attr-defined]
    wish = ssh.SshOptions(host=target.address, port=target.port, user=target.user, key_file=up.key, common_args=args)  # type: ignore[attr-defined]
    control = f"-o ControlPath={up.folder}/bench-%C"  # type: ignore[attr-defined]
    binary = [
        "ssh",
        *args.split(),
        "-o",
        "BatchMode=yes",
        "-i",
        target.key,
        "-p",
        str(target.port),
        f"{target.user}@{target.address}",
    ]
    figures: dict[str, tuple[float, float]] = {}

    def rate(times: int, do: object) -> float:
        start = time.perf_counter()
        for _ in range(times):
            do()  # type: ignore[operator]
        return times / (time.perf_counter() - start)

    def connect() -> None:
        link = ssh.Link(wish.settings())
        link.execute("true")
        link.close()

    connect()
    with ssh.kept("bench"):
        link = ssh.Link(wish.settings())
        link.execute("true")
        kept = rate(count * 5, lambda: link.execute("true"))
    figures["forkless.ssh"] = (rate(count, connect), kept)
    fresh = rate(count, lambda: subprocess.run([*binary, "true"], check=True, capture_output=True))
    master = [*binary[:1], *control.split(), "-o", "ControlMaster=auto", "-o", "ControlPersist=60", *binary[1:]]
    subprocess.run(
        [*master, "true"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    muxed = rate(count * 5, lambda: subprocess.run([*master, "true"], check=True, capture_output=True))
    subprocess.run([*master, "-O", "exit"], check=False, capture_output=True)
    figures["the ssh program (ControlPersist for commands)"] = (fresh, muxed)
    print("\none host, one thread, a second has")
    base = figures["the ssh program (ControlPersist for commands)"]
    for name, (connects, commands) in figures.items():
        print(
            f"  {name:<48} {connects:7.1f} connects ({connects / base[0]:.2f}x) {commands:8.1f} commands ({commands / base[1]:.2f}x)"
        )


def bench_local(folder: pathlib.Path, count: int, rounds: int) -> None:
    (folder / "local.yml").write_text(LOCAL.replace("COUNT", str(count)))
    (folder / "empty.yml").write_text(LOCAL.replace("COUNT", "1"))
    extra = [
        "-i",
        "localhost,",
        "-e",
        json.dumps({"place": str(folder / "x"), "ansible_python_interpreter": sys.executable}),
    ]
    rows: dict[str, list[tuple[float, float]]] = {}
    ways = {
        "stock, pipelining": STOCK,
        "forkless, modules in their own process": OURS,
        "forkless, modules in process": [*OURS, "--modules", "in-process"],
    }
    for _ in range(rounds):
        for name, command in ways.items():
            environ = {"ANSIBLE_PIPELINING": "1"}
            full = measured([*command, *extra, "local.yml"], folder, environ)
            start = measured([*command, *extra, "empty.yml"], folder, environ)
            # What the modules themselves cost: the play with one of them is taken off, since start-up is another bench's.
            rows.setdefault(name, []).append((max(full[0] - start[0], 1e-3), max(full[1] - start[1], 1e-3)))
    table(f"{count - 1} runs of a local module (file), start-up taken off, {rounds} rounds", rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python bench/ssh.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--local", type=int, default=101, help="local module runs")
    options = parser.parse_args(argv or [])
    if os.geteuid() != 0:
        print("the hosts of this bench are made with namespaces: run it as root")
        return 1
    import sshd_targets

    spec = importlib.util.find_spec("ansible_mitogen")
    mitogen = os.path.dirname(str(spec.origin)) if spec else None
    print(f"load at the start: {os.getloadavg()[0]:.1f}; Mitogen: {'yes' if mitogen else 'not installed'}")
    sys.path.insert(0, str(ROOT / "src"))
    with contextlib.ExitStack() as around:
        up = around.enter_context(sshd_targets.targets(options.hosts))
        folder = pathlib.Path(around.enter_context(tempfile.TemporaryDirectory()))
        bench_plays(up, folder, options.hosts, options.tasks, options.rounds, mitogen)
        bench_transport(up, 30)
        bench_local(folder, options.local, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
