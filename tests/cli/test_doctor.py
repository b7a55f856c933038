# SPDX-License-Identifier: GPL-3.0-or-later
"""What the doctor finds, and what it makes of it."""

from __future__ import annotations

import json

import pytest

from forkless.cli import main
from forkless.cli.commands import doctor
from forkless.core import platform

pytestmark = pytest.mark.spawns  # asking what the machine can do tries to start something


def report(capsys, *flags):
    code = main(["doctor", "--format", "json", *flags])
    return code, json.loads(capsys.readouterr().out)


def test_it_tells_the_engine_and_why(capsys):
    code, found = report(capsys)
    assert code == 0
    assert found["engine"]["name"] == "threads"
    assert found["engine"]["why"]
    names = {one["name"] for one in found["capabilities"]} | {one["name"] for one in found["packages"]}
    assert {
        "fork",
        "exec",
        "sem_open",
        "/dev/shm",
        "pty",
        "threads",
        "locale",
        "ssh program",
        "HOME and passwd",
    } <= names
    assert {"open files", "Python", "ansible-core", "seams", "rich"} <= names
    assert all(one["means"] for one in found["capabilities"] + found["packages"] if not one["ok"])


def test_where_nothing_can_be_started_it_says_what_follows(capsys, monkeypatch):
    for name in ("can_exec", "can_fork", "has_sem_open", "has_shm"):
        monkeypatch.setattr(platform, name, lambda: False)
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
    assert "+ ok      ansible-core" in text


def test_a_further_section_has_its_flag(capsys, monkeypatch):
    monkeypatch.setitem(doctor.SECTIONS, "seams", ("what is touched", lambda: ["one", "two"]))
    _, found = report(capsys, "--seams")
    assert found["sections"] == {"seams": ["one", "two"]}


def test_a_home_that_is_not_the_users_own_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    code, found = report(capsys)
    assert code == 0
    assert any("async_status" in line for line in found["stock"])


def test_an_ansible_that_is_not_known_means_that_nothing_can_be_run(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda package: "2.99.0")
    code, found = report(capsys)
    assert code == 1
    seams = next(one for one in found["packages"] if one["name"] == "seams")
    assert not seams["ok"]
    assert "FORKLESS_ALLOW_UNKNOWN" in seams["means"]


def test_an_installation_that_lacks_what_a_run_needs_is_a_finding(monkeypatch, capsys):
    from forkless.engines.threads.patches import table
    from forkless.patching import seams as patching

    gone = patching.Seam("ansible.plugins.strategy:NoSuchThing", "a reason", lambda original, _site: original)
    monkeypatch.setattr(table, "SEAMS", (*table.SEAMS, gone))
    monkeypatch.delenv("FORKLESS_ALLOW_UNKNOWN", raising=False)
    code, found = report(capsys)
    assert code == 1
    seams = next(one for one in found["packages"] if one["name"] == "seams")
    assert not seams["ok"]
    assert "ansible.plugins.strategy:NoSuchThing: is missing" in seams["means"]
