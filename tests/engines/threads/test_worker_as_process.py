# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plugin has in a worker because a forked worker was a process: a main thread, a number, and locks that keep out other workers."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import time
import types

import pytest

from engines_support import messages
from forkless.core import trace_functions
from forkless.engines.threads.workers import thread_locals

pytestmark = [pytest.mark.spawns]

HOSTS = [f"h{number}" for number in range(1, 7)]

LOOKUP = """
import asyncio, fcntl, os, threading, time
from ansible.plugins.lookup import LookupBase

async def answer(text):
    await asyncio.sleep(0.01)
    return text

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        host = variables["inventory_hostname"]
        {body}
"""


def lookup(project, name, body):
    text = LOOKUP.replace("{body}", body.strip().replace("\n", "\n        "))
    project.write(f"lookup_plugins/{name}.py", text)
    return f"- debug: {{msg: \"{{{{ lookup('{name}', 'x') }}}}\"}}\n"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="no thread is given a loop from Python 3.14 on")
def test_a_worker_is_given_an_event_loop_as_the_main_thread_of_a_process_is(project):
    """In each task anew: one that has used asyncio.run() leaves no trace for the next on its thread."""
    tasks = lookup(project, "runs", "return [asyncio.run(answer(host))]")
    tasks += lookup(project, "asks", "return [asyncio.get_event_loop().run_until_complete(answer(host))]")
    before = asyncio.events.BaseDefaultEventLoopPolicy.get_event_loop
    result = project.run(tasks * 2, forks=3)
    assert result.rc == 0, result.stdout
    assert messages(result) == {host: host for host in HOSTS}
    assert asyncio.events.BaseDefaultEventLoopPolicy.get_event_loop is before


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="no thread is given a loop from Python 3.14 on")
def test_a_thread_of_a_plugin_is_given_no_event_loop_as_with_stock(project):
    body = """
said = []
def ask():
    try:
        said.append(str(asyncio.get_event_loop()))
    except RuntimeError as error:
        said.append("none" if "no current event loop" in str(error) else str(error))
thread = threading.Thread(target=ask)
thread.start()
thread.join()
return said
"""
    result = project.run(lookup(project, "asks", body), limit="h1")
    assert messages(result) == {"h1": "none"}, result.stdout


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="no thread is given a loop from Python 3.14 on")
def test_the_thread_of_a_run_in_a_program_is_given_an_event_loop(project):
    project.write(
        "callback_plugins/asks.py",
        """
        import asyncio
        from ansible.plugins.callback import CallbackBase

        class CallbackModule(CallbackBase):
            CALLBACK_VERSION = 2.0
            CALLBACK_TYPE = "notification"
            CALLBACK_NAME = "asks"

            def v2_playbook_on_start(self, playbook):
                self._display.display(f"the loop is {asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 'there'))}")
        """,
    )
    result = project.run("- debug:\n", limit="h1")
    assert "the loop is there" in result.stdout


def let_go(other, folder):
    """End a process that holds the lock when all workers have come to it."""
    while len(list(folder.glob("waits-*"))) < len(HOSTS):
        time.sleep(0.01)
    other.stdin.close()


