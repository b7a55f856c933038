# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless watch: every event of another program's run once, in order, to the run's end, whoever wrote it and however it ended."""

from __future__ import annotations

import dataclasses
import fcntl
import io
import json
import os
import threading
import time
import types

import pytest

from forkless import Event, RunSpec
from forkless.cli import main
from forkless.core.events import Status
from forkless.runs.artifacts import Artifacts
from run_events import a_run


def _events(**counts):
    """Events of a run, each with a line of output, and its statistics."""
    found = [
        dataclasses.replace(one, stdout=f"line {one.counter}") for one in a_run(hosts=3, tasks=2, failed=1, **counts)
    ]
    last = len(found) + 1
    stats = {"ok": {"host0001": 2}, "failures": {"host0000": 1}, "dark": {}}
    return [*found, Event(event="playbook_on_stats", uuid="end", counter=last, stdout="RECAP", event_data=stats)]


def _lines(events):
    return "".join(json.dumps(event.as_dict()) + "\n" for event in events)


def _text(events):
    return "".join(event.stdout + "\n" for event in events)


@pytest.fixture
def folder(tmp_path):
    """A run that is being written, as a program with `artifacts=` writes it."""
    made = Artifacts(RunSpec(playbook=("site.yml",), artifacts=str(tmp_path / "artifacts")), "nightly")
    yield made
    for descriptor in (made._stdout, made._lock):
        try:
            os.close(descriptor)
        except OSError:
            pass


def _write(folder, events):
    for event in events:
        folder.write_event(json.dumps(event.as_dict()).encode())


class Gate:
    """Output of the command, and a wait for a line in it."""

    def __init__(self, line):
        self._line, self.seen, self.text = line, threading.Event(), ""

    def write(self, text):
        self.text += text
        if self._line in self.text:
            self.seen.set()

    def flush(self):
        """Nothing is held back."""

    def isatty(self):
        return False


def _while_watching(monkeypatch, words, line, then):
    """Call the command in another thread, wait until it has printed `line`, call `then`, and return its exit code and output."""
    out, codes = Gate(line), []
    monkeypatch.setattr("sys.stdout", out)
    thread = threading.Thread(target=lambda: codes.append(main(words)))
    thread.start()
    assert out.seen.wait(240)
    assert not codes, "it did not wait for the run's end"
    then()
    thread.join(240)
    return codes, out.text


@pytest.mark.parametrize("above", ["artifacts/nightly", "artifacts", "."])
def test_a_run_that_has_ended_is_shown_whole_with_its_exit_code(folder, tmp_path, capsys, above):
    events = _events()
    _write(folder, reversed(events))  # the order is that of the counters, not that of a folder
    folder.finish(Status.FAILED, 2)
    assert main(["watch", str(tmp_path / above)]) == 2
    assert capsys.readouterr().out == _text(events)


def test_a_run_is_followed_to_its_end(folder, monkeypatch):
    events = _events()
    _write(folder, events[:4])

    def the_rest():
        _write(folder, events[4:])
        folder.finish(Status.FAILED, 2)

    assert _while_watching(monkeypatch, ["watch", folder.path], "line 4\n", the_rest) == ([2], _text(events))


