# SPDX-License-Identifier: GPL-3.0-or-later
"""What plugins import, wherever and however they do, is the stdlib as their worker sees it; and an import that blocks blocks nobody else."""

from __future__ import annotations

import _thread
import importlib.metadata
import io
import os
import pathlib
import signal
import sys
import textwrap
import threading
import time
import types
import zlib

import pytest

from engines_support import locks_held_by
from forkless.core.events import Status

pytestmark = [pytest.mark.spawns, pytest.mark.interrupts]
# Far above what any of it takes, far below what the blocked work would take.
LONG = 300
SOON = 150


def wait_for(condition):
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("imports") / "project"


@pytest.fixture
def project(folder, projects):
    made = projects(folder)
    (folder / "collections").mkdir(exist_ok=True)
    return made


ACTION = """
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        return {"msg": str(act(task_vars["inventory_hostname"]))}
"""
PLACES = {
    "collection": ("collections/ansible_collections/t/imports/plugins/action/acts.py", "- t.imports.acts:\n"),
    "project": ("action_plugins/acts.py", "- acts:\n"),
}


@pytest.fixture(params=PLACES)
def play(request, project):
    """Writes an action, of a collection or of the project, that returns what its function `act(host)` does; returns the task."""

    def write(text: str) -> str:
        path, task = PLACES[request.param]
        project.write(path, textwrap.dedent(text) + ACTION)
        return task

    return write


def messages(result):
    assert result.rc == 0, result.stdout
    return {e.event_data["host"]: e.event_data["res"]["msg"] for e in result.events if e.event == "runner_on_ok"}


WAYS = {
    "import": "import os",
    "import as": "import os as o; os = o",
    "of a submodule": "import os.path",
    "from": "from os import environ; import types; os = types.SimpleNamespace(environ=environ)",
    "importlib": "import importlib; os = importlib.import_module('os')",
    "from importlib": "from importlib import import_module; os = import_module('os')",
    "__import__": "os = __import__('os')",
    "builtins": "import builtins; os = builtins.__import__('os')",
    "sys.modules": "import sys; os = sys.modules['os']",
    "exec": "space = {}; exec('import os', space); os = space['os']",
}


@pytest.mark.parametrize("way", WAYS)
def test_the_environment_is_the_workers_own_however_os_is_imported(project, play, way):
    task = play(f"""
        def act(host):
            {WAYS[way]}
            before = os.environ.get("FORKLESS_TEST_HOST")
            os.environ["FORKLESS_TEST_HOST"] = host
            return (before, os.environ["FORKLESS_TEST_HOST"])
    """)
    found = messages(project.run(task * 2, forks=6))
    assert found == {host: str((None, host)) for host in found}
    assert len(found) == 6
    assert "FORKLESS_TEST_HOST" not in os.environ


def test_a_stream_that_a_function_replaces_is_the_workers_own(project, play):
    task = play("""
        def act(host):
            import io, sys
            before, sys.stdout = sys.stdout, io.StringIO()
            print(host)
            said, sys.stdout = sys.stdout.getvalue(), before
            sys.stdout = io.StringIO()  # and this one stays
            return said.strip()
    """)
    before = sys.stdout, sys.stderr
    found = messages(project.run(task, forks=6))
    assert found == {host: host for host in found}
    assert (sys.stdout, sys.stderr) == before


def test_an_alarm_that_a_function_sets_rings_in_its_worker(project, play):
    """The default action of the real one ends the program."""
    task = play("""
        def act(host):
            import signal, time
            class Late(Exception):
                pass
            def ring(number, frame):
                raise Late(host)
            signal.signal(signal.SIGALRM, ring)
            assert signal.setitimer(signal.ITIMER_REAL, 250) == (0.0, 0.0)
            assert 200 < signal.setitimer(signal.ITIMER_REAL, 0.2)[0] <= 250
            try:
                time.sleep(300)
            except Late as late:
                return "rung for %s" % late
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    """)
    found = messages(project.run(task, forks=6))
    assert found == {host: f"rung for {host}" for host in found}