@pytest.mark.skipif(sys.platform != "linux", reason="locks of an open file, which keep threads out, are Linux's")
def test_a_lock_of_one_worker_keeps_out_the_others_and_other_processes(project, tmp_path):
    """Each worker adds one to a number in a file while it holds the lock."""
    count, lock = tmp_path / "count", tmp_path / "lock"
    count.write_text("0")
    body = f"""
open({str(tmp_path)!r} + "/waits-" + host, "w").close()
with open({str(lock)!r}, "w") as file, open({str(lock)!r}, "w") as again:
    fcntl.lockf(file, fcntl.LOCK_EX)
    fcntl.lockf(again, fcntl.LOCK_EX)  # the lock is the worker's, whichever file it opened
    with open({str(count)!r}) as counted:
        number = int(counted.read())
    time.sleep(0.05)
    with open({str(count)!r}, "w") as counted:
        counted.write(str(number + 1))
    fcntl.lockf(file, fcntl.LOCK_UN)
return ["done"]
"""
    outside = (
        "import fcntl, sys, time\n"
        f"file = open({str(lock)!r}, 'w')\nfcntl.lockf(file, fcntl.LOCK_EX)\nprint('held', flush=True)\n"
        f"number = int(open({str(count)!r}).read())\nsys.stdin.readline()\n"
        f"open({str(count)!r}, 'w').write(str(number + 100))\n"
    )
    with subprocess.Popen([sys.executable, "-c", outside], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        letting_go = threading.Thread(target=let_go, args=(other, tmp_path), daemon=True)
        letting_go.start()
        result = project.run(lookup(project, "adds", body), forks=6)
        letting_go.join()
    assert result.rc == 0, result.stdout
    assert count.read_text() == "106"


@pytest.mark.skipif(sys.platform != "linux", reason="locks of an open file, which keep threads out, are Linux's")
def test_a_lock_by_fcntl_keeps_out_other_workers_who_ask_wait_or_do_not_want_to(project, tmp_path):
    """h1 holds a lock until h2 has asked for it, and has been refused it. Whoever fails says so, and the other one does not wait for it."""
    body = f"""
import struct
def said(name):
    return os.path.exists({str(tmp_path)!r} + "/" + name)
def say(name):
    open({str(tmp_path)!r} + "/" + name, "w").close()
def until(name):
    while not said(name):
        assert not said("failed"), "the other host failed"
        time.sleep(0.01)
def flock(kind):
    return struct.pack("hhqqi", kind, 0, 0, 0, 0)
def hold(file):
    given = fcntl.fcntl(file, fcntl.F_SETLK, flock(fcntl.F_WRLCK))
    say("held")
    until("refused")
    say("released")
    fcntl.fcntl(file, fcntl.F_SETLK, flock(fcntl.F_UNLCK))
    return [[given == flock(fcntl.F_WRLCK)]]
def want(file):
    until("held")
    kind, _, _, _, holder = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, flock(fcntl.F_WRLCK)))
    try:
        fcntl.fcntl(file, fcntl.F_SETLK, flock(fcntl.F_RDLCK))
        refused = False
    except BlockingIOError:
        refused = True
    say("refused")
    fcntl.fcntl(file, fcntl.F_SETLKW, flock(fcntl.F_WRLCK))
    return [[kind == fcntl.F_WRLCK, holder == {os.getpid()}, refused, said("released")]]
with open({str(tmp_path / "lock")!r}, "a+") as file:  # for a lock to read, a file must be open for reading
    try:
        return (hold if host == "h1" else want)(file)
    except BaseException:
        say("failed")
        raise
"""
    result = project.run(lookup(project, "locks", body), forks=2, limit="h1,h2")
    assert messages(result) == {"h1": [True], "h2": [True, True, True, True]}, result.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="locks of an open file, which keep threads out, are Linux's")
def test_a_worker_that_does_not_want_to_wait_is_told_that_another_has_the_lock(project, tmp_path):
    body = f"""
with open({str(tmp_path / "lock")!r}, "w") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ["taken"]
    while len(os.listdir({str(tmp_path / "asked")!r})) < 2:
        time.sleep(0.01)
return ["had it"]
"""
    (tmp_path / "asked").mkdir()
    marked = body.replace(
        'return ["taken"]', f'open({str(tmp_path / "asked")!r} + "/" + host, "w").close(); return ["taken"]'
    )
    result = project.run(lookup(project, "tries", marked), forks=3, limit="h1,h2,h3")
    assert sorted(messages(result).values()) == ["had it", "taken", "taken"], result.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a number among those of processes on Linux only")
def test_workers_at_work_at_once_have_numbers_of_their_own(project, tmp_path):
    """A plugin that names a file by its process writes no other host's file. The number is one of a process that exists."""
    body = f"""
path = "{tmp_path}/%d" % os.getpid()
with open(path, "w") as file:
    file.write(host)
while len([one for one in os.listdir("{tmp_path}") if one.isdigit()]) < 3:
    time.sleep(0.01)
os.kill(os.getpid(), 0)
os.stat("/proc/%d" % os.getpid())
with open(path) as file:
    return [file.read() + (" child of %d" % os.getppid())]
"""
    result = project.run(lookup(project, "writes", body), forks=3, limit="h1,h2,h3", timeout=60)
    parents = {said.partition(" ")[2] for said in messages(result).values()}
    assert {said.split()[0] for said in messages(result).values()} == {"h1", "h2", "h3"}, result.stdout
    assert len(parents) == 1


class Session(threading.local):
    """As libraries keep a client: made at its first use on a thread."""

    def __init__(self):
        self.of = []


@pytest.fixture(params=["used again", "ended"])
def library(request, monkeypatch):
    """A library of the process, which all workers import. From Python 3.13 on threads cannot be cleared, and end if it has left a value there."""
    if request.param == "ended":
        monkeypatch.setattr(thread_locals.ThreadLocals, "forget", lambda _values: False)
    made = types.ModuleType("a_library_of_the_process")
    made.local, made.session = threading.local(), Session()
    made.variable = contextvars.ContextVar("of the library", default="")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


