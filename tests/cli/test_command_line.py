# SPDX-License-Identifier: GPL-3.0-or-later
"""What the command says when it is called in every wrong way there is, and when it is asked about itself."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest

from forkless.cli import COMMANDS, main
from forkless.cli.ansible_command import add_flags

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def shell(script, cwd, **env):
    """A line for sh, with `forkless` in it as a function."""
    command = f'forkless() {{ "{sys.executable}" -m forkless "$@"; }}; {script}'
    return subprocess.run(
        ["sh", "-c", command],
        cwd=cwd, env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "play.yml").write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - debug: {msg: hi}\n    - fail: {msg: 'wrong: ü'}\n"
    )
    return tmp_path


def test_alone_it_says_what_it_is_and_how_it_is_used(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "workers as threads" in said
    assert said.count("\n  forkless ") >= 5
    assert all(f"\n  {name} " in said for name in COMMANDS)
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == said


def test_the_versions_of_all_that_takes_part(capsys):
    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["forkless", "ansible-core", "Python", "engine", "ansible-runner"]
    assert lines[3] == "engine threads"


JOBS = [f"jobs {name}" for name in ("list", "show", "status", "wait", "kill", "cleanup", "output")]


@pytest.mark.parametrize("command", ["run", "doctor", "completion", "jobs", *JOBS])
def test_every_command_has_help_with_examples(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--help"])
    assert left.value.code == 0
    assert f"examples:\n  {'source' if command == 'completion' else 'forkless'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "hint"),
    [("plabook", "did you mean 'playbook'?"), ("docter", "did you mean 'doctor'?"), ("zzz", "there are playbook")],
)
def test_an_unknown_command_gets_one_sentence(word, hint, capsys):
    assert main([word]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"forkless: there is no command '{word}'; ")
    assert hint in said
    assert said.count("\n") == 1


@pytest.mark.spawns
def test_a_wrong_flag_gets_ansibles_own_message_and_help_has_our_name(folder):
    wrong = shell("forkless playbook play.yml --chekc", folder)
    assert wrong.returncode == 2
    assert "ansible-playbook: error: unrecognized arguments: --chekc" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    said = shell("forkless playbook --help", folder).stdout
    assert said.startswith("usage: forkless playbook")
    assert "--vault-password-file" in said
    assert "--slices N|auto" in said
    assert "examples:\n  forkless playbook site.yml" in said


def test_ansibles_abbreviations_mean_what_they_mean_without_ours():
    parser = argparse.ArgumentParser()
    parser.add_argument("--private-key")
    parser.add_argument("--module-name")
    parser.add_argument("--force-handlers", action="store_true")
    add_flags(parser)
    asked = parser.parse_args(
        ["--pr", "a key", "--mod", "ping", "--fo", "--profile", "--format", "json", "--modules", "cold"]
    )
    assert (asked.private_key, asked.module_name, asked.force_handlers) == ("a key", "ping", True)
    assert (asked.profile, asked.format, asked.modules) == (True, "json", "cold")


@pytest.mark.spawns
def test_who_reads_only_the_first_line_gets_it_and_the_run_ends_as_ever(folder):
    done = shell("{ forkless playbook play.yml; echo $? > code; } | head -n 2", folder)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert (folder / "code").read_text() == "2\n"
    done = shell("{ forkless doctor; echo $? > code; } | true", folder)
    assert done.stderr == ""
    assert (folder / "code").read_text() == "0\n"


@pytest.mark.spawns
def test_streams_that_are_closed_from_the_start_are_no_reason_to_fall_over(folder):
    done = shell("forkless playbook play.yml >&- <&-", folder)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.spawns
def test_a_locale_that_is_not_utf_8_gets_a_sentence(folder):
    done = shell("forkless playbook play.yml", folder, **ASCII)
    assert done.returncode != 0
    assert "UTF-8" in done.stderr
    assert "Traceback" not in done.stderr
    told = shell("forkless doctor; forkless; forkless --version", folder, **ASCII)
    assert told.returncode == 0
    assert told.stderr == ""
    assert "LC_ALL=C.UTF-8" in told.stdout
