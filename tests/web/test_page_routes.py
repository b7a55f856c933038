# SPDX-License-Identifier: GPL-3.0-or-later
"""Every route of the page through the guard that stands before it: a route that is not in the table below fails the test."""

from __future__ import annotations

import html.parser
import json
import re

import pytest
from starlette.routing import Route

from forkless.web.access import Access, AccessMiddleware, Identity
from forkless.web.app import PageApp, _for_script
from forkless.web.fleet_answers import (
    HostHistoryAnswer,
    HostJobAnswer,
    HostJobsAnswer,
    HostSummariesAnswer,
    HostSummaryAnswer,
)
from forkless.web.settings import LoginSettings

HOST = "page.example:8750"
ROLES = ("nobody", "viewer", "operator", "admin")
VIEWER_PAGES = (
    "/", "/runs/{number}", "/compare", "/start", "/hosts", "/host", "/queue", "/workers", "/schedules", "/me", "/api/docs", "/api/openapi.json",
    "/api/runs", "/api/runs/stream", "/api/compare", "/api/runs/{number}", "/api/runs/{number}/hosts", "/api/runs/{number}/events",
    "/api/runs/{number}/stream", "/api/runs/{number}/events.jsonl", "/api/runs/{number}/search", "/api/runs/{number}/log",
    "/api/runs/{number}/report", "/api/runs/{number}/artifacts", "/api/projects", "/api/variables", "/api/hosts", "/api/hosts/history",
    "/api/hosts/jobs", "/api/workers", "/api/queue", "/api/schedules", "/api/me", "/api/me/tokens", "/api/me/sessions",
)  # fmt: skip
# The least role that each route needs. A new route belongs here, with the reason of who adds it in mind.
NEEDED = {("GET", path): "viewer" for path in VIEWER_PAGES} | {
    ("GET", "/login"): "nobody", ("POST", "/api/login"): "nobody", ("POST", "/hooks/{name}"): "nobody", ("GET", "/static/{version}/{name}"): "nobody",
    ("POST", "/api/me/logout"): "viewer", ("POST", "/api/me/password"): "viewer", ("POST", "/api/me/tokens"): "viewer",
    ("DELETE", "/api/me/tokens/{number}"): "viewer", ("DELETE", "/api/me/sessions/{number}"): "viewer",
    ("POST", "/api/runs"): "operator", ("POST", "/api/preview"): "operator", ("POST", "/api/runs/{number}/cancel"): "operator",
    ("POST", "/api/runs/{number}/relaunch"): "operator", ("POST", "/api/hosts/jobs/{job}/{operation}"): "operator",
    ("POST", "/api/schedules"): "operator", ("POST", "/api/schedules/{name}/pause"): "operator",
    ("POST", "/api/schedules/{name}/resume"): "operator", ("DELETE", "/api/schedules/{name}"): "operator",
    ("GET", "/users"): "admin", ("GET", "/api/users"): "admin", ("POST", "/api/users"): "admin", ("POST", "/api/users/{name}"): "admin",
    ("DELETE", "/api/users/{name}"): "admin", ("GET", "/api/sessions"): "admin", ("DELETE", "/api/sessions/{number}"): "admin",
    ("GET", "/api/tokens"): "admin", ("DELETE", "/api/tokens/{number}"): "admin", ("GET", "/api/audit"): "admin",
}  # fmt: skip


class StubAccounts:
    """Sessions and tokens that are named as their role."""

    async def session(self, secret):
        return (secret, secret) if secret in ROLES[1:] else None

    token = session

    async def role_of(self, name):
        return name if name in ROLES[1:] else None


