# SPDX-License-Identifier: GPL-3.0-or-later
"""A pytest plugin for other people's suites: our spawn where theirs was, and a line that proves it."""

from __future__ import annotations

import os


def pytest_configure(config):
    if os.environ.get("FORKLESS_SPAWN_IN_PLACE") == "pexpect":
        import pexpect

        from forkless.engines.runner.pty_spawn import RunnerSpawn

        pexpect.spawn = RunnerSpawn
    else:
        import forkless.runner

        forkless.runner.patch()


def pytest_terminal_summary(terminalreporter):
    if os.environ.get("FORKLESS_SPAWN_IN_PLACE") == "pexpect":
        import pexpect

        name = pexpect.spawn.__name__
    else:
        import ansible_runner.runner

        name = type(ansible_runner.runner.pexpect).__name__
    terminalreporter.write_line(f"spawn in place: {name}")
