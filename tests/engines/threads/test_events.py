# SPDX-License-Identifier: GPL-3.0-or-later
"""Events: ansible-runner's names and fields, in order, whole, and without secrets."""

from __future__ import annotations

import json

import pytest

import forkless

pytestmark = pytest.mark.spawns

SECRET = "correct-horse-battery"


def test_the_events_of_a_play_come_in_order_with_ansible_runners_fields(project):
    result = project.run("- name: say\n  debug: {msg: hi}\n- command: 'false'\n  ignore_errors: true\n", limit="h1:h2")
    names = [event.event for event in result.events]
    assert names[0] == "playbook_on_start"
    assert names[1] == "playbook_on_play_start"
    assert names[-1] in ("playbook_on_stats", "verbose")
    assert names.count("playbook_on_stats") == 1
    assert names.count("runner_on_start") == 4
    assert names.count("runner_on_failed") == 2
    assert [event.counter for event in result.events] == list(range(1, len(names) + 1))
    assert len({event.uuid for event in result.events}) == len(names)
    ok = next(event for event in result.events if event.event == "runner_on_ok")
    line = ok.as_dict()
    assert {
        "uuid",
        "counter",
        "stdout",
        "start_line",
        "end_line",
        "event",
        "event_data",
        "created",
        "runner_ident",
        "parent_uuid",
        "pid",
    } <= set(line)
    data = line["event_data"]
    assert (data["play"], data["task"], data["task_action"], data["host"]) == ("all", "say", "debug", ok.host)
    assert data["playbook"].endswith("play.yml")
    assert data["duration"] >= 0
    assert data["res"]["msg"] == "hi"
    assert forkless.Event.from_dict(json.loads(json.dumps(line))) == ok


def test_the_text_of_the_events_is_the_text_of_the_run(project):
    result = project.run("- debug: {msg: hi}\n- debug: {msg: '{{ item }}'}\n  loop: [1, 2]\n", limit="h1")
    said = "".join(event.stdout for event in result.events).replace("\r\n", "").replace("\n", "")
    assert said == result.stdout.replace("\n", "")
    last = 0
    for event in result.events:
        assert event.start_line == last
        last = event.end_line


def test_no_log_values_interrupt_neither_events_nor_output(project):
    # From a variable: where the playbook itself has the word, Ansible's own errors quote the playbook.
    result = project.run(
        """
        - command: "echo {{ secret }}"
          no_log: true
        - debug: {msg: "{{ item }}"}
          loop: ["{{ secret }}"]
          no_log: true
        - command: "false {{ secret }}"
          no_log: true
          ignore_errors: true
        - set_fact: {password: "{{ secret }}"}
          no_log: true
        """,
        limit="h1",
        verbosity=3,
        extra_vars={"secret": SECRET},
    )
    assert result.rc == 0, result.stdout
    assert SECRET not in json.dumps([event.as_dict() for event in result.events])
    assert SECRET not in result.stdout


def test_the_recap_is_there_host_by_host(project):
    result = project.run("- debug: {msg: hi}\n- fail: {msg: no}\n  when: inventory_hostname == 'h2'\n", limit="h1:h2")
    assert result.status is forkless.Status.FAILED
    assert result.hosts["h1"]["ok"] == 1
    assert result.hosts["h2"]["failures"] == 1
    assert result.stats["failures"] == {"h2": 1}
    with pytest.raises(forkless.RunFailed, match="h2"):
        result.raise_for_failures()
