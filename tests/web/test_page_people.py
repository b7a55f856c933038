# SPDX-License-Identifier: GPL-3.0-or-later
"""Users, roles, sessions, tokens, the audit log, a trusted proxy, and messages from outside."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import hmac
import json
import pathlib
import re

import psycopg
import pytest

import forkless.queue
from forkless.cli import main
from forkless.queue import DatabaseError, QueueRequestError
from forkless.web import settings, variables
from forkless.web.access import needed_role
from forkless.web.accounts import Accounts, LoginLimit
from queue_support import PATIENCE, Database, wait_until

from .conftest import HOOK_SECRET, PASSWORD, PROXY_SECRET

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("web")]
RUN = {"playbook": "hello.yml", "inventory": "hosts.ini"}


def test_without_a_login_there_is_nothing_but_the_login(team):
    stranger = team.stranger()
    answer = stranger.get("/runs/1?a=b")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/runs/1%3Fa%3Db")
    assert stranger.get("/login").status_code == 200
    for path in ("/api/runs", "/api/openapi.json", "/api/users", "/api/runs/stream"):
        assert stranger.get(path).status_code == 401
    assert stranger.get("/?token=").status_code == 303


@pytest.mark.parametrize(
    "next_page",
    ["//evil.example", "https://evil.example", "javascript:alert(1)", "/\\evil.example", "/\t/evil.example", "/a\n"],
)
def test_the_login_leads_to_no_other_server(team, next_page):
    assert 'data-next="/"' in team.stranger().get("/login", params={"next": next_page}).text


def test_a_session_is_a_cookie_that_scripts_cannot_read_and_that_can_be_revoked(team):
    client = team.stranger(origin=team.address)
    answer = client.post("/api/login", json={"name": "vera", "password": PASSWORD})
    assert {"httponly", "samesite=lax", "path=/"} <= set(answer.headers["set-cookie"].lower().split("; "))
    assert client.get("/api/me").json() == {"name": "vera", "role": "viewer"}
    admin = team.person("ada")
    mine = max(one["id"] for one in admin.get("/api/sessions").json()["sessions"] if one["user_name"] == "vera")
    assert admin.delete(f"/api/sessions/{mine}").status_code == 200
    assert client.get("/api/me").status_code == 401


def test_a_login_from_another_site_is_refused(team):
    for headers in ({}, {"origin": "http://evil.example"}, {"origin": team.address, "sec-fetch-site": "cross-site"}):
        answer = team.stranger(**headers).post("/api/login", json={"name": "vera", "password": PASSWORD})
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_a_session_of_the_token_ends_at_logout(page):
    client = page.browser()
    cookies = dict(client.cookies)
    csrf = re.search(r'name="forkless-csrf" content="(\w+)"', client.get("/").text)[1]
    answer = client.post("/api/me/logout", headers={"origin": page.address, "x-forkless-csrf": csrf})
    assert (answer.status_code, "Max-Age=0" in answer.headers["set-cookie"]) == (200, True)
    assert (
        page.stranger(cookie="; ".join(f"{name}={value}" for name, value in cookies.items())).get("/").status_code
        == 401
    )


def test_a_change_needs_what_only_our_page_has(team):
    client = team.person("olga")
    for wrong in (
        {"x-forkless-csrf": ""},
        {"origin": "http://evil.example"},
        {"x-forkless-csrf": team.person("ada").headers["x-forkless-csrf"]},
    ):
        assert client.post("/api/runs", json=RUN, headers=wrong).status_code == 403


@pytest.mark.parametrize(
    ("method", "path", "least"),
    [
        ("GET", "/api/runs", "viewer"), ("GET", "/hosts", "viewer"), ("POST", "/api/runs/999999/cancel", "operator"),
        ("POST", "/api/runs", "operator"), ("DELETE", "/api/schedules/none", "operator"), ("POST", "/api/preview", "operator"),
        ("GET", "/api/users", "admin"), ("GET", "/users", "admin"), ("POST", "/api/users", "admin"), ("GET", "/api/audit", "admin"),
        ("DELETE", "/api/tokens/999999", "admin"), ("DELETE", "/api/users/nobody", "admin"),
        ("POST", f"/api/hosts/jobs/{'0' * 16}/kill?host=web1", "operator"), ("GET", "/api/hosts/jobs?host=web1", "viewer"),
    ],
)  # fmt: skip
def test_a_role_may_what_it_may_and_no_more(team, method, path, least):
    roles = ["viewer", "operator", "admin"]
    for name, role in zip(("vera", "olga", "ada"), roles, strict=True):
        status = team.person(name).request(method, path, json=None if method != "POST" else {}).status_code
        assert (status == 403) == (roles.index(role) < roles.index(least)), (name, status)


def test_every_change_of_the_api_is_somebodys_and_what_is_not_named_is_for_admins(team):
    paths = team.person("ada").get("/api/openapi.json").json()["paths"]
    needed = {
        (method.upper(), path): needed_role(method.upper(), path)
        for path, methods in paths.items()
        for method in methods
    }
    assert all(
        role != "viewer" or method == "GET" or path.startswith("/api/me/") for (method, path), role in needed.items()
    )
    assert needed_role("POST", "/api/later") == "admin"


def test_a_token_has_a_scope_and_an_end_and_makes_no_other(team, page_database):
    owner = team.person("olga")
    assert owner.post("/api/me/tokens", json={"name": "x", "role": "admin"}).status_code == 422
    token = owner.post("/api/me/tokens", json={"name": "pipeline", "role": "viewer", "days": 1}).json()["token"]
    program = team.stranger(authorization=f"Bearer {token}")
    assert program.get("/api/me").json() == {"name": "olga", "role": "viewer"}
    assert program.post("/api/runs", json=RUN).status_code == 403
    assert program.post("/api/me/tokens", json={"name": "y"}).status_code == 403
    for kind in ("tokens", "sessions"):
        first = owner.get(f"/api/me/{kind}").json()[kind][0]["id"]
        answer = program.delete(f"/api/me/{kind}/{first}")
        assert (answer.status_code, "in the browser" in answer.text) == (403, True)
    listed = owner.get("/api/me/tokens").text
    assert "pipeline" in listed
    assert token not in listed + str(page_database.all("SELECT * FROM forkless.page_token"))
    page_database.all("UPDATE forkless.page_token SET ends = now() WHERE name = 'pipeline'")
    assert program.get("/api/me").status_code == 401


def test_who_started_and_cancelled_what_is_kept(team, page_database):
    client = team.person("olga")
    number = client.post("/api/runs", json=RUN).json()["id"]
    page_database.wait_for(number, "successful")
    again = client.post(f"/api/runs/{number}/relaunch", json={}).json()["id"]
    page_database.wait_for(again, "successful")
    client.post(f"/api/runs/{again}/cancel")
    entries = team.person("ada").get("/api/audit").json()["entries"]
    done = {(one["who"], one["what"], one["run_id"]) for one in entries}
    assert {("olga", "start", number), ("olga", "relaunch", again), ("olga", "cancel", again)} <= done
    assert client.get(f"/api/runs/{number}").json()["created_by"] == "olga"
    team.stranger(origin=team.address).post("/api/login", json={"name": "olga", "password": "wrong"})
    newest = team.person("ada").get("/api/audit").json()["entries"][0]
    assert (newest["who"], newest["what"]) == ("olga", "login refused")


def test_the_last_admin_stays_and_a_new_password_ends_all_sessions(team):
    admin = team.person("ada")
    assert "last admin" in admin.post("/api/users/ada", json={"role": "viewer"}).json()["error"]
    assert "last admin" in admin.delete("/api/users/ada").json()["error"]
    assert admin.post("/api/users", json={"name": "tom", "role": "viewer", "password": PASSWORD}).status_code == 201
    tom = team.log_in("tom")
    assert tom.post("/api/me/password", json={"old": "wrong", "new": "another long one"}).status_code == 403
    assert tom.post("/api/me/password", json={"old": PASSWORD, "new": "another long one"}).status_code == 200
    assert tom.get("/api/me").status_code == 401
    team.log_in("tom", "another long one")
    assert admin.delete("/api/users/tom").status_code == 200


@contextlib.contextmanager
def apart(work):
    """A coroutine in a thread of its own: Playwright keeps an event loop in this one while a browser is open."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool.submit(asyncio.run, work)


