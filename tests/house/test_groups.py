# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of one group run in one worker, and long ones first. A pytest that pytest-xdist does not know loses the groups without a word."""

from __future__ import annotations

import pathlib

import pytest

pytestmark = pytest.mark.spawns

HERE = pathlib.Path(__file__).parent.parent
# Plugins of pytest that take long to import, in each process of it.
WITHOUT = ["-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:hypothesispytest"]

TESTS = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(12))
@pytest.mark.xdist_group("one")
def test_of_a_group(number):
    pathlib.Path({folder!r}, f"{{os.environ['PYTEST_XDIST_WORKER']}}.{{number}}").touch()

@pytest.mark.parametrize("number", range(12))
def test_of_none(number):
    pass
"""


def test_tests_of_one_group_run_in_one_worker(pytester, tmp_path):
    pytester.makepyfile(test_inner=TESTS.format(folder=str(tmp_path)))
    outcome = pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup", *WITHOUT)
    outcome.assert_outcomes(passed=24)
    assert len({path.name.split(".")[0] for path in tmp_path.iterdir()}) == 1


def test_files_with_the_longest_time_limits_come_first_and_stay_whole(pytester):
    pytester.makeconftest((HERE / "conftest.py").read_text().replace('pytest_plugins = ["pytester"]', ""))
    limit = "import pytest\n@pytest.mark.timeout({})\n"
    pytester.makepyfile(
        guards=(HERE / "guards.py").read_text(),
        test_a="def test_one(): pass\ndef test_two(): pass\n",
        test_b=f"{limit.format(300)}def test_one(): pass\n",
        test_c=f"def test_one(): pass\n{limit.format(900)}def test_two(): pass\n",
    )
    outcome = pytester.runpytest_subprocess(*WITHOUT, "--collect-only", "-q")
    assert [line.replace(".py::test", "") for line in outcome.outlines if "::" in line] == [
        "test_c_one", "test_c_two", "test_b_one", "test_a_one", "test_a_two"
    ]  # fmt: skip
