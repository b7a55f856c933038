# SPDX-License-Identifier: GPL-3.0-or-later
"""What the API says beyond the list: hosts over runs, two runs compared, why runs wait, variables of a playbook, files to keep, and no secret."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile

import pytest

from forkless.cli import main
from forkless.web.answers import what_matters
from forkless.web.diffs import text_of

from .conftest import long_run
from .test_page_api import finished, start

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("web")]


@pytest.fixture(scope="module")
def two(page):
    """A run of site.yml, on which web2 fails, and one of changes.yml."""
    with page.keeping() as client:
        runs = start(client), start(client, "changes.yml", diff=True)
        return runs, [finished(client, one) for one in runs]


def test_hosts_have_their_last_failure_and_change(page, two):
    (failed, changed), _ = two
    client = page.program()
    hosts = {one["host"]: one for one in client.get("/api/hosts", params={"search": "web"}).json()["hosts"]}
    assert hosts["web2"]["failed_run"] >= failed
    assert hosts["web1"]["changed_run"] >= changed
    assert list(hosts) == sorted(hosts)
    history = client.get("/api/hosts/history", params={"host": "web2"}).json()["runs"]
    assert next(one for one in history if one["run"] == failed)["failed"] == 1
    assert client.get("/api/hosts/history", params={"host": "none"}).json()["runs"] == []
    assert client.get("/api/hosts", params={"search": "%"}).json()["hosts"] == []


def test_two_runs_are_compared(page, two):
    (failed, changed), _ = two
    client = page.program()
    found = client.get("/api/compare", params={"first": changed, "second": failed}).json()
    assert [(one["host"], one["task"], one["before"], one["after"]) for one in found["failed"]] == [
        ("web2", "not on web2", "not run", "failed")
    ]
    assert found["only_second"] == ["web3"]
    found = client.get("/api/compare", params={"first": failed, "second": changed}).json()
    assert {(one["host"], one["task"]) for one in found["changed"]} == {
        (host, task) for host in ("web1", "web2") for task in ("open", "shut")
    }
    same = client.get("/api/compare", params={"first": failed, "second": failed}).json()
    assert not any(
        same[kind] for kind in ("failed", "recovered", "changed", "unchanged", "slower", "only_first", "only_second")
    )


def test_what_changed_is_a_diff_and_what_is_secret_is_nowhere(page, two):
    (_, number), (_, events) = two
    diffs = [event for event in events if event["diff"]]
    assert {(one["host"], one["task"]) for one in diffs} == {("web1", "open"), ("web2", "open")}
    assert "+line <b>one</b>" in diffs[0]["diff"]
    client = page.program()
    whole = b"".join(client.get(f"/api/runs/{number}/{kind}").content for kind in ("events.jsonl", "log", "report"))
    assert b"unseen-" not in whole + json.dumps(events).encode()
    packed = zipfile.ZipFile(io.BytesIO(client.get(f"/api/runs/{number}/artifacts").content))
    assert packed.read(f"{number}/status") == b"successful"
    assert len(packed.namelist()) == len(events) + 3
    assert not any(b"unseen-" in packed.read(name) for name in packed.namelist())


def test_a_playbook_says_which_variables_it_asks_for_and_values_are_checked_and_sealed(page, page_database):
    client = page.program()
    asked = {
        one["name"]: one for one in client.get("/api/variables", params={"playbook": "asks.yml"}).json()["variables"]
    }
    assert list(asked) == ["release", "key", "app_mode", "app_port", "app_token"]
    assert (asked["app_mode"]["choices"], asked["app_mode"]["required"], asked["app_port"]["type"]) == (
        ["blue", "green"],
        True,
        "int",
    )
    assert [(asked[name]["secret"], asked[name]["default"]) for name in ("key", "app_token")] == [
        (True, ""),
        (True, ""),
    ]

    def ask(**variables):
        return client.post("/api/runs", json={"playbook": "asks.yml", "inventory": "hosts.ini", "variables": variables})

    for wrong, sentence in (
        ({"app_mode": "blue"}, "release needs a value"), ({"release": "1", "app_mode": "red"}, "app_mode is one of blue, green"),
        ({"release": "1", "app_mode": "blue", "app_port": "many"}, "app_port is not of the type int"),
        ({"release": "1", "app_mode": "blue", "a b": "1"}, "a variable has a name"),
    ):  # fmt: skip
        answer = ask(**wrong)
        assert (answer.status_code, sentence in answer.json()["error"]) == (422, True), answer.text
    number = ask(release="4.2", app_mode="blue", app_port="8080", key="a-very-secret-key").json()["id"]
    events = finished(client, number)
    assert any("release 4.2 blue 8081" in event["text"] for event in events)
    run = client.get(f"/api/runs/{number}")
    assert set(run.json()["given"]) == {
        "extra_vars.release",
        "extra_vars.key",
        "extra_vars.app_mode",
        "extra_vars.app_port",
    }
    stored = page_database.one("SELECT row_to_json(r)::text FROM forkless.run r WHERE id = %s", number)
    assert "a-very-secret-key" not in run.text + stored + json.dumps(events)


def test_the_output_of_a_run_is_searched_to_its_end(page, two, page_database):
    (number, _), _ = two
    client = page.program()
    found = client.get(f"/api/runs/{number}/search", params={"text": "BROKEN-here"}).json()
    assert found["next"] is None
    assert {(one["host"], one["task"]) for one in found["lines"]} == {("web2", "not on web2")}
    assert client.get(f"/api/runs/{number}/search", params={"text": "no-such-text"}).json() == {
        "lines": [],
        "next": None,
    }
    # A long run comes in parts, and no line is missing or twice.
    long = long_run(page_database, hosts=50, tasks=20)
    lines, after = [], 0
    while after is not None:
        answer = client.get(f"/api/runs/{long}/search", params={"text": "ok: [host", "after": after}).json()
        lines += [(one["n"], one["text"]) for one in answer["lines"]]
        after = answer["next"]
    assert len(lines) == len(set(lines)) == 2 * 50 * 20


def test_events_that_came_one_by_one_are_read_together(page, page_database):
    number = long_run(page_database, hosts=100, tasks=1, rows_of=1)
    answer = page.program().get(f"/api/runs/{number}/events").json()
    assert ([one["n"] for one in answer["events"]], answer["behind"]) == (list(range(1, 201)), 0)


def test_readers_have_no_connection_to_the_database_of_their_own(page, page_database):
    """One connection listens for all of them, and those that ask are few."""
    page.gate.unlink(missing_ok=True)
    client = page.program()
    number = start(client, "two-steps.yml", limit="web1")
    page_database.wait_for(number, "running")
    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    before = page_database.one(asked)
    with contextlib.ExitStack() as open_streams:
        for _ in range(40):
            answer = open_streams.enter_context(page.program().stream("GET", f"/api/runs/{number}/stream"))
            next(answer.iter_lines())
        assert page_database.one(asked) < before + 20
    page.gate.touch()
    finished(client, number)


def test_the_hosts_of_a_run_are_shown_before_it_starts(page):
    client = page.program()
    body = {"playbook": "site.yml", "inventory": "hosts.ini", "limit": "web*:!web3"}
    assert client.post("/api/preview", json=body).json() == {"hosts": ["web1", "web2"], "count": 2}
    answer = client.post("/api/preview", json=body | {"limit": "moon"})
    assert answer.status_code == 422
    assert "host" in answer.json()["error"]


def test_what_waits_says_for_what_and_workers_say_what_they_do(page, page_database):
    client = page.program()
    first = start(client, "long.yml")
    page_database.wait_for(first, "running")
    second = start(client, "long.yml")
    found = client.get("/api/queue").json()
    assert first in [one["id"] for one in found["running"]]
    assert [one["why"] for one in found["waiting"] if one["run"]["id"] == second] == [
        f'run {first} has the lock "inventory hosts.ini of {found["running"][0]["project"]}"'
    ]
    assert first in [one["run"] for one in client.get("/api/workers").json()["workers"] if one["state"] == "busy"]
    for number in (second, first):
        client.post(f"/api/runs/{number}/cancel")
    page_database.wait_for(first, "canceled")


def test_a_schedule_is_made_paused_and_removed(page):
    client = page.program()
    run = {"playbook": "hello.yml", "inventory": "hosts.ini"}
    made = client.post(
        "/api/schedules", json={"name": "nightly", "cron": "0 3 * * *", "time_zone": "Europe/Berlin", "run": run}
    )
    assert (made.status_code, made.json()["due"][14:16]) == (201, "00")
    assert client.post("/api/schedules", json={"name": "nightly", "cron": "0 3 * * *", "run": run}).status_code == 422
    assert (
        "is not a time"
        in client.post("/api/schedules", json={"name": "x", "cron": "99 * * * *", "run": run}).json()["error"]
    )
    client.post("/api/schedules/nightly/pause")
    assert client.get("/api/schedules").json()["schedules"][0]["enabled"] is False
    client.post("/api/schedules/nightly/resume")
    assert client.get("/api/schedules").json()["schedules"][0]["due"] is not None
    assert client.delete("/api/schedules/nightly").status_code == 200
    assert client.get("/api/schedules").json()["schedules"] == []


def test_the_commands_use_a_server_instead_of_the_database(page, two, monkeypatch, capsys):
    monkeypatch.setenv("FORKLESS_SERVER", page.address)
    monkeypatch.setenv("FORKLESS_TOKEN", page.token)
    monkeypatch.setenv("FORKLESS_DATABASE", "postgresql://nobody@192.0.2.1/none")
    assert main(["launch", "hello.yml", "-i", "hosts.ini", "--follow"]) == 0
    assert "PLAY RECAP" in capsys.readouterr().out
    assert main(["runs", "follow", str(two[0][0])]) == 2
    assert main(["runs", "show", str(two[0][0])]) == 0
    assert "failed on web2" in capsys.readouterr().out
    assert main(["runs", "list", "--format", "json", "-n", "1"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["title"] == "hello.yml"
    assert main(["runs", "cancel", str(two[0][0])]) == 1
    assert main(["launch", "hello.yml", "--git", "https://example.com/x.git"]) == 2
    monkeypatch.setenv("FORKLESS_SERVER", "http://ansible.example.com")
    assert main(["runs", "list"]) == 2
    assert "use https" in capsys.readouterr().err


def test_what_matters_of_a_failure_is_its_reason_and_not_a_placeholder():
    res = {
        "msg": "non-zero return code",
        "rc": 7,
        "stderr": "refused",
        "stdout": "",
        "exception": "(traceback unavailable)",
    }
    assert what_matters(res) == "non-zero return code\nexit status 7\nrefused"
    for failed in ({"failed": True}, {"exception": "(traceback unavailable)"}):  # as up to ansible-core 2.20, and since
        assert what_matters({"results": [{"item": "a", "msg": "no", **failed}, {"item": "b"}]}) == "item 'a': no"


def test_diffs_in_every_form_of_modules():
    assert text_of({"before": "a\n", "after": "b\n"}) == "--- before\n+++ after\n@@ -1 +1 @@\n-a\n+b"
    assert text_of([{"prepared": "made"}, {"before": {"mode": 1}, "after": {"mode": 1}}]) == "made"
    assert "binary" in text_of({"dst_binary": 1})
    assert text_of(None) == ""