async def with_accounts(url, work):
    accounts = Accounts(url)
    try:
        return await asyncio.wait_for(work(accounts), PATIENCE)
    finally:
        await accounts.close()


def test_two_admins_who_remove_each_other_leave_one(url):
    database = Database(url)
    database.all("INSERT INTO forkless.page_user (name, role) VALUES ('a', 'admin'), ('b', 'admin')")
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(718281828, 5)")
        other.execute("UPDATE forkless.page_user SET role = 'viewer' WHERE name = 'b'")
        with apart(with_accounts(url, lambda accounts: accounts.remove_user("a"))) as removing:
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            wait_until(lambda: removing.done() or database.one(waits), "the second admin")
            other.commit()
            with pytest.raises(QueueRequestError, match="'a' is the last admin"):
                removing.result()
    assert database.all("SELECT name FROM forkless.page_user WHERE role = 'admin'") == [("a",)]


def test_a_database_that_does_not_answer_keeps_nobody_waiting(url, monkeypatch):
    monkeypatch.setattr("forkless.web.accounts._PATIENCE", 0.5)
    monkeypatch.setattr("forkless.queue.client._PATIENCE", 0.5)

    async def list_runs():
        async with forkless.queue.connect(url) as queue:
            await asyncio.wait_for(queue.runs(), PATIENCE)

    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE forkless.page_user, forkless.run")
        for work in (lambda: with_accounts(url, lambda accounts: accounts.role_of("a")), list_runs):
            with apart(work()) as asking, pytest.raises(DatabaseError, match="did not answer in time"):
                asking.result()


