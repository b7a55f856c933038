# SPDX-License-Identifier: GPL-3.0-or-later
"""In the programs that people embed Ansible in: thread pools, an event loop, Celery's daemons, gunicorn's threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
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


def _daemon(spec, queue):
    # A daemonic process may have no children: stock Ansible fails here with an AssertionError.
    assert multiprocessing.current_process().daemon
    result = forkless.run(engine="threads", **spec)
    queue.put((result.rc, result.stdout))


def test_in_a_daemonic_process(project):
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_daemon, args=(project.spec(TASKS, limit="h1"), queue), daemon=True)
    process.start()
    process.join(SOON)
    code, text = queue.get()
    queue.close()
    process.close()
    _stop_resource_tracker()
    assert code == 0, text


def _stop_resource_tracker():
    """multiprocessing keeps a process of its own for as long as the interpreter lives; the leak guard is right to mind."""
    from multiprocessing import resource_tracker

    resource_tracker._resource_tracker._stop()


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
