# SPDX-License-Identifier: GPL-3.0-or-later
"""The page in a real browser: start, watch live, cancel, come back after a restart; keys only; text of hosts stays text; axe finds nothing."""

from __future__ import annotations

import datetime as dt
import pathlib
import re
import zoneinfo

import pytest

from queue_support import PATIENCE, wait_until

from .conftest import EVIL, PASSWORD, Served, long_run

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("web")]
AXE = pathlib.Path(__file__).parents[2] / ".cache" / "axe-core" / "axe.min.js"


@pytest.fixture
def tab(browser, page, request):
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}} | getattr(request, "param", {}))
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE * 1000)
    opened.errors = []
    opened.on("pageerror", lambda err: opened.errors.append(str(err)))
    opened.on("console", lambda told: opened.errors.append(told.text) if told.type == "error" else None)
    opened.goto(page.first)
    yield opened
    context.close()
    assert opened.errors == []


def start(tab, playbook, inventory="hosts.ini"):
    tab.get_by_role("link", name="Start", exact=True).click()
    tab.get_by_label("Playbook").select_option(playbook)
    tab.get_by_label("Inventory").select_option(inventory)
    tab.get_by_role("button", name="Start").click()
    tab.wait_for_url("**/runs/*")


def test_a_run_is_started_watched_and_cancelled(tab):
    start(tab, "long.yml")
    tab.locator("#running", has_text="still-at-it").first.wait_for()
    tab.locator("#log", has_text="has-begun").wait_for()
    tab.locator("#state", has_text="running").wait_for()
    assert tab.locator("#relaunch").is_disabled()
    tab.get_by_role("button", name="Cancel").click()
    tab.locator("#state", has_text="canceled").wait_for()
    assert tab.get_by_role("button", name="Relaunch", exact=True).is_enabled()
    assert tab.locator("#now").is_hidden()
    tab.locator("#grid").focus()
    for _ in range(2):
        tab.keyboard.press("ArrowRight")
    assert "wait long (long.yml:6): stopped with the run" in tab.locator("#cell").inner_text()
    tab.get_by_role("link", name="Runs").click()
    tab.locator("#rows tr").first.locator(".state", has_text="canceled").wait_for()


PHONE = {"viewport": {"width": 375, "height": 740}, "has_touch": True, "is_mobile": True, "timezone_id": "Asia/Tokyo"}


@pytest.mark.parametrize("tab", [PHONE], indirect=True)
def test_on_a_phone_a_run_is_previewed_started_and_cancelled_and_another_reader_sees_it(tab, page):
    tab.get_by_role("link", name="Start", exact=True).tap()
    tab.get_by_label("Playbook").select_option("long.yml")
    tab.get_by_label("Inventory").select_option("hosts.ini")
    tab.get_by_label("Limit").fill("web*:!web3")
    tab.get_by_role("button", name="Show the hosts").tap()
    tab.locator("#hosts", has_text="2 hosts: web1, web2").wait_for()
    tab.get_by_role("button", name="Start", exact=True).tap()
    tab.wait_for_url("**/runs/*")
    tab.locator("#running", has_text="still-at-it").first.wait_for()
    tab.locator("#connection.live").wait_for()
    place = tab.get_by_role("heading", level=1).bounding_box()
    other = tab.context.new_page()
    other.goto(tab.url)
    other.locator("#state", has_text="running").wait_for()
    tab.get_by_role("button", name="Cancel").tap()
    for reader in (tab, other):
        reader.locator("#state", has_text="canceled").wait_for()
    # The connection has ended with the run, and the line that says so is gone without moving what is below.
    tab.locator("#connection.ended").wait_for(state="attached")
    assert tab.locator("#connection").inner_text() == ""
    assert tab.get_by_role("heading", level=1).bounding_box()["y"] == place["y"]
    launched = page.program().get(f"/api/runs/{tab.url.rsplit('/', 1)[1]}").json()["created"]
    there = dt.datetime.fromisoformat(launched).astimezone(zoneinfo.ZoneInfo("Asia/Tokyo"))
    assert f"{there:%-I:%M:%S}" in tab.locator("#facts").inner_text()  # at the reader's clock


