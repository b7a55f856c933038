# SPDX-License-Identifier: GPL-3.0-or-later
"""The examples of docs/howto/embed.md, each as its own program, with real playbooks, servers and workers."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(300)]

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "embed"
HELLO = "- hosts: localhost\n  gather_facts: false\n  tasks:\n  - name: say\n    debug: msg=hello\n"


def sleeper(marker):
    return f"- hosts: localhost\n  gather_facts: false\n  tasks:\n  - command: sh -c 'echo $$ > {marker}; exec sleep 300'\n"


@pytest.fixture
def env():
    source = str(pathlib.Path(__file__).parents[2] / "src")
    return {**os.environ, "PYTHONPATH": source + os.pathsep + os.environ.get("PYTHONPATH", "")}


def needs(module):
    return pytest.importorskip(module, reason=f"{module} is not installed; pip install 'forkless[dev]'")


def test_plain_asyncio_follows_several_playbooks(tmp_path, env):
    for name in ("a.yml", "b.yml"):
        (tmp_path / name).write_text(HELLO)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "plain_asyncio.py"), "a.yml", "b.yml"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for name in ("a.yml", "b.yml"):
        assert f"{name}: ok localhost: say" in lines
        assert f"{name}: successful" in lines


def ask(method, url, body=None):
    request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=250) as answer:
        return json.load(answer)


@pytest.fixture
def service(tmp_path, env):
    needs("fastapi")
    needs("uvicorn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "fastapi_app:app", "--port", str(port), "--log-level", "warning"],
        cwd=EXAMPLES,
        env={**env, "PLAYBOOKS": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            ask("GET", url + "/openapi.json")
            break
        except OSError:
            assert server.poll() is None
            time.sleep(0.1)
    yield url, server
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
    server.wait(120)


def stream(url):
    with urllib.request.urlopen(url, timeout=250) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = answer.read().decode()
    return [dict(line.split(": ", 1) for line in one.splitlines()) for one in text.strip().split("\n\n")]


def wait_for(path):
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.05)
    return int(path.read_text())


def gone(pid):
    status = pathlib.Path(f"/proc/{pid}/status")
    try:
        return "State:\tZ" in status.read_text()
    except OSError:
        return True


def test_fastapi_submits_streams_and_cancels(tmp_path, service):
    url, server = service
    (tmp_path / "hello.yml").write_text(HELLO)
    (tmp_path / "sleep.yml").write_text(sleeper(tmp_path / "pid"))
    ident = ask("POST", f"{url}/runs", {"playbook": "hello.yml"})["ident"]
    told = stream(f"{url}/runs/{ident}/events")
    assert [one["event"] for one in told[-2:]] == ["playbook_on_stats", "end"]
    assert json.loads(told[-1]["data"]) == {"status": "successful"}
    assert [int(one["id"]) for one in told[:-1]] == list(range(1, len(told)))

    ident = ask("POST", f"{url}/runs", {"playbook": "sleep.yml"})["ident"]
    pid = wait_for(tmp_path / "pid")
    assert ask("GET", f"{url}/runs/{ident}")["status"] == "running"
    assert ask("DELETE", f"{url}/runs/{ident}")["status"] == "canceled"
    assert gone(pid)

    for body in ({"playbook": "../elsewhere.yml"}, {"playbook": "nowhere.yml"}):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask("POST", f"{url}/runs", body)

    # A service that is stopped takes its runs along.
    (tmp_path / "pid").unlink()
    ask("POST", f"{url}/runs", {"playbook": "sleep.yml"})
    pid = wait_for(tmp_path / "pid")
    server.send_signal(signal.SIGTERM)
    server.wait(120)
    assert gone(pid)


def test_celery_runs_playbooks_in_its_default_pool(tmp_path, env):
    needs("celery")
    (tmp_path / "hello.yml").write_text(HELLO)
    for name in ("queue", "results"):
        (tmp_path / name).mkdir()
    env |= {
        "BROKER": "filesystem://",
        "BROKER_FOLDER": str(tmp_path / "queue"),
        "BACKEND": f"file://{tmp_path}/results",
        "PYTHONDONTWRITEBYTECODE": "1",
        "C_FORCE_ROOT": "1",
    }
    with open(tmp_path / "log", "w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-c", "1", "-P", "prefork", "-l", "INFO"],
            cwd=EXAMPLES,
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    # Both write the table of exchanges into that folder, and kombu does not lock it.
    deadline = time.monotonic() + 120
    while " ready." not in (tmp_path / "log").read_text():
        assert time.monotonic() < deadline and worker.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.1)
    code = (
        "import sys, json, celery_app\n"
        "for engine in ('runner', 'threads'):\n"
        "    answer = celery_app.playbook.delay(sys.argv[1], engine=engine)\n"
        "    print(json.dumps(answer.get(timeout=140)))\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "hello.yml")],
            cwd=EXAMPLES,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()
        for line in done.stdout.splitlines():
            told = json.loads(line)
            assert (told["status"], told["rc"]) == ("successful", 0)
            assert told["hosts"]["localhost"]["ok"] == 1
        assert len(done.stdout.splitlines()) == 2
    finally:
        worker.terminate()
        worker.wait(120)


def test_the_links_of_the_page_lead_somewhere():
    page = EXAMPLES.parent.parent / "docs" / "howto" / "embed.md"
    links = re.findall(r"\]\(([^)]+)\)", page.read_text())
    assert len(links) >= 3
    for link in links:
        assert (page.parent / link).exists(), link
