# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts and other people write does not steer the terminal of the person who reads it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import io
import json
import re
import urllib.error

import pytest

from forkless.cli import command_view, jobs_logs, jobs_view, main, queue_view, server_client, terminal_text
from forkless.cli.commands import runs, schedule
from forkless.cli.jobs_client import HostAnswer
from forkless.cli.view import run_view
from forkless.core.errors import StuckWorkerError
from forkless.core.events import Event
from forkless.core.terminal import BusyTask
from forkless.queue import HostRecap, RunRecord, ScheduleRecord, WorkerRecord

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


# -- the queue, and the page in front of one

THEN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def run_record(text, **changes):
    fields = dict.fromkeys(RunRecord.__dataclass_fields__, None) | {
        "id": 1, "slices": 0, "status": "lost", "spec": {"playbook": [text], "inventory": [text], "limit": text, "names": [text]},
        "project": {"kind": "git", "name": text, "commit": text}, "lock": text, "labels": [text], "attempt": 1, "worker_name": text,
        "counter": 3, "place": text, "note": text, "created": THEN, "created_by": text, "started": THEN, "ended": THEN, "rc": 4,
        "sentence": text,
    }  # fmt: skip
    return RunRecord(**(fields | changes))


class QueueOfOthers:
    """What the views ask of a queue in which everything has this text."""

    def __init__(self, text, **changes):
        self.text, self.changes = text, changes

    async def record(self, number):
        return run_record(self.text, **self.changes)

    async def runs(self, **_):
        return [run_record(self.text, parent_id=1, slice=1)]

    async def hosts(self, number):
        return [HostRecap(1, self.text, 1, 0, 0, 0, 0, 0, 0)]

    async def waits_for(self, number):
        return self.text

    async def workers(self):
        versions = {"ansible_core": self.text, "python": self.text}
        return [WorkerRecord(1, self.text, self.text, 1, [self.text], versions, THEN, THEN, False, 0.0, 1)]

    async def follow(self, number, after=0):
        yield Event(event="verbose", uuid="1", counter=1, stdout=f"\x1b[32mok\x1b[0m {self.text}")
        counts = {"processed": {self.text: 1}, "ok": {self.text: 1}}
        yield Event(event="playbook_on_stats", uuid="2", counter=3, stdout=f"recap {self.text}", event_data=counts)


def obeyed(terminal):
    """What a terminal would obey of all that was printed, but for colours."""
    return OBEYED.search(re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()))


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
@pytest.mark.parametrize("slices", [0, 1], ids=["whole", "in slices"])
def test_a_run_of_a_queue_is_shown_and_followed_and_not_obeyed(text, slices, monkeypatch):
    queue = QueueOfOthers(text, slices=slices)
    for form in ("pretty", "json"):
        with at_a_terminal() as terminal:
            queue_view.print_runs([run_record(text)], form)
            assert asyncio.run(queue_view.show(queue, 1, form)) == 0
        assert not obeyed(terminal), repr(terminal.getvalue())
        assert terminal.getvalue().count("2026-01-01") == {"pretty": 1, "json": 6 + 3 * slices}[form]
    for form in ("pretty", "jsonl"):
        with at_a_terminal() as terminal:
            assert asyncio.run(queue_view.follow(queue, 1, form)) == 4
        assert not obeyed(terminal), repr(terminal.getvalue())
        assert ("\x1b[32mok\x1b[0m" in terminal.getvalue()) is (form == "pretty")
        assert "forkless: run 1 is lost: " in terminal.getvalue()
    monkeypatch.setattr(queue_view, "_PATIENCE", 0.0)
    with at_a_terminal() as terminal:
        asyncio.run(queue_view._explain(QueueOfOthers(text, status="waiting"), 1))
    assert terminal.getvalue().startswith("forkless: run 1 waits: ")
    assert not obeyed(terminal), repr(terminal.getvalue())


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
def test_workers_and_schedules_of_a_queue_are_shown_and_not_obeyed(text):
    planned = ScheduleRecord(1, text, text, text, True, THEN, text, {"x": text}, THEN, text, None, None, text)
    for form in ("pretty", "json"):
        with at_a_terminal() as terminal:
            asyncio.run(runs._workers(QueueOfOthers(text), form))
            schedule._print([planned], form)
        assert terminal.getvalue().count("2026") >= 1
        assert not obeyed(terminal), repr(terminal.getvalue())


class ServerOfOthers(server_client.ServerClient):
    """A server that answers everything with this text."""

    def __init__(self, text):
        super().__init__("https://page.example", "token")
        self.text = text

    def ask(self, method, path, body=None):
        names = (
            "id",
            "status",
            "title",
            "limit",
            "project",
            "commit",
            "created",
            "created_by",
            "worker",
            "at",
            "sentence",
            "command",
        )
        run = dict.fromkeys(names, self.text) | {"inventory": [self.text], "ended": self.text, "rc": 4}
        worker = {"name": self.text, "host": self.text, "pid": self.text, "state": self.text, "run": self.text}
        return run | {"runs": [run], "workers": [worker]}

    def follow(self, number, after=0):
        yield {"event": "verbose", "text": f"\x1b[32mok\x1b[0m {self.text}", "n": 1}


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
def test_what_a_server_answers_is_shown_and_not_obeyed(text):
    server = ServerOfOthers(text)
    asked = runs.parser()
    for argv, code in {
        "list": 0, "list --format json": 0, "workers": 0, "workers --format json": 0, "show 1": 0, "show 1 --format json": 0,
        "follow 1": 4, "follow 1 --format jsonl": 4, "cancel 1": 1, "relaunch 1": 0,
    }.items():  # fmt: skip
        with at_a_terminal() as terminal:
            assert server_client.runs(server, asked.parse_args(argv.split())) == code
        assert terminal.getvalue(), argv
        assert not obeyed(terminal), (argv, terminal.getvalue())


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING)
def test_what_a_server_says_of_an_error_is_shown_and_not_obeyed(text, monkeypatch):
    """Both what it answers and, while it is followed, why it is away."""
    error = {"error": text}

    class Refusing:
        def open(self, request, timeout):
            raise urllib.error.HTTPError(
                "https://page.example", status, text, {}, io.BytesIO(json.dumps(error).encode())
            )

    monkeypatch.setenv("FORKLESS_SERVER", "https://page.example")
    monkeypatch.setenv("FORKLESS_TOKEN", "token")
    monkeypatch.setattr(server_client.urllib.request, "build_opener", lambda *_: Refusing())
    status = 400
    with at_a_terminal() as terminal:
        assert main(["runs", "show", "1"]) == 1
    assert terminal.getvalue().startswith("forkless runs: ")
    assert not obeyed(terminal), repr(terminal.getvalue())
    status = 503

    class EndError(Exception):
        pass

    def end(_):
        raise EndError

    monkeypatch.setattr(server_client.time, "sleep", end)
    with at_a_terminal() as terminal, pytest.raises(EndError):
        list(server_client.ServerClient("https://page.example", "token").follow(1))
    assert "is away (" in terminal.getvalue()
    assert not obeyed(terminal), repr(terminal.getvalue())