def test_an_answer_that_is_older_than_the_end_of_the_run_does_not_hide_it(tab, page):
    """The answer to a cancel may say that the run is under way; the stream may tell of its end before, and nothing more after it."""
    held = []
    start(tab, "long.yml")
    tab.locator("#running", has_text="still-at-it").first.wait_for()
    older = page.program().get(f"/api/runs/{tab.url.rsplit('/', 1)[1]}").json()
    assert older["status"] == "running"
    tab.route("**/cancel", lambda route: held.append((route, route.fetch())))
    tab.get_by_role("button", name="Cancel").click()
    tab.locator("#state", has_text="canceled").wait_for()
    [(route, answer)] = held
    with tab.expect_response("**/cancel") as told:
        route.fulfill(response=answer, json=older)  # what the server itself says depends on which was first there
    told.value.finished()
    tab.evaluate("() => new Promise((done) => setTimeout(done, 100))")
    assert tab.locator("#state").inner_text() == "canceled"


def test_the_timeline_goes_on_while_nothing_is_told_and_ends_with_the_run(tab, page):
    page.gate.unlink(missing_ok=True)
    wanted = {"playbook": "two-steps.yml", "inventory": "hosts.ini", "limit": "web1"}
    number = page.program().post("/api/runs", json=wanted).json()["id"]
    tab.goto(f"{page.address}/runs/{number}")

    def told():
        return float(tab.evaluate("document.getElementById('timeline').dataset.seconds ?? 0"))

    tab.locator("#running .working", has_text="wait").wait_for()  # the last event until it is cancelled
    before, position = told(), tab.evaluate("document.body.dataset.position")
    wait_until(lambda: told() > before + 2, "the time that the task has taken")
    assert tab.evaluate("document.body.dataset.position") == position
    tab.get_by_role("button", name="Cancel").click()
    tab.locator("#state", has_text="canceled").wait_for()
    assert tab.locator("#sentence").is_hidden()  # it would say nothing but the state
    tab.reload()
    wait_until(lambda: told() > before + 2, "the same of a run that has ended")


def test_with_keys_only_a_run_is_started_read_and_relaunched(tab):
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to content"
    press_until(tab, "Start")
    tab.wait_for_url("**/start")
    tab.locator("[name=playbook] option").first.wait_for(state="attached")
    tab.get_by_label("Playbook").focus()
    tab.keyboard.type("site")
    tab.keyboard.press("Tab")
    tab.keyboard.type("hosts")
    press_until(tab, "Start", role="BUTTON")
    tab.wait_for_url("**/runs/*")
    tab.locator("#state", has_text="failed").wait_for()
    shown = tab.locator(".failure").inner_text()
    assert re.search(r"web2 · not on web2\s+failed · site.yml:9\s+broken-here", shown), shown
    tab.locator("#grid").focus()
    tab.keyboard.press("ArrowRight")
    assert "say hello (site.yml:4): ok" in tab.locator("#cell").inner_text()
    tab.locator("#timeline").focus()
    tab.keyboard.press("ArrowRight")
    assert re.search(r"web\d · say hello: ok, .* worker \d", tab.locator("#span").inner_text())
    tab.get_by_role("button", name="Relaunch on failed hosts").focus()
    tab.keyboard.press("Enter")
    tab.get_by_text("Again from").wait_for()


def press_until(tab, text, role="A"):
    """Tab to the element with the text, and press it."""
    for _ in range(60):
        tab.keyboard.press("Tab")
        if tab.evaluate("[document.activeElement.tagName, document.activeElement.textContent.trim()]") == [role, text]:
            tab.keyboard.press("Enter")
            return
    pytest.fail(f"{text} is not reached by Tab")


def test_markup_of_hosts_is_shown_as_text(tab, page):
    other = page.program().post("/api/runs", json={"playbook": "hello.yml", "inventory": "hosts.ini"}).json()["id"]
    start(tab, "evil.yml", "inventory-evil.yml")
    tab.locator("#state", has_text="failed").wait_for()
    tab.locator(".failure").first.wait_for()
    number = tab.url.rsplit("/", 1)[1]
    assert tab.locator("#failures summary").first.inner_text().count(EVIL) == 2
    assert EVIL in tab.locator("#log").inner_text()
    tab.locator("#diffs", has_text=EVIL).wait_for(state="attached")
    assert EVIL in tab.locator("#failures pre").first.inner_text()
    no_markup_got_in(tab)
    tab.get_by_role("link", name="Hosts").click()
    tab.get_by_role("link", name=EVIL).wait_for()
    no_markup_got_in(tab)
    tab.get_by_role("link", name=EVIL).click()
    tab.get_by_role("heading", name=EVIL).wait_for()
    no_markup_got_in(tab)
    tab.goto(tab.url.split("/host")[0] + f"/compare?first={other}&second={number}")
    tab.locator("#comparison", has_text=EVIL).wait_for()
    no_markup_got_in(tab)


