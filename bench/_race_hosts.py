# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of the race: sshds on this machine with their CPU seconds, and the inventories that lead to them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from bench import _race_work as work
from bench._contenders import offspring

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
PR_SET_CHILD_SUBREAPER = 36
_servers: set[int] = set()


def children_cpu() -> float:
    """CPU seconds of the processes that this one has started and waited for, and of those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tree_cpu() -> float:
    """The same with all that are running: sshds, their sessions, and sessions whose sshd ended, which are this process's children."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in _servers:
                raise SystemExit("an sshd ended")
            os.waitpid(ended.si_pid, 0)
    ticks = 0
    for pid in offspring(os.getpid()):
        with contextlib.suppress(OSError):  # it ended while we looked
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK") + children_cpu()


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """So many sshds. Needs root: each has namespaces of its own."""
    if os.geteuid():
        raise SystemExit("the hosts of the race need root")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if str(ROOT / "tests") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests"))
    import sshd_targets

    with sshd_targets.targets(count) as up:
        _servers.update(host.process.pid for host in up.hosts)
        try:
            yield Hosts(up)
        finally:
            _servers.clear()


class Hosts:
    """sshds that are running."""

    def __init__(self, up: Any) -> None:
        self.up = up
        self.addresses = [(host.address, host.port) for host in up.hosts]

    @contextlib.contextmanager
    def become_users(self) -> Iterator[None]:
        """The login user may become each user of the race without a password."""
        rule = pathlib.Path("/etc/sudoers.d") / f"{self.up.user}-race"
        rule.write_text(f"{self.up.user} ALL=({','.join(work.BECOME_USERS)}) NOPASSWD: ALL\n")
        rule.chmod(0o440)
        try:
            yield
        finally:
            rule.unlink()

    def write_project(self, folder: pathlib.Path, ports: list[int], play: str) -> None:
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
        (folder / "play.yml").write_text(play)
        (folder / "deploy.py").write_text(work.FOUR_OPERATIONS_OF_PYINFRA)
        (folder / "payload.txt").write_text("a line of some length, as in a file of settings\n" * 40)


def end_masters(folder: pathlib.Path) -> None:
    """End the ssh programs that ControlPersist left."""
    for socket in (folder / "cp").glob("*"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["ssh", "-O", "exit", "-o", f"ControlPath={socket}", "x"], capture_output=True, check=False, timeout=30
            )
