# SPDX-License-Identifier: GPL-3.0-or-later
"""Threads that a plugin starts, or a library for it, belong to its run and its worker: in what they see, and when it is stopped."""

from __future__ import annotations

import concurrent.futures
import pathlib
import socket
import sys
import threading
import time
from multiprocessing import resource_tracker

import pytest

import forkless
from engines_support import messages

pytestmark = [pytest.mark.spawns, pytest.mark.interrupts]

LONG = 600
SOON = 150

# What a plugin's function sees, on a thread that is made in one of the usual ways. The pool of `shared_pool` is the library's, not the plugin's.
LOOKUP = """
import asyncio, concurrent.futures, multiprocessing.pool, os, subprocess, sys, threading, time
from ansible import context
from ansible.plugins.lookup import LookupBase

def see():
    said = subprocess.run(['sh', '-c', 'echo $WHO'], capture_output=True, text=True).stdout.strip()
    return [os.environ.get('WHO'), context.CLIARGS.get('subset'), said]

def on_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]

def on_executor(work):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return pool.submit(work).result()

def on_thread_pool(work):
    with multiprocessing.pool.ThreadPool(2) as pool:
        return pool.apply(work)

def to_thread(work):
    async def main():
        return await asyncio.to_thread(work)
    return asyncio.run(main())

def on_shared_pool(work):
    return sys.modules['shared_pool_of_a_library'].pool.submit(work).result()

def on_thread_of_thread(work):
    return on_thread(lambda: on_executor(work))

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        return [globals()[terms[0]](see)]
"""
WAYS = ["on_thread", "on_executor", "on_thread_pool", "to_thread", "on_shared_pool", "on_thread_of_thread"]


def wait_for(condition, seconds=SOON):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def resource_tracker_of_plugins():
    """From Python 3.14 on the ThreadPool of a plugin starts the stdlib's resource tracker, which stays until the program ends."""
    yield
    resource_tracker._resource_tracker._stop()


@pytest.fixture
def shared_pool(monkeypatch):
    """The pool of a library, which the whole program shares. Its thread was started by nobody's run."""
    import types

    library = types.ModuleType("shared_pool_of_a_library")
    library.pool = concurrent.futures.ThreadPoolExecutor(1)
    monkeypatch.setitem(sys.modules, library.__name__, library)
    with library.pool:
        library.pool.submit(int).result()
        yield


@pytest.mark.matrix_ends
def test_they_see_what_belongs_to_their_run_while_two_are_active(projects, shared_pool):
    runs = {}
    gate = None
    for name, host in (("one", "h1"), ("two", "h2")):
        project = projects(name)
        gate = gate or project.folder / "gate"
        project.write("lookup_plugins/seen.py", LOOKUP)
        seen = ", ".join(f"{way}: \"{{{{ lookup('seen', '{way}') }}}}\"" for way in WAYS)
        # Neither goes on before both have begun.
        tasks = f"- file: {{path: {gate}-{name}, state: touch}}\n"
        tasks += f"- wait_for: {{path: '{gate}-{{{{ item }}}}', timeout: {SOON}}}\n  loop: [one, two]\n"
        tasks += f"- debug: {{msg: {{{seen}}}}}\n"
        runs[name] = host, project.start(tasks, limit=host, env={"WHO": name})
    for name, (host, run) in runs.items():
        result = run.wait(SOON)
        assert result.rc == 0, result.stdout
        assert messages(result)[host] == {way: [name, host, name] for way in WAYS}


LAZY_POOLS = """
import concurrent.futures, multiprocessing.pool
executor = concurrent.futures.ThreadPoolExecutor(1)
thread_pools = []
def thread_pool():
    if not thread_pools:
        thread_pools.append(multiprocessing.pool.ThreadPool(1))
    return thread_pools[0]
"""
ASKS_POOLS = """
import os, lazy_pools_of_a_library
from ansible import context
from ansible.plugins.lookup import LookupBase

def see(*_):
    return [os.environ.get('WHO'), context.CLIARGS.get('subset')]

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        pool = lazy_pools_of_a_library.thread_pool()
        return [{
            'submit': lazy_pools_of_a_library.executor.submit(see).result(),
            'apply': pool.apply(see),
            'map': pool.map(see, [1])[0],
            'starmap': pool.starmap(see, [(1, 2)])[0],
            'imap': next(pool.imap(see, [1])),
            'imap_unordered': next(pool.imap_unordered(see, [1])),
        }]
"""