def no_markup_got_in(tab):
    """A script that got in by innerHTML is not executed, nor by the policy of the page, but it is there."""
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("script:not([type='application/json']):not([src])").count() == 0


def test_a_run_is_started_when_it_is_known_what_its_playbook_asks_for(tab):
    """Fields that the playbook chosen before needs would keep the form from being sent, and they are hidden."""
    held = []
    tab.get_by_role("link", name="Start", exact=True).click()
    tab.get_by_label("Playbook").select_option("asks.yml")
    tab.locator("#variables [required]").first.wait_for()
    tab.route("**/api/variables?*", lambda route: held.append(route))
    tab.get_by_label("Playbook").select_option("hello.yml")
    assert tab.locator("#variables [required]").count() == 0
    assert tab.get_by_role("button", name="Start", exact=True).is_disabled()
    wait_until(lambda: tab.evaluate("1") and held, "the request")
    tab.get_by_label("Inventory").select_option("hosts.ini")
    held[0].continue_()
    tab.get_by_role("button", name="Start", exact=True).click()
    tab.wait_for_url("**/runs/*")
    tab.locator("#state", has_text="successful").wait_for()


def test_markup_in_variables_is_shown_as_text(tab):
    """What a playbook asks for, what is the default, and what somebody has typed."""
    tab.get_by_role("link", name="Start", exact=True).click()
    tab.get_by_label("Playbook").select_option("evil-asks.yml")
    asked = tab.get_by_label(f"Which {EVIL}")
    assert asked.get_attribute("placeholder") == f"as {EVIL}"
    no_markup_got_in(tab)
    tab.get_by_label("Inventory").select_option("hosts.ini")
    asked.fill(EVIL)
    tab.get_by_role("button", name="Start").click()
    tab.wait_for_url("**/runs/*")
    tab.locator("#state", has_text="successful").wait_for()
    tab.locator("#log", has_text=f"release {EVIL}").wait_for()
    no_markup_got_in(tab)


def test_the_policy_of_the_page_stops_a_script_that_got_in_all_the_same(tab):
    tab.evaluate(
        "() => { const one = document.createElement('script'); one.textContent = 'window.hacked = 1'; document.body.append(one); }"
    )
    assert tab.evaluate("window.hacked") is None
    assert any("Content Security Policy" in text for text in tab.errors)
    tab.errors.clear()


def test_a_page_goes_on_after_the_server_was_restarted_in_the_middle_of_a_run(
    browser, page_database, page, team, tmp_path
):
    arguments = {"FORKLESS_DATABASE": page_database.url, "XDG_STATE_HOME": str(tmp_path)}
    config = tmp_path / "page.toml"
    config.write_text("[login]\n")
    first = Served("--config", str(config), **arguments)
    context = browser.new_context()
    try:
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE * 1000)
        page.gate.unlink(missing_ok=True)
        with page.keeping() as client:
            number = client.post(
                "/api/runs", json={"playbook": "two-steps.yml", "inventory": "hosts.ini", "limit": "web1"}
            ).json()["id"]
            page_database.wait_for(number, "running")
            opened.goto(f"{first.address}/runs/{number}")
            opened.get_by_label("Name").fill("ada")
            opened.get_by_label("Password").fill(PASSWORD)
            opened.get_by_role("button", name="Log in").click()
            opened.locator("#log", has_text="first-step").wait_for()
            first.close()
            opened.locator("#connection.away").wait_for()
            (page.gate).write_text("go on")
            second = Served("--config", str(config), "--port", str(first.port), **arguments)
            try:
                opened.locator("#state", has_text="successful").wait_for()
                opened.locator("#log", has_text="PLAY RECAP").wait_for()
                log = opened.locator("#log").inner_text()
                assert (log.count("first-step"), log.count("second-step"), log.count("PLAY RECAP")) == (1, 1, 1)
                counter = client.get(f"/api/runs/{number}").json()["counter"]
                assert opened.evaluate("Number(document.body.dataset.position)") == counter
            finally:
                second.close()
    finally:
        context.close()


