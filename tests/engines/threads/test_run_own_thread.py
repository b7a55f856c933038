# SPDX-License-Identifier: GPL-3.0-or-later
"""A run whose own thread blocks is ended as its workers are; what cannot be ended is left behind, named, and holds nothing."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

import forkless
from engines_support import locks_held_by, own_thread_of
from forkless.engines.threads import engine, run_thread

pytestmark = [pytest.mark.spawns, pytest.mark.interrupts]

LONG = 600
SOON = 150


def wait_for(condition, seconds=SOON):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def alive(pidfile: pathlib.Path) -> bool:
    try:
        return pathlib.Path(f"/proc/{int(pidfile.read_text())}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def blocking_program(project, name="block.sh"):
    """A program with a child of its own, which notes its number and blocks."""
    pidfile = project.folder / "pid"
    text = f"#!/bin/sh\nsh -c 'echo $$ > {pidfile}.new; mv {pidfile}.new {pidfile}; exec sleep {LONG}'\nexit 0\n"
    return str(project.write(name, text, 0o755)), pidfile


CALLBACK = """
from ansible.plugins.callback import CallbackBase
import subprocess, time
class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_NAME, CALLBACK_TYPE, CALLBACK_NEEDS_ENABLED = 2.0, 'blocks', 'notification', False
    def {method}(self, *args, **kwargs):
        {block}
"""
VARS = """
from ansible.plugins.vars import BaseVarsPlugin
import subprocess
class VarsModule(BaseVarsPlugin):
    REQUIRES_ENABLED = False
    def get_vars(self, loader, path, entities, cache=True):
        subprocess.call([{program!r}])
        return {{}}
"""
STRATEGY = """
from ansible.plugins.strategy.linear import StrategyModule as Linear
import subprocess
class StrategyModule(Linear):
    def run(self, iterator, play_context):
        subprocess.call([{program!r}])
        return super().run(iterator, play_context)
"""
CACHE = """
from ansible.plugins.cache import BaseCacheModule
import subprocess
class CacheModule(BaseCacheModule):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._facts = {{}}
    def get(self, key): return self._facts[key]
    def set(self, key, value): subprocess.call([{program!r}])
    def keys(self): return list(self._facts)
    def contains(self, key): return key in self._facts
    def delete(self, key): self._facts.pop(key, None)
    def flush(self): self._facts.clear()
    def copy(self): return dict(self._facts)
"""
CONNECTION = """
from ansible.plugins.connection.local import Connection as Local
import subprocess
class Connection(Local):
    transport = 'blocks'
    def reset(self):
        subprocess.call([{program!r}])
