# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of one group run in one worker. A pytest that pytest-xdist does not know loses the groups without a word."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.spawns

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
    outcome = pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider")
    outcome.assert_outcomes(passed=24)
    assert len({path.name.split(".")[0] for path in tmp_path.iterdir()}) == 1
