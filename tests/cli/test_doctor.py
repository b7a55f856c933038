# SPDX-License-Identifier: GPL-3.0-or-later
"""What the doctor finds, and what it makes of it."""

from __future__ import annotations

import json

import pytest

from forkless import _platform
from forkless.cli import doctor, main

pytestmark = pytest.mark.spawns  # asking what the machine can do tries to start something


def report(capsys, *flags):
    code = main(["doctor", "--format", "json", *flags])
    return code, json.loads(capsys.readouterr().out)


def test_it_tells_the_engine_and_why(capsys):
    code, found = report(capsys)
    assert code == 0
    assert found["engine"]["name"] == "threads"
    assert found["engine"]["why"]
    assert {"fork", "exec", "sem_open", "pty", "threads", "locale", "ssh program"} <= {
        one["name"] for one in found["capabilities"]
    }


def test_where_nothing_can_be_started_it_says_what_follows(capsys, monkeypatch):
    for name in ("can_exec", "can_fork", "has_sem_open", "has_shm"):
        monkeypatch.setattr(_platform, name, lambda: False)
    code, found = report(capsys)
    assert code == 0
    assert found["engine"]["modules"] == "in this process"
    assert any("fork is denied" in line for line in found["stock"])
    without = {one["name"]: one["means"] for one in found["capabilities"] if not one["ok"]}
    assert "forkless.core.ssh" in without["exec"]


def test_without_ansible_it_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    code = main(["doctor"])
    assert code == 1
    assert "pip install ansible-core" in capsys.readouterr().out


def test_people_get_a_page_they_can_read(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "engine: threads, because" in text
    assert "+ ansible-core" in text


def test_a_further_section_has_its_flag(capsys, monkeypatch):
    monkeypatch.setitem(doctor.SECTIONS, "seams", ("what is touched", lambda: ["one", "two"]))
    _, found = report(capsys, "--seams")
    assert found["sections"] == {"seams": ["one", "two"]}