"""


def blocked(project, where):
    """A run that will block there, as what `start()` takes, and the file in which its child notes its number."""
    program, pidfile = blocking_program(project)
    tasks, more = "- debug: {msg: hi}\n", {"limit": "h1"}
    if where == "inventory script":
        more = {"inventory": program}
    elif where == "vault password client":
        project.write("group_vars/all.yml", "$ANSIBLE_VAULT;1.1;AES256\n6161\n")
        more |= {"args": ("--vault-password-file", program)}
    elif where == "play-level lookup":
        more |= {"head": f"vars_files: [\"{{{{ lookup('pipe', '{program}') }}}}\"]\n"}
    elif where == "vars plugin":
        project.write("vars_plugins/blocks.py", VARS.format(program=program))
    elif where == "cache plugin":
        project.write("cache_plugins/blocks.py", CACHE.format(program=program))
        project.write("ansible.cfg", "[defaults]\nfact_caching=blocks\ncache_plugins=cache_plugins\n")
        tasks = "- set_fact: {kept: yes, cacheable: true}\n"
    elif where == "strategy plugin":
        project.write("strategy_plugins/blocks.py", STRATEGY.format(program=program))
        project.write("ansible.cfg", "[defaults]\nstrategy_plugins=strategy_plugins\n")
        more |= {"head": "strategy: blocks\n"}
    elif where == "meta: reset_connection":
        project.write("connection_plugins/blocks.py", CONNECTION.format(program=program))
        tasks = "- meta: reset_connection\n  vars: {ansible_connection: blocks}\n"
        more |= {"extra_vars": {"ansible_connection": "blocks"}}
    else:
        method = where.removeprefix("callback ")
        block = f"subprocess.call([{program!r}])"
        project.write("callback_plugins/blocks.py", CALLBACK.format(method=method, block=block))
    return (tasks, more), pidfile


WHERE = [
    "inventory script",
    "vault password client",
    "play-level lookup",
    "vars plugin",
    "cache plugin",
    "strategy plugin",
    "meta: reset_connection",
    "callback v2_playbook_on_start",
    "callback v2_runner_on_start",
    "callback v2_runner_on_ok",
]


@pytest.mark.parametrize("where", WHERE)
def test_cancel_ends_a_run_that_blocks_in(project, where):
    (tasks, more), pidfile = blocked(project, where)
    run = project.start(tasks, **more)
    wait_for(lambda: (pidfile.exists() and pidfile.read_text().strip()) or run._result is not None)
    assert run._result is None, run.wait().stdout
    run.cancel()
    result = run.wait(SOON)
    assert result.status is forkless.Status.CANCELED
    assert "left behind" not in result.sentence
    wait_for(lambda: not alive(pidfile))


@pytest.mark.parametrize(
    "where", [pytest.param(where, marks=[pytest.mark.matrix_ends] * (where == WHERE[0])) for where in WHERE]
)
def test_its_time_limit_ends_a_run_that_blocks_in(project, where):
    (tasks, more), pidfile = blocked(project, where)
    for limit in (1, 5, 25, 125):
        result = project.start(tasks, timeout=limit, **more).wait(limit + SOON)
        assert result.status is forkless.Status.TIMEOUT, result.stdout
        wait_for(lambda: not alive(pidfile))
        if pidfile.exists():
            break  # otherwise the machine was too slow to come that far in time
    assert pidfile.exists()


INVENTORY = """
from ansible.plugins.inventory import BaseInventoryPlugin
class InventoryModule(BaseInventoryPlugin):
    NAME = 'blocks'
    def verify_file(self, path): return True
    def parse(self, inventory, loader, path, cache=True): pass
"""
# What blocks is the import of the file, which the run's own thread does.
WHILE_IMPORTED = {
    "vars": "vars_plugins/blocks.py",
    "callback": "callback_plugins/blocks.py",
    "inventory": "inventory_plugins/blocks.py",
    "strategy": "strategy_plugins/blocks.py",
    "strategy of a collection": "collections/ansible_collections/t/imports/plugins/strategy/blocks.py",
}


@pytest.mark.parametrize("kind", WHILE_IMPORTED)
def test_a_plugin_that_blocks_while_the_runs_own_thread_imports_it_stops_no_other_run_and_is_ended(
    project, projects, kind
):
    program, pidfile = blocking_program(project)
    plugin = {
        "vars": VARS.format(program="true"),
        "callback": CALLBACK.format(method="v2_playbook_on_start", block="pass"),
        "inventory": INVENTORY,
        "strategy": STRATEGY.format(program="true"),
        "strategy of a collection": STRATEGY.format(program="true"),
    }[kind]
    project.write(WHILE_IMPORTED[kind], plugin + f"\nimport subprocess\nsubprocess.call([{program!r}])\n")
    more = {"head": "strategy: blocks\n"} if kind == "strategy" else {}
    of_collection = {"head": "strategy: t.imports.blocks\n"} if kind == "strategy of a collection" else {}
    # The environment is one and the same for all runs, so that none waits for its turn.
    environ = {"ANSIBLE_INVENTORY_ENABLED": "blocks,ini"} if kind == "inventory" else {}
    environ |= {f"ANSIBLE_{kind.upper()}_PLUGINS": str(project.folder / f"{kind}_plugins")} if more or environ else {}
    run = project.start("- debug: {msg: hi}\n", limit="h1", env=environ, **more, **of_collection)
    try:
        wait_for(lambda: pidfile.exists() or run._result is not None)
        assert run._result is None, run.wait().stdout
        assert locks_held_by(own_thread_of(run)) == [], "other threads would wait for the one that is blocked"
        if kind != "inventory":  # every run with this setting imports it, and blocks
            # A project with collections of its own has a configuration of its own, and runs with different ones take turns.
            elsewhere = project if of_collection else projects("other")
            other = elsewhere.start("- debug: {msg: hi}\n", limit="h1", env=environ, name="other.yml")
            assert other.wait(SOON).rc == 0
            assert run._result is None, run.wait().stdout
    finally:
        run.cancel()
    assert run.wait(SOON).status is forkless.Status.CANCELED
    wait_for(lambda: not alive(pidfile))


def test_a_callback_that_sleeps_is_woken_by_a_cancel(project):
    flag = project.folder / "asleep"
    block = f"__import__('os').mkdir({str(flag)!r}); time.sleep({LONG})"
    project.write("callback_plugins/blocks.py", CALLBACK.format(method="v2_playbook_on_start", block=block))
    run = project.start("- debug: {msg: hi}\n", limit="h1")
    wait_for(flag.exists)
    run.cancel()
    assert run.wait(SOON).status is forkless.Status.CANCELED


@pytest.mark.matrix_ends
@pytest.mark.parametrize("method", ["v2_playbook_on_start", "v2_runner_item_on_ok"])
def test_a_loop_in_a_callback_that_never_ends_is_ended_by_a_cancel(project, method):
    """On the run's own thread, and on the one that reads results."""
    flag = project.folder / "begun"
    block = f"__import__('os').mkdir({str(flag)!r})\n        while True: pass"
    project.write("callback_plugins/blocks.py", CALLBACK.format(method=method, block=block))
    run = project.start("- debug: {msg: hi}\n  loop: [1]\n", limit="h1")
    wait_for(flag.exists)
    run.cancel()
    assert run.wait(SOON).status is forkless.Status.CANCELED


