# SPDX-License-Identifier: GPL-3.0-or-later
"""
Limits of a job, by systemd-run.

There is no systemd where these tests run. A program in the place of systemd-run does what systemd-run does as far as
processes are concerned: it executes the command in its own process. That systemd then holds to the limits is not tested.
"""

from __future__ import annotations

import json
import os

import pytest

from ansible_collections.forkless.core.plugins.module_utils import limits
from jobs_controller import heard, role, start, told, until

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(900)]


@pytest.fixture
def systemd_run(tmp_path):
    """A program in the place of systemd-run: writes its words down, and executes the command."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "systemd-run"
    program.write_text(
        f'#!/bin/sh\nfor word; do echo "$word"; done >> {tmp_path}/words\n'
        'case "$*" in *MemoryMax=never*) echo "Failed to parse MemoryMax= value: never" >&2; exit 1;; esac\n'
        'while [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    )
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_job_with_limits_is_started_in_a_scope_seen_and_ended(controller, systemd_run, tmp_path):
    load = role("async_job_load", job_name="limited", claim=True, limits={"MemoryMax": "1G", "CPUQuota": "50%"})
    said = controller.tasks(
        load,
        {"ansible.builtin.set_fact": {"prefix": "{{ async_job_load_command_prefix }}"}},
        {
            **start("{{ async_job_load_command_prefix }} sleep 661"),
            "vars": {"ansible_async_dir": "{{ async_job_load_async_dir }}"},
        },
        role("async_job_save", job_name="limited", ansible_job_id="{{ started.ansible_job_id }}"),
        load,
        facts=["prefix", "async_job_load_state", "async_job_load_command_prefix"],
        environ=systemd_run,
    )
    user = [] if os.geteuid() == 0 else ["--user"]
    asked = ["--scope", "--quiet", "--collect", "--no-ask-password", "-p", "MemoryMax=1G", "-p", "CPUQuota=50%", "--"]
    assert said["prefix"].split()[-len(asked) :] == asked
    # A job that was found is not started again: it needs no prefix.
    assert [said["async_job_load_state"], said["async_job_load_command_prefix"]] == ["running", ""]
    until(lambda: controller.processes("sleep", "661"), what="the job")
    # Tried with a program that does nothing, then used; the second load asked for nothing.
    words = (tmp_path / "words").read_text().split("\n")
    assert words == [*user, *asked, "true", *user, *asked, "sleep", "661", ""]
    said = controller.tasks(
        role("async_job_kill", job_name="limited"),
        role("async_job_status", job_name="limited"),
        facts=["async_job_kill_seen", "async_job_status_state", "async_job_status_job"],
    )
    assert said["async_job_status_state"] == "killed"
    assert said["async_job_status_job"]["signal"] == 15
    assert not controller.processes("sleep", "661")


def test_what_systemd_refuses_is_said_before_anything_is_claimed(controller, systemd_run):
    tasks = [
        {"block": [role("async_job_load", job_name="refused", claim=True, limits={"MemoryMax": "never"})],
         "rescue": [{"ansible.builtin.set_fact": {"why": "{{ ansible_failed_result.msg }}"}}]},
        told("why"),
    ]  # fmt: skip
    [said] = heard(controller.play([{"hosts": "here", "gather_facts": False, "tasks": tasks}], environ=systemd_run))
    assert said["why"].endswith("cannot be given limits: systemd-run says: Failed to parse MemoryMax= value: never")
    assert not list((controller.folder / ".ansible_async_state").rglob("*.json"))


@pytest.mark.parametrize(
    "asked",
    [{"memory max": "1G"}, {"MemoryMax": "1G\nExecStart=x"}, {"MemoryMax": ["1G"]}, {"MemoryMax": True}, {"": "1"}],
    ids=json.dumps,
)
def test_what_is_no_limit_is_refused(asked):
    words, why = limits.prefix(asked, lambda words: pytest.fail("nothing may be run"))
    assert words == ""
    assert "is no property of a systemd unit" in why


def test_a_host_without_systemd_run_is_told_in_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert limits.prefix({"MemoryMax": "1G"}, None) == ("", "there is no systemd-run on this host.")


def test_words_with_spaces_stay_one_word(monkeypatch, systemd_run):
    monkeypatch.setenv("PATH", systemd_run["PATH"])
    words, why = limits.prefix({"AllowedCPUs": "0 1; reboot"}, lambda words: (0, "", ""))
    assert why == ""
    assert words.endswith("-p 'AllowedCPUs=0 1; reboot' --")
