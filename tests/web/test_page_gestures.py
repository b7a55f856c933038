# SPDX-License-Identifier: GPL-3.0-or-later
"""What a click, a touch and a pointer at rest see: progress before the server has answered, and nothing that moves under them."""

from __future__ import annotations

import re

import pytest

from queue_support import wait_until

from .conftest import PASSWORD
from .test_page_api import finished
from .test_page_api import start as begin
from .test_page_browser import PHONE, start, tab

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("web")]
__all__ = ["tab"]


class Held:
    """Changes that the page asks for while the server does not get them."""

    def __init__(self, tab):
        self.routes, self._tab = [], tab
        tab.route("**/*", self._take)

    def _take(self, route):
        if route.request.method == "GET":
            route.continue_()
        else:
            self.routes.append(route)

    def asked(self):
        """The one that was asked for."""
        wait_until(lambda: self._tab.evaluate("1") and self.routes, "the request")
        [route] = self.routes
        return route


def shows_progress(tab, button):
    """The button is at work, a bar moves above the page, and a screen reader is told."""
    tab.locator("body[data-busy]").wait_for()
    assert button.get_attribute("aria-busy") == "true"
    assert button.is_disabled()
    bar = tab.locator("#busy-bar")
    assert bar.bounding_box()["height"] > 0
    assert bar.is_visible()
    assert bar.text_content() == "working …"


def refuse(tab, route):
    """The server refuses: the page says why, and the button can be pressed again."""
    route.fulfill(status=422, json={"error": "this cannot be"})
    tab.locator("#told", has_text="this cannot be").wait_for()
    tab.locator("body:not([data-busy])").wait_for()
    assert tab.locator("[aria-busy]").count() == 0
    tab.errors.clear()  # the browser reports each answer with an error


def test_a_start_shows_progress_before_the_server_has_answered(tab):
    tab.get_by_role("link", name="Start", exact=True).click()
    tab.get_by_label("Playbook").select_option("hello.yml")
    tab.get_by_label("Inventory").select_option("hosts.ini")
    button = tab.locator("#go:enabled")
    button.wait_for()
    held = Held(tab)
    button.click()
    button = tab.locator("#go")
    place = button.bounding_box()
    shows_progress(tab, button)
    assert button.bounding_box() == place
    refuse(tab, held.asked())
    assert button.is_enabled()


def test_a_look_at_the_hosts_shows_progress_and_is_forgotten_when_another_limit_is_typed(tab):
    tab.get_by_role("link", name="Start", exact=True).click()
    tab.get_by_label("Playbook").select_option("hello.yml")
    tab.get_by_label("Inventory").select_option("hosts.ini")
    held = Held(tab)
    tab.get_by_role("button", name="Show the hosts").click()
    tab.locator("#hosts", has_text="looking …").wait_for()
    tab.get_by_label("Limit").fill("web2")
    with tab.expect_response("**/api/preview"):
        held.asked().fulfill(json={"hosts": ["web1"], "count": 1})
    tab.evaluate("() => new Promise((done) => setTimeout(done, 100))")
    assert tab.locator("#hosts").inner_text() == ""  # it was about another limit


def test_cancel_and_relaunch_show_progress_before_the_server_has_answered(tab, page):
    start(tab, "long.yml")
    tab.locator("#running", has_text="still-at-it").first.wait_for()
    held = Held(tab)
    cancel = tab.get_by_role("button", name="Cancel")
    cancel.click()
    shows_progress(tab, cancel)
    # Meanwhile the stream tells of a run that goes on.
    before = int(tab.locator("body").get_attribute("data-position"))
    tab.wait_for_function("before => Number(document.body.dataset.position) > before + 1", arg=before)
    assert tab.locator("#state").inner_text() == "stopping"
    refuse(tab, held.asked())
    assert tab.locator("#state").inner_text() == "running"
    tab.unroute_all()
    cancel.click()
    tab.locator("#state", has_text="canceled").wait_for()
    held = Held(tab)
    relaunch = tab.get_by_role("button", name="Relaunch", exact=True)
    relaunch.click()
    shows_progress(tab, relaunch)
    refuse(tab, held.asked())