# Blocked in C, where no exception is seen, until a file is there; then it starts what it must not. Before that it writes down which class
# makes workers in the ansible-core that it is in.
IN_C = """ctypes = __import__('ctypes'); os = __import__('os'); nap = ctypes.CDLL(None).usleep
        strategy = __import__('ansible.plugins.strategy', fromlist=['WorkerProcess'])
        os.mkdir({flag!r})
        while True:
            try:
                while not os.path.exists({until!r}):
                    nap(20_000)
                with open({until!r} + '.seen', 'w') as seen:
                    seen.write(strategy.WorkerProcess.__module__)
                break
            except BaseException:
                continue"""


def stuck_in_c(project, method="v2_playbook_on_start"):
    flag, until = project.folder / "begun", project.folder / "go"
    block = IN_C.format(flag=str(flag), until=str(until))
    project.write("callback_plugins/blocks.py", CALLBACK.format(method=method, block=block))
    return flag, until


@pytest.mark.matrix_ends
def test_a_run_that_cannot_be_ended_is_left_behind_and_named_and_holds_nothing(projects, monkeypatch):
    """The gate, the limit of runs and the seams are free for others; when it comes back, it ends without a trace."""
    monkeypatch.setattr(run_thread, "_PATIENCE", 2.0)
    stuck, other = projects("stuck"), projects("other")
    flag, until = stuck_in_c(stuck)
    other.write("ansible.cfg", "[defaults]\nforks=3\n")  # another configuration: it needs the gate to itself
    before = set(threading.enumerate())
    try:
        with forkless.limit(1):
            run = stuck.start(f"- file: {{path: '{stuck.folder}/never', state: touch}}\n", limit="h1")
            wait_for(flag.exists)
            queued = other.start("- debug: {msg: hi}\n")
            run.cancel()
            result = run.wait(SOON)
            assert result.status is forkless.Status.CANCELED
            assert "left behind" in result.sentence
            assert "blocks.py" in result.sentence
            assert [e.event for e in result.events][-1] == "run_stuck"
            assert "blocks.py" in result.events[-1].event_data["stack"]
            assert queued.wait(SOON).rc == 0
        again = projects("again").run("- debug: {msg: hi}\n")  # the configuration of the one that is stuck
        assert again.rc == 0, again.stdout
        assert engine._config_gate._active_runs == 0
    finally:
        until.touch()
    wait_for(lambda: set(threading.enumerate()) <= before)
    # Its ansible-core was set aside with the seams in it: without them it would go on by fork, exit and signals of the program's own.
    assert (stuck.folder / "go.seen").read_text().startswith("forkless.")
    assert not (stuck.folder / "never").exists()
    assert run.status is forkless.Status.CANCELED
    assert len(run.wait().events) == len(result.events)
    assert other.run("- debug: {msg: hi}\n").rc == 0