KEPT = {
    "a threading.local": "getattr(library.local, 'of', '')",
    "a subclass of it": "library.session.of",
    "an attribute of the thread": "getattr(threading.current_thread(), 'of', '')",
    "the name of the thread": "'' if threading.current_thread().name.startswith('forkless-') else 1",
    "a context variable": "library.variable.get()",
    "the precision of decimal": "'' if decimal.getcontext().prec == 28 else 1",
    "a trace function": "'' if sys.gettrace() is not kept else 1",
    "a profile function": "'' if sys.getprofile() is not kept else 1",
    "blocked signals": "'' if signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ()) else 1",
}
KEEPS = """
import decimal, signal, sys
import a_library_of_the_process as library
def kept(*_):
    return None
library.local.of = host
library.session.of.append(host)
threading.current_thread().of = host
threading.current_thread().name = host
library.variable.set(host)
decimal.getcontext().prec = 3
sys.settrace(kept)
sys.setprofile(kept)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
library.kept = kept
return ["done"]
"""
FINDS = f"""
import decimal, signal, sys
import a_library_of_the_process as library
kept = library.kept
return [{{name: found for name, found in {{{", ".join(f"{name!r}: {expression}" for name, expression in KEPT.items())}}}.items() if found}}]
"""


@pytest.mark.matrix_ends
@pytest.mark.parametrize("forks", [1, 3])
def test_what_a_library_keeps_for_a_thread_is_not_seen_by_the_next_task(project, library, forks):
    """Neither by another host's nor by another one of the same host, nor by the next item of other hosts."""
    tasks = lookup(project, "keeps", KEEPS) + lookup(project, "finds", FINDS)
    result = project.run(tasks * 2, forks=forks)
    assert result.rc == 0, result.stdout
    found = [event.event_data["res"]["msg"] for event in result.events if event.event == "runner_on_ok"]
    assert [one for one in found if one != "done"] == [{}] * 2 * len(HOSTS)


SETS = """
from sys import setprofile
import sys, types
import a_library_of_the_process as library

class AtTheEnd:
    def __del__(self):
        library.inside.set()
        library.asked.wait(240)

def made(end=None):
    def function(*_):
        return None
    function.end = end
    return function

if host == "h1":
    SETTER(made(AtTheEnd()))
    SETTER(None)
else:
    library.inside.wait(240)
    try:
        SETTER(made())
    finally:
        library.asked.set()
return ["done"]
"""


@pytest.mark.parametrize("setter", ["sys.settrace", "setprofile"])
def test_workers_set_trace_functions_at_the_same_time(project, library, monkeypatch, setter):
    """One is in the midst of it, as the function before has ended and code is executed for that, until the other one has set its own, or waits for that."""
    library.inside, library.asked = threading.Event(), threading.Event()
    waiting = types.SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda seconds: (library.asked.set(), time.sleep(seconds))
    )
    monkeypatch.setattr(trace_functions, "time", waiting)
    result = project.run(lookup(project, "sets", SETS.replace("SETTER", setter)), forks=2, limit="h1,h2", timeout=240)
    library.asked.set()
    assert messages(result) == {"h1": "done", "h2": "done"}, result.stdout


def test_what_a_library_keeps_for_a_thread_is_there_until_the_task_ends(project, library):
    """A loop is one task, and a session that its first item made serves the others, as with stock."""
    del library.session
    body = """
import a_library_of_the_process as library
library.local.of = [*getattr(library.local, "of", ()), terms[0]]
return [",".join(library.local.of)]
"""
    lookup(project, "adds", body)
    result = project.run(
        "- debug: {msg: \"{{ lookup('adds', item) }}\"}\n  loop: [a, b, c]\n  register: each\n"
        "- debug: {msg: \"{{ each.results | map(attribute='msg') | list }}\"}\n"
    )
    assert messages(result) == {host: ["a", "a,b", "a,b,c"] for host in HOSTS}, result.stdout


def test_a_value_that_a_library_kept_for_a_thread_is_given_up_with_the_task(project, library):
    """But for the one of the thread that was used last, where threads end."""
    given_up = library.given_up = []

    class Connection:
        def __del__(self):
            given_up.append(self)

    library.Connection = Connection
    opens = """
import a_library_of_the_process as library
library.local.connection = library.Connection()
return ["open"]
"""
    counts = f"""
import a_library_of_the_process as library
deadline = time.monotonic() + 60
while len(library.given_up) < {len(HOSTS) - 1} and time.monotonic() < deadline:
    time.sleep(0.01)
return [len(library.given_up)]
"""
    result = project.run(lookup(project, "opens", opens) + lookup(project, "counts", counts), forks=1)
    assert int(messages(result)["h6"]) in (len(HOSTS) - 1, len(HOSTS)), result.stdout  # 2.18 makes a text of a number
    assert len(given_up) == len(HOSTS)