def test_a_long_run_on_a_slow_line_is_whole_and_only_what_is_seen_is_drawn(tab, page, page_database):
    number = long_run(page_database, hosts=120, tasks=60)
    tab.add_init_script("""addEventListener("DOMContentLoaded", () => { window.told = []; const behind = document.getElementById("behind");
        if (behind) new MutationObserver(() => window.told.push(behind.textContent)).observe(behind, { childList: true }); });""")
    line = tab.context.new_cdp_session(tab)
    line.send("Network.enable")
    slow = {"offline": False, "latency": 100, "downloadThroughput": 200_000, "uploadThroughput": 50_000}
    line.send("Network.emulateNetworkConditions", slow)
    tab.goto(f"{page.address}/runs/{number}")
    tab.locator(
        f'body[data-position="{2 * 120 * 60}"]'
    ).wait_for()  # the policy of the page allows no wait_for_function
    tab.locator("#grid-size", has_text="120 × 60").wait_for()
    told = [int(one.split()[2]) for one in tab.evaluate("window.told") if one.startswith("catching up: ")]
    assert len(told) > 2
    assert told == sorted(set(told), reverse=True)
    assert tab.locator("#behind").inner_text() == ""
    tab.locator("#grid").focus()
    tab.keyboard.press("ArrowRight")
    assert "host0 · task 0 (site.yml:0): changed" in tab.locator("#cell").inner_text()
    # The window shows 27 of 120 hosts; the timeline 18 of them.
    drawn = {
        one: tab.evaluate(f"Number(document.getElementById('{one}').dataset.drawn)") for one in ("grid", "timeline")
    }
    assert 0 < drawn["grid"] <= 28 * 60, drawn
    assert 0 < drawn["timeline"] <= 20 * 60, drawn
    assert tab.evaluate("document.querySelectorAll('*').length") < 5500  # 5000 of them are the last lines of the log
    tab.get_by_role("searchbox", name="Search the output").fill("[HOST119]")
    tab.keyboard.press("Enter")
    tab.locator("#found mark").first.wait_for()
    assert tab.locator("#found mark").first.inner_text() == "[host119]"
    tab.locator("#found-count", has_text="120 lines").wait_for()


def test_axe_finds_nothing_and_every_page_fits_a_phone(browser, page, team, page_database):
    if not AXE.exists():
        pytest.skip("missing: axe-core (tests/prepare.py fetches it with npm)")
    numbers = page_database.all("SELECT id FROM forkless.run WHERE status = 'failed' ORDER BY id LIMIT 1")
    # The policy of the pages would not let axe in; it changes nothing that axe looks at.
    context = browser.new_context(viewport={"width": 375, "height": 800}, bypass_csp=True)
    try:
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE * 1000)
        opened.goto(team.address + "/")
        found = look(opened, "/login")
        opened.get_by_label("Name").fill("ada")
        opened.get_by_label("Password").fill(PASSWORD)
        opened.get_by_role("button", name="Log in").click()
        opened.wait_for_url(team.address + "/")
        runs = [f"/runs/{number}" for (number,) in numbers]
        for path in (
            "/",
            "/start",
            "/queue",
            "/hosts",
            "/host?name=web1",
            "/schedules",
            "/workers",
            "/compare",
            "/me",
            "/users",
            "/api/docs",
            "/nowhere",
            *runs,
        ):
            opened.goto(team.address + path)
            found += look(opened, path)
        found += look_at_a_run_under_way(opened, page, team)
        assert found == []
    finally:
        context.close()


def look_at_a_run_under_way(opened, page, team):
    """With what it prints, and with the notice that is above every page when a disk is full."""
    with page.keeping() as client:
        wanted = {"playbook": "long.yml", "inventory": "hosts.ini", "limit": "web1"}
        number = client.post("/api/runs", json=wanted).json()["id"]
        try:
            opened.goto(f"{team.address}/runs/{number}")
            opened.locator("#running pre", has_text="still-at-it").wait_for()
            opened.evaluate(
                "() => { const notice = document.getElementById('trouble'); notice.hidden = false; notice.textContent = 'the disk is full'; }"
            )
            return look(opened, "a run under way")
        finally:
            client.post(f"/api/runs/{number}/cancel")


ABOUT_COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}