def test_failed_logins_are_counted_and_then_refused():
    limit = LoginLimit(for_name=3, for_all=5)
    for _ in range(3):
        assert limit.wait("Ada") == 0
        limit.failed("ada")
    assert 0 < limit.wait("ADA") <= 301
    assert limit.wait("bob") == 0
    limit.failed("bob")
    limit.succeeded("bob")
    limit.failed("bob")
    limit.failed("eve")
    assert limit.wait("carl") > 0


def test_the_server_refuses_the_eleventh_wrong_password(team):
    client = team.stranger(origin=team.address)
    codes = [client.post("/api/login", json={"name": "nobody", "password": "x"}).status_code for _ in range(11)]
    assert codes == [401] * 10 + [429]


def test_who_has_a_session_may_not_try_passwords_for_ever(team, page_database):
    """Whoever has found an open browser could look for the password, with which they would stay when the session has ended."""

    paul = with_accounts(page_database.url, lambda accounts: accounts.add_user("paul", "viewer", PASSWORD))
    with apart(paul) as adding:
        adding.result()
    client = team.log_in("paul")
    wanted = {"old": "not his password", "new": "another password"}
    codes = [client.post("/api/me/password", json=wanted).status_code for _ in range(11)]
    assert codes == [403] * 10 + [429]
    assert client.post("/api/me/password", json=wanted | {"old": PASSWORD}).status_code == 429
    login = team.stranger(origin=team.address).post("/api/login", json={"name": "paul", "password": PASSWORD})
    assert (login.status_code, "too many passwords were wrong" in login.text) == (429, True)
    refused = "SELECT count(*) FROM forkless.page_audit WHERE who = 'paul' AND what = 'change password refused'"
    assert page_database.one(refused) == 10