def finished(coroutine):
    """What a coroutine returns that never waits: the stubs answer at once, and a loop for each of a thousand requests takes long."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


async def refuse(scope, status, sentence):
    return b"text/plain", sentence.encode()


class Guard:
    """The guard, before an application that only says who came through."""

    def __init__(self, login=None):
        self.access = Access([HOST], StubAccounts(), "me", login)
        self.page = PageApp(object(), self.access, {}, {}, lambda run, events: "")
        self._guard = AccessMiddleware(self._app, self.access, refuse, lambda: "")

    async def _app(self, scope, receive, send):
        self.came = scope.get("state", {}).get("who", Identity("stranger", "nobody"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def ask(self, method, path, query="", **headers):
        """The status, and who came through; None if nobody did."""
        sent = []
        self.came = None
        given = {"host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()}
        scope = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items() if value is not None],
        }  # fmt: skip

        async def send(message):
            sent.append(message)

        async def receive():
            return {"type": "http.request", "body": b""}

        finished(self._guard(scope, receive, send))
        self.headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], self.came


@pytest.fixture(scope="module")
def guard():
    return Guard(LoginSettings(users=True))


def routes(guard):
    found = guard.page.app.routes
    assert all(isinstance(one, Route) for one in found), "a mount or a websocket has no place in this table"
    return {(method, one.path) for one in found for method in one.methods - {"HEAD"}}


def address(path):
    return re.sub(r"\{\w+\}", "1", path)


def with_role(guard, role, *, csrf=True):
    """The headers of a browser of somebody who has logged in."""
    if role == "nobody":
        return {}
    sent = {"cookie": f"{guard.access.cookie}={role}", "origin": f"http://{HOST}"}
    known = finished(guard.access.identify(sent))
    return sent | ({"x_forkless_csrf": known.csrf} if csrf else {})


def test_every_route_is_in_the_table_of_who_may(guard):
    assert routes(guard) == set(NEEDED)


@pytest.mark.parametrize("role", ROLES)
def test_every_route_lets_through_who_may_and_nobody_else(guard, role):
    wrong = []
    for (method, path), least in NEEDED.items():
        headers = with_role(guard, role)
        if path == "/api/login":
            headers |= {"origin": f"http://{HOST}"}
        status, came = guard.ask(method, address(path), **headers)
        if (came is not None) != (ROLES.index(role) >= ROLES.index(least)):
            wrong.append((method, path, status))
    assert wrong == []


def test_no_change_is_made_by_a_page_of_another_site(guard):
    changes = [(method, path) for method, path in NEEDED if method != "GET" and not path.startswith("/hooks/")]
    assert len(changes) > 15
    ours, known = with_role(guard, "admin", csrf=False), with_role(guard, "admin")
    for method, path in changes:
        for headers in (
            known | {"origin": "http://evil.example"}, known | {"origin": None}, known | {"sec_fetch_site": "cross-site"},
            known | {"origin": "null"},
        ):  # fmt: skip
            assert guard.ask(method, address(path), **headers) == (403, None), (method, path, headers)
        if path != "/api/login":  # who has no session yet has nothing to send along
            assert guard.ask(method, address(path), **ours)[1] is None, (method, path)


def test_a_program_with_a_token_needs_nothing_of_a_page_and_no_cookie_goes_along(guard):
    for (method, path), least in NEEDED.items():
        if least == "nobody":
            continue
        who = guard.ask(method, address(path), authorization="Bearer viewer", cookie=f"{guard.access.cookie}=admin")[1]
        assert (who is not None) == (least == "viewer"), (method, path)


def test_no_route_answers_for_another_host_name(guard):
    for (method, path), _ in NEEDED.items():
        for host in ("evil.example", f"{HOST}.evil.example", "page.example", "", None):
            assert guard.ask(method, address(path), **with_role(guard, "admin") | {"host": host}) == (421, None)


@pytest.mark.parametrize(
    "path", ["//evil.example", "/\\evil.example", "/\\/evil.example", "/a\r\nset-cookie: x=1", "/runs/\u2028\u20ac"]
)
def test_the_first_address_leads_to_no_other_server_and_into_no_header(path):
    guard = Guard()
    status, _ = guard.ask("GET", path, query=f"token={guard.access.token}&a=b")
    where = guard.headers["location"]
    assert (status, where[0], where[-4:]) == (303, "/", "?a=b")
    assert where[1] not in "/\\"
    assert where.isascii()
    assert where.isprintable()


def test_the_session_after_a_login_is_never_one_that_was_there_before():
    guard = Guard()
    planted = f"{guard.access.cookie}=chosen-by-somebody-else"
    assert guard.ask("GET", "/", cookie=planted) == (401, None)
    assert guard.ask("GET", "/", query=f"token={guard.access.token}", cookie=planted)[0] == 303
    session = guard.headers["set-cookie"].partition("=")[2].partition(";")[0]
    assert len(session) > 30
    assert guard.ask("GET", "/", cookie=planted) == (401, None)
    assert guard.ask("GET", "/", cookie=f"{guard.access.cookie}={session}")[0] == 200


def test_the_token_leaves_by_no_referrer_and_is_in_no_cookie():
    guard = Guard()
    guard.ask("GET", "/", query=f"token={guard.access.token}")
    assert guard.headers["referrer-policy"] == "no-referrer"
    assert guard.access.token not in guard.headers["set-cookie"] + guard.headers["location"]
    assert guard.headers["cache-control"] == "no-store"


def test_a_long_message_is_refused_before_it_is_read(guard):
    headers = {"origin": f"http://{HOST}", "content_length": str((1 << 20) + 1)}
    assert guard.ask("POST", "/api/login", **headers) == (413, None)


class Scripts(html.parser.HTMLParser):
    """The script elements of a page, as a browser finds them: the source or the id of each, and what stands in it."""

    def __init__(self, page):
        super().__init__()
        self.found, self._inside = {}, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "script":
            self._inside = dict(attrs).get("src") or dict(attrs).get("id")
            self.found[self._inside] = ""

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside is not None:
            self.found[self._inside] += data


@pytest.mark.parametrize("evil", ["</script><script>window.hacked=1</script>", "<!--<script>", "]]>&lt;\u2028'\"\\"])
def test_what_a_page_begins_with_ends_no_script_and_comes_back_as_it_was(guard, evil):
    who = Identity("ada", "admin")
    summary = HostSummaryAnswer(
        host=evil, run=1, at=None, failures=0, failed_run=None, failed_at=None, changed_run=None, changed_at=None
    )
    hosts = guard.page._booted(who, "hosts.html", HostSummariesAnswer(hosts=[summary], after=None), search=evil)
    found = Scripts(hosts.body.decode()).found
    assert [name.rpartition("/")[2] for name in found] == ["fleet.js", "boot"]
    assert json.loads(found["boot"])["hosts"][0]["host"] == evil
    job = HostJobAnswer(
        id="0" * 16, job_name=evil, playbook_name=evil, project=evil, saved="", state="", why=evil, output=evil, seen=None, run=None, asking=None,
        asking_for="",
    )  # fmt: skip
    jobs = _for_script(HostJobsAnswer(host=evil, jobs=[job]).model_dump_json())
    history = HostHistoryAnswer(host=evil, runs=[], older=None)
    found = Scripts(
        guard.page._booted(who, "host.html", history, name=evil, jobs=jobs, may_steer=True).body.decode()
    ).found
    assert [name.rpartition("/")[2] for name in found] == ["fleet.js", "jobs.js", "boot-jobs", "boot"]
    assert json.loads(found["boot-jobs"])["jobs"][0]["output"] == evil


def test_no_id_is_on_a_page_twice(guard):
    """The first one would be found in place of the second. Every page has those of base.html."""
    environment = guard.page._templates

    def ids(name):
        return re.findall(r'\bid="([^"{]+)"', environment.loader.get_source(environment, name)[0])

    common = ids("base.html")
    assert "trouble" in common
    for name in environment.list_templates():
        found = ids(name) + (common if name != "base.html" else [])
        assert len(found) == len(set(found)), f"{name}: {sorted(one for one in found if found.count(one) > 1)}"


def test_every_template_puts_only_prepared_json_in_without_escaping(guard):
    names = guard.page._templates.list_templates()
    unescaped = {
        one
        for name in names
        for one in re.findall(
            r"\{\{[^}]*\|\s*safe[^}]*\}\}", guard.page._templates.loader.get_source(guard.page._templates, name)[0]
        )
    }
    assert len(names) > 10
    assert unescaped == {"{{ boot|safe }}", "{{ jobs|safe }}", "{{ sessions|safe }}"}
