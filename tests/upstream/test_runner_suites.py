# SPDX-License-Identifier: GPL-3.0-or-later
"""A slice of ansible-runner's own integration tests, with the stock spawn and with ours; `make upstream-runner` has all."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / "runner_suites.py"
# Those that can tell one spawn from another.
SLICE = "password_prompt or pexpect_timeout or env_accuracy or run_command_cancel or explosive_cancel or job_timeout"


@pytest.mark.spawns
@pytest.mark.timeout(900)
def test_what_passes_with_the_stock_spawn_passes_with_ours():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--suite", "integration", "-k", f"({SLICE}) and not docker and not podman"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "pip" in done.stderr and "CalledProcessError" in done.stderr:
        pytest.skip("ansible-runner's sdist could not be had from PyPI, and it is not in .nox/upstream-runner")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'failed': 0" in done.stdout, done.stdout


@pytest.mark.spawns
def test_a_suite_that_is_started_in_the_background_can_still_be_interrupted():
    # What a shell does to its background jobs, and what the suites below then see.
    program = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from runner_suites import heed_signals\n"
        "heed_signals()\n"
        "see = 'import signal; print(*(signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, signal.SIGHUP)))'\n"
        "subprocess.run([sys.executable, '-S', '-c', see])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=SCRIPT.parent, capture_output=True, text=True, check=False
    )
    assert done.stdout == "False False\n", done.stdout + done.stderr
