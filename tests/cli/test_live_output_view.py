# SPDX-License-Identifier: GPL-3.0-or-later
"""Output of running tasks at a terminal: the flag, the live view's last line, the report, widths and colours."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from forkless.cli.view import live_output, run_view
from forkless.cli.view import screen as screens
from forkless.cli.view.panel import Panel
from forkless.cli.view.screen import Screen
from forkless.cli.view.timeline import Timeline
from forkless.core.events import Event

OURS = [sys.executable, "-m", "forkless"]
SOURCE = pathlib.Path(__file__).parents[2] / "src"


def event(name, **fields):
    about = {"host": "web1", "task": "Build", "task_uuid": "t", **fields}
    return Event(event=name, uuid="u", counter=1, created="2026-01-01T00:00:00+00:00", event_data=about)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.spawns
@pytest.mark.timeout(300)
def test_the_flag_prints_lines_with_host_and_task_and_writes_them_into_the_report(tmp_path):
    tasks = [
        {"name": "Say", "shell": "echo abc; exit 3", "ignore_errors": True},
        {"name": "Then", "shell": "echo 漢字"},
    ]
    (tmp_path / "p.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    extra = json.dumps({"ansible_connection": "local", "ansible_python_interpreter": sys.executable})
    env = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "PYTHONIOENCODING": "utf-8",
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
    command = [*OURS, "playbook", "-i", "web1,", "-e", extra, "p.yml", "--live-output", "--report", "r.html"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("web1 | Say | abc\n") == 1
    assert done.stdout.count("漢字") == 1  # Ansible's own line about the result is only 'changed'
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "output while it ran" in page
    assert " s  stdout  abc" in page


@pytest.mark.spawns
@pytest.mark.timeout(300)
def test_what_was_shown_while_a_task_ran_is_not_shown_again_by_its_result(tmp_path):
    tasks = [
        {"name": "Ok", "shell": "echo abc; echo def; echo", "register": "kept"},
        {"name": "Fails", "shell": "echo ghi; echo jkl >&2; exit 3", "ignore_errors": True},
        {"name": "Loop", "raw": "echo mno{{ item }}", "loop": [1, 2]},
        {"name": "Long", "shell": "seq 100000 109999"},
        {"name": "Kept", "assert": {"that": "kept.stdout_lines == ['abc', 'def']", "quiet": True}},
    ]
    (tmp_path / "p.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    extra = json.dumps({"ansible_connection": "local", "ansible_python_interpreter": sys.executable})
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "ANSIBLE_NOCOLOR": "1"}
    common = ["-i", "web1,", "-e", extra, "--live-output"]

    def said(*words):
        done = subprocess.run([*OURS, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    played = said("playbook", "p.yml", "-v", *common)
    for word in ("abc\n", "ghi\n", "jkl\n", "mno1\n", "mno2\n"):
        assert played.count(f" | {word}") == 1
        # The command itself, which a result of `shell` has as well, says echo before the word.
        assert played.replace(f"echo {word.strip()}", "").count(word.strip()) == 1
    assert played.index(" | def\n") < played.index("changed: [web1] => ")
    assert '"rc": 3' in played
    assert ", 109999" in played.replace('"', "")  # not all of these lines were shown, so the result has them
    alone = said("adhoc", "all", "-m", "command", "-a", "echo pqr", *common)
    assert alone == "web1 | command | pqr\nweb1 | CHANGED | rc=0 >>\n\n"
    assert "pqr" in said("adhoc", "all", "-m", "command", "-a", "echo pqr", *common[:-1])


@pytest.mark.spawns
def test_doctor_and_the_docs_say_that_cold_modules_are_silent():
    from forkless.cli.commands import doctor

    assert "except by cold modules, which show it when they end" in str(doctor._engine()["modules"])
    page = " ".join((SOURCE.parent / "docs/howto/live-output.md").read_text(encoding="utf-8").split())
    assert re.search(r"modules that run \*\*cold\*\* \([^)]*\), show no output until they end", page)


def test_the_live_view_has_the_last_line_of_a_running_task():
    line = Timeline()
    line.feed(event("playbook_on_task_start"))
    line.feed(event("runner_on_start"))
    line.feed(event("runner_on_output", stream="stdout", text="one\n10 %\r\x1b[31m20 %\x1b[0m", line=1, dropped=0))
    shown = "\n".join(str(one) for one in Panel(line).lines(80, 20))
    assert "20 %" in shown
    assert "10 %" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("tty", "term", "switch", "form", "shown"),
    [
        (True, "xterm", "0", "pretty", True),
        (False, "xterm", "0", "pretty", False),
        (True, "dumb", "0", "pretty", False),
        (True, "xterm", "1", "pretty", False),
        (True, "xterm", "0", "jsonl", False),
    ],
)
def test_the_live_view_is_for_terminals_and_for_people_who_want_it(monkeypatch, tty, term, switch, form, shown):
    opened = []
    monkeypatch.setattr(screens.Screen, "__init__", lambda *_: None)
    monkeypatch.setattr(screens.Screen, "__enter__", lambda self: opened.append(self))
    for name, value in (("TERM", term), ("FORKLESS_PLAIN", "0"), ("ANSIBLE_FORKLESS_PLAIN", switch)):
        monkeypatch.setenv(name, value)
    options = argparse.Namespace(format=form, report=None, plain=False, live_output=False, profile=False)
    with contextlib.redirect_stdout(Terminal() if tty else io.StringIO()):
        run_view.RunView(options).open()
    assert bool(opened) is shown


def test_a_report_for_which_there_is_no_room_is_told_of_and_leaves_the_older_one(tmp_path, monkeypatch, capsys):
    path = tmp_path / "report.html"
    path.write_text("older")
    report = run_view.ReportFile(str(path))
    monkeypatch.setattr(run_view, "open", lambda *_, **__: open("/dev/full", "w"), raising=False)  # noqa: SIM115
    report.write("newer")
    assert path.read_text() == "older"
    assert os.listdir(tmp_path) == ["report.html"]
    assert capsys.readouterr().err == (
        f"forkless: the report could not be written to {path}: No space left on device\n"
    )


@pytest.mark.parametrize("width", [20, 41, 80])
def test_a_last_line_that_is_wide_or_long_does_not_make_the_panel_wider(width):
    line = Timeline()
    line.feed(event("playbook_on_task_start"))
    line.feed(event("runner_on_start"))
    for said in ("x" * 4096, "漢" * 4096, "e\u0301漢" * 200):
        line.feed(event("runner_on_output", stream="stdout", text=said, line=1, dropped=0))
        made = Panel(line).lines(width, 20)
        assert any(said[:2] in str(one) for one in made) or width == 20
        assert all(one.cell_len <= width for one in made)


@pytest.fixture
def screen():
    """A screen whose terminal nobody reads from until the end; its thread is not started, so every drawing is the test's."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as out:
        made = Screen(Panel(Timeline()), out)
        made.begin()
        yield made, lambda: os.read(reading, 1 << 16).decode()
    os.close(reading)


