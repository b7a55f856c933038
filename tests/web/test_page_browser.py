# SPDX-License-Identifier: GPL-3.0-or-later
"""The page in a real browser: start, watch live, cancel; text of hosts stays text."""

from __future__ import annotations

import pytest

from queue_support import PATIENCE

from .conftest import EVIL

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("web")]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-dev-shm-usage",
]  # fmt: skip


@pytest.fixture
def tab(chromium, page):
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        opened = browser.new_page(viewport={"width": 1200, "height": 900})
        opened.set_default_timeout(PATIENCE * 1000)
        opened.errors = []
        opened.on("pageerror", lambda err: opened.errors.append(str(err)))
        opened.on("console", lambda told: opened.errors.append(told.text) if told.type == "error" else None)
        opened.goto(page.first)
        yield opened
        assert opened.errors == []
        browser.close()


def start(tab, playbook, inventory="hosts.ini"):
    tab.get_by_role("link", name="Start", exact=True).click()
    tab.get_by_label("Playbook").select_option(playbook)
    tab.get_by_label("Inventory").select_option(inventory)
    tab.get_by_role("button", name="Start").click()
    tab.wait_for_url("**/runs/*")


def test_a_run_is_started_watched_and_cancelled(tab):
    start(tab, "long.yml")
    tab.locator("#log", has_text="has-begun").wait_for()
    tab.locator("#state", has_text="running").wait_for()
    assert tab.locator("#relaunch").is_hidden()
    tab.get_by_role("button", name="Cancel").click()
    tab.locator("#state", has_text="canceled").wait_for()
    tab.get_by_role("button", name="Relaunch", exact=True).wait_for()
    tab.get_by_role("link", name="Runs").click()
    tab.locator("#rows tr").first.locator(".state", has_text="canceled").wait_for()


def test_failures_come_first_and_the_grid_can_be_read_with_keys(tab):
    start(tab, "site.yml")
    tab.locator("#state", has_text="failed").wait_for()
    tab.locator(".failure").wait_for()
    shown = tab.locator(".failure").inner_text()
    assert "web2" in shown
    assert "broken-here" in shown
    assert "site.yml:9" in shown
    tab.locator("#grid").focus()
    tab.keyboard.press("ArrowRight")
    assert "say hello (site.yml:4): ok" in tab.locator("#cell").inner_text()
    tab.get_by_role("button", name="Relaunch on failed hosts").click()
    tab.get_by_text("Again from").wait_for()


def test_markup_of_hosts_is_shown_as_text(tab):
    start(tab, "evil.yml", "inventory-evil.yml")
    tab.locator("#state", has_text="failed").wait_for()
    tab.locator(".failure").wait_for()
    assert tab.locator(".failure summary").inner_text().count(EVIL) == 2
    assert EVIL in tab.locator("#log").inner_text()
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("main script:not(#boot)").count() == 0


def test_the_list_fills_by_itself_and_fits_a_phone(tab, page):
    tab.set_viewport_size({"width": 375, "height": 700})
    client = page.program()
    number = client.post("/api/runs", json={"playbook": "site.yml", "inventory": "hosts.ini"}).json()["id"]
    row = tab.locator("#rows tr", has=tab.locator(f'a[href="/runs/{number}"]'))
    row.locator(".state", has_text="failed").wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
