# SPDX-License-Identifier: GPL-3.0-or-later
"""
Gets what the tests need and Python packages cannot bring: programs of the system, and real servers.

Run by `make test`. What is there already is left alone; what cannot be had is named in one line, and the tests that need it say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import prepare_collections
import prepare_jobs

# What the tests start, and the Debian package that has it.
PROGRAMS = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "sudo": "sudo",
    "unshare": "util-linux",
    "ip": "iproute2",
    "sshpass": "sshpass",
    "strace": "strace",
    "openssl": "openssl",
    "setpriv": "util-linux",
    "useradd": "passwd",
    "curl": "curl",
    "setsid": "util-linux",
    "chromium": "chromium",
    "zsh": "zsh",
    "fish": "fish",
}


def missing() -> dict[str, str]:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return {program: package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None}


def install(packages: list[str]) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = {"env": env, "stdout": subprocess.DEVNULL, "check": False}
    subprocess.run(["apt-get", "update", "-q"], **quiet)
    subprocess.run(["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages], **quiet)


def main() -> int:
    wanted = missing()
    if wanted:
        print(f"installing {', '.join(sorted(set(wanted.values())))} ...", flush=True)
        install(sorted(set(wanted.values())))
    for program, package in missing().items():
        print(f"missing: {program} (apt-get install {package}); the tests that need it are skipped with this reason")
    print("setting up the servers that the tests talk to ...", flush=True)
    prepare_jobs.prepare()
    prepare_collections.prepare()
    return 0


if __name__ == "__main__":
    sys.exit(main())
