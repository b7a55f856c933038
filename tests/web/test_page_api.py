# SPDX-License-Identifier: GPL-3.0-or-later
"""The page's HTTP API: who may, what it answers, and streams that lose nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile

import httpx
import pytest

from forkless.cli import main
from forkless.web.answers import StartRequest, plain
from forkless.web.project_folder import GitProject
from queue_support import Database, launch, wait_until

from .conftest import EVIL, Served

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("web")]


def start(client, playbook="site.yml", inventory="hosts.ini", **more):
    answer = client.post("/api/runs", json={"playbook": playbook, "inventory": inventory, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def messages(lines):
    """Server-sent events as (id, kind, data)."""
    ident, kind = None, ""
    for line in lines:
        if line.startswith("id: "):
            ident = int(line[4:])
        elif line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            yield ident, kind, json.loads(line[6:])
            ident = None


def finished(client, number):
    """Follow a run to its end; returns its events."""
    events = []
    with client.stream("GET", f"/api/runs/{number}/stream") as answer:
        for _, kind, data in messages(answer.iter_lines()):
            events += data["events"] if kind == "events" else []
            if kind == "end":
                return events
    pytest.fail("the stream ended before the run")


# -- who may ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/runs/1", "/start", "/api/runs", "/api/openapi.json", "/api/docs", "/api/runs/stream", "/?token=x"]
)
def test_without_the_token_there_is_nothing(page, path):
    answer = httpx.get(page.address + path, trust_env=False)
    assert answer.status_code == 401
    assert page.token not in answer.text
    assert "set-cookie" not in answer.headers


def test_the_token_becomes_a_session_and_leaves_the_address(page):
    client = page.browser()
    client.cookies.clear()
    answer = client.get("/", params={"token": page.token, "search": "site"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/?search=site")
    assert {"httponly", "samesite=strict", "path=/"} <= set(answer.headers["set-cookie"].lower().split("; "))
    assert page.token not in answer.headers["set-cookie"]
    assert client.get("/api/runs").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "localhost", ""])
def test_a_request_for_another_host_name_is_refused(page, host):
    answer = page.browser().get("/api/runs", headers={"host": host.format(port=page.port)})
    assert answer.status_code in (400, 421)
    assert "runs" not in answer.text


def csrf(client):
    return re.search(r'name="forkless-csrf" content="([0-9a-f]{64})"', client.get("/").text)[1]


def test_a_change_that_another_site_makes_is_refused(page, page_database):
    client = page.browser()
    ours = {"origin": page.address, "x-forkless-csrf": csrf(client)}
    body = {"playbook": "none.yml"}
    before = page_database.one("SELECT count(*) FROM forkless.run")
    assert client.post("/api/runs", json=body, headers=ours).status_code == 422  # let through, and looked at
    for wrong in (
        {"origin": "http://evil.example"}, {"x-forkless-csrf": csrf(page.browser())}, {"x-forkless-csrf": ""},
        {"sec-fetch-site": "cross-site"}, {"origin": "null"},
    ):  # fmt: skip
        answer = client.post("/api/runs", json={"playbook": "site.yml", "inventory": "hosts.ini"}, headers=ours | wrong)
        assert answer.status_code == 403, wrong
    assert client.post("/api/runs", json=body, headers={"x-forkless-csrf": ours["x-forkless-csrf"]}).status_code == 403
    assert page_database.one("SELECT count(*) FROM forkless.run") == before


@pytest.mark.parametrize("path", ["/", "/start", "/api/docs", "/nowhere", "/runs/999999"])
def test_no_page_has_inline_scripts_or_loads_from_elsewhere(page, path):
    answer = page.browser().get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*(src=|application/json))|\sstyle=|\son\w+=|https?://", answer.text)
    for address in re.findall(r'(?:src|href)="([^"]+\.(?:js|css|svg))"', answer.text):
        got = httpx.get(page.address + address, trust_env=False)
        assert (got.status_code, "immutable" in got.headers["cache-control"]) == (200, True)
        assert address.endswith(".svg") or got.headers["content-encoding"] == "gzip"
        old = re.sub(r"/static/\w+/", "/static/0123456789abcdef/", address)  # of another version, with other files
        assert httpx.get(page.address + old, trust_env=False).status_code == 404


# -- runs -------------------------------------------------------------------------------------------------------


def test_a_run_is_started_followed_and_told_without_paths_of_the_server(page, project):
    client = page.program()
    number = start(client)
    events = finished(client, number)
    failure = next(event for event in events if event["state"] == "failed")
    assert (failure["host"], failure["task"], failure["path"]) == ("web2", "not on web2", "site.yml:9")
    assert "broken-here" in failure["output"]
    run = client.get(f"/api/runs/{number}").json()
    assert (run["status"], run["failures"], run["hosts"], run["counter"]) == ("failed", 1, 3, len(events))
    assert run["command"] == "forkless launch site.yml -i hosts.ini"
    hosts = client.get(f"/api/runs/{number}/hosts").json()["hosts"]
    assert {one["host"]: one["failed"] for one in hosts} == {"web1": 0, "web2": 1, "web3": 0}
    whole = client.get(f"/api/runs/{number}/events.jsonl").text
    assert [json.loads(line)["counter"] for line in whole.splitlines()] == list(range(1, len(events) + 1))
    assert "PLAY RECAP" in client.get(f"/api/runs/{number}/log").text
    said = "".join(
        client.get(path).text
        for path in (
            "/", f"/runs/{number}", "/start", "/api/runs", f"/api/runs/{number}", f"/api/runs/{number}/events",
            f"/api/runs/{number}/log", "/api/projects", "/api/openapi.json",
        )
    ) + whole  # fmt: skip
    for secret in (page.state, str(project), page.token):
        assert secret not in said
    again = client.post(f"/api/runs/{number}/relaunch", json={"failed": True}).json()["id"]
    assert {event["host"] for event in finished(client, again)} - {""} == {"web2"}


def test_a_reader_that_is_cut_off_misses_nothing_and_gets_nothing_twice(page):
    client = page.program()
    page.gate.unlink(missing_ok=True)
    number = start(client, "two-steps.yml", limit="web1")
    seen, last, over, cuts = [], None, False, 0
    while not over:
        headers = {"last-event-id": str(last)} if last else {}
        with client.stream("GET", f"/api/runs/{number}/stream", headers=headers) as answer:
            for ident, kind, data in messages(answer.iter_lines()):
                over = over or kind == "end"
                if kind == "events":
                    seen += [event["n"] for event in data["events"]]
                    last = ident
                    break  # the line is cut after each message
        page.gate.touch()  # not before the first cut: there are events left for the others
        cuts += 1
    page.gate.unlink()
    assert cuts > 2
    assert seen == list(range(1, client.get(f"/api/runs/{number}").json()["counter"] + 1))


def test_the_stream_of_a_run_whose_events_were_removed_ends(page, page_database):
    client = page.program()
    number = start(client, "hello.yml")
    page_database.wait_for(number, "successful")
    page_database.all("DELETE FROM forkless.event_batch WHERE root_id = %s", number)
    with client.stream("GET", f"/api/runs/{number}/stream") as answer:
        assert next(line for line in answer.iter_lines() if line in ("event: end", ": alive")) == "event: end"


def test_a_reader_that_reads_nothing_delays_neither_the_run_nor_others(page):
    client = page.program()
    number = start(client)
    with socket.create_connection(("127.0.0.1", page.port)) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        request = f"GET /api/runs/{number}/stream HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nAuthorization: Bearer {page.token}\r\n\r\n"
        stalled.sendall(request.encode())
        events = finished(client, number)
    assert [event["n"] for event in events] == list(range(1, len(events) + 1))


def test_the_list_is_sent_again_when_it_changes(page):
    client = page.program()
    with client.stream("GET", "/api/runs/stream") as answer:
        assert "content-encoding" not in answer.headers  # it would keep messages until there are enough to compress
        told = messages(answer.iter_lines())
        next(told)
        number = start(client)
        for _, kind, data in told:  # without another list this waits until the client's time limit
            if kind == "runs" and [run["status"] for run in data["runs"] if run["id"] == number] == ["failed"]:
                break
    listed = client.get("/api/runs", params={"status": "failed", "search": "site.y", "host": "web2", "limit": 1}).json()
    assert [run["id"] for run in listed["runs"]] == [number]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"playbook": "none.yml"}, "there is no playbook 'none.yml'"),
        ({"playbook": "../site.yml"}, "there is no playbook"),
        ({"playbook": "outside/passwd"}, "there is no playbook"),
        ({"playbook": "/etc/passwd"}, "there is no playbook"),
        ({"playbook": "broken.yml"}, "broken.yml:2 is not YAML"),
        ({"playbook": "site.yml", "inventory": "/etc/hosts"}, "there is no inventory"),
        ({"playbook": "site.yml", "limit": "@/etc/passwd"}, "the limit is a pattern"),
        ({"playbook": "site.yml", "limit": "all,@/etc/passwd"}, "the limit is a pattern"),
        ({"playbook": "site.yml", "limit": "a\nb"}, "control character"),
        ({"playbook": "site.yml", "limit": "{{ 1 }}"}, "template"),
        ({"playbook": "site.yml", "tags": "{% x"}, "template"),
        ({"playbook": "site.yml", "variables": {"a": "{{ lookup('pipe', 'id') }}"}}, "the value of a has a template"),
        ({"playbook": "site.yml", "args": ["-vvv"]}, "args"),
        ({}, "playbook"),
    ],
)
def test_what_cannot_be_started_is_refused_with_a_sentence_and_not_queued(page, page_database, project, body, sentence):
    before = page_database.one("SELECT count(*) FROM forkless.run")
    answer = page.program().post("/api/runs", json=body)
    assert answer.status_code == 422
    assert sentence in answer.json()["error"]
    assert str(project) not in answer.text
    assert page_database.one("SELECT count(*) FROM forkless.run") == before


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/runs/999999", 404), ("/api/runs/0", 422), ("/api/runs/99999999999999999999999", 422), ("/api/runs/x", 422),
        ("/api/runs?status=odd", 422), ("/api/runs?search=%00", 422), ("/api/runs?limit=0", 422), ("/api/runs?before=-1", 422),
        ("/api/runs/999999/stream", 404), ("/api/nothing", 404),
    ],
)  # fmt: skip
def test_bad_questions_have_one_sentence_as_an_answer(page, path, status):
    answer = page.program().get(path)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert "Traceback" not in answer.text


def test_output_of_hosts_is_never_markup(page):
    client = page.program()
    number = start(client, "evil.yml", "inventory-evil.yml")
    events = finished(client, number)
    assert any(event["host"] == EVIL and event["task"] == EVIL for event in events)
    for path in ("/", f"/runs/{number}"):
        assert "<script>window" not in client.get(path).text


def test_ten_thousand_runs_are_pages_of_fifty(server, url, tmp_path):
    database = Database(url)
    served = Served(FORKLESS_DATABASE=url, XDG_STATE_HOME=str(tmp_path))
    try:
        database.all(
            "INSERT INTO forkless.run (status, spec, project, created_by, versions, rc, ended, origin) SELECT 'successful', "
            """'{"playbook": ["site.yml"]}', '{"kind": "git", "name": "x"}', 'me@here', '{}', 0, now(), gen_random_uuid() FROM generate_series(1, 10000)"""
        )
        client = served.program()
        first = client.get("/api/runs").json()
        assert (len(first["runs"]), first["counts"]) == (50, {"successful": 10000})
        assert len(client.get("/").content) < 100_000
        second = client.get("/api/runs", params={"before": first["older"]}).json()
        assert second["runs"][0]["id"] == first["runs"][-1]["id"] - 1
        assert client.get("/api/runs", params={"before": 10}).json()["older"] is None
    finally:
        served.close()


def test_a_repository_has_one_folder_for_each_commit_and_one_home_for_its_jobs(server, url, tmp_path):
    source, config = tmp_path / "source", tmp_path / "page.toml"
    source.mkdir()

    def commit(text):
        (source / "site.yml").write_text(f"- hosts: all\n  name: {text}\n")
        for words in (
            ["init", "-q", "-b", "main"],
            ["add", "."],
            ["-c", "user.name=me", "-c", "user.email=me@example.org", "commit", "-qm", text],
        ):
            subprocess.run(["git", "-C", str(source), *words], check=True, capture_output=True)

    (source / "hosts.ini").write_text("web1 ansible_connection=local\n")
    commit("first")
    project = GitProject("infra", str(source), "main", str(tmp_path / "base"))
    before = project.refresh()
    first = before.spec(StartRequest(playbook="site.yml"))
    commit("second")
    after = project.refresh()
    assert ("first" in (pathlib.Path(first.cwd) / "site.yml").read_text(), before.root != after.root) == (True, True)
    assert "second" in (pathlib.Path(after.root) / "site.yml").read_text()
    assert project.hide(f"{before.root}/site.yml and {after.root} are there") == "site.yml and infra are there"

    config.write_text(f'[projects.infra]\ngit = "{source}"\nref = "main"\n')
    served = Served("--config", str(config), FORKLESS_DATABASE=url, XDG_STATE_HOME=str(tmp_path))
    try:
        client = served.program()
        start(client)
        run = {"playbook": "site.yml", "inventory": "hosts.ini"}
        assert client.post("/api/schedules", json={"name": "n", "cron": "0 3 * * *", "run": run}).status_code == 201
    finally:
        served.close()
    homes = Database(url).all(
        "SELECT project ->> 'home' FROM forkless.run UNION ALL SELECT request -> 'project' ->> 'home' FROM forkless.schedule"
    )
    assert homes == [(str(source),)] * 2


def test_runs_in_a_shared_folder_are_told_without_its_path(server, url, project, tmp_path):
    database = Database(url)
    numbers = [launch(url, project, "hello.yml", shared_folder=True) for _ in range(2)]
    database.all(
        "UPDATE forkless.run SET sentence = %s", f"the folder {project} is away; {project}/hello.yml, {project}."
    )
    database.all("INSERT INTO forkless.host SELECT %s, 'web1', 1, 0, 0, 0, 0, 0, 0", numbers[0])
    served = Served(FORKLESS_DATABASE=url, XDG_STATE_HOME=str(tmp_path))
    try:
        client = served.program()
        run = client.get(f"/api/runs/{numbers[1]}").json()
        waiting = {one["run"]["id"]: one["why"] for one in client.get("/api/queue").json()["waiting"]}
        history = client.get("/api/hosts/history", params={"host": "web1"}).json()["runs"]
    finally:
        served.close()
    lock = f"inventory hosts.ini of {project.name}"
    assert (run["lock"], run["title"]) == (lock, "hello.yml")
    assert run["sentence"] == f"the folder {project.name} is away; hello.yml, {project.name}."
    assert waiting[numbers[1]] == f'run {numbers[0]} has the lock "{lock}"'
    assert [one["title"] for one in history] == ["hello.yml"]
    folder = {"kind": "folder", "path": "/srv/infra/"}
    assert plain("/srv/infra-old /srv/infra.old /srv/infra", folder) == "/srv/infra-old /srv/infra.old infra"


# -- the command ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "sentence", "code"),
    [
        (["--host", "0.0.0.0"], "can be reached from other machines", 2),
        (["--host", "moon"], "is not an address", 2),
        (["--port", "99999"], "is not a port", 2),
        (["--port", "{taken}"], "cannot be used: Address already in use", 1),
        (["--project", "/nowhere"], "is not a folder", 2),
        (["--processes", "-1"], "0 or more", 2),
    ],
)
def test_a_command_that_cannot_serve_says_why(argv, sentence, code, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = main(["serve", *(word.format(taken=taken.getsockname()[1]) for word in argv)])
    said = capsys.readouterr()
    assert (ended, said.out) == (code, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_alone_it_brings_a_database_and_a_worker_and_takes_them_along(project):
    """Without any argument, in a folder with playbooks: they can be started from the page."""
    # Not below pytest's folder: as root the database runs as another user, who cannot enter that.
    folder = tempfile.mkdtemp(prefix="forkless-serve-")
    os.chmod(folder, 0o711)
    environment = {"XDG_STATE_HOME": folder, "FORKLESS_DATABASE": ""}
    try:
        served = Served(folder=project, **environment)
        with contextlib.ExitStack() as at_end:
            at_end.callback(served.close)
            client = served.program()
            assert f"It starts playbooks of {project}." in served.log()
            finished(client, start(client, limit="web1"))
            postmaster = os.path.join(folder, "forkless", "postgres", "data", "postmaster.pid")
            assert os.path.exists(postmaster)
            streaming = at_end.enter_context(
                client.stream("GET", "/api/runs/stream")
            )  # an open page does not hold it up
            next(streaming.iter_lines())
            served.process.send_signal(signal.SIGTERM)
            served.process.wait(240)
        assert not os.path.exists(postmaster)
        assert os.listdir(os.path.join(folder, "forkless", "work")) == []
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_description_of_the_api_is_whole_and_local(page):
    client = page.program()
    paths = client.get("/api/openapi.json").json()["paths"]
    shown = client.get("/api/docs").text
    assert len(paths) >= 10
    assert all(path in shown for path in paths)
    assert wait_until(lambda: client.get("/api/runs").status_code == 200)
