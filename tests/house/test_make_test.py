# SPDX-License-Identifier: GPL-3.0-or-later
"""`make test` fails if any of its parts fails, and shows what each has said: its programs are replaced by ones that end as they are told."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.spawns

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = """#!/bin/sh
name=${0##*/}
case "$*" in
    *version_info*) exit 0 ;;
    *noxfile*) echo $OTHERS; exit 0 ;;
    *run_tests.py*) name=main; echo "failed beside others, passed alone: one" > .cache/passed-alone ;;
esac
echo "$name says $TEST_WORKERS"
case "$*" in *"-m not (matrix_ends or matrix_newest)"*) echo "$name leaves tests to others" ;; esac
case " $FAILING " in *" $name "*) exit 1 ;; esac
"""


@pytest.fixture
def make_test(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv" / ".ready").touch()
    for name in ("python", "ruff", "mypy", "nox", "coverage"):
        (programs / name).write_text(PROGRAM)
        (programs / name).chmod(0o755)

    def run(failing="", others=""):
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        return subprocess.run(
            ["make", "test"], cwd=tmp_path, env={**surroundings, "TEST_WORKERS": "4", "FAILING": failing, "OTHERS": others},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=240,
        )  # fmt: skip

    return run


def test_everything_runs_and_what_passed_only_alone_is_said_last(make_test):
    done = make_test()
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert {"ruff says 4", "mypy says 4", "main says 4"} < set(lines)
    # The other pairs have two fifths of the workers, and are shown after the default pair.
    assert lines[-2:] == ["nox says 2", "failed beside others, passed alone: one"]


def test_the_default_pair_leaves_tests_to_other_pairs_only_if_these_are_here(make_test):
    said = "main leaves tests to others"
    assert said in make_test(others='-m "not (matrix_ends or matrix_newest)"').stdout.splitlines()
    assert said not in make_test().stdout


@pytest.mark.parametrize("part", ["ruff", "mypy", "python", "main", "nox"])
def test_it_fails_with_any_of_its_parts(make_test, part):
    done = make_test(part)
    assert done.returncode != 0, done.stdout
    # Neither of the parts that run beside each other hides what the other says.
    assert ("main says 4" in done.stdout) == ("nox says 2" in done.stdout) == (part in ("main", "nox"))