def test_an_alarm_that_was_caught_rings_no_more(project, play):
    task = play("""
        def act(host):
            import signal, threading, time
            def ring(number, frame):
                raise TimeoutError(host)
            signal.signal(signal.SIGALRM, ring)
            found = []
            for wait in (lambda: time.sleep(300), lambda: [time.monotonic() for _ in iter(int, 1)]):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.05)
                    wait()
                except TimeoutError:
                    time.sleep(0.01)
                    thread = threading.Thread(target=found.append, args=(host,))
                    thread.start()
                    thread.join()
            return " ".join(found)
    """)
    found = messages(project.run(task, forks=6))
    assert found == {host: f"{host} {host}" for host in found}


@pytest.fixture
def sent(monkeypatch):
    """The signals that really are sent while a run is under way, in place of sending them: they would hit the test."""
    found = []
    names = ("kill", "killpg", "abort")
    for module, name in (*((os, name) for name in names), (signal, "raise_signal"), (signal, "pthread_kill")):
        monkeypatch.setattr(module, name, lambda *args, name=name: found.append((name, *args)))
    return found


def test_a_signal_that_a_plugin_sends_to_its_own_process_calls_its_own_handler(project, play, sent):
    """The process is the program, which has no such handler and would end."""
    task = play("""
        def act(host):
            import os, signal, threading
            from os import kill
            seen, number = [], signal.SIGUSR2
            before = signal.signal(number, lambda number, frame: seen.append(number))
            assert callable(signal.getsignal(number))
            for step in (
                lambda: os.kill(os.getpid(), number),
                lambda: kill(0, number),
                lambda: os.killpg(os.getpgrp(), number),
                lambda: signal.raise_signal(number),
                lambda: signal.pthread_kill(threading.get_ident(), number),
                lambda: os.kill(os.getpid(), signal.SIGCHLD),
            ):
                step()
            signal.signal(number, signal.SIG_IGN)
            os.kill(os.getpid(), number)
            assert signal.signal(number, before) == signal.SIG_IGN
            return "%s %s" % (host, len(seen))
    """)
    found = messages(project.run(task, forks=6))
    assert found == {host: f"{host} 5" for host in found}
    assert sent == []


@pytest.mark.parametrize(
    "act", ["os.kill(os.getpid(), signal.SIGKILL)", "signal.raise_signal(signal.SIGUSR1)", "os.abort()"]
)
def test_a_signal_that_ends_the_process_of_a_plugin_ends_its_worker_and_not_the_program(project, play, sent, act):
    task = play(f"""
        def act(host):
            import os, signal
            {act}
            return "went on"
    """)
    result = project.run(task, limit="h1", timeout=SOON)
    assert (result.status, result.sentence) == (Status.FAILED, "A worker was found in a dead state")
    assert sent == []


@pytest.mark.parametrize(
    "act",
    ["os.kill(os.getpid(), signal.SIGKILL)", "os.abort()", "os._exit(3)", "signal.pthread_kill(own, signal.SIGTERM)"],
)
def test_the_same_on_a_thread_that_the_plugin_has_started(project, play, sent, act):
    task = play(f"""
        def act(host):
            import os, signal, threading, time
            own = threading.get_ident()
            def end():
                {act}
            threading.Thread(target=end).start()
            for _ in range(24000):
                time.sleep(0.01)
            return "went on"
    """)
    result = project.run(task, limit="h1", timeout=SOON)
    assert (result.status, result.sentence) == (Status.FAILED, "A worker was found in a dead state")
    assert sent == []


@pytest.mark.parametrize("on_thread", [False, True])
@pytest.mark.parametrize(
    ("act", "code"),
    [
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("os.abort()", -6),
        ("signal.raise_signal(signal.SIGTERM)", -15),
        ("_thread.interrupt_main(signal.SIGTERM)", -15),
        ("_thread.interrupt_main()", -2),
    ],
)
def test_a_callback_that_ends_its_process_ends_its_run_and_not_the_program(
    project, sent, monkeypatch, act, code, on_thread
):
    """As the play's own process would end; also on a thread that the callback has started."""
    monkeypatch.setattr(os, "_exit", lambda *args: sent.append(("_exit", *args)))
    monkeypatch.setattr(_thread, "interrupt_main", lambda *args: sent.append(("interrupt_main", *args)))
    # A name for each case: two files of one name, size and second are one for Python, which would load the code of the case before.
    name = f"callback_plugins/ends_{zlib.crc32(f'{act} {on_thread}'.encode())}.py"
    project.write(
        name,
        f"""
        import _thread, os, signal, threading, time
        from ansible.plugins.callback import CallbackBase
        class CallbackModule(CallbackBase):
            CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "ends"
            def v2_playbook_on_task_start(self, task, is_conditional):
                if {on_thread}:
                    threading.Thread(target=self.act).start()
                    for _ in range(24000):
                        time.sleep(0.01)
                else:
                    self.act()
            def act(self):
                {act}
        """,
    )
    try:
        result = project.run("- debug: {msg: went on}", limit="h1", timeout=SOON)
    finally:
        (project.folder / name).unlink()
    # ansible-core has a status of its own for Ctrl-C, which reaches it if the thread is its own.
    caught = code == -2 and not on_thread
    assert ("User interrupted execution" in result.stdout, result.rc) == (caught, result.rc if caught else code)
    assert (str(result.status), [one for one in result.events if one.event == "runner_on_ok"]) == ("failed", [])
    assert sent == []