def test_a_login_and_a_schedule_show_progress_before_the_server_has_answered(tab, page, team):
    run = {"playbook": "hello.yml", "inventory": "hosts.ini"}
    client = page.program()
    assert client.post("/api/schedules", json={"name": "held", "cron": "0 3 * * *", "run": run}).status_code == 201
    try:
        tab.goto(page.address + "/schedules")
        held = Held(tab)
        pause = tab.get_by_role("button", name="Pause held")
        pause.click()
        shows_progress(tab, pause)
        refuse(tab, held.asked())
    finally:
        client.delete("/api/schedules/held")
    tab.goto(team.address + "/login")
    held.routes.clear()
    tab.get_by_label("Name").fill("ada")
    tab.get_by_label("Password").fill(PASSWORD)
    login = tab.get_by_role("button", name="Log in")
    login.click()
    shows_progress(tab, login)
    refuse(tab, held.asked())


def test_a_schedule_is_made_paused_and_removed_on_the_page(tab, page):
    tab.get_by_role("link", name="Schedules").click()
    tab.get_by_role("link", name="New schedule").click()
    tab.locator("[name=playbook] option[value='hello.yml']").wait_for(state="attached")
    assert tab.evaluate("document.activeElement.name") == "schedule"  # seen, and ready for its name
    tab.get_by_label("Playbook").select_option("hello.yml")
    tab.get_by_label("Inventory").select_option("hosts.ini")
    tab.get_by_label("Schedule: name").fill("weekly")
    tab.get_by_role("button", name="Save the schedule").click()  # refused by the browser: the time is missing
    assert tab.evaluate("document.activeElement.name") == "cron"
    tab.get_by_label("Schedule: minute").fill("0 4 * * 1")
    tab.get_by_role("button", name="Save the schedule").click()
    tab.wait_for_url("**/schedules")
    row = tab.locator("#rows tr", has_text="weekly")
    assert "0 4 * * 1" in row.inner_text()
    row.get_by_role("button", name="Pause weekly").click()
    row.get_by_text("paused").wait_for()
    row.get_by_role("button", name="Resume weekly").click()
    row.get_by_role("button", name="Pause weekly").wait_for()
    row.get_by_role("button", name="Remove weekly").click()
    assert [one["name"] for one in page.program().get("/api/schedules").json()["schedules"]] == ["weekly"]
    row.get_by_text("Really remove?").click()
    row.wait_for(state="detached")


def test_a_schedule_refuses_slices_with_a_sentence(page):
    run = {"playbook": "hello.yml", "inventory": "hosts.ini", "slices": 2}
    answer = page.program().post("/api/schedules", json={"name": "sliced", "cron": "0 3 * * *", "run": run})
    assert (answer.status_code, answer.json()["error"]) == (422, "a run of a schedule has no slices")


@pytest.mark.parametrize("tab", [PHONE], indirect=True)
def test_a_finger_that_taps_is_told_what_is_in_the_grid_and_in_the_timeline(tab, page):
    client = page.program()
    number = begin(client)
    finished(client, number)
    tab.goto(f"{page.address}/runs/{number}")
    tab.locator("#grid-size", has_text="3 × 4").wait_for()
    for box, line, told in (
        ("grid", "cell", r"web\d · say hello \(site.yml:4\): ok"),
        ("timeline", "span", r"web\d · .*worker \d"),
    ):
        place = tab.locator(f"#{box}")
        place.scroll_into_view_if_needed()
        area = place.bounding_box()
        across = 128 if box == "grid" else 120 + (area["width"] - 128) / 2
        wait_until(
            lambda area=area, across=across, line=line, told=told: (
                tab.touchscreen.tap(area["x"] + across, area["y"] + (14 if line == "cell" else 30))
                or re.search(told, tab.locator(f"#{line}").inner_text())
            ),
            f"what is in the {box}",
        )


