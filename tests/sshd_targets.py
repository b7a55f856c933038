# SPDX-License-Identifier: GPL-3.0-or-later
"""
Real SSH servers as hosts for tests, each on its own loopback address; as root each also has its own hostname, /root and home.

As root they run in mount and uts namespaces and serve a user that is created for them and may use sudo. As an ordinary user
there is one plain sshd that serves that user. `python tests/sshd_targets.py 3` prints the inventory and waits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import getpass
import itertools
import os
import pathlib
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SSHD = next((p for p in ("/usr/sbin/sshd", shutil.which("sshd") or "") if p and os.path.exists(p)), None)
MISSING = "these tests talk to real sshds; install Debian's openssh-server (and sudo) to run them"
PASSWORD = "Wachtel-9 und Rebhuhn"


@dataclasses.dataclass
class Target:
    name: str
    address: str
    port: int
    user: str
    folder: pathlib.Path
    process: subprocess.Popen

    @property
    def key(self):
        return str(self.folder.parent / "client")

    @property
    def known_hosts(self):
        return str(self.folder.parent / "known_hosts")

    def log(self):
        return (self.folder / "log").read_text()


@dataclasses.dataclass
class Targets:
    folder: pathlib.Path
    user: str
    root: bool
    hosts: list[Target]

    @property
    def key(self):
        return str(self.folder / "client")

    @property
    def known_hosts(self):
        return str(self.folder / "known_hosts")

    def inventory(self, connection="forkless.core.ssh", more=""):
        lines = ["[targets]"]
        lines += [f"{t.name} ansible_host={t.address} ansible_port={t.port}" for t in self.hosts]
        lines += [
            "[targets:vars]",
            f"ansible_connection={connection}",
            f"ansible_user={self.user}",
            f"ansible_ssh_private_key_file={self.key}",
            "ansible_python_interpreter=/usr/bin/python3",
            f"ansible_ssh_common_args=-F none -o UserKnownHostsFile={self.known_hosts}",
            more,
        ]
        return "\n".join(lines) + "\n"


def free_port(address="127.0.0.1"):
    with socket.socket() as sock:
        sock.bind((address, 0))
        return sock.getsockname()[1]


quote = shlex.quote


def keygen(path, *more):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path), *more], check=True)


def start_sshd(folder, name, address, user, *, own_world, more="", before=lambda: None):
    """Starts one sshd. With `own_world`, which needs root, it runs in namespaces. `before` is called after its keys exist."""
    here = folder / name
    here.mkdir()
    port = free_port(address)
    host_key = here / "host_key"
    keygen(host_key)
    os.chmod(host_key, 0o600)
    before()
    (here / "conf").write_text(
        f"""{more}