def test_a_handler_that_a_callback_sets_is_called_and_is_that_of_later_workers(project, play, sent):
    project.write(
        "callback_plugins/handles.py",
        """
        import os, signal
        from ansible.plugins.callback import CallbackBase
        class CallbackModule(CallbackBase):
            CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "handles"
            def v2_playbook_on_play_start(self, play):
                seen = []
                assert signal.signal(signal.SIGUSR2, lambda *_: seen.append(1)) == signal.SIG_DFL
                os.kill(os.getpid(), signal.SIGUSR2)
                assert seen == [1]
        """,
    )
    task = play("""
        def act(host):
            import os, signal
            os.kill(os.getpid(), signal.SIGUSR2)
            return "%s %s" % (host, callable(signal.getsignal(signal.SIGUSR2)))
    """)
    try:
        found = messages(project.run(task, limit="h1", timeout=SOON))
    finally:
        (project.folder / "callback_plugins/handles.py").unlink()
    assert found == {"h1": "h1 True"}
    assert sent == []


@pytest.mark.parametrize("how", ["_thread.interrupt_main()", "interrupt_main()"])
def test_interrupting_the_main_thread_interrupts_the_workers_own(project, play, sent, monkeypatch, how):
    monkeypatch.setattr(_thread, "interrupt_main", lambda *args: sent.append(("interrupt_main", *args)))
    task = play(f"""
        def act(host):
            import _thread
            from _thread import interrupt_main
            try:
                {how}
            except KeyboardInterrupt:
                return host
    """)
    found = messages(project.run(task, limit="h1"))
    assert found == {"h1": "h1"}
    assert sent == []


@pytest.mark.parametrize("on_thread", [False, True])
@pytest.mark.parametrize("act", ["os.kill(os.getpid(), signal.SIGTERM)", "os.kill(0, signal.SIGINT)", "os.abort()"])
def test_a_module_in_this_process_that_signals_itself_has_failed_and_the_run_goes_on(project, sent, act, on_thread):
    if on_thread:
        act = f"threading.Thread(target=lambda: {act}).start(); [time.sleep(0.01) for _ in range(24000)]"
    lines = (
        "#!/usr/bin/python",
        "import os, signal, threading, time",
        "from ansible.module_utils.basic import AnsibleModule",
        f"module = AnsibleModule({{}}); {act}; module.exit_json()",
    )
    project.write("library/ends.py", "\n".join(lines) + "\n")
    tasks = "- ends:\n  ignore_errors: true\n- debug: {msg: went on}\n"
    result = project.run(tasks, modules="in-process", limit="h1", timeout=SOON)
    told = [(one.event, one.task) for one in result.events if one.event in ("runner_on_ok", "runner_on_failed")]
    assert told == [("runner_on_failed", "ends"), ("runner_on_ok", "debug")], result.stdout
    assert sent == []


STARTS = {
    "subprocess.run": "import subprocess; subprocess.run(command, shell=True)",
    "subprocess.getoutput": "import subprocess; subprocess.getoutput(command)",
    "from subprocess": "from subprocess import check_output; check_output(command, shell=True)",
    "importlib": "import importlib; importlib.import_module('subprocess').call(command, shell=True)",
    "os.system": "import os; os.system(command)",
    "os.popen": "import os; os.popen(command).read()",
}


