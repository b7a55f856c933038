# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import multiprocessing
import os
import pathlib
import subprocess
import sys

import pytest

import forkless.multiprocessing

METHODS = ("thread", "fork", "spawn", "forkserver")
SOURCE = pathlib.Path(forkless.multiprocessing.__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def warm_heap():
    """The stdlib never gives back its first block of shared memory. Have it before the leak guard looks."""
    multiprocessing.RawArray("c", 1 << 20)


@pytest.fixture(params=METHODS)
def ctx(request):
    """Each start method in turn, on threads."""
    with forkless.multiprocessing.installed():
        yield multiprocessing.get_context(request.param)


@pytest.fixture
def python(tmp_path):
    """Runs a script in an interpreter of its own, and gives back what it printed."""

    def run(script, *prefix, check=True, **environ):
        file = tmp_path / "script.py"
        file.write_text(script)
        done = subprocess.run(
            [*prefix, sys.executable, "-W", "error", str(file)],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env={**os.environ, "PYTHONPATH": str(SOURCE), **environ},
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
