# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that leave no exit status of a child to anybody: none of their commands counts as successful."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from forkless.engines.threads.patches.worker_subprocess import WorkerPopen

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(300)]

PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
  - raw: exit 3
    ignore_errors: true
  - script: said.sh
    ignore_errors: true
  - debug: {msg: "{{ lookup('pipe', 'exit 5') }}"}
    ignore_errors: true
  - command: "false"
    ignore_errors: true
"""
PROGRAM = """
import signal, sys
import forkless
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
result = forkless.run("play.yml", engine="threads")
print(*(event.event for event in result.events if event.event in ("runner_on_ok", "runner_on_failed")))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "said.sh").write_text("#!/bin/sh\nexit 7\n")
    return tmp_path


def test_no_command_has_succeeded_in_a_program_that_ignores_the_end_of_its_children(folder):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.stdout.split() == ["runner_on_failed"] * 4, done
    assert "was taken by other code in this program" in done.stderr


def test_the_command_works_though_who_starts_it_ignores_the_end_of_its_children(folder):
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    )
    command = [sys.executable, "-m", "forkless", "playbook", "play.yml"]
    done = subprocess.run(
        [sys.executable, "-c", ignore, *command], cwd=folder, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done
    assert [word for word in ('"rc": 3', '"rc": 7', '"rc": 1') if word not in done.stdout] == []
    assert "taken by other code" not in done.stderr


@pytest.mark.parametrize("wait", [WorkerPopen.wait, WorkerPopen.poll, WorkerPopen.communicate])
def test_a_status_that_was_taken_is_no_success_whichever_way_it_is_asked_for(wait, caplog):
    child = WorkerPopen(["true"])
    os.waitpid(child.pid, 0)
    wait(child)
    assert child.returncode == 250
    assert "was taken by other code" in caplog.text


@pytest.mark.parametrize("wait", [WorkerPopen.wait, WorkerPopen.communicate])
def test_a_status_that_is_there_is_told_as_it_is(wait):
    for line, code in (("exit 6", 6), ("kill -9 $$", -signal.SIGKILL), ("true", 0)):
        child = WorkerPopen(line, shell=True)
        wait(child)
        assert (child.returncode, child.poll()) == (code, code)
