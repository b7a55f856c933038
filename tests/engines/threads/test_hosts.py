# SPDX-License-Identifier: GPL-3.0-or-later
"""In the programs that people embed Ansible in: thread pools, an event loop, Celery's daemons, gunicorn's threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

import forkless
from engines_support import messages

pytestmark = pytest.mark.spawns

SOON = 120
TASKS = "- command: echo {{ inventory_hostname }}\n  register: out\n- debug: {msg: '{{ out.stdout }}'}\n"


SMALL_STACKS = """
import threading
import forkless

threading.stack_size(128 * 1024)
result = forkless.run(engine="threads", **{spec!r})
assert "ecursi" in result.stdout, result.stdout
assert threading.stack_size() == 128 * 1024
print(result.status)
"""


@pytest.mark.matrix_ends
def test_in_a_program_whose_threads_have_small_stacks_a_template_may_recurse(project):
    recursing = "- debug: {msg: '{{ a }}'}\n  vars: {a: '{{ b }}x', b: '{{ a }}y'}\n"
    script = project.write("small.py", SMALL_STACKS.format(spec=project.spec(recursing, limit="h1")))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=SOON, check=False)
    assert done.stdout == "failed\n", f"exit code {done.returncode}\n{done.stderr}"


OWN_ENVIRON = """
import os
os.environ = mine = dict(os.environ)
import forkless

result = forkless.run(engine="threads", **{spec!r})
assert os.environ is mine
print(result.status)
"""


def test_in_a_program_that_replaced_environ_before_it_imported_us(project):
    script = project.write("own_environ.py", OWN_ENVIRON.format(spec=project.spec(TASKS, limit="h1")))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=SOON, check=False)
    assert done.stdout == "successful\n", done.stderr


def test_in_a_thread_pool(project):
    spec = project.spec(TASKS, limit="h1")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: forkless.run(engine="threads", **spec), range(8)))
    assert all(messages(result) == {"h1": "h1"} for result in results)


def test_under_an_event_loop_in_the_main_thread(project):
    spec = project.spec(TASKS, limit="h1")
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    async def main():
        ticking = asyncio.create_task(tick())
        result = await asyncio.to_thread(forkless.run, engine="threads", **spec)
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
        return result

    assert messages(asyncio.run(main())) == {"h1": "h1"}
    assert ticks > 5, "the loop went on meanwhile"


DAEMON = """
import multiprocessing, sys
import forkless

def work(spec):
    # A daemonic process may have no children: stock Ansible fails here with an AssertionError.
    assert multiprocessing.current_process().daemon
    result = forkless.run(engine='threads', **spec)
    sys.exit(result.rc)

if __name__ == '__main__':
    process = multiprocessing.get_context('spawn').Process(target=work, args=({spec!r},), daemon=True)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


def test_in_a_daemonic_process(project):
    script = project.write("daemon.py", DAEMON.format(spec=project.spec(TASKS, limit="h1")))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=SOON, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


CELERY = """
import celery, forkless, multiprocessing
app = celery.Celery('tasks')
app.conf.update(broker_url='filesystem://', result_backend='file://{folder}/results', broker_connection_retry_on_startup=True,
                broker_transport_options=dict(data_folder_in='{folder}/queue', data_folder_out='{folder}/queue', control_folder='{folder}/control'))

@app.task(name='play')
def play(spec):
    result = forkless.run(engine='threads', **spec)
    return [result.rc, result.stdout]
"""


def test_in_celerys_prefork_workers(project):
    folder = project.folder
    for name in ("results", "queue", "control"):
        (folder / name).mkdir()
    project.write("celery_tasks.py", CELERY.format(folder=folder))
    spec = project.spec(TASKS, limit="h1")
    env = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    line = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "celery_tasks",
        "worker",
        "-P",
        "prefork",
        "-c",
        "1",
        "--without-gossip",
        "--without-mingle",
    ]
    log = open(folder / "celery.log", "w")
    worker = subprocess.Popen(line, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    ask = f"import json, celery_tasks; print(json.dumps(celery_tasks.play.delay({spec!r}).get(timeout={SOON})))"
    try:
        answer = subprocess.run(
            [sys.executable, "-c", ask],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=SOON + 30,
            check=False,
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(SOON)
        log.close()
    assert answer.returncode == 0, answer.stderr + (folder / "celery.log").read_text()
    assert '[0, "' in answer.stdout, answer.stdout


GUNICORN = """
import forkless

def app(environ, start_response):
    result = forkless.run(engine='threads', **{spec!r})
    start_response('200 OK', [('Content-Type', 'text/plain')])
    return [f'{{result.rc}} {{result.stdout}}'.encode()]
"""


def test_in_gunicorns_threads(project):
    spec = project.spec(TASKS, limit="h1")
    project.write("web.py", GUNICORN.format(spec=spec))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [
        sys.executable,
        "-m",
        "gunicorn",
        "-k",
        "gthread",
        "--threads",
        "4",
        "-w",
        "1",
        "-b",
        f"127.0.0.1:{port}",
        "web:app",
    ]
    log = open(project.folder / "gunicorn.log", "w")
    server = subprocess.Popen(line, cwd=project.folder, stdout=log, stderr=log)

    def ask(_=None):
        deadline = time.monotonic() + SOON
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=SOON) as answer:
                    return answer.read().decode()
            except OSError:
                assert time.monotonic() < deadline, (project.folder / "gunicorn.log").read_text()
                time.sleep(0.1)

    try:
        ask()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, range(8)))
    finally:
        server.terminate()
        server.wait(SOON)
        log.close()
    assert all(answer.startswith("0 ") for answer in answers), answers


def test_a_task_that_asks_for_the_programs_session_has_it_for_its_children(project):
    tasks = """
    - debug: {msg: "{{ lookup('pipe', 'cut -d\\\\  -f1,5,6 /proc/$$/stat') }}"}
      name: with
    - debug: {msg: "{{ lookup('pipe', 'cut -d\\\\  -f1,5,6 /proc/$$/stat') }}"}
      name: without
      vars: {ansible_worker_session_isolation: false}
    - shell: cut -d\\  -f6 /proc/$$/stat
      register: out
      vars: {ansible_worker_session_isolation: false}
    - debug: {msg: '{{ out.stdout }}'}
      name: module
    """
    result = project.run(tasks, limit="h1")
    result.raise_for_failures()
    version = importlib.metadata.version("ansible-core").split(".")
    knows = [int(part) for part in version[:2]] >= [2, 21]
    found = {}
    for name in ("with", "without"):
        pid, group, found[name] = map(int, messages(result, name)["h1"].split())
        assert group == pid, "it is ended by its group"
    found["module"] = int(messages(result, "module")["h1"])
    ours = os.getsid(0)
    assert {name: session == ours for name, session in found.items()} == {
        "with": False,
        "without": knows,
        "module": knows,
    }
