# SPDX-License-Identifier: GPL-3.0-or-later
"""Every Python and ansible-core that exist together. `nox -s matrix` runs what differs between versions on a few of them, `nox -s full` everything on all."""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess
import sys

import nox

nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True

PYTHONS = ("3.11", "3.12", "3.13")
CORES = ("2.18", "2.19", "2.20", "2.21")
# ansible-core 2.20 and 2.21 want Python 3.12.
PAIRS = [(python, core) for python in PYTHONS for core in CORES if python != "3.11" or core in CORES[:2]]
# Every Python and every ansible-core once, beside the pair that `make test` runs everything on.
FEW = (("3.11", "2.18"), ("3.12", "2.20"), ("3.13", "2.21"))


# The one that was installed beside nox; it need not be on PATH.
UV = shutil.which("uv", path=os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")) or "uv"


@functools.cache
def interpreter(version: str) -> str | None:
    """A Python of that version, on PATH, among pyenv's or beside our own, that really starts."""
    # Where pyenv is known, or where the Python that we run on has its siblings.
    pyenv = os.path.join(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")), "versions")
    homes = (pyenv, os.path.dirname(sys.base_prefix))
    beside = [path for home in homes for path in sorted(glob.glob(f"{home}/{version}.*/bin/python"))]
    found = [sys.executable, shutil.which(f"python{version}"), *beside]
    for path in filter(None, found):
        ask = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(ask, capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return path
    return None


def _pair(session: nox.Session, python: str, core: str, *tests: str) -> None:
    path = interpreter(python)
    if path is None:
        print(f"not tested here: Python {python} with ansible-core {core} (no Python {python} on this machine)")
        return
    venv = os.path.join(session.create_tmp(), f"py{python}-core{core}")
    ready = os.path.join(venv, ".ready")
    if not os.path.exists(ready):
        session.run(UV, "venv", "--quiet", "--clear", "--seed", "--python", path, venv, external=True)
        install = [UV, "pip", "install", "--quiet", "--python", f"{venv}/bin/python"]
        session.run(*install, "-e", ".[dev]", f"ansible-core~={core}.0", external=True)
        open(ready, "w").close()
    print(f"-- Python {python}, ansible-core {core}", flush=True)
    session.run(f"{venv}/bin/python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", *tests, external=True)


@nox.session(python=False)
def matrix(session: nox.Session) -> None:
    """What depends on the versions, on every Python and every ansible-core."""
    for pair in FEW:
        _pair(session, *pair, "-m", "matrix")


@nox.session(python=False)
def full(session: nox.Session) -> None:
    """Everything on every pair."""
    for pair in PAIRS:
        _pair(session, *pair, "-m", "not alone")
