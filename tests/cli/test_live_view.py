# SPDX-License-Identifier: GPL-3.0-or-later
"""The live view, at real terminals: what is seen, what is left, and how it makes room for questions."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys

import pytest

from forkless.cli.view.panel import Panel
from forkless.cli.view.run_view import RunView
from forkless.cli.view.timeline import Timeline
from run_events import a_run
from terminal import Terminal

HOSTS = "".join(f"web{n:02} ansible_connection=local\n" for n in range(1, 7))
PLAY = """
- name: Servers
  hosts: all
  gather_facts: false
  tasks:
    - name: Greet
      debug: {msg: "good morning"}
    - name: Hold on
      wait_for: {timeout: "{{ 4 if inventory_hostname == 'web05' else 1 }}"}
    - name: Check the disk
      fail: {msg: "no space left"}
      when: inventory_hostname == 'web03'
"""
ASKING = """
- hosts: localhost
  gather_facts: false
  vars_prompt:
    - {name: who, prompt: "Who are you", private: false}
  tasks:
    - name: Greet
      debug: {msg: "good morning"}
    - pause: {prompt: "Say it"}
      register: said
    - debug: {msg: "got {{ who }} {{ said.user_input }}"}
    - fail: {msg: no}
      debugger: on_failed
"""
ARGUMENTS = ("playbook", "play.yml", "-i", "hosts.ini", "--modules", "in-process", "-f", "6")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "ask.yml").write_text(ASKING)
    (tmp_path / "hosts.ini").write_text(HOSTS)
    return tmp_path


@pytest.mark.spawns
def test_it_shows_who_is_at_work_and_leaves_what_a_plain_run_leaves(folder):
    with Terminal(*ARGUMENTS, cwd=folder, rows=34) as live:
        live.until(lambda: "web05: Hold on" in live.screen and "ok: [web01]" in live.screen)
        live.until(lambda: "play Servers" in live.screen and "6 hosts" in live.screen)
        assert re.search(r"▶ +\d+(\.\d)? s web05: Hold on", live.screen)
        live.until(lambda: "slow: others took" in live.screen or "PLAY RECAP" in live.screen)
        assert live.wait() == 2
        left = live.lines
    assert "no space left" in "\n".join(left)
    assert not [line for line in left if "▶" in line or "━" in line or "───" in line]
    with Terminal(*ARGUMENTS, "--plain", cwd=folder, rows=34) as plain:
        assert plain.wait() == 2
        assert b"\x1b[J" not in plain.raw

        def ordered(lines):  # hosts answer in any order
            return sorted(line for line in lines if line)

        assert ordered(plain.lines) == ordered(left)


@pytest.mark.spawns
def test_questions_are_asked_and_answered_with_the_view_out_of_the_way(folder):
    with Terminal("playbook", "ask.yml", cwd=folder) as live:
        for question, answer in (("Who are you:", "bob\r"), ("Say it:", "hello\r"), ("(debug)>", "c\r")):
            live.until(lambda question=question: question in live.screen and "───" not in live.screen)
            live.type(answer)
            if answer.startswith("hello"):
                # Ansible throws away what was typed before it listens, which is after it has asked. A person types again.
                for _ in range(20):
                    with contextlib.suppress(AssertionError):
                        live.until("got bob hello", seconds=10)
                        break
                    live.type(answer)
                assert "got bob hello" in live.screen
        assert live.wait() == 2
        assert "Callback dispatch" not in "\n".join(live.lines)


@pytest.mark.spawns
def test_ctrl_c_says_what_it_waits_for_and_ends_the_run(folder):
    with Terminal(*ARGUMENTS, cwd=folder) as live:
        live.until("web05: Hold on")
        live.type("\x03")
        assert live.wait() == 99
        assert "User interrupted execution" in "\n".join(live.lines)
    with Terminal(*ARGUMENTS, "--plain", cwd=folder) as plain:
        plain.until("TASK [Hold on]")
        plain.type("\x03")
        assert plain.wait() == 99
        said = " ".join("".join(plain.lines).split())
        assert "stopping: no new task is started" in said
        assert "Ctrl-C again leaves at once" in said


@pytest.mark.spawns
def test_forty_columns_no_colour_and_a_terminal_that_knows_only_ascii(folder):
    with Terminal(
        *ARGUMENTS, cwd=folder, columns=40, env={"NO_COLOR": "1", "ANSIBLE_NOCOLOR": "1", "PYTHONIOENCODING": "ascii"}
    ) as live:
        live.until(lambda: re.search(r"> +\d+(\.\d)? s web05: Hold on", live.screen))
        assert live.wait() == 2
    assert not re.search(rb"\x1b\[[0-9;]*3[0-7]m", live.raw)
    live.raw.decode("ascii")


@pytest.mark.spawns
def test_without_rich_there_is_the_plain_output(folder):
    without = "import sys; sys.modules['rich'] = None; sys.argv[0] = 'forkless'; from forkless.cli import main; sys.exit(main())"
    with Terminal(*ARGUMENTS, cwd=folder, program=[sys.executable, "-c", without]) as plain:
        assert plain.wait() == 2
    assert "PLAY RECAP" in "\n".join(plain.lines)
    assert b"\x1b[J" not in plain.raw


@pytest.mark.parametrize(
    ("variable", "value", "live"),
    [
        ("FORKLESS_PLAIN", "0", True),
        ("FORKLESS_PLAIN", "1", False),
        ("ANSIBLE_FORKLESS_PLAIN", "1", False),
        ("TERM", "dumb", False),
        ("AWX_ISOLATED_DATA_DIR", "/nonexistent", False),
    ],
)
def test_a_terminal_that_a_program_reads_or_for_which_it_was_switched_off_has_no_live_view(
    monkeypatch, variable, value, live
):
    for name in ("FORKLESS_PLAIN", "ANSIBLE_FORKLESS_PLAIN", "AWX_ISOLATED_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    options = argparse.Namespace(format="pretty", profile=False, report=None, plain=False, live_output=False)
    keyboard, terminal = os.openpty()
    with open(keyboard, "rb", buffering=0), open(terminal, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        view = RunView(options)
        view.open()
        shown = view.screen is not None
        view.drop()
        monkeypatch.undo()
    assert shown is live


@pytest.mark.spawns
def test_a_pipe_gets_the_text_that_ansible_playbook_gives(folder):
    play = "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - debug: {msg: hi}\n    - fail: {msg: no}\n"
    (folder / "one.yml").write_text(play)
    ours = [sys.executable, "-m", "forkless", "playbook", "one.yml"]
    stock = [sys.executable, "-m", "ansible", "playbook", "one.yml"]
    seen = [
        subprocess.run(one, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=200)
        for one in (ours, stock)
    ]
    assert seen[0].returncode == seen[1].returncode == 2
    assert seen[0].stdout == seen[1].stdout


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [4, 8, 16, 40])
@pytest.mark.parametrize("unicode", [True, False])
def test_the_panel_keeps_to_its_place(width, height, unicode):
    line = Timeline()
    for event in a_run(hosts=50, tasks=12, failed=5, running=9):
        line.feed(event)
    made = Panel(line, unicode=unicode).lines(width, height)
    assert 1 <= len(made) <= height
    assert all(text.cell_len <= width for text in made)
    assert unicode or all(str(text).isascii() for text in made)


def test_names_that_hold_escape_codes_are_not_obeyed():
    line = Timeline()
    for event in a_run(hosts=1, tasks=1, running=1, name="evil \x1b[2J\nname"):
        line.feed(event)
    assert not any("\x1b" in str(text) or "\n" in str(text) for text in Panel(line).lines(100, 20))