def look(opened, path):
    """What is wrong with a page: by all rules in the light, and in the dark by those about colours, which the others do not depend on."""
    opened.add_script_tag(content=AXE.read_text())  # read here: Playwright would leave a thread behind
    found = []
    for scheme, rules in (("dark", ABOUT_COLOURS), ("light", {})):
        opened.emulate_media(color_scheme=scheme)
        broken = opened.evaluate(
            "async (rules) => (await axe.run(rules)).violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).slice(0, 2).join(' ')}`)",
            {"resultTypes": ["violations"]} | rules,
        )
        found += [f"{path}, {scheme}: {one}" for one in broken]
        wide = opened.evaluate("document.documentElement.scrollWidth")
        found += [f"{path}, {scheme}, is {wide} wide"] if wide > 375 else []
    return found


def look_at_a_followed_job(browser, page):
    """As another reader sees it, who does not follow it."""
    context = browser.new_context(viewport={"width": 375, "height": 800}, bypass_csp=True)
    try:
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE * 1000)
        opened.goto(page.first)
        opened.goto(f"{page.address}/host?name=web3")
        opened.locator("#jobs summary").click()
        opened.locator("#jobs pre", has_text="begun").wait_for()
        return look(opened, "a followed job")
    finally:
        context.close()


def test_a_job_that_outlives_its_run_is_seen_asked_and_ended_on_its_host(tab, browser, page, project):
    start(tab, "durable.yml")
    tab.locator("#state", has_text="successful").wait_for()
    client = page.program()
    tab.goto(f"{page.address}/host?name=web3")
    shown = tab.locator("#jobs .job")
    try:
        job = client.get("/api/hosts/jobs", params={"host": "web3"}).json()["jobs"][0]
        assert (job["job_name"], job["state"], job["run"], job["project"]) == ("rebuild", "", None, project.name)
        assert "the host was not asked yet" in shown.inner_text()
        tab.get_by_role("button", name="Ask the host: rebuild").click()
        shown.locator(".state", has_text="running").wait_for()
        tab.get_by_role("button", name="Follow the output: rebuild").click()
        shown.get_by_text("following its output in").wait_for()
        follows = shown.get_by_role("link", name="run ").inner_text()
        shown.locator("pre", has_text=f"{EVIL}begun").wait_for()
        no_markup_got_in(tab)
        asking = client.get("/api/hosts/jobs", params={"host": "web3"}).json()["jobs"][0]
        # The same run still asks: its output came while it ran, not with its result.
        assert (asking["asking_for"], f"run {asking['asking']}") == ("output", follows)
        assert "and-more" not in shown.locator("pre").inner_text()
        if AXE.exists():  # the test above is skipped without it, and says so
            assert look_at_a_followed_job(browser, page) == []
        (project.parent / "durable.gate").write_text("go on")
        shown.locator("pre", has_text="and-more").wait_for()
        tab.get_by_role("button", name="Stop following: rebuild").click()
        tab.get_by_role("button", name="Follow the output: rebuild").wait_for()
        assert "and-more" in shown.locator("pre").inner_text()
    finally:
        tab.get_by_role("button", name="End the job: rebuild").click()
        tab.get_by_text("Really end it?").click()
        shown.locator(".state", has_text="killed").wait_for()
    number = client.get("/api/hosts/jobs", params={"host": "web3"}).json()["jobs"][0]["run"]
    assert client.get(f"/api/runs/{number}").json()["title"] == "kill of job rebuild on web3"
    unknown = client.post(f"/api/hosts/jobs/{'0' * 16}/kill", params={"host": "web3"})
    assert (unknown.status_code, "no such job" in unknown.text) == (422, True)


def test_the_list_fills_by_itself_and_moves_nothing_under_the_pointer(tab, page):
    client = page.program()

    def begin():
        number = client.post("/api/runs", json={"playbook": "site.yml", "inventory": "hosts.ini"}).json()["id"]
        return number, tab.locator("#rows tr", has=tab.locator(f'a[href="/runs/{number}"]'))

    _, first = begin()
    first.wait_for()
    first.hover()
    place = first.bounding_box()
    number, second = begin()
    first.locator(".state", has_text="failed").wait_for()  # what is there is brought up to date
    wait_until(lambda: client.get(f"/api/runs/{number}").json()["status"] == "failed", "the end of the second run")
    failed = client.get("/api/runs").json()["counts"]["failed"]
    tab.locator("#counts", has_text=f"{failed} failed").wait_for()  # the list that has the second run as well
    assert (first.bounding_box()["y"], second.count()) == (place["y"], 0)
    tab.mouse.move(5, 5)
    second.locator(".state", has_text="failed").wait_for()
    assert first.bounding_box()["y"] > place["y"]
