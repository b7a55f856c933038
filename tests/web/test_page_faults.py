# SPDX-License-Identifier: GPL-3.0-or-later
"""The page while its database is away: it says so, refuses with a sentence, and goes on by itself without an event lost or twice."""

from __future__ import annotations

import pytest

from .test_page_browser import start, tab

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("web")]
__all__ = ["tab"]


def control(server, *arguments):
    server._call("pg_ctl", *arguments, "-D", server._data, "-w")


def test_a_page_says_that_the_database_is_away_and_goes_on_when_it_is_back(tab, page, server):
    page.gate.unlink(missing_ok=True)
    start(tab, "two-steps.yml")
    tab.locator("#log", has_text="first-step").wait_for()
    address = tab.url
    log = page.log()
    control(server, "stop", "-m", "fast")
    try:
        tab.locator("#connection.away", has_text="the database is away; trying again").wait_for()
        tab.get_by_role("button", name="Cancel").click()
        tab.locator("#told", has_text="the database cannot be used at the moment").wait_for()
        other = tab.context.new_page()
        answer = other.goto(page.address + "/")
        assert answer.status == 503
        assert "the database cannot be used at the moment" in other.locator("main").inner_text()
        other.close()
        page.gate.write_text("go on")  # the run ends while nothing can be written
    finally:
        control(server, "start", "-l", "/dev/null")
    tab.locator("#connection.live, #connection:empty").wait_for(state="attached")
    tab.locator("#state", has_text="successful").wait_for()
    tab.locator("#log", has_text="PLAY RECAP").wait_for()
    text = tab.locator("#log").inner_text()
    assert [text.count(one) for one in ("first-step", "second-step", "PLAY RECAP")] == [3, 3, 1]
    assert tab.url == address
    assert "Traceback" not in page.log()[len(log) :]
    tab.errors.clear()  # the browser reports each answer with 503
