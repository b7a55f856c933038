# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts and other people write does not steer the terminal of the person who reads it."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re

import pytest

from forkless.cli import command_view, jobs_logs, jobs_view, main, terminal_text
from forkless.cli.jobs_client import HostAnswer
from forkless.cli.view import run_view
from forkless.core.errors import StuckWorkerError
from forkless.core.events import Event
from forkless.core.terminal import BusyTask

CLIPBOARD = "\x1b]52;c;cm0gLXJmIC8=\x07"
LINK = "\x1b]8;;http://evil.example\x1b\\here\x1b]8;;\x1b\\"
STEERING = {
    "clear the screen": "\x1b[2J\x1b[H",
    "the title": "\x1b]0;owned\x07",
    "the clipboard": CLIPBOARD,
    "a link": LINK,
    "a device string": "\x1bP+q544e\x1b\\",
    "reset": "\x1bc",
    "another character set": "\x1b(0",
    "C1 CSI": "\x9b31m",
    "C1 OSC": "\x9d0;owned\x9c",
    "an ESC alone": "\x1b",
    "half a sequence": "\x1b[31",
    "a string without an end": "\x1b]0;owned",
    "backspace": "good\x08\x08\x08\x08evil",
    "carriage return": "good\revil",
    "another direction": "\u202etxt.exe\u2066",
    "marks": "a\u200fb\u061cc\u2028d",
    "delete and bell": "\x7f\x07",
    "tags": "\U000e0041",
}
# Everything that no letter, digit or sign is: what is left of it would be obeyed.
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


class ATerminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@contextlib.contextmanager
def at_a_terminal():
    made = ATerminal()
    with contextlib.redirect_stdout(made), contextlib.redirect_stderr(made):
        yield made


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
@pytest.mark.parametrize(
    "form", [terminal_text.lines, terminal_text.escaped, terminal_text.printable, terminal_text.coloured]
)
def test_nothing_is_left_that_a_terminal_obeys(form, text):
    shown = form(f"before {text}\nafter")
    assert not OBEYED.search(shown), repr(shown)
    assert shown.startswith("before ")
    assert shown.endswith("after")


def test_lines_tabs_letters_of_all_languages_and_colours_of_ansible_stay():
    text = "one\n\ttwo – öäü 漢字 e\u0301\n"
    assert terminal_text.lines(text) == terminal_text.coloured(text) == text
    assert terminal_text.coloured("\x1b[0;32mok: [h1]\x1b[0m\n\x1b[2J") == "\x1b[0;32mok: [h1]\x1b[0m\n"
    assert terminal_text.lines("\x1b[0;32mok\x1b[0m\r\nnext") == "ok\nnext"


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_printed_json_is_the_same_for_programs_and_harmless_at_a_terminal(form, text):
    options = argparse.Namespace(format=form, report=None, plain=False, live_output=False, profile=False)
    with at_a_terminal() as terminal:
        view = run_view.RunView(options)
        view.event(Event(event="runner_on_ok", uuid="1", counter=1, event_data={"res": {"stdout": text}}))
        view.close(status="successful", rc=0, facts={}, text=text)
        jobs_view.print_json({"output": text, "lone": "\udc9b"})
    shown = terminal.getvalue()
    assert not OBEYED.search(shown), repr(shown)
    first, at = json.JSONDecoder().raw_decode(shown)
    event = first["events"][0] if form == "json" else first
    assert event["event_data"]["res"]["stdout"] == text
    assert json.loads(shown[at:]) == {"output": text, "lone": "\udc9b"}


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
def test_the_output_of_a_job_and_what_its_host_says_of_it_are_shown_and_not_obeyed(text):
    asked = argparse.Namespace(format="table")
    row = {"job_name": text, "host": text, "state": text, "rc": text, "why": text}
    with at_a_terminal() as terminal:
        jobs_logs._print(HostAnswer("h1", {}, {"output": f"said\n{text}"}, ""), asked)
        print(jobs_view.sentence(row), jobs_view.pids_text([text]))
        jobs_view.print_table(["STATE", "WHY"], [[text, text]])
        jobs_view.tell([text])
    # Our own colours are all that is left.
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert not OBEYED.search(shown), repr(shown)
    assert shown.startswith("said\n")


def test_a_file_gets_the_output_of_a_job_as_it_is(capsys):
    jobs_logs._print(HostAnswer("h1", {}, {"output": CLIPBOARD}, ""), argparse.Namespace(format="table"))
    assert capsys.readouterr().out == CLIPBOARD


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
def test_names_in_messages_about_a_run_that_is_stopping_or_stuck_are_not_obeyed(text, monkeypatch):
    written = []
    monkeypatch.setattr(command_view.os, "write", lambda _number, data: written.append(data.decode()))
    with at_a_terminal() as terminal:
        view = command_view.CommandView("ansible-playbook")
        view.attach(type("Control", (), {"busy": lambda _: [BusyTask(text, text, 3.0)]})())
        view.stopping()
        view.notice(StuckWorkerError(text, text, 3.0, "a stack"))
    shown = "".join(written) + terminal.getvalue()
    assert "stopping: no new task" in shown
    assert "has not ended 3 s" in shown
    assert not OBEYED.search(shown), repr(shown)


def test_watch_shows_a_run_of_others_in_its_colours_and_obeys_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    event = Event(
        event="verbose", uuid="1", counter=1, created="2026-01-01T00:00:00", stdout=f"\x1b[32mok\x1b[0m{LINK}"
    )
    stats = Event(event="playbook_on_stats", uuid="2", counter=2, created="2026-01-01T00:00:01")
    lines = [json.dumps(event.as_dict()), f"a warning {CLIPBOARD}", json.dumps(stats.as_dict())]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    with at_a_terminal() as terminal:
        assert main(["watch", "--no-follow", str(tmp_path / "events.jsonl")]) == 0
    assert terminal.getvalue() == "\x1b[32mok\x1b[0mhere\na warning \n"


def test_an_error_that_quotes_somebody_is_not_obeyed():
    with at_a_terminal() as terminal:
        assert main(["watch", f"{CLIPBOARD}nowhere"]) == 2
    assert "nowhere cannot be read" in terminal.getvalue()
    assert not OBEYED.search(terminal.getvalue())