@pytest.fixture
def lazy_pools(tmp_path, monkeypatch):
    """The pools of a library whose threads are started by the first who needs them."""
    import importlib

    (tmp_path / "lazy_pools_of_a_library.py").write_text(LAZY_POOLS)
    monkeypatch.syspath_prepend(str(tmp_path))
    library = importlib.import_module("lazy_pools_of_a_library")
    yield library
    del sys.modules[library.__name__]
    library.executor.shutdown()
    for pool in library.thread_pools:
        pool.terminate()
        pool.join()
        pool._change_notifier._reader.close()  # else the collector closes them, some time
        pool._change_notifier._writer.close()


def test_a_pool_whose_threads_another_run_has_started_works_for_the_run_that_asks(projects, lazy_pools, monkeypatch):
    """Both runs are active: the first one goes on when the second one, and the program, have asked."""
    import os

    monkeypatch.setenv("WHO", "the program")
    going = {}
    for name, host in (("one", "h1"), ("two", "h2")):
        project = projects(name)
        project.write("lookup_plugins/pools.py", ASKS_POOLS)
        tasks = "- debug: {msg: \"{{ lookup('pools') }}\"}\n"
        if name == "one":
            gate = project.folder / "gate"
            tasks += f"- file: {{path: {gate}-asked, state: touch}}\n- wait_for: {{path: {gate}, timeout: {LONG}}}\n"
        going[name] = project.start(tasks, limit=host, env={"WHO": name})
        if name == "one":
            wait_for((project.folder / "gate-asked").exists)
    try:
        result = going["two"].wait(SOON)
        seen = [
            lazy_pools.executor.submit(os.environ.get, "WHO").result(),
            lazy_pools.thread_pool().apply(os.environ.get, ("WHO",)),
        ]
    finally:
        gate.touch()
    first = going["one"].wait(SOON)
    assert (result.rc, first.rc) == (0, 0), result.stdout + first.stdout
    assert set(map(tuple, messages(first)["h1"].values())) == {("one", "h1")}
    assert set(map(tuple, messages(result)["h2"].values())) == {("two", "h2")}
    assert seen == ["the program", "the program"]


INTERPRETERS = """
import concurrent.futures
from ansible.plugins.lookup import LookupBase

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        with concurrent.futures.InterpreterPoolExecutor(1) as pool:
            return [[pool.submit(abs, -1).result(), *pool.map(abs, [-2, -3])]]
"""


@pytest.mark.matrix
@pytest.mark.skipif(sys.version_info < (3, 14), reason="InterpreterPoolExecutor is new in Python 3.14")
def test_a_pool_of_interpreters_gets_functions_that_can_be_pickled(project):
    """It is a ThreadPoolExecutor too, but its threads call the functions in other interpreters, which have no runs."""
    from concurrent import interpreters

    before = set(interpreters.list_all())
    gate = project.folder / "gate"
    project.write("lookup_plugins/interpreters.py", INTERPRETERS)
    tasks = f"""- debug: {{msg: "{{{{ lookup('interpreters') }}}}"}}
- file: {{path: {gate}-asked, state: touch}}
- wait_for: {{path: {gate}, timeout: {LONG}}}
"""
    run = project.start(tasks, limit="h1")
    try:
        wait_for(lambda: gate.with_name("gate-asked").exists() or run.status.ended)
        with concurrent.futures.InterpreterPoolExecutor(1) as pool:  # the program's, while a run is active
            seen = pool.submit(abs, -4).result(SOON)
    finally:
        gate.touch()
    result = run.wait(SOON)
    assert result.rc == 0, result.stdout
    assert messages(result)["h1"] == [1, 2, 3]
    assert seen == 4
    assert set(interpreters.list_all()) == before


@pytest.mark.matrix_ends
def test_they_see_it_on_the_own_thread_of_their_run_too(projects, shared_pool):
    project = projects("play")
    project.write("lookup_plugins/seen.py", LOOKUP)
    names = " ".join(f"{{{{ lookup('seen', '{way}') | join(',') }}}}" for way in WAYS)
    head = f'name: "{names}"\n'
    result = project.run("- debug: {msg: hi}\n", head=head, limit="h1", env={"WHO": "me"})
    assert result.stdout.count("me,h1,me") == len(WAYS), result.stdout


BLOCKS = """
import concurrent.futures, multiprocessing.pool, subprocess, threading
from ansible.plugins.lookup import LookupBase

def block():
    subprocess.call([{program!r}])

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        if terms[0] == 'thread':
            thread = threading.Thread(target=block)
            thread.start()
            thread.join()
        elif terms[0] == 'daemon':
            threading.Thread(target=block, daemon=True).start()
        elif terms[0] == 'executor':
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                pool.submit(block).result()
        else:
            with multiprocessing.pool.ThreadPool(1) as pool:
                pool.apply(block)
        return ['done']
"""


