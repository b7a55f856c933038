# SPDX-License-Identifier: GPL-3.0-or-later
"""The items of a loop in parallel: what is reported is the same, in the same order, as one after another."""

from __future__ import annotations

import re
import shutil
import time
import types

import pytest

from forkless.engines.threads.workers import loop_items
from forkless.engines.threads.workers.interrupt import WorkerStopped

pytestmark = [pytest.mark.spawns, pytest.mark.matrix]

# Waits until as many items as `count` are at it at once; says which worker it was.
MEET = """\
import os
import threading
import time

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        folder, count = self._task.args["folder"], int(self._task.args["count"])
        os.makedirs(folder, exist_ok=True)
        os.makedirs(os.path.join(folder, str(self._task.args["name"])), exist_ok=True)
        deadline = time.monotonic() + float(self._task.args["patience"])
        while len(os.listdir(folder)) < count:
            if time.monotonic() > deadline or os.path.exists(folder + ".ended"):
                os.makedirs(folder + ".ended", exist_ok=True)  # items that come later need not wait as long
                return {"failed": True, "msg": "the others did not come"}
            time.sleep(0.02)
        return {"worker": threading.get_ident(), "changed": False}
"""
EVERYTHING = """
- name: a command that fails for one item
  command: sh -c 'echo {{ item }}; test {{ item }} != 2'
  loop: [1, 2, 3, 4, 5]
  loop_control: {index_var: place, extended: true, label: "{{ item }} gave {{ out.rc | default('nothing') }}"}
  when: item != 4
  register: out
  ignore_errors: true
  changed_when: item % 2 == 1
  notify: "{{ 'first' if item == 1 else 'second' }}"
- name: until
  command: sh -c 'echo x >> {{ folder }}/{{ item }}; test $(wc -l < {{ folder }}/{{ item }}) -gt {{ item }}'
  loop: [0, 2, 9]
  register: tried
  until: tried.rc == 0
  retries: 4
  delay: 0
  ignore_errors: true
- name: secrets
  command: echo {{ item.word }}
  loop: [{word: open, hide: false}, {word: sesame, hide: true}]
  no_log: "{{ item.hide }}"
- name: elsewhere
  command: echo {{ inventory_hostname }}
  loop: [h2, h3]
  delegate_to: "{{ item }}"
- name: facts
  set_fact: {all_of_them: "{{ all_of_them | default([]) + [item] }}"}
  loop: [a, b, c]
- name: one result after another
  command: echo {{ item }}
  loop: [a, b, c]
  register: found
  when: found is not defined or found.stdout | default('') != 'a'
- name: nested
  include_tasks: one.yml
  loop: [x, y]
  loop_control: {loop_var: outer}
- debug:
    msg: "{{ out.results | map(attribute='stdout', default='') | list }} {{ tried.results | map(attribute='attempts') | list }}
      {{ all_of_them }} {{ found.results | map(attribute='skipped', default=false) | list }}"
- name: a failure ends the host
  command: sh -c 'test {{ item }} != b'
  loop: [a, b, c]
- debug: {msg: never}
"""
HANDLERS = """
handlers:
  - {name: first, debug: {msg: first}}
  - {name: second, debug: {msg: second}}
"""
UNSTABLE = re.compile(r"\d+:\d\d:\d\d\.\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?|/tmp/\S+")


def meeting(project, *, workers, patience=120.0, **more):
    project.write("action_plugins/meet.py", MEET)
    arguments = f"folder: '{project.folder}/meeting', name: '{{{{ item }}}}', count: 4, patience: {patience}"
    task = f"- meet: {{{arguments}}}\n  loop: [1, 2, 3, 4]\n  vars: {{forkless_loop_workers: {workers}}}\n"
    return project.run(task, limit="h1", **more)


def test_items_are_executed_at_once_by_workers_of_their_own_and_reported_in_order(project):
    result = meeting(project, workers=4)
    assert result.rc == 0, result.stdout
    met = [event.event_data["res"] for event in result.events if event.event == "runner_item_on_ok"]
    assert [one["item"] for one in met] == [1, 2, 3, 4]
    assert len({one["worker"] for one in met}) == 4


