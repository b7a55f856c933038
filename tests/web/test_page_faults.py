# SPDX-License-Identifier: GPL-3.0-or-later
"""The page while its database is away, or a worker was killed: it says so, refuses with a sentence, and goes on by itself without an event lost or twice."""

from __future__ import annotations

import os
import signal

import pytest

from queue_support import wait_until

from .test_page_api import finished
from .test_page_api import start as begin
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


def test_a_page_says_that_the_worker_of_a_run_is_gone_and_that_the_run_is_lost(tab, page, page_database):
    page.gate.unlink(missing_ok=True)
    client = page.program()
    number = begin(client, "two-steps.yml", limit="web1")
    tab.goto(f"{page.address}/runs/{number}")
    tab.locator("#log", has_text="first-step").wait_for()
    assert client.get(f"/api/runs/{number}").json()["silent_since"] is None
    worker = next(one for one in client.get("/api/workers").json()["workers"] if one["run"] == number)
    try:
        os.kill(worker["pid"], signal.SIGKILL)
        # As if a minute of the two had passed.
        page_database.all("UPDATE forkless.run SET renewed = now() - interval '60 s' WHERE id = %s", number)
        told = f"The worker {worker['name']} gave no sign since "
        tab.locator("#sentence.wrong", has_text=told).wait_for()
        assert "the run is given up at" in tab.locator("#sentence").inner_text()
        assert tab.locator("#state").inner_text() == "running"
        page_database.all("UPDATE forkless.run SET lost_after = 1 WHERE id = %s", number)
        tab.locator("#state", has_text="lost").wait_for()
        tab.locator("#sentence.wrong", has_text="gave no sign of life for").wait_for()
    finally:
        page.gate.touch()
    # Another worker process has taken the place of the one that was killed.
    wait_until(
        lambda: sum(one["state"] == "idle" for one in client.get("/api/workers").json()["workers"]) >= 2,
        "a worker in place of the one that was killed",
    )
    tab.get_by_role("button", name="Relaunch", exact=True).click()
    tab.get_by_text("Again from").wait_for()
    assert finished(client, int(tab.url.rsplit("/", 1)[1]))