def test_only_the_proxy_that_knows_the_secret_may_say_who_somebody_is(team):
    vouched = {"x-remote-user": "petra", "x-forkless-proxy-secret": PROXY_SECRET}
    client = team.stranger(**vouched)
    assert client.get("/api/me").json() == {"name": "petra", "role": "operator"}
    assert (
        client.post("/api/runs", json=RUN).status_code == 403
    )  # the proxy's cookie goes along with requests of other sites
    assert team.stranger(**vouched | {"x-forkless-proxy-secret": "guess"}).get("/api/me").status_code == 401
    assert team.stranger(**{"x-remote-user": "petra"}).get("/api/me").status_code == 401
    assert team.stranger(**vouched | {"x-remote-user": "unknown"}).get("/api/me").status_code == 401
    twice = [*vouched.items(), ("x-remote-user", "ada")]  # a proxy that adds the header to one of the reader
    assert team.stranger().get("/api/me", headers=twice).status_code == 400


def test_a_look_at_the_hosts_evaluates_nothing_of_an_operator_and_finds_no_secret_of_the_page(team, project, tmp_path):
    client = team.person("olga")
    names = ("FORKLESS_DATABASE", "PROXY_SECRET", "HOOK_SECRET")
    asked = {"playbook": "probe.yml", "inventory": "hosts.ini"}
    found = " ~ ".join(f"lookup('env', '{name}')" for name in names)
    (project / "probe.yml").write_text(f"""- hosts: "{{{{ target if ({found}) == '' else 'none' }}}}"\n""")
    try:
        plain = client.post("/api/preview", json=asked | {"variables": {"target": "web2"}})
        assert (plain.status_code, plain.json().get("hosts")) == (200, ["web2"]), plain.text
        for value in (
            f"{{{{ lookup('pipe', 'touch {tmp_path}/run') }}}}",
            f"{{% if lookup('pipe', 'touch {tmp_path}/run') %}}",
        ):
            for path, body in (
                ("/api/preview", asked), ("/api/runs", asked | {"slices": 2}),
            ):  # fmt: skip
                answer = client.post(path, json=body | {"variables": {"target": value}})
                assert (answer.status_code, "has a template in it" in answer.text) == (422, True)
    finally:
        (project / "probe.yml").unlink()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["[a, {b: '{{ c }}'}]", r'["\x7b\x7b c }}"]', "['{# c']", "[{'{% c': 1}]"])
def test_no_part_of_a_value_is_a_template(text):
    about = variables.Variable("x", "x", "list", required=False, secret=False, default="", choices=(), source="")
    with pytest.raises(QueueRequestError, match="has a template in it"):
        variables.checked([about], {"x": text})
    assert variables.checked([about], {"x": "[a, {b: '}} { {'}]"}) == {"x": ["a", {"b": "}} { {"}]}


@pytest.mark.parametrize(
    "text",
    [
        "&a [*a]",
        "[&a [1], *a]",
        "[2026-01-01]",
        "[2026-13-41]",
        "[!!binary e3s=]",
        "[? [a, b]]",
        pytest.param("[" * 5000, id="deep"),
    ],
)
def test_a_list_is_what_json_can_tell(text):
    about = variables.Variable("x", "x", "list", required=False, secret=False, default="", choices=(), source="")
    with pytest.raises(QueueRequestError, match="x is not of the type list"):
        variables.checked([about], {"x": text})


# -- messages from outside --------------------------------------------------------------------------------------


def signed(kind, body, delivery="", secret=HOOK_SECRET):
    told = f"{delivery}\n".encode() + body if kind == "hmac" else body
    mac = "sha256=" + hmac.new(secret.encode(), told, hashlib.sha256).hexdigest()
    return {
        "github": {"x-hub-signature-256": mac, "x-github-delivery": delivery, "x-github-event": "push"},
        "gitlab": {"x-gitlab-token": secret, "x-gitlab-event-uuid": delivery},
        "hmac": {"x-forkless-signature": mac, "x-forkless-delivery": delivery},
    }[kind]


