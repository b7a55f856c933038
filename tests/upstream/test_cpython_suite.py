# SPDX-License-Identifier: GPL-3.0-or-later
"""A slice of CPython's own suite, sealed, on the Python that runs these tests. The whole of it: make upstream-mp."""

from __future__ import annotations

import subprocess
import sys

import pytest

from upstream import cpython_suite

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600)]

SLICES = {
    "processes": ("mp", r"WithProcessesTest(Process|SubclassingProcess|Connection|PicklingConnections|SharedMemory)\."),
    "queues": (
        "mp",
        r"(WithProcessesTest(Queue|Lock|Semaphore|Condition|Event|Value|Array)|TestSimpleQueue|SemLockTests)\.",
    ),
    "pools": ("mp", r"(WithProcessesTestPool\w*|TestPoolNotLeakOnFailure|TestStartMethod|TestWait)\."),
    "managers": ("mp", r"(WithManagerTest(Containers|MyManager|Lock|Condition)|TestSyncManagerTypes)\."),
    "executors": ("cf", r"ProcessPoolSpawn(ProcessPoolExecutorTest|FailingInitializerTest|ExecutorDeadlockTest)\."),
}


@pytest.mark.parametrize("which", SLICES)
def test_cpythons_own_suite_finds_what_is_known_and_nothing_else(which):
    suite, only = SLICES[which]
    mode = cpython_suite.Mode(sys.executable, "spawn", sealed=True)
    if subprocess.run(
        [sys.executable, "-c", "import test._test_multiprocessing"], check=False, capture_output=True
    ).returncode:
        pytest.skip(
            f"CPython's suite was NOT run: {sys.executable} comes without its tests (Debian: libpython3-testsuite)"
        )
    try:
        report = cpython_suite.run(mode, suite=suite, only=only, jobs=1, classes=("ab",))
    except cpython_suite.Missing as missing:
        pytest.skip(str(missing))
    passed = [name for name, result in report["tests"].items() if result["status"] == "pass"]
    assert len(passed) >= 10, report
    assert cpython_suite.judge(report, mode) == []


FAKE = {"minor": "3.13", "tests": {}}


def test_a_regression_is_told():
    mode = cpython_suite.Mode("python", "spawn", sealed=True)
    (line,) = cpython_suite.judge({**FAKE, "tests": {"mp:TestX.test_y": {"status": "hang", "msg": "stack"}}}, mode)
    assert line == "mp:TestX.test_y: hang\nstack"


def test_an_unexpected_pass_is_told():
    mode = cpython_suite.Mode("python", "spawn", sealed=True)
    known = "mp:TestFlags.test_flags"
    (line,) = cpython_suite.judge({**FAKE, "tests": {known: {"status": "pass"}}}, mode)
    assert line.startswith(f"{known} passes now")
    assert cpython_suite.judge({**FAKE, "tests": {known: {"status": "error"}}}, mode) == []
    assert cpython_suite.judge({**FAKE, "tests": {known: {"status": "skip"}}}, mode) == []


def test_nothing_is_concluded_from_a_race_where_it_is_one():
    test = "mp:WithProcessesTestProcess.test_child_fd_inflation"
    told = {}
    for method in ("spawn", "fork"):
        mode = cpython_suite.Mode("python", method, sealed=True)
        told[method] = [
            len(cpython_suite.judge({**FAKE, "tests": {test: {"status": status}}}, mode)) for status in ("pass", "fail")
        ]
    assert told == {"spawn": [0, 0], "fork": [0, 1]}


def test_threads_must_pass_what_does_not_skip_itself_nor_differ_nor_race():
    open_ = cpython_suite.Mode("python", "spawn", sealed=False)
    statuses = {
        "mp:TestX.test_passes": "pass",
        "mp:TestX.test_fails": "fail",
        "mp:TestX.test_skips": "skip",
        "mp:TestFlags.test_flags": "pass",  # differs where processes are forbidden
        "mp:WithProcessesTestProcess.test_child_fd_inflation": "pass",  # a race
    }
    report = {**FAKE, "tests": {test: {"status": status} for test, status in statuses.items()}}
    assert cpython_suite.target(report, open_) == {"pass": 1, "of": 2}


@pytest.mark.parametrize(("missing", "told"), [(1, 1), (0, 0)])
def test_a_suite_with_fewer_tests_than_were_counted_is_told(missing, told):
    mode = cpython_suite.Mode("python", "spawn", sealed=True)
    report = {**FAKE, "full": "3.15.0", "target": {"pass": 0, "of": cpython_suite.TARGETS["3.15.0"] - missing}}
    assert len(cpython_suite.judge(report, mode, whole=True)) == told
    assert cpython_suite.judge(report, mode) == []  # of a part of the suite nothing can be said


def test_what_is_missing_is_said_aloud(monkeypatch, tmp_path):
    monkeypatch.setenv("FORKLESS_YARDSTICKS", str(tmp_path))
    with pytest.raises(cpython_suite.Missing, match="CPython's suite was NOT run"):
        cpython_suite.yardstick()


def test_every_known_difference_has_its_reason():
    for rule in cpython_suite.KNOWN:
        assert set(rule) <= {"why", "tests", "sealed", "methods", "pythons"}
        assert len(rule["why"]) > 20
        assert rule["tests"]