def test_a_run_that_comes_back_while_another_goes_on_does_not_disturb_it(project, projects, monkeypatch):
    monkeypatch.setattr(run_thread, "_PATIENCE", 2.0)
    stuck = projects("stuck")
    flag, until = stuck_in_c(stuck)
    gate = project.folder / "gate"
    before = set(threading.enumerate())
    try:
        run = stuck.start("- debug: {msg: hi}\n", limit="h1")
        wait_for(flag.exists)
        beside = project.start(f"- wait_for: {{path: {gate}, timeout: {LONG}}}\n- debug: {{msg: hi}}\n")
        run.cancel()
        assert "left behind" in run.wait(SOON).sentence
        until.touch()
        wait_for(
            lambda: not any(one.name.endswith("-own") and run.ident[:8] in one.name for one in threading.enumerate())
        )
        # It left by the way that a cancelled run leaves: an error that nobody expected would turn tracebacks on for everyone.
        enabled = getattr(sys.modules.get("ansible.module_utils._internal._traceback"), "_is_traceback_enabled", None)
        assert getattr(enabled, "__name__", "") != "<lambda>"
        gate.touch()
        assert beside.wait(SOON).rc == 0
    finally:
        until.touch()
        gate.touch()
    wait_for(lambda: set(threading.enumerate()) <= before)


PROGRAM = """
import sys, forkless, os, time
run = forkless.start({playbook!r}, inventory={inventory!r}, cwd={cwd!r}, engine="threads")
while not os.path.exists({pidfile!r}):
    time.sleep(0.02)
print("ends", flush=True)
"""


def test_the_end_of_the_program_ends_the_children_of_a_run_that_it_forgot(project):
    (tasks, more), pidfile = blocked(project, "inventory script")
    spec = project.spec(tasks, **more)
    text = PROGRAM.format(**{**spec, "pidfile": str(pidfile)})
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=SOON, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    wait_for(lambda: not alive(pidfile))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT], ids=lambda number: number.name)
@pytest.mark.parametrize("where", ["inventory script", "task"])
def test_signals_that_end_the_command_end_its_children_too(project, number, where):
    if where == "task":
        program, pidfile = blocking_program(project)
        tasks, more = f"- command: {program}\n", {"limit": "h1"}
    else:
        (tasks, more), pidfile = blocked(project, where)
    spec = project.spec(tasks, **more)
    # One host: two would write the file with the number beside each other.
    line = [sys.executable, "-m", "forkless", "playbook", "-l", "h1", "-i", spec["inventory"], spec["playbook"]]
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=project.folder, start_new_session=True
    )
    wait_for(lambda: pidfile.exists() and pidfile.read_text().strip())
    os.kill(process.pid, number)
    process.communicate(timeout=SOON)
    assert process.returncode == -number
    wait_for(lambda: not alive(pidfile))


def test_sigterm_ends_the_command_while_its_main_thread_is_blocked_in_c(project):
    """Where no handler in Python is called: as a program ends that has none."""
    pidfile = project.folder / "pid"
    # Blocked with the interpreter's lock released, in one call that does not return when a signal comes.
    block = (
        f"ctypes = __import__('ctypes'); p = subprocess.Popen(['sleep', '{LONG}']); open({str(pidfile)!r}, 'w').write(str(p.pid)); "
        "libc = ctypes.CDLL(None); m = ctypes.create_string_buffer(64); libc.pthread_mutex_init(m, None); "
        "libc.pthread_mutex_lock(m); libc.pthread_mutex_lock(m)"
    )
    project.write("callback_plugins/blocks.py", CALLBACK.format(method="v2_playbook_on_start", block=block))
    spec = project.spec("- debug: {msg: hi}\n")
    line = [sys.executable, "-m", "forkless", "playbook", "-i", spec["inventory"], spec["playbook"]]
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=project.folder, start_new_session=True
    )
    wait_for(lambda: pidfile.exists() and pidfile.read_text())
    os.kill(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM
    wait_for(lambda: not alive(pidfile))