def test_watching_leaves_the_lock_of_a_run_alone(folder, monkeypatch):
    def still_locked():
        other = os.open(folder.path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(other)
        folder.finish(Status.SUCCESSFUL, 0)

    _write(folder, _events())
    assert _while_watching(monkeypatch, ["watch", folder.path], "RECAP\n", still_locked)[0] == [0]


def test_a_run_whose_program_was_killed_is_not_followed_for_ever(folder, capsys):
    events = _events()[:5]
    _write(folder, events)
    folder.close()  # as the kernel does when a process ends
    assert main(["watch", folder.path]) == 250
    said = capsys.readouterr()
    assert said.out == _text(events)
    assert "has ended without writing its result" in said.err


def test_a_run_that_has_not_ended_is_shown_once_if_asked_for(folder, capsys):
    events = _events()[:5]
    _write(folder, events)
    assert main(["watch", folder.path, "--no-follow"]) == 250
    said = capsys.readouterr()
    assert said.out == _text(events)
    assert "has not ended" in said.err


def test_an_event_file_that_is_being_written_is_read_when_it_is_complete(folder, monkeypatch):
    events = _events()
    path = os.path.join(folder.path, "job_events", f"{events[1].counter}-in-place.json")
    _write(folder, [events[0], *events[2:]])
    whole = json.dumps(events[1].as_dict())
    with open(path, "w", encoding="utf-8") as file:
        file.write(whole[: len(whole) // 2])
        file.flush()

        def complete():
            file.write(whole[len(whole) // 2 :])
            file.flush()
            folder.finish(Status.FAILED, 2)

        assert _while_watching(monkeypatch, ["watch", folder.path], "line 1\n", complete) == ([2], _text(events))


def test_an_event_that_ansible_runner_has_not_numbered_yet_is_no_event(folder, capsys):
    events = _events()
    _write(folder, events)
    uuid = "12345678-aaaa-bbbb-cccc-1234567890ab"
    with open(os.path.join(folder.path, "job_events", f"{uuid}-partial.json"), "w", encoding="utf-8") as file:
        json.dump(events[0].as_dict(), file)
    folder.finish(Status.FAILED, 2)
    assert main(["watch", folder.path]) == 2
    assert capsys.readouterr().out == _text(events)


def test_a_file_of_events_is_read_until_the_statistics_have_come(tmp_path, monkeypatch):
    events, path = _events(), tmp_path / "run.jsonl"
    half = _lines(events)[:-40]
    path.write_text(half)

    def the_rest():
        with path.open("a") as file:
            file.write(_lines(events)[-40:])

    line = f"line {events[-2].counter}\n"
    assert _while_watching(monkeypatch, ["watch", str(path)], line, the_rest) == ([2], _text(events))


def test_a_file_may_end_within_a_character_while_it_is_written(tmp_path, monkeypatch):
    """A program that writes into a file writes 8 KB at a time, wherever they end."""
    events, path = _events(), tmp_path / "run.jsonl"
    events[-1] = dataclasses.replace(events[-1], stdout="RECAP für alle")
    whole = "".join(json.dumps(event.as_dict(), ensure_ascii=False) + "\n" for event in events).encode()
    within = whole.index("ü".encode()) + 1
    path.write_bytes(whole[:within])
    looked = threading.Event()

    def sleep(seconds):
        looked.set()
        time.sleep(seconds)

    monkeypatch.setattr("forkless.cli.watched_run.time", types.SimpleNamespace(sleep=sleep))

    def the_rest():
        assert looked.wait(60)  # it has read to the end of the file
        with path.open("ab") as file:
            file.write(whole[within:])

    line = f"line {events[-2].counter}\n"
    assert _while_watching(monkeypatch, ["watch", str(path)], line, the_rest) == ([2], _text(events))


def test_events_from_a_pipe_end_with_it_and_other_lines_in_it_are_printed(monkeypatch, capsys):
    events = _events()
    text = _lines(events[:5]) + "[WARNING]: a word\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["watch", "-"]) == 250
    said = capsys.readouterr()
    assert said.out == _text(events[:5]) + "[WARNING]: a word\n"
    assert "the events in stdin end before the run has ended" in said.err


def test_the_result_and_the_report_have_the_times_of_the_run_not_of_watching(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    events = _events(seconds=600.0)
    events[-1] = dataclasses.replace(events[-1], created=events[-2].created)
    path.write_text(_lines(events))
    assert main(["watch", str(path), "--format", "json", "--report", str(tmp_path / "run.html")]) == 2
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "failed"
    assert result["rc"] == 2
    assert 1199 < result["seconds"] < 1201
    assert result["stats"]["failures"] == {"host0000": 1}
    assert "host0000" in (tmp_path / "run.html").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere cannot be read: No such file or directory"),
        (["."], "there is no run in ."),
        (["play.yml"], "play.yml has no events"),
        (["17", "--report", "x.html"], "--report does not go with the number of a queued run"),
        (["17", "--format", "json"], "a queued run is shown as text or as jsonl"),
    ],
)
def test_what_cannot_be_watched_gets_one_sentence(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "play.yml").write_text("- hosts: all\n")
    assert main(["watch", *words]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"forkless watch: {sentence}")
    assert said.err.count("\n") == 1
    assert not said.out
    assert not (tmp_path / "x.html").exists()
