# SPDX-License-Identifier: GPL-3.0-or-later
"""
Installs what the tests need besides Python packages: system programs and real servers.

`make test` runs it. It does not change what is already installed. It names what cannot be installed in one line, and the tests
that need it say so.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import prepare_collections
import prepare_jobs

# The programs that tests start, and the Debian package of each.
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
    "setsid": "util-linux",
    "zsh": "zsh",
    "fish": "fish",
    "curl": "curl",
}
# The same browser, first without what only a screen needs: it takes two thirds of the CPU time. Not every system has a package of that.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser")
NO_BROWSER = "missing: chromium (apt-get install chromium-headless-shell)"


def browser() -> str | None:
    """The browser of the tests that look at pages."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


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


AXE = "axe-core@4.14.0"


def fetch_axe(cache: pathlib.Path) -> None:
    """What looks for barriers in the pages: one file of an npm package, for the tests only."""
    place = cache / "axe-core" / "axe.min.js"
    if place.exists() or shutil.which("npm") is None:
        return
    place.parent.mkdir(exist_ok=True)
    done = subprocess.run(
        ["npm", "pack", "--silent", AXE], cwd=place.parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"missing: {AXE} (npm pack did not fetch it); the test that needs it is skipped with this reason")
        return
    with tarfile.open(place.parent / done.stdout.split()[-1]) as archive:
        content = archive.extractfile("package/axe.min.js").read()
    fresh = place.with_suffix(".part")
    fresh.write_bytes(content)
    fresh.replace(place)


def compile_tests() -> None:
    """Collects the tests once: Python and pytest keep what they compile, and workers that start together would each compile everything."""
    root = pathlib.Path(__file__).resolve().parent.parent
    collect = [sys.executable, "-m", "pytest", "--collect-only", "--quiet"]
    # What cannot be collected is told of by the tests.
    subprocess.run(collect, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def main() -> int:
    """Holds a lock in the checkout: two `make test` may start at the same moment."""
    cache = pathlib.Path(__file__).resolve().parent.parent / ".cache"
    cache.mkdir(exist_ok=True)
    with (cache / "prepare.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return prepare()


def prepare() -> int:
    wanted = missing()
    if wanted:
        print(f"installing {', '.join(sorted(set(wanted.values())))} ...", flush=True)
        install(sorted(set(wanted.values())))
    for program, package in missing().items():
        print(f"missing: {program} (apt-get install {package}); the tests that need it are skipped with this reason")
    for package in BROWSERS[:2]:
        if browser() is None:
            print(f"installing {package} ...", flush=True)
            install([package])
    if browser() is None:
        print(f"{NO_BROWSER}; the tests that need it are skipped with this reason")
    fetch_axe(pathlib.Path(__file__).resolve().parent.parent / ".cache")
    print("setting up the servers that the tests talk to ...", flush=True)
    prepare_jobs.prepare()
    prepare_collections.prepare()
    compile_tests()
    return 0


if __name__ == "__main__":
    sys.exit(main())
