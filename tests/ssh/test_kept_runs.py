# SPDX-License-Identifier: GPL-3.0-or-later
"""Which runs keep their connections, while the pool of connections may not be imported yet."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import types

import pytest

from forkless.ssh import kept_runs

NAME = "forkless_test_pool_of_connections"


def test_a_run_that_ends_while_a_thread_imports_the_pool_waits_for_it_and_closes_its_connections(tmp_path, monkeypatch):
    steps = types.SimpleNamespace(begun=threading.Event(), go_on=threading.Event(), closed=[])
    (tmp_path / f"{NAME}.py").write_text(
        "from forkless.ssh import kept_runs\n"
        "kept_runs.steps.begun.set()\n"
        "assert kept_runs.steps.go_on.wait(240)\n"
        "close_all = kept_runs.steps.closed.append\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(kept_runs, "steps", steps, raising=False)
    monkeypatch.setattr(kept_runs, "_POOL", NAME)
    errors = []

    def run():
        try:
            with kept_runs.kept("a run"):
                importing.start()
                assert steps.begun.wait(240)
        except AttributeError as error:
            errors.append(error)

    importing = threading.Thread(target=importlib.import_module, args=(NAME,))
    running = threading.Thread(target=run)
    running.start()
    try:
        assert steps.begun.wait(240)
        running.join(0.2)
    finally:
        steps.go_on.set()
        running.join(240)
        importing.join(240)
        sys.modules.pop(NAME, None)
    assert (errors, steps.closed) == ([], ["a run"])
    assert "a run" not in kept_runs.KEPT


@pytest.mark.spawns
def test_a_forked_child_keeps_no_connection_for_the_run_of_its_parent():
    script = (
        "import os, sys\n"
        "from forkless import ssh\n"
        "from forkless.ssh import kept_runs\n"
        "with ssh.kept('a run'):\n"
        "    child = os.fork()\n"
        "    if not child: os._exit(len(kept_runs.KEPT))\n"
        "    assert kept_runs.KEPT == {'a run'}\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=240).returncode == 0