@pytest.mark.parametrize("kind", ["github", "gitlab", "hmac"])
def test_a_signed_message_starts_its_run_once(team, page_database, kind):
    client = team.stranger()
    body = json.dumps({"ref": "refs/heads/main"}).encode()
    answer = client.post(f"/hooks/{kind}", content=body, headers=signed(kind, body, "one"))
    assert answer.status_code == 202, answer.text
    number = answer.json()["run"]
    assert page_database.one("SELECT created_by FROM forkless.run WHERE id = %s", number) == f"hook {kind}"
    before = page_database.one("SELECT count(*) FROM forkless.run")
    again = client.post(f"/hooks/{kind}", content=body, headers=signed(kind, body, "one")).json()
    assert (again["run"], again["why"]) == (None, "this message was received before")
    renamed = signed(kind, body, "one") | {"x-github-delivery": "other", "x-forkless-delivery": "other"}
    assert client.post(f"/hooks/{kind}", content=body, headers=renamed).json().get("run") is None
    for unnamed in (
        signed(kind, body),
        {name: one for name, one in signed(kind, body).items() if "delivery" not in name and "uuid" not in name},
    ):
        assert client.post(f"/hooks/{kind}", content=body, headers=unnamed).json().get("run") is None
    other = json.dumps({"ref": "refs/heads/topic"}).encode()
    assert client.post(f"/hooks/{kind}", content=other, headers=signed(kind, other, "two")).json()["run"] is None
    forged = signed(kind, body, "three", secret="not-the-secret-of-the-hook")
    assert client.post(f"/hooks/{kind}", content=body, headers=forged).status_code == 403
    assert client.post(f"/hooks/{kind}", content=body).status_code == 403
    assert client.post("/hooks/unknown", content=body, headers=forged).status_code == 403
    assert client.post(f"/hooks/{kind}", content=b"x" * (1 << 20) + b"y").status_code == 413
    assert page_database.one("SELECT count(*) FROM forkless.run") == before
    page_database.wait_for(number, "successful")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[login", "is not TOML"), ("colour = 1", "has no 'colour'"), ('address = "ftp://x"', "is not like https://"),
        ('[login]\nproxy_header = "X-User"', "go together"), ('[login]\nproxy_role = "king"', "there is no role 'king'"),
        ('[hooks.a]\nkind = "mail"', "kind is one of"), ('[hooks.a]\nkind = "hmac"\nplaybook = "x"\nsecret = "plain text"', "is a reference"),
        ('[hooks.a]\nkind = "hmac"\nplaybook = "x"\nsecret = "env:SHORT"', "fewer than 16"), ("[projects.a]", "either a folder or a git"),
    ],
)  # fmt: skip
def test_a_configuration_that_is_wrong_is_refused_with_a_sentence(tmp_path, monkeypatch, capsys, text, sentence):
    monkeypatch.setenv("SHORT", "short")
    (tmp_path / "page.toml").write_text(text)
    assert main(["serve", "--config", str(tmp_path / "page.toml")]) == 2
    assert sentence in capsys.readouterr().err


def test_an_address_with_https_makes_cookies_secure(tmp_path):
    (tmp_path / "page.toml").write_text('address = "https://ansible.example.com/"\n')
    told = settings.read(str(tmp_path / "page.toml"))
    assert (told.host, told.https, told.login) == ("ansible.example.com", True, None)


def test_the_configurations_of_the_page_on_servers_are_read(tmp_path):
    """They are text blocks there, as no test can be that server."""
    page = pathlib.Path(__file__).parents[2] / "docs" / "howto" / "page-server.md"
    secret = tmp_path / "a.secret"
    secret.write_text("a secret of some length")
    found = [text for text in page.read_text().split("```text\n") if "[login]" in text.partition("```")[0]]
    assert len(found) == 2
    for number, text in enumerate(found):
        config = tmp_path / f"{number}.toml"
        config.write_text(
            re.sub(r"file:/etc/forkless/\w+\.secret", f"file:{secret}", text.partition("```")[0]).replace(
                "/srv/infra", str(tmp_path)
            )
        )
        told = settings.read(str(config))
    assert told.login.proxy_header == "X-Remote-User"