@pytest.mark.parametrize("way", STARTS)
def test_a_child_that_a_function_starts_ends_with_a_cancelled_run(project, play, way, tmp_path):
    pidfile = tmp_path / "pid"
    task = play(f"""
        def act(host):
            command = "echo $$ > {pidfile}.new; mv {pidfile}.new {pidfile}; sleep {LONG}; true"
            {STARTS[way]}
    """)
    run = project.start(task, limit="h1")
    wait_for(lambda: pidfile.exists() and pidfile.read_text().strip())
    run.cancel()
    assert run.wait().status is Status.CANCELED
    pid = int(pidfile.read_text())
    wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists())


def test_a_library_that_is_imported_is_the_real_one(project, play):
    """Only the modules that have a view are replaced."""
    task = play("""
        import json, os.path, logging.handlers, importlib.util, collections.abc
        from os.path import join
        from logging import handlers
        def act(host):
            import concurrent.futures
            return json.dumps([join("a", "b"), handlers.SysLogHandler.__name__, importlib.util.find_spec("json").name])
    """)
    assert set(messages(project.run(task, forks=6)).values()) == {'["a/b", "SysLogHandler", "json"]'}


LOOKUP = """
from ansible.plugins.lookup import LookupBase
class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        return ["looked up"]
"""
LOOKUPS = {
    "collection": ("collections/ansible_collections/t/imports/plugins/lookup/waits.py", "t.imports.waits"),
    "project": ("lookup_plugins/waits.py", "waits"),
}


@pytest.fixture(params=LOOKUPS)
def lookup(request, project):
    """Writes a lookup, which only workers import, with this text before its class; returns a task that uses it."""

    def write(text: str) -> str:
        path, name = LOOKUPS[request.param]
        project.write(path, textwrap.dedent(text) + LOOKUP)
        return f"- debug: {{msg: \"{{{{ lookup('{name}') }}}}\"}}\n"

    return write


# -- imports that block ---------------------------------------------------------------------------------------------

BLOCKS = """
import forkless_test_gate
STATE = []
forkless_test_gate.pass_through()
"""


@pytest.fixture
def gate(monkeypatch):
    """A module that blocks the first thread that calls it, in C, where no exception reaches it."""
    module = types.ModuleType("forkless_test_gate")
    module.entered, module.opened = threading.Event(), threading.Event()
    module.held = None
    first = threading.Lock()

    def pass_through():
        if first.acquire(blocking=False):
            module.held = locks_held_by(threading.get_ident())
            module.entered.set()
            module.opened.wait()

    module.pass_through = pass_through
    monkeypatch.setitem(sys.modules, "forkless_test_gate", module)
    yield module
    module.opened.set()


def test_a_plugin_that_blocks_while_it_is_imported_blocks_no_other_run(project, lookup, gate):
    """Neither one that imports other plugins nor one that imports the same."""
    task = lookup(BLOCKS)
    blocked = project.start(task, limit="h1", name="blocked.yml")
    try:
        assert gate.entered.wait(SOON)
        assert gate.held == [], "other threads would wait for the one that is blocked"
        result = project.run(
            task + "- debug: {msg: \"{{ 'x' | upper }} {{ lookup('env', 'HOME') }}\"}\n", limit="h2,h3"
        )
        assert result.rc == 0, result.stdout
        assert blocked.status is Status.RUNNING
    finally:
        gate.opened.set()
    assert blocked.wait().rc == 0


def test_a_plugin_that_blocks_while_it_is_imported_blocks_no_other_worker_of_its_run(project, lookup, gate):
    task = lookup(BLOCKS)
    run = project.start(task, forks=6, head="strategy: free")
    try:
        assert gate.entered.wait(SOON)
        assert gate.held == [], "other threads would wait for the one that is blocked"
        others = set()
        for event in run.events():
            if event.event == "runner_on_ok":
                others.add(event.event_data["host"])
            if len(others) == 5:
                break
        assert not gate.opened.is_set()
    finally:
        gate.opened.set()
    assert run.wait().rc == 0


def test_a_plugin_that_sleeps_while_it_is_imported_is_cancelled_at_once(project, lookup, tmp_path):
    begun = tmp_path / "begun"
    task = lookup(f"""
        import time, pathlib
        pathlib.Path({str(begun)!r}).mkdir()  # leaves no descriptor open, wherever the cancel interrupts it
        time.sleep({LONG})
    """)
    run = project.start(task, limit="h1")
    wait_for(begun.exists)
    run.cancel()
    start = time.monotonic()
    assert run.wait().status is Status.CANCELED
    assert time.monotonic() - start < LONG / 2


