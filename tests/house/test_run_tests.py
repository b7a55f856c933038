# SPDX-License-Identifier: GPL-3.0-or-later
"""tests/run_tests.py forgives what failed beside other tests and passes alone, and nothing else."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import run_tests

pytestmark = pytest.mark.spawns

PROGRAM = pathlib.Path(__file__).parent.parent / "run_tests.py"
# A test that fails the first time.
ONCE = """
import os, pathlib, pytest
def first_time(name):
    try:
        pathlib.Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
"""


@pytest.fixture
def suite(tmp_path):
    """Starts run_tests.py on a made-up suite, with the plugins of pytest that it needs only."""

    def start(tests, *, workers="0"):
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p xdist --import-mode=importlib\n")
        (tmp_path / "test_inner.py").write_text(ONCE + tests)
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        return subprocess.Popen(
            [sys.executable, PROGRAM, "--workers", workers, "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env={**surroundings, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def finished(program):
    out, _ = program.communicate(timeout=240)
    return program.returncode, out


def passed_alone(folder):
    told = folder / run_tests.PASSED_ALONE
    return told.read_text().splitlines() if told.exists() else []


def test_what_fails_beside_others_and_passes_alone_is_named_at_the_end_and_its_failure_stays(suite, tmp_path):
    code, out = finished(
        suite(
            """
@pytest.mark.parametrize("where", ["root@host", "b"])
@pytest.mark.xdist_group("some")
def test_once(where):
    assert not first_time(where), "the text of the first failure"

def test_that_ends_its_worker_once():
    if first_time("worker"):
        os._exit(1)  # as pytest-timeout does

def test_good():
    assert first_time("good")  # is not run again
""",
            workers="2",
        )
    )
    assert code == 0, out
    assert out.count("the text of the first failure") >= 2
    lines = sorted(f"failed beside others, passed alone: test_inner.py::{name}" for name in
                   ("test_once[b]", "test_once[root@host]", "test_that_ends_its_worker_once"))  # fmt: skip
    assert sorted(out.splitlines()[-3:]) == lines
    assert sorted(passed_alone(tmp_path)) == lines


@pytest.mark.parametrize(
    ("tests", "status"),
    [
        pytest.param("def test_always(): assert False", 1, id="fails twice"),
        pytest.param(
            "@pytest.mark.parametrize('n', range(4))\ndef test_four(n): assert not first_time(str(n))", 1, id="a fourth"
        ),
        pytest.param(
            "def test_skipped():\n    assert not first_time('a')\n    pytest.skip('not now')", 1, id="skipped alone"
        ),
        pytest.param(
            "def test_once(): assert not first_time('a')\n\ndef test_stops():\n    raise KeyboardInterrupt",
            2,
            id="interrupted",
        ),
        pytest.param(
            "@pytest.fixture(scope='session')\ndef guard():\n    yield\n    if first_time('a'):\n"
            "        pytest.fail('leak guard: processes that outlived the tests: 1: sleep')\n"
            "def test_last(guard): pass",
            1,
            id="a program that outlives the tests",
        ),
        pytest.param("def test_good(): pass", 0, id="passes"),
    ],
)
def test_nothing_else_is_forgiven(suite, tmp_path, tests, status):
    code, out = finished(suite(tests))
    assert code == status, out
    assert passed_alone(tmp_path) == []
    assert "passed alone:" not in out


def test_an_error_of_collection_is_not_forgiven(suite, tmp_path):
    """With workers pytest runs the tests of the other files, and its exit status is that of failed tests."""
    (tmp_path / "test_broken.py").write_text("raise RuntimeError('cannot be read')\n")
    code, out = finished(suite("def test_once(): assert not first_time('a')", workers="1"))
    assert code != 0, out
    assert "cannot be read" in out
    assert passed_alone(tmp_path) == []


def test_tests_run_again_only_while_no_others_run(suite):
    """The first time beside others that hold the lock as well, the second time nobody else may hold it."""
    code, out = finished(
        suite(f"""
import fcntl
def may(how):
    with open({run_tests.LOCK!r}) as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

def test_once():
    if first_time("a"):
        assert (may(fcntl.LOCK_SH), may(fcntl.LOCK_EX)) == (True, False)
        pytest.fail("the first time")
    assert not may(fcntl.LOCK_SH)
""")
    )
    assert code == 0, out
    assert "the first time" in out
