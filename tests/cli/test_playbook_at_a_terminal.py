# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person types: vars_prompt, pause and the debugger, at a real terminal."""

from __future__ import annotations

import sys

import pytest

from forkless.runner import RunnerSpawn

PLAY = """
- hosts: localhost
  gather_facts: false
  vars_prompt:
    - {name: who, prompt: "Who are you", private: false}
  tasks:
    - pause: {prompt: "Say it"}
      register: said
    - debug: {msg: "got {{ who }} {{ said.user_input }}"}
    - fail: {msg: no}
      debugger: on_failed
"""


@pytest.mark.spawns
def test_prompts_and_the_debugger_are_answered(tmp_path):
    import pexpect

    (tmp_path / "play.yml").write_text(PLAY)
    child = RunnerSpawn(
        sys.executable, ["-m", "forkless", "playbook", "play.yml"], cwd=str(tmp_path), timeout=120, encoding="utf-8"
    )
    try:
        for question, answer in (
            ("Who are you: ", "bob"),
            ("Say it:", "hello"),
            (r"\(debug\)>", "p task"),
            (r"\(debug\)>", "c"),
        ):
            child.expect([question])
            child.sendline(answer)
            # Ansible throws away what was typed before it listens, which is after it has asked. A person types again.
            while answer == "hello" and child.expect(["got bob hello", pexpect.TIMEOUT], timeout=10):
                assert child.isalive()
                child.sendline(answer)
        child.expect([pexpect.EOF])
    finally:
        child.close(force=True)
    assert child.exitstatus == 2
