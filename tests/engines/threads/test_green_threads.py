# SPDX-License-Identifier: GPL-3.0-or-later
"""gevent and eventlet put green threads in the place of real ones. A run is refused there with one sentence; it never hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from forkless.core import platform

pytestmark = pytest.mark.spawns

SOON = 120
PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "gevent without threads": "from gevent import monkey; monkey.patch_all(thread=False)",
    "eventlet": "import warnings; warnings.simplefilter('ignore'); import eventlet; eventlet.monkey_patch()",
}
PROGRAM = """
{patch}
import forkless, sys
try:
    forkless.run({playbook!r}, inventory={inventory!r}, cwd={cwd!r}, engine={engine!r})
except forkless.GreenThreadsError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("engine", [None, "threads", "runner"])
@pytest.mark.parametrize("how", PATCHES)
def test_a_run_in_a_patched_process_is_refused_with_a_sentence(project, how, engine):
    text = PROGRAM.format(patch=PATCHES[how], engine=engine, **project.spec("- command: 'true'\n  timeout: 9\n"))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=SOON, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith(f"{how.split()[0]} has replaced "), done.stderr
    assert "Traceback" not in done.stderr
    assert "gthread" in done.stderr


def test_the_command_line_says_it_too_and_has_an_exit_code(project):
    spec = project.spec("- debug: {msg: hi}\n")
    line = ["-m", "gevent.monkey", "--module", "forkless", "playbook", "-i", spec["inventory"], spec["playbook"]]
    done = subprocess.run([sys.executable, *line], capture_output=True, text=True, timeout=SOON, check=False)
    assert done.returncode == 250, done.stderr
    assert "forkless: gevent has replaced" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_that_only_imported_them_is_not_refused():
    text = "import gevent.monkey, eventlet.patcher; from forkless.core import platform; print(platform.green_threads())"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
    assert platform.green_threads() is None


APP = """
import forkless
def app(environ, start_response):
    try:
        result = str(forkless.run({playbook!r}, inventory={inventory!r}, cwd={cwd!r}).status)
    except forkless.ForklessError as error:
        result = str(error)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [result.encode()]
"""


@pytest.mark.parametrize("kind", ["gevent", "gthread"])
def test_a_worker_of_gunicorn_answers_and_ends_at_sigterm(project, kind):
    project.write("app.py", APP.format(**project.spec("- command: 'true'\n  timeout: 60\n", limit="h1")))
    line = [
        sys.executable,
        "-m",
        "gunicorn",
        "-k",
        kind,
        "-b",
        "127.0.0.1:0",
        "--chdir",
        str(project.folder),
        "app:app",
    ]
    with (project.folder / "log").open("w+") as log:
        server = subprocess.Popen(line, stdout=log, stderr=log, cwd=project.folder)
        try:
            address = listening(project.folder / "log", server)
            with urllib.request.urlopen(address, timeout=SOON) as answer:
                said = answer.read().decode()
            expected = "successful" if kind == "gthread" else "gevent has replaced"
            assert said.startswith(expected), said
            os.kill(server.pid, signal.SIGTERM)
            assert server.wait(SOON) == 0
        finally:
            server.kill()
            server.wait()


def listening(log, server):
    """The address that it says it listens at."""
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline and server.poll() is None:
        for line in log.read_text().splitlines():
            if "Listening at: " in line:
                return line.partition("Listening at: ")[2].split()[0]
        time.sleep(0.05)
    raise AssertionError(log.read_text())