def test_when_a_run_ends_no_other_button_comes_under_the_pointer(tab, page_database):
    start(tab, "long.yml")
    tab.locator("#running", has_text="still-at-it").first.wait_for()
    buttons = tab.locator(".actions > *")
    before = [one.bounding_box() for one in buttons.all()]
    cancel = tab.get_by_role("button", name="Cancel").bounding_box()
    middle = cancel["x"] + cancel["width"] / 2, cancel["y"] + cancel["height"] / 2
    tab.mouse.click(*middle)
    tab.locator("#state", has_text="canceled").wait_for()
    runs = page_database.one("SELECT count(*) FROM forkless.run")
    address = tab.url
    tab.mouse.click(*middle)  # impatient
    assert [one.bounding_box() for one in buttons.all()] == before
    assert (tab.url, page_database.one("SELECT count(*) FROM forkless.run")) == (address, runs)


def test_failures_and_the_end_of_a_run_move_nothing_that_the_pointer_is_over(tab, page):
    page.gate.unlink(missing_ok=True)
    start(tab, "fails-later.yml")
    tab.locator("#running .working", has_text="wait").wait_for()
    tab.locator("#timeline").hover()
    place = tab.locator("#timeline").bounding_box()
    page.gate.touch()
    tab.locator("#state", has_text="failed").wait_for()
    tab.locator("#failure-count", has_text="1 and 1 ignored, shown when the pointer leaves what is below").wait_for()
    assert tab.locator("#timeline").bounding_box()["y"] == place["y"]
    assert (tab.locator(".failure").count(), tab.locator("#now").is_visible()) == (0, True)
    tab.mouse.move(5, 5)
    tab.locator(".failure").first.wait_for()
    shown = [one.inner_text().split("\n")[0] for one in tab.locator(".failure").all()]
    # What ended the run first, though it came last.
    assert [re.sub(r" +", " ", one) for one in shown] == [
        "web1 · three failed · fails-later.yml:7", "web1 · two ignored · fails-later.yml:6"
    ]  # fmt: skip
    assert tab.locator("#failure-count").inner_text() == "1 and 1 ignored"
    tab.locator("#now").wait_for(state="hidden")


def test_what_is_under_way_stands_below_its_headings_and_workers_say_what_they_do(tab, page, page_database):
    number = begin(page.program(), "long.yml")
    page_database.wait_for(number, "running")
    try:
        tab.goto(page.address + "/queue")
        row = tab.locator("#under-way tr", has=tab.locator(f'a[href="/runs/{number}"]'))
        heads = [one.bounding_box()["x"] for one in tab.locator("table").first.locator("th").all()]
        assert [one.bounding_box()["x"] for one in row.locator("td").all()] == heads
        tab.goto(page.address + "/workers")
        worker = tab.locator("#rows tr", has_text="busy")
        worker.get_by_text("long.yml").wait_for()
        worker.locator("small", has_text="wait long").wait_for()
        # A worker that another test has killed may still be counted.
        assert re.search(r": \d slots, \d free", tab.locator("#summary").inner_text())
        # A worker that does nothing new was seen all the same.
        first = worker.locator("td").last.inner_text()
        kept = worker.first.locator("a").element_handle()
        wait_until(lambda: worker.locator("td").last.inner_text() != first, "a newer time")
        assert kept.evaluate("(one) => one.isConnected")
    finally:
        page.program().post(f"/api/runs/{number}/cancel")


def test_hosts_with_the_same_difference_are_one_entry(tab, page):
    client = page.program()
    first, second = begin(client), begin(client, "changes.yml")
    for number in (first, second):
        finished(client, number)
    tab.goto(f"{page.address}/compare?first={first}&second={second}")
    entries = tab.locator("#comparison .failure.changed")
    entries.first.wait_for()
    assert [re.sub(r" +", " ", one.inner_text()) for one in entries.all()] == [
        "web1, web2 · open not run → changed · changes.yml:4", "web1, web2 · shut not run → changed · changes.yml:5"
    ]  # fmt: skip
    assert tab.locator("#comparison details").count() == 0  # nothing is behind them that could be opened
