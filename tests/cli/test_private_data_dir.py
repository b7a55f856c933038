# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless run: ansible-runner's folder in, ansible-runner's artifacts out."""

from __future__ import annotations

import json
import os
import sys

import pytest

from forkless.cli import main


@pytest.fixture
def job(tmp_path):
    for name in ("project/roles/greet/tasks", "inventory", "env"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project/site.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - debug: {msg: \"{{ colour }} {{ lookup('env', 'SHADE') }} {{ more }}\"}\n"
        "    - fail: {msg: no}\n      when: inventory_hostname == sad | default('')\n"
    )
    (tmp_path / "project/roles/greet/tasks/main.yml").write_text("- debug: {msg: 'hello {{ who }}'}\n")
    (tmp_path / "inventory/hosts").write_text("one ansible_connection=local\ntwo ansible_connection=local\n")
    (tmp_path / "env/extravars").write_text("colour: red\n")
    (tmp_path / "env/envvars").write_text('{"SHADE": "dark"}')
    (tmp_path / "env/cmdline").write_text("-e more=words --diff\n")
    (tmp_path / "env/settings").write_text("idle_timeout: 280\n")
    return tmp_path


@pytest.mark.spawns
@pytest.mark.parametrize("engine", ["threads", "runner"])
def test_a_playbook_runs_and_leaves_what_ansible_runner_leaves(job, engine, capsys):
    assert main(["run", str(job), "-p", "site.yml", "-i", "first", "--engine", engine, "--limit", "one"]) == 0
    assert "red dark words" in capsys.readouterr().out
    left = job / "artifacts/first"
    assert {"command", "job_events", "rc", "status", "stdout"} <= set(os.listdir(left))
    assert ((left / "rc").read_text(), (left / "status").read_text()) == ("0", "successful")
    events = [json.loads(path.read_text()) for path in (left / "job_events").iterdir()]
    assert {"playbook_on_start", "runner_on_ok", "playbook_on_stats"} <= {event["event"] for event in events}
    assert {event["event_data"].get("host") for event in events} <= {None, "one"}


@pytest.mark.spawns  # Ansible asks ldconfig when it is first imported
def test_a_failure_is_ansibles_exit_code_and_json_is_its_events(job, capsys):
    assert (
        main(
            [
                "run",
                str(job),
                "-p",
                "site.yml",
                "--json",
                "--cmdline",
                "-e sad=two -e more=x",
                "--report",
                str(job / "r.html"),
            ]
        )
        == 2
    )
    said = capsys.readouterr()
    assert "runner_on_failed" in [json.loads(line)["event"] for line in said.out.splitlines()]
    assert "forkless run" in (job / "r.html").read_text()


@pytest.mark.spawns  # Ansible asks ldconfig when it is first imported
def test_a_role_and_a_module(job, capsys):
    assert (
        main(
            [
                "run",
                str(job),
                "-r",
                "greet",
                "--hosts",
                "one",
                "--role-vars",
                "who=you",
                "--role-skip-facts",
                "--cmdline",
                "",
            ]
        )
        == 0
    )
    assert "hello you" in capsys.readouterr().out
    assert main(["run", str(job), "-m", "debug", "-a", "msg=hey", "--hosts", "two", "--cmdline", "", "-q"]) == 0
    assert capsys.readouterr().out == ""


MUCH = """
- hosts: one
  gather_facts: false
  tasks:
    - {command: "echo {{ item }}", loop: [a, b], notify: h}
    - {fail: {msg: "no"}, ignore_errors: true}
    - block: [{fail: {msg: x}}]
      rescue: [{debug: {msg: saved}}]
    - {debug: {msg: skipped}, when: false}
    - {debug: {msg: hush}, no_log: true}
    - include_tasks: more.yml
  handlers:
    - {name: h, debug: {msg: handled}}
"""


@pytest.mark.spawns
def test_events_are_those_of_ansible_runner_one_by_one_and_lack_no_field(job, monkeypatch):
    import ansible_runner

    import forkless.runner

    (job / "project/much.yml").write_text(MUCH)
    (job / "project/more.yml").write_text("- debug: {msg: more}\n")
    (job / "inventory/hosts").write_text(f"one ansible_connection=local ansible_python_interpreter={sys.executable}\n")
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    with forkless.runner.patched():
        ansible_runner.run(private_data_dir=str(job), playbook="much.yml", ident="theirs", quiet=True)
    assert main(["run", str(job), "-p", "much.yml", "-i", "ours", "-q"]) == 0
    theirs, ours = (
        sorted(
            (json.loads(path.read_text()) for path in (job / "artifacts" / ident / "job_events").iterdir()),
            key=lambda event: event["counter"],
        )
        for ident in ("theirs", "ours")
    )
    assert len(theirs) > 20
    for one, other in zip(theirs, ours, strict=True):
        for name in ("event", "counter"):
            assert one[name] == other[name]
        assert set(one) <= set(other), one["event"]
        assert set(one["event_data"]) <= set(other["event_data"]), one["event"]
        assert {name: one["event_data"].get(name) for name in ("host", "task", "play", "handler")} == {
            name: other["event_data"].get(name) for name in ("host", "task", "play", "handler")
        }


@pytest.mark.spawns
@pytest.mark.parametrize("engine", ["threads", "runner"])
def test_what_the_play_asks_is_answered_from_env_passwords(job, engine, capsys):
    (job / "project/asks.yml").write_text(
        "- hosts: one\n  gather_facts: false\n  vars_prompt:\n    - {name: who, prompt: Who goes there}\n"
        "    - {name: year, prompt: Which year, private: false}\n"
        "  tasks:\n    - debug: {msg: \"{{ who == 'a fri' ~ 'end' }} {{ year }}\"}\n"
    )
    (job / "env/passwords").write_text("'^Who goes there:\\s*?$': a friend\nWhich year: 1999\n")
    assert main(["run", str(job), "-p", "asks.yml", "-i", "first", "--engine", engine]) == 0
    said = capsys.readouterr().out
    assert "True 1999" in said
    assert "a friend" not in said + "".join(one.read_text() for one in (job / "artifacts").rglob("*") if one.is_file())


@pytest.mark.parametrize(
    ("files", "flags", "sentence"),
    [
        ({}, [], "nothing to run: name a playbook"),
        ({"env/extravars": "- a list\n"}, ["-p", "site.yml"], "env/extravars must hold names and values, not list"),
        ({"env/envvars": "{"}, ["-p", "site.yml"], "env/envvars is neither YAML nor JSON"),
        ({"env/settings": "idle_timeout: soon\n"}, ["-p", "site.yml"], "idle_timeout must be a number of seconds"),
        ({"env/cmdline": "'half"}, ["-p", "site.yml"], "cannot be split into words"),
        ({"env/passwords": "'(': red\n"}, ["-p", "site.yml"], "is no regular expression"),
    ],
)
def test_a_folder_that_makes_no_sense_gets_one_sentence(job, files, flags, sentence, capsys):
    for name, text in files.items():
        (job / name).write_text(text)
    assert main(["run", str(job), *flags]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.startswith("forkless run: ")
    assert not (job / "artifacts").exists()


def test_a_folder_that_is_not_there_gets_one_sentence(tmp_path, capsys):
    assert main(["run", str(tmp_path / "nowhere"), "-p", "site.yml"]) == 2
    assert "is not a folder; a private_data_dir has project/" in capsys.readouterr().err