@pytest.mark.parametrize(("size", "drawn"), [((19, 24), False), ((80, 7), False), ((20, 8), True), ((80, 24), True)])
def test_a_terminal_that_is_too_small_for_the_panel_gets_none(monkeypatch, screen, size, drawn):
    made, read = screen
    monkeypatch.setattr(screens.os, "get_terminal_size", lambda _fd: os.terminal_size(size))
    made.write("ok: [web1]\n")
    made._paint(panel=True)
    assert (read() != "ok: [web1]\n") is drawn


def test_lines_for_a_terminal_that_takes_none_are_dropped_counted_and_told_of(monkeypatch, screen):
    made, read = screen
    monkeypatch.setattr(screens, "ROOM", 100)
    answers = [made.write_if_room(f"line {number}\n") for number in range(1000)]
    made.write("ok: [web1]\n")  # Ansible's own text is kept
    shown = answers.count(True)
    assert 10 < shown < 20
    assert sum(map(len, made._pending)) < 200
    made._paint(panel=False)  # no more lines come
    lines = [f"line {number}" for number in range(shown)]
    told = f"({1000 - shown} lines are not shown: the terminal took none)"
    assert read().splitlines() == [*lines, "ok: [web1]", told]
    assert made.write_if_room("later\n")
    made._paint(panel=False)
    assert read() == "later\n"


def test_what_the_terminal_did_not_take_is_shown_with_the_result():
    kept = live_output.ShownOutput()
    for number, shown in ((1, True), (2, False)):
        said = event("runner_on_output", stream="stdout", text=str(number), line=number, dropped=0)
        kept.add(said, shown=shown)
    result = {"stdout": "1\n2"}
    kept.remove_from("web1", "t", result)
    assert result == {"stdout": "1\n2"}


def test_text_is_cut_by_columns():
    assert live_output.cut("漢字漢字", 5) == "漢字…"
    assert live_output.cut("漢字漢字", 6) == "漢字…"
    assert live_output.cut("漢字", 4) == "漢字"
    assert live_output.cut("e\u0301e\u0301e\u0301", 3) == "e\u0301e\u0301e\u0301"
    assert live_output.cut("e\u0301e\u0301e\u0301", 2) == "e\u0301…"
    assert live_output.cells("漢e\u0301") == 3


def test_a_host_has_one_colour_and_nothing_that_a_host_prints_moves_the_cursor(monkeypatch):
    for name in ("NO_COLOR", "ANSIBLE_NOCOLOR", "ANSIBLE_FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    printer = live_output.OutputPrinter(Terminal())
    said = [
        printer.lines(event("runner_on_output", host=host, text="\x1b[2Jx\ty\x07", dropped=0))
        for host in ("a", "b", "a")
    ]
    assert said[0] == said[2]
    assert said[0].partition("m")[0] != said[1].partition("m")[0]  # the colour
    assert said[0].endswith(" | \x1b[0mx       y\ufffd\n")
    told = live_output.OutputPrinter(io.StringIO()).lines(event("runner_on_output", text="x", dropped=7))
    assert told == "web1 | Build | (7 lines are not shown: they came too fast)\nweb1 | Build | x\n"
