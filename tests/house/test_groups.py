# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of one group run in one worker. A pytest that pytest-xdist does not know loses the groups without a word."""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("groups-work")
def test_a_group_is_seen_by_who_hands_out_the_tests(request):
    if os.environ.get("PYTEST_XDIST_WORKER") and request.config.option.loadgroup:
        assert request.node.nodeid.endswith("@groups-work")
    else:
        assert request.node.get_closest_marker("xdist_group").args == ("groups-work",)
