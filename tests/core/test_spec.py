# SPDX-License-Identifier: GPL-3.0-or-later
"""RunSpec: what it keeps, and what it refuses before anything starts."""

from __future__ import annotations

import pytest

from forkless import RunSpec, SpecError

GIVEN = ["-i", "hosts.ini", "--lim", "web", "-e", "@vars.yml", "site.yml", "-e", "a=1", "--", "more.yml"]


def test_a_command_line_is_kept_exactly_as_it_was_given():
    spec = RunSpec.from_argv("ansible-playbook", GIVEN, ident="one")
    assert (spec.command, spec.argv(), spec.argv(secret_free=True), spec.ident) == (
        "ansible-playbook", GIVEN, GIVEN, "one"
    )  # fmt: skip
    assert RunSpec.from_argv("ansible", ["all", "-m", "ping"]).command == "ansible"
    assert "a=1" not in repr(spec)


def test_whatever_may_be_a_playbook_of_a_command_line_counts_as_one():
    assert {"site.yml", "more.yml"} < set(RunSpec.from_argv("ansible-playbook", GIVEN).playbooks)
    assert RunSpec(playbook=["site.yml"]).playbooks == ("site.yml",)


def test_a_command_line_is_one_of_ansibles():
    with pytest.raises(SpecError, match="'sh'"):
        RunSpec.from_argv("sh", ["-c", "true"])


@pytest.mark.parametrize(
    "field", [{"playbook": "x.yml"}, {"check": True}, {"forks": 3}, {"extra_vars": {"a": 1}}, {"args": "-v"}]
)
def test_flags_are_not_given_twice(field):
    with pytest.raises(SpecError, match=f"{next(iter(field))}= does not go with a command line"):
        RunSpec(command_line=("ansible-playbook", "x.yml"), **field)
