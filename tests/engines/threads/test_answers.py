# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run asks is answered by its `answers`, and nobody who reads about the run sees what was typed."""

from __future__ import annotations

import getpass
import json

import pytest

import forkless
from engines_support import shown
from forkless.engines.runner.engine import RunnerEngine

pytestmark = pytest.mark.spawns

BOOK = """
- hosts: localhost
  gather_facts: false
  vars_prompt:
    - {name: token, prompt: What is the token}
    - {name: colour, prompt: Which colour, private: false, default: red}
    - {name: twice, prompt: Say it twice, confirm: true, default: hush-default}
    - {name: bare}
    - {name: alone, prompt: Nobody answers this, private: false, default: by itself}
  tasks:
    - pause: {prompt: Go on}
      register: open
    - pause: {prompt: The pin, echo: false}
      register: pin
    - pause: {prompt: "The pin of {{ item }}", echo: false}
      loop: [a, b]
      register: pins
    - set_fact:
        checked: true
      when:
        - token is search('^hush-tok' ~ 'en$')
        - twice is search('^hush-twi' ~ 'ce$')
        - bare is search('^hush-ba' ~ 're$')
        - pin.user_input is search('^hush-p' ~ 'in$')
        - pins.results[1].user_input is search('^hush-p' ~ 'in$')
        - open.user_input == 'surely'
    - debug: {msg: "{{ checked | default(false) }} {{ colour }} {{ alone }}"}
"""
ANSWERS = {
    r"^What is the token:\s*?$": "hush-token",
    "colour .red.": "blue",
    "^Say it": "hush-twice",
    "input for bare|^bare:": "hush-bare",
    "Go on": "surely",
    "The pin": "hush-pin",
}


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ["threads", "runner"])
def test_what_a_play_asks_is_answered_and_seen_by_nobody(tmp_path, engine):
    book = tmp_path / "play.yml"
    book.write_text(BOOK)
    result = forkless.run(book, engine=engine, answers=ANSWERS, verbosity=1, artifacts=tmp_path / "a")
    assert result.ok, result.stdout
    assert "True blue by itself" in result.stdout
    assert "What is the token" in result.stdout
    assert result.stdout.count("Not prompting as we are not in interactive mode") == 1
    on_disk = "".join(one.read_text() for one in (tmp_path / "a").rglob("*") if one.is_file())
    for text in (result.stdout, on_disk, json.dumps([one.as_dict() for one in result.events]), repr(forkless.RunSpec(playbook="x", answers=ANSWERS))):  # fmt: skip
        assert "hush" not in text


@pytest.mark.matrix
def test_passwords_that_the_command_asks_for_are_answered(project):
    from ansible.parsing.vault import VaultLib, VaultSecret

    sealed = VaultLib([("default", VaultSecret(b"open sesame"))]).encrypt("inside: treasure")
    (project.folder / "vars.yml").write_bytes(sealed)
    project.write(
        "action_plugins/knows.py",
        """
        from ansible.plugins.action import ActionBase

        class ActionModule(ActionBase):
            def run(self, tmp=None, task_vars=None):
                told = self._play_context
                return dict(msg=[told.password == 'hush-conn', told.become_pass == 'hush-become', task_vars['inside']])
        """,
    )
    result = project.run(
        "- knows:\n",
        head="vars_files: [vars.yml]",
        limit="h1",
        args=["-k", "-K", "--ask-vault-password"],
        answers={
            r"^SSH password:\s*?$": "hush-conn",
            "BECOME password": "hush-become",
            "Vault password": "open sesame",
        },
    )
    assert result.ok, result.stdout
    (said,) = [one.event_data["res"]["msg"] for one in result.events if one.event == "runner_on_ok"]
    assert said == [True, True, shown("treasure")]
    assert "hush" not in result.stdout


def test_a_question_that_nobody_answers_is_not_put_to_the_program(project, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the program's terminal was asked")

    monkeypatch.setattr(getpass, "getpass", refuse)
    result = project.run("- debug:\n", args=["-k", "--ask-vault-password"], answers={"no such question": "x"})
    assert not result.ok
    assert "EOFError" in result.stdout
    assert "terminal was asked" not in result.stdout


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ({"(": "x"}, "answers: '(' is no regular expression: missing ), unterminated subpattern at position 0"),
        (["a"], "answers must map patterns to answers, not list"),
        ({"a": 1}, "answers: the pattern 'a' and its answer must be strings"),
        ({"a": "hush\nhush"}, "answers: the answer for 'a' must be one line, because it is typed at a prompt"),
    ],
)
def test_answers_that_make_no_sense_are_refused_when_the_request_is_made(answers, sentence):
    with pytest.raises(forkless.SpecError) as caught:
        forkless.RunSpec(playbook="site.yml", answers=answers)
    assert str(caught.value) == sentence


def test_the_stock_command_in_a_child_has_no_terminal_to_be_answered_at(project):
    with pytest.raises(forkless.UnsupportedError, match="answers= needs the threads engine, here or in the child"):
        forkless.run(engine=RunnerEngine("ansible"), **project.spec("- debug:\n", answers={"a": "b"}))