@pytest.mark.parametrize("where", ["worker", "own thread"])
@pytest.mark.parametrize("how", ["thread", "daemon", "executor", "pool"])
def test_what_they_start_is_ended_with_their_run(project, how, where, capfd):
    pidfile = project.folder / "pid"
    program = project.write(
        "block.sh", f"#!/bin/sh\necho $$ > {pidfile}.new\nmv {pidfile}.new {pidfile}\nexec sleep {LONG}\n", 0o755
    )
    project.write("lookup_plugins/blocks.py", BLOCKS.format(program=str(program)))
    asked = f"{{{{ lookup('blocks', '{how}') }}}}"
    head = f'vars_files: ["{asked}"]\n' if where == "own thread" and how != "daemon" else ""
    head = f'name: "{asked}"\n' if where == "own thread" and how == "daemon" else head
    tasks = f'- debug: {{msg: "{asked}"}}\n' if where == "worker" else ""
    before = set(threading.enumerate())
    run = project.start(f"{tasks}- wait_for: {{path: /nonexistent/x, timeout: {LONG}}}\n", head=head, limit="h1")
    wait_for(lambda: pidfile.exists() and pidfile.read_text().strip())
    run.cancel()
    assert run.wait(SOON).status is forkless.Status.CANCELED
    wait_for(lambda: not pathlib.Path(f"/proc/{int(pidfile.read_text())}").exists())
    wait_for(lambda: set(threading.enumerate()) <= before)
    assert "Traceback" not in capfd.readouterr().err


LATE = """
import os, subprocess, threading, time
from ansible.plugins.lookup import LookupBase

class Late(threading.Thread):
    # The system first runs the thread when the task that started it has long ended.
    def __getattribute__(self, name):
        if name == "run" and threading.current_thread() is self:
            while not os.path.exists({gate!r}):
                time.sleep(0.01)
        return super().__getattribute__(name)

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        Late(target=lambda: subprocess.call([{program!r}]), daemon=True).start()
        return ['done']
"""


def test_a_thread_that_begins_after_its_task_ends_with_the_run(project):
    pidfile, gate = project.folder / "pid", project.folder / "gate"
    program = project.write(
        "block.sh", f"#!/bin/sh\necho $$ > {pidfile}.new\nmv {pidfile}.new {pidfile}\nexec sleep {LONG}\n", 0o755
    )
    project.write("lookup_plugins/late.py", LATE.format(program=str(program), gate=str(gate)))
    before = set(threading.enumerate())
    tasks = f"- debug: {{msg: \"{{{{ lookup('late') }}}}\"}}\n- wait_for: {{path: /nonexistent/x, timeout: {LONG}}}\n"
    run = project.start(tasks, limit="h1")
    try:
        wait_for(lambda: sum(event.event == "runner_on_start" for event in run._events.part(0, 99)) == 2)
    finally:
        gate.touch()
    wait_for(lambda: pidfile.exists() and pidfile.read_text().strip())
    run.cancel()
    assert run.wait(SOON).status is forkless.Status.CANCELED
    wait_for(lambda: not pathlib.Path(f"/proc/{int(pidfile.read_text())}").exists())
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_a_thread_of_the_program_belongs_to_no_run(project):
    """Not even while there is only one."""
    from forkless.engines.threads import context

    gate = project.folder / "gate"
    run = project.start(f"- wait_for: {{path: {gate}, timeout: {LONG}}}\n", limit="h1")
    wait_for(lambda: any(event.event == "runner_on_start" for event in run._events.part(0, 99)))
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert pool.submit(context.current).result() is None
        assert context.current() is None
    finally:
        gate.touch()
    assert run.wait(SOON).rc == 0


WAITS = {
    "a queue": "import queue; queue.Queue().get()",
    "a future": "import concurrent.futures; concurrent.futures.Future().result()",
    "an event": "import threading; threading.Event().wait()",
    "a socket": "import socket; s = socket.create_connection(('127.0.0.1', {port}))\n        with s: s.recv(1)",
    "a response": "import contextlib, http.client; c = http.client.HTTPConnection('127.0.0.1', {port})\n"
    "        with contextlib.closing(c): c.request('GET', '/'); c.getresponse()",
}
WAITING = """
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        open({flag!r}, 'w').close()
        {wait}
"""


@pytest.mark.parametrize("what", WAITS)
def test_a_worker_that_waits_in_c_is_stopped_and_not_left_behind(project, what):
    """Where no exception is seen. A worker that is left behind raises StuckWorkerError."""
    flag = project.folder / "begun"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        wait = WAITS[what].format(port=silent.getsockname()[1])
        project.write("action_plugins/waits.py", WAITING.format(flag=str(flag), wait=wait))
        run = project.start("- waits:\n", limit="h1")
        wait_for(flag.exists)
        run.cancel()
        assert run.wait(SOON).status is forkless.Status.CANCELED
