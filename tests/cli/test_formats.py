# SPDX-License-Identifier: GPL-3.0-or-later
"""Events as JSON, the profile and the report of one real run; and that secrets are in none of them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from forkless import Event
from forkless.cli.view.profile import profile, seconds
from forkless.cli.view.run_view import RunView, add_flags
from forkless.cli.view.timeline import Timeline
from run_events import a_run

PLAY = """
- name: Servers
  hosts: all
  gather_facts: false
  tasks:
    - name: Greet
      debug: {msg: "good morning"}
    - name: A secret
      shell: "echo hunter2 {{ item }}; exit 1"
      loop: [one]
      no_log: true
      ignore_errors: true
    - name: Speak
      command: echo a line
    - name: Break <it>
      fail: {msg: "<b>broken</b>"}
      when: inventory_hostname == 'web2'
"""


@pytest.fixture
def call(tmp_path):
    (tmp_path / "play.yml").write_text(PLAY)

    def run(*flags, command=("playbook", "play.yml")):
        return subprocess.run(
            [sys.executable, "-m", "forkless", *command, "-i", "web1,web2,", "-c", "local",
             "-e", f"ansible_python_interpreter={sys.executable}", *flags],
            cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip

    return run


@pytest.mark.spawns
def test_jsonl_is_one_event_on_each_line_and_the_report_comes_beside_it(call, tmp_path):
    done = call("--format", "jsonl", "--report", "run.html", "--profile", "-e", "token=hunter2")
    assert done.returncode == 2
    events = [Event.from_dict(json.loads(line)) for line in done.stdout.splitlines()]
    assert [event.counter for event in events] == list(range(1, len(events) + 1))
    assert {
        "playbook_on_start",
        "playbook_on_play_start",
        "playbook_on_task_start",
        "runner_on_start",
        "playbook_on_stats",
    } <= {event.event for event in events}
    lines = {(one.host, one.task, one.event_data["text"]) for one in events if one.event == "runner_on_output"}
    assert lines == {("web1", "Speak", "a line"), ("web2", "Speak", "a line")}  # nothing of the secret task
    assert "PLAY [Servers]" in "".join(event.stdout for event in events)
    assert "slowest tasks" in done.stderr
    page = (tmp_path / "run.html").read_text()
    assert "&lt;b&gt;broken&lt;/b&gt;" in page
    assert "Break &lt;it&gt;" in page
    assert "hunter2" not in page
    assert "hunter2" not in done.stdout
    assert "failure on 1 host" in page


@pytest.mark.spawns
def test_json_is_the_whole_result_at_the_end(call):
    done = call("--format", "json")
    assert done.returncode == 2
    result = json.loads(done.stdout)
    assert (result["status"], result["rc"]) == ("failed", 2)
    assert result["hosts"]["web2"]["failures"] == 1
    assert result["stats"]["ok"]["web1"] >= 1
    assert "PLAY RECAP" in result["stdout"]
    assert result["events"][-1]["event"] == "playbook_on_stats"


@pytest.mark.spawns
def test_a_single_module_has_them_too(call):
    done = call("-m", "debug", "-a", "msg=hi", "--format", "jsonl", command=("adhoc", "all"))
    assert done.returncode == 0
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(one["event_data"]["host"] for one in events if one["event"] == "runner_on_ok") == ["web1", "web2"]


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_the_profile_fits_the_terminal(width, unicode):
    line = Timeline()
    for event in a_run(hosts=30, tasks=12, failed=1, name="a task with rather a long name that goes on and on"):
        line.feed(event)
    line.began = min(span.start for span in line.spans)
    line.close()
    text = profile(line, width, unicode=unicode)
    # The two sentences at its head may be folded by the terminal; what has bars may not.
    assert all(len(one) <= width for one in text.splitlines() if "#" in one or "█" in one)
    assert unicode or text.isascii()
    assert "slowest tasks" in text
    assert "host0000" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (61, "1:01"), (3723, "1:02:03")],
)
def test_times_are_written_as_people_say_them(value, text):
    assert seconds(value) == text


def test_workers_are_told_apart_by_lanes_where_nobody_numbers_them():
    line = Timeline()
    for event in a_run(hosts=20, tasks=3, forks=4):
        line.feed(event)
    assert line.lanes == 4
    busy: dict[int, list] = {}
    for span in line.spans:
        busy.setdefault(span.lane, []).append((span.start, span.start + span.seconds))
    for spans in busy.values():
        spans.sort()
        assert all(one[1] <= two[0] + 1e-6 for one, two in zip(spans, spans[1:], strict=False))


@pytest.mark.parametrize(("flags", "is_shown"), [(["--format", "json"], True), (["--profile"], True), ([], False)])
def test_the_clock_of_a_run_that_is_shown_starts_when_the_run_does(flags, is_shown):
    """Not at its first event. Without any of the flags there is no timeline: importing it is slow."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    view = RunView(parser.parse_args(flags))
    view.open()
    assert ("timeline" in vars(view)) is is_shown