Port {port}
ListenAddress {address}
HostKey {host_key}
PidFile {here}/pid
AuthorizedKeysFile {folder}/authorized
TrustedUserCAKeys {folder}/ca.pub
PermitRootLogin no
UsePAM no
StrictModes no
UseDNS no
MaxStartups 500
{"" if "Subsystem" in more else "Subsystem sftp internal-sftp"}
LogLevel VERBOSE
PasswordAuthentication {"yes" if own_world else "no"}
KbdInteractiveAuthentication no
MaxSessions 200
"""
    )
    (here / "log").touch()
    command = [SSHD, "-D", "-f", str(here / "conf"), "-E", str(here / "log")]
    if own_world:
        for place in ("root", "home"):
            (here / place).mkdir()
        shutil.chown(here / "home", user)
        home = folder / "home"
        # Its name is known, as that of any host: sudo asks for it, and a name server may take five seconds to say nothing.
        with contextlib.suppress(OSError):
            (here / "hosts").write_text(pathlib.Path("/etc/hosts").read_text() + f"{address} {name}\n")
        script = (
            f'hostname {name}; mount --make-rprivate /; mount --bind "{here}/root" /root; mount --bind "{here}/home" "{home}"; '
            f'if [ -e "{here}/hosts" ]; then mount --bind "{here}/hosts" /etc/hosts; fi; exec "$@"'
        )
        command = ["unshare", "--mount", "--uts", "sh", "-c", script, "sh", *command]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 240
    while not (here / "pid").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"sshd {name} did not start: {(here / 'log').read_text()}")
        time.sleep(0.05)
    with open(folder / "known_hosts", "a") as file:
        file.write(f"[{address}]:{port} {(here / 'host_key.pub').read_text()}")
    return Target(name=name, address=address, port=port, user=user, folder=here, process=process)


def stop(target):
    """Ends one sshd and its sessions. These are its descendants, so they are listed before their parent is ended."""
    with contextlib.suppress(ProcessLookupError):
        for pid in reversed(descendants(target.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        target.process.kill()
    target.process.wait()


def descendants(pid):
    found = []
    with contextlib.suppress(OSError):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


# For sshds with many connections: OpenSSH's own first choice (sntrup761) costs 50 ms of CPU time for each.
QUICK_KEY_EXCHANGE = "KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256"

_count = itertools.count()


@contextlib.contextmanager
def accounts():
    """
    A lock for the whole machine, whatever TMPDIR is: useradd and userdel fail while another one has locked /etc/passwd. Who has it sees no other
    test change who may become whom, after which interpreters of become users are started anew.
    """
    with open("/tmp/forkless-tests-accounts.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def account_name():
    """A name that no account has, nor gets from another test: processes in PID namespaces share /etc/passwd, and their ids are the same."""
    return f"fk{secrets.token_hex(5)}"


def add_user(name, home, hashed):
    with accounts():
        subprocess.run(
            ["useradd", "-M", "-d", str(home), "-s", "/bin/sh", "-p", hashed, name], check=True, capture_output=True
        )


@contextlib.contextmanager
def targets(count, *, more=""):
    """Starts `count` hosts as root, or one as an ordinary user, who cannot create the namespaces."""
    if SSHD is None:
        raise RuntimeError(MISSING)
    root = os.geteuid() == 0
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fk-sshd-"))
    folder.chmod(0o755)
    number = next(_count)
    user = account_name() if root else getpass.getuser()
    hosts = []
    sudoers = pathlib.Path("/etc/sudoers.d") / user
    try:
        keygen(folder / "client")
        keygen(folder / "ca")
        shutil.copy(folder / "client.pub", folder / "authorized")
        (folder / "authorized").chmod(0o644)
        if root:
            os.makedirs("/run/sshd", exist_ok=True)
            (folder / "home").mkdir()
            hashed = subprocess.run(
                ["openssl", "passwd", "-6", "-stdin"], input=PASSWORD, text=True, capture_output=True, check=True
            ).stdout.strip()
            add_user(user, folder / "home", hashed)
            if sudoers.parent.is_dir():
                with accounts():
                    sudoers.write_text(f"{user} ALL=(root) NOPASSWD: ALL\n{user} ALL=(nobody) PASSWD: ALL\n")
                    sudoers.chmod(0o440)
        # The address depends on the pid, so that two test processes do not use the same one.
        octet = 2 + (os.getpid() + number) % 250
        for place in range(count if root else 1):
            address = f"127.77.{octet}.{10 + place}" if sys.platform == "linux" else "127.0.0.1"
            hosts.append(start_sshd(folder, f"target{place}", address, user, own_world=root, more=more))
        yield Targets(folder=folder, user=user, root=root, hosts=hosts)
    finally:
        for target in hosts:
            stop(target)
        if root:
            with accounts():
                sudoers.unlink(missing_ok=True)
                subprocess.run(["userdel", "-f", user], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    with targets(int(sys.argv[1]) if len(sys.argv) > 1 else 3) as up:
        place = up.folder / "hosts.ini"
        place.write_text(up.inventory())
        print(place, flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
