# SPDX-License-Identifier: GPL-3.0-or-later
"""Routers of FRR behind one sshd, as devices for tests: each is a bgpd of its own with vtysh as its shell, on an address of its own."""

from __future__ import annotations

import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import time

BGPD, VTYSH, SSHD = "/usr/lib/frr/bgpd", shutil.which("vtysh"), "/usr/sbin/sshd"
MISSING = "these tests talk to FRR; install Debian's frr and openssh-server, and be root, to run them"


def there() -> bool:
    return bool(os.path.exists(BGPD) and VTYSH and os.path.exists(SSHD) and os.geteuid() == 0)


class Routers:
    """`names` and the address of each; `close` ends them. Their port is the same for all."""

    def __init__(self, folder: pathlib.Path, number: int) -> None:
        folder.mkdir(parents=True)
        self.folder, self.key = folder, str(folder / "key")
        self.addresses = {f"rtr{one}": f"127.0.1.{one}" for one in range(1, number + 1)}
        with socket.socket() as probe:
            probe.bind(("127.0.1.1", 0))
            self.port = probe.getsockname()[1]
        self.processes: dict[str, subprocess.Popen] = {}
        for name in self.addresses:
            self._router(name)
        self._sshd()

    def _router(self, name: str) -> None:
        home = self.folder / name
        home.mkdir()
        (home / "bgpd.conf").write_text(
            f"hostname {name}\nrouter bgp 65001\n bgp router-id {self.addresses[name]}\n neighbor 192.0.2.1 remote-as 65100\n"
        )
        (home / "vtysh.conf").write_text(f"hostname {name}\nusername root nopassword\n")
        (home / "login").write_text(f"#!/bin/sh\nVTYSH_PAGER= exec {VTYSH} --vty_socket {home} --config_dir {home}\n")
        (home / "login").chmod(0o755)
        # -Z: no zebra; -S: as this user; -p 0 -P 0: no TCP port.
        self.processes[name] = subprocess.Popen(
            [BGPD, "-Z", "-S", "-p", "0", "-P", "0", "-f", home / "bgpd.conf", "-i", home / "bgpd.pid", "--vty_socket", home],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _sshd(self) -> None:
        for name in ("key", "host_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)], check=True
            )  # fmt: skip
        os.makedirs("/run/sshd", exist_ok=True)
        lines = [
            f"Port {self.port}", *(f"ListenAddress {address}" for address in self.addresses.values()),
            f"HostKey {self.folder}/host_key", f"AuthorizedKeysFile {self.folder}/key.pub", "PermitRootLogin yes", "UsePAM no",
            "StrictModes no", "MaxStartups 200:30:400", f"PidFile {self.folder}/sshd.pid",
        ]  # fmt: skip
        for name, address in self.addresses.items():
            lines += [f"Match LocalAddress {address}", f"  ForceCommand {self.folder}/{name}/login"]
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n")
        self.processes["sshd"] = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")], stderr=open(self.folder / "sshd.log", "w")  # noqa: SIM115
        )  # fmt: skip
        deadline = time.monotonic() + 60
        waiting = set(self.addresses)
        while waiting:
            assert time.monotonic() < deadline, (self.folder / "sshd.log").read_text()
            for name in list(waiting):
                if (self.folder / name / "bgpd.vty").exists():
                    try:
                        socket.create_connection((self.addresses[name], self.port), 1).close()
                    except OSError:
                        continue
                    waiting.discard(name)
            time.sleep(0.05)

    def inventory(self, **variables) -> str:
        """An inventory file with all routers."""
        given = {
            "ansible_port": self.port, "ansible_user": getpass.getuser(), "ansible_ssh_private_key_file": self.key,
            "ansible_connection": "ansible.netcommon.network_cli", "ansible_network_os": "cisco.ios.ios", "ansible_timeout": 60, **variables,
        }  # fmt: skip
        words = " ".join(f"{name}={value!r}" for name, value in given.items())
        path = self.folder / "hosts.ini"
        path.write_text("".join(f"{name} ansible_host={address} {words}\n" for name, address in self.addresses.items()))
        return str(path)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