def test_it_can_be_switched_off(project):
    result = meeting(project, workers=4, patience=0.2, env={"FORKLESS_DISABLE": "loop-workers"})
    assert result.rc != 0
    assert "the others did not come" in result.stdout


@pytest.mark.parametrize("value", ["0", "many", "65"])
def test_a_number_that_makes_no_sense_is_refused(project, value):
    task = f"- debug:\n  loop: [1, 2]\n  vars: {{forkless_loop_workers: {value}}}\n"
    result = project.run(task, limit="h1")
    assert result.rc != 0
    assert "it must be a number from 1 to 64" in result.stdout


def told(project, workers):
    """All events of the play and its output, without what differs between two runs."""
    project.write("one.yml", "- command: echo {{ outer }} {{ item }}\n  loop: [1, 2]\n")
    tries = project.folder / "tries"
    shutil.rmtree(tries, ignore_errors=True)
    tries.mkdir()
    variables = {"forkless_loop_workers": workers, "folder": str(tries)}
    result = project.run(EVERYTHING, head=HANDLERS, limit="h1", extra_vars=variables)
    events = []
    for event in result.events:
        data = event.event_data
        if event.event == "verbose":
            continue
        res = {key: value for key, value in (data.get("res") or {}).items() if key not in ("delta", "start", "end")}
        events.append(
            (event.event, data.get("task"), data.get("host"), UNSTABLE.sub("", repr(sorted(res.items(), key=str))))
        )
    return result, events


def test_everything_around_a_loop_is_as_one_after_another(project):
    alone, expected = told(project, 1)
    together, found = told(project, 3)
    assert "a failure ends the host" in alone.stdout
    assert "never" not in alone.stdout
    # A retry is told when it happens, also before the result of an item that comes before it.
    assert [one for one in found if one[0] != "runner_retry"] == [one for one in expected if one[0] != "runner_retry"]
    assert sorted(map(str, found)) == sorted(map(str, expected))
    lines, others = (UNSTABLE.sub("", one.stdout).splitlines() for one in (alone, together))
    assert [line for line in others if "RETRYING" not in line] == [line for line in lines if "RETRYING" not in line]
    assert sorted(others) == sorted(lines)
    assert "sesame" not in together.stdout


def test_a_stop_ends_the_items_that_are_being_executed(project):
    project.write("action_plugins/meet.py", MEET)
    task = (
        f"- meet: {{folder: '{project.folder}/meeting', name: '{{{{ inventory_hostname ~ item }}}}', count: 9, patience: 600}}\n  loop: [1, 2, 3, 4]\n"
        "  vars: {forkless_loop_workers: 4}\n"
        f"- meet: {{folder: '{project.folder}/after', name: x, count: 1, patience: 1}}\n"
    )
    run = project.start(task, limit="h1,h2", forks=2)
    folder = project.folder / "meeting"
    deadline = time.monotonic() + 120
    while not folder.exists() or len(list(folder.iterdir())) < 8:  # all items of both hosts
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.cancel()
    assert str(run.wait().status) == "canceled"
    assert not (project.folder / "after").exists()


class JustStarted:
    """A worker of a loop whose start is the last that the task's own worker does before it is interrupted."""

    def __init__(self):
        self.state, self.at_end, self.ended = {}, [], False

    def start(self):
        raise WorkerStopped

    def terminate(self):
        self.ended = True


def test_a_worker_that_has_just_been_started_ends_with_the_task():
    other = JustStarted()
    executor = types.SimpleNamespace(_execute=None, _final_q=None, _connection=None)
    worker = types.SimpleNamespace(for_items=lambda _queue: other)
    with pytest.raises(WorkerStopped):
        loop_items._collect_items(executor, worker, [1, 2], 2, lambda: None)
    assert other.ended
