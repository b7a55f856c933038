# SPDX-License-Identifier: GPL-3.0-or-later
"""
Runs pytest; at most three tests that failed are run once more, alone, as CPython's regrtest does.

    python tests/run_tests.py --workers 4 [ARGUMENTS OF PYTEST ...]

A test that fails beside others and passes alone is named in the last lines, and the failure stays in the output above. Everything else is
a failure: a test that fails twice, a fourth test, an error while tests are collected, an interrupted run, a program that outlives the tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import sys

import pytest

# More failures than a loaded machine explains.
MOST = 3
# Of all that run tests in this checkout at a time: shared while tests run beside others, exclusive for those that run alone.
LOCK = os.path.join(".cache", "tests.lock")
# The tests that passed alone, for the last lines of `make test`.
PASSED_ALONE = os.path.join(".cache", "passed-alone")
# How nothing_outlives_the_tests begins. It speaks of all tests, but the failure is the last one's, which would pass alone.
OF_ALL_TESTS = "leak guard: processes that outlived the tests"


class Results:
    """A plugin of pytest: what failed and what passed, in the process that collects the results of all workers."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed: set[str] = set()
        self.of_all_tests = False
        self.not_collected = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.not_collected |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = without_group(report.nodeid)
        if report.failed:
            self.failed.append(name)
            self.of_all_tests |= OF_ALL_TESTS in str(report.longrepr)
        elif report.when == "call" and report.passed:
            self.passed.add(name)

    def all_passed(self, names: list[str]) -> bool:
        return not self.failed and self.passed == set(names)


def without_group(name: str) -> str:
    """pytest-xdist adds `@GROUP` to the names of tests of a group. An @ within the brackets of a parameter is not one."""
    return re.sub(r"@[^\]@]*$", "", name)


@contextlib.contextmanager
def locked(how: int):
    os.makedirs(os.path.dirname(LOCK), exist_ok=True)
    with open(LOCK, "w") as file:
        fcntl.flock(file, how)
        yield


def run(arguments: list[str]) -> tuple[int, Results]:
    results = Results()
    return int(pytest.main(arguments, plugins=[results])), results


def beside_others(workers: str, arguments: list[str]) -> int:
    with locked(fcntl.LOCK_SH):
        code, results = run(["-q", "-n", workers, "--dist", "loadgroup", *arguments])
    names = list(dict.fromkeys(results.failed))
    if code != pytest.ExitCode.TESTS_FAILED or results.not_collected or results.of_all_tests or not names:
        return code
    if len(names) > MOST:
        print(f"{len(names)} tests failed; at most {MOST} are run again", flush=True)
        return code
    print("run again, alone, when no other tests run:", *names, sep="\n  ", flush=True)
    with locked(fcntl.LOCK_EX):
        # In a process of its own: a time limit ends the process.
        again = subprocess.run([sys.executable, os.path.abspath(__file__), "--alone", *names], check=False).returncode
    if again:
        return code
    told = [f"failed beside others, passed alone: {name}" for name in names]
    print(*told, sep="\n", flush=True)
    with open(PASSED_ALONE, "a") as file:
        file.writelines(f"{line}\n" for line in told)
    return 0


def alone(names: list[str]) -> int:
    code, results = run(["-q", "-n", "0", *names])
    return code or (0 if results.all_passed(names) else 1)


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as `python -m pytest` has it
    if sys.argv[1] == "--alone":
        sys.exit(alone(sys.argv[2:]))
    sys.exit(beside_others(sys.argv[2], sys.argv[3:]))
