# SPDX-License-Identifier: GPL-3.0-or-later
"""Dialogues at a terminal with the shim, compared with stock's: the same words typed give the same screen and exit code."""

from __future__ import annotations

import re

import pytest

from shim_support import environ, environment, shim
from terminal import Terminal

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600)]

HOSTS = "one ansible_connection=local\ntwo ansible_connection=local\n[all:vars]\nansible_python_interpreter=/usr/bin/python3\n"
FAILS = """\
- hosts: one
  gather_facts: false
  vars: {number: 1}
  tasks:
    - fail: {msg: "no {{ number }}"}
      when: number == 1
      debugger: on_failed
    - debug: {msg: "after {{ number }}"}
"""
DEBUGGER = [
    "p task", "p task_vars['number']", "task_vars['number'] = 7", "p nothing", "help", "update_task", "redo"
]  # fmt: skip
CONSOLE = [
    "ping", "cd one", "!echo word", "become yes", "become no", "forks 3", "forks 0", "cd nowhere", "list", "list groups", "check yes",
    "copy content=x dest=/nonexistent/folder/file", "diff yes", "timeout 5", "remote_user bob", "# nothing", "cd",
]  # fmt: skip
PROMPT = re.compile(r"[\w-]+@\S+ \(\d\)\[f:\d+\][$#] ?$")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The shim, and the bin of an environment with forkless."""
    folder = tmp_path_factory.mktemp("places")
    return shim(folder / "bin-shim"), environment(folder / "env")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "hosts").write_text(HOSTS)
    (tmp_path / "fails.yml").write_text(FAILS)
    return tmp_path


def both(places, folder, command, words, talk):
    """What was on the screens of stock's command and of the shim's, and their exit codes."""
    path, bin_ = places
    seen = []
    for on_path, program in ((bin_,), bin_), ((path, bin_), path):
        env = environ(folder, *on_path, ANSIBLE_FORKLESS_PLAIN="1", ANSIBLE_NOCOLOR="1")
        with Terminal(*words, cwd=folder, env=env, program=[str(program / command)], columns=200, rows=200) as terminal:
            talk(terminal)
            seen.append((terminal.wait(), [line for line in terminal.lines if line]))
    return seen


def say(terminal, prompt, *lines):
    """Each line is typed when the prompt stands at the end of the screen and no earlier answer is awaited."""
    for line in lines:
        count = len(terminal.raw)
        terminal.until(lambda: re.search(prompt, terminal.screen.rstrip("\n")))
        terminal.type(line)
        terminal.until(lambda count=count: len(terminal.raw) > count)


def test_the_debugger_answers_as_stocks(places, folder):
    def talk(terminal):
        for word in DEBUGGER:
            say(terminal, r"\(debug\)> ?$", f"{word}\n")
            terminal.until(lambda word=word: f"(debug)> {word}" in terminal.screen)

    stock, ours = both(places, folder, "ansible-playbook", ["-i", "hosts", "fails.yml"], talk)
    assert ours == stock
    assert "skipped=1" in ours[1][-1]  # with the new value the task is left out


def test_the_debugger_has_the_terminal_without_the_live_view(places, folder):
    path, bin_ = places
    words = ["-i", "hosts", "fails.yml"]
    with Terminal(
        *words,
        cwd=folder,
        env=environ(folder, path, bin_),
        program=[str(path / "ansible-playbook")],
        columns=200,
        rows=200,
    ) as terminal:
        for word in ("p task_vars['number'] + 41", "c"):
            say(terminal, r"\(debug\)> ?$", f"{word}\n")
        assert terminal.wait() == 2
        assert b"\r\x1b[J" in terminal.raw  # there is a live view, which removes itself before it is drawn anew
        assert "42" in terminal.lines


def test_who_quits_the_debugger_ends_the_command_with_stocks_exit_code(places, folder):
    stock, ours = both(
        places, folder, "ansible-playbook", ["-i", "hosts", "fails.yml"], lambda one: say(one, r"\(debug\)> ?$", "q\n")
    )
    assert ours == stock
    assert ours[0] == 99


def test_the_console_answers_as_stocks(places, folder):
    def talk(terminal):
        for word in CONSOLE:
            say(terminal, PROMPT, f"{word}\n")
            terminal.until(lambda word=word: word in terminal.screen)
        say(terminal, PROMPT, "cd on\t\n")  # completed
        terminal.until("cd one")
        say(terminal, PROMPT, "half")
        terminal.until("$ half")
        terminal.type("\x03")  # Ctrl-C
        terminal.until(lambda: terminal.screen.count("Welcome") == 2)
        say(terminal, PROMPT, "\x04")  # Ctrl-D

    stock, ours = both(places, folder, "ansible-console", ["-i", "hosts", "all", "-f", "1"], talk)
    assert ours == stock
    assert (ours[0], ours[1][-1]) == (0, "Ansible-console was exited.")