def test_two_threads_of_a_worker_execute_a_file_once(project):
    """As Python's own import: the second waits for the first, and one that waits for itself gets what there is."""
    base = "collections/ansible_collections/t/imports/plugins"
    project.write(f"{base}/module_utils/slow.py", "import time\nSEEN = []\ntime.sleep(0.1)\nDONE = object()\n")
    project.write(f"{base}/module_utils/circle_a.py", "SEEN = []\nfrom . import circle_b\nNAME = 'a'\n")
    project.write(
        f"{base}/module_utils/circle_b.py", "SEEN = []\nfrom . import circle_a\ndef name():\n    return circle_a.NAME\n"
    )
    project.write(
        f"{base}/action/acts.py",
        textwrap.dedent("""
        import threading
        def act(host):
            found = []
            def look():
                from ..module_utils.slow import DONE
                found.append(DONE)
            threads = [threading.Thread(target=look) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            from ..module_utils.circle_a import NAME
            from ..module_utils.circle_b import name
            return "%s %s %s" % (len(found), len(set(found)), name() == NAME)
        """)
        + ACTION,
    )  # fmt: skip
    assert set(messages(project.run("- t.imports.acts:\n", forks=3)).values()) == {"4 1 True"}


# -- direct execution, as network collections do it ------------------------------------------------------------------

DIRECT = """
import copy, io, json, sys
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        import importlib, sys
        module = importlib.import_module("ansible_collections.t.imports.plugins.modules.asks")
        from ansible.module_utils.basic import AnsibleModule as Real
        class Direct(Real):
            def _load_params(self):
                pass
            def _record_module_result(self, o):
                module._raw_result = o
        self._update_module_args("t.imports.asks", self._task.args, task_vars)
        Direct.params = copy.deepcopy(self._task.args)
        module.AnsibleModule = Direct
        before = sys.stdout, sys.stderr
        try:
            sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
            module.main()
        except SystemExit:
            pass
        finally:
            sys.stdout, sys.stderr = before
        return dict(module._raw_result)
"""


def direct_is_right() -> bool:
    return not importlib.metadata.version("ansible-core").startswith("2.18.")


@pytest.mark.matrix_ends
def test_direct_execution_is_off_where_results_are_printed(project):
    """Up to 2.18: the option by which network collections decide is false, whatever it was set to."""
    project.write(
        "action_plugins/option.py",
        """
        from ansible.plugins.action import ActionBase
        class ActionModule(ActionBase):
            def run(self, tmp=None, task_vars=None):
                return {"msg": str(self.get_connection_option("import_modules", default=True))}
        """,
    )
    assert set(messages(project.run("- option:\n", forks=6)).values()) == {str(direct_is_right())}


@pytest.mark.skipif(not direct_is_right(), reason="direct execution is off: see the test before")
@pytest.mark.matrix_ends
def test_a_module_that_an_action_imports_is_the_workers_own(project):
    """The arguments that the action sets on it, the connection that its module_utils remember, and the streams around it."""
    base = "collections/ansible_collections/t/imports/plugins"
    project.write(f"{base}/action/asks.py", DIRECT)
    project.write(
        f"{base}/module_utils/device.py",
        """
        _DEVICE_CONNECTION = None
        def get_connection(module):
            global _DEVICE_CONNECTION
            if not _DEVICE_CONNECTION:
                _DEVICE_CONNECTION = "connection to " + module.params["device"]
            return _DEVICE_CONNECTION
        """,
    )
    project.write(
        f"{base}/modules/asks.py",
        """
        from ansible.module_utils.basic import AnsibleModule
        from ansible_collections.t.imports.plugins.module_utils.device import get_connection
        def main():
            module = AnsibleModule(argument_spec={"device": {"type": "str"}})
            print("noise")
            module.exit_json(msg=get_connection(module))
        """,
    )
    before = sys.stdout, sys.stderr
    for _ in range(2):
        found = messages(project.run("- t.imports.asks: {device: '{{ inventory_hostname }}'}\n" * 3, forks=6))
        assert found == {host: f"connection to {host}" for host in found}
        assert len(found) == 6
    assert (sys.stdout, sys.stderr) == before
    assert not isinstance(sys.stdout, io.StringIO) or sys.stdout is before[0]
