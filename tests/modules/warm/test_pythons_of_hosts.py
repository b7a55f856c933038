# SPDX-License-Identifier: GPL-3.0-or-later
"""Warm modules under every Python that a host may have: ansible-core supports older ones there than here."""

from __future__ import annotations

import base64
import contextlib
import glob
import importlib.metadata
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time

import pytest

import forkless
from forkless.core import versions
from forkless.modules.warm import bytecode, channel, transports
from forkless.modules.warm import interpreter as warm_interpreter
from forkless.modules.warm.interpreter import NEVER_INTERRUPTED, WarmInterpreter
from forkless.modules.warm.program import BOOT, server_program

pytestmark = pytest.mark.spawns

OLDEST = {"2.18": (3, 8), "2.19": (3, 8), "2.20": (3, 9), "2.21": (3, 9), "2.22": (3, 9)}
MODULE = """#!/usr/bin/python
import gc, os, pathlib, sys
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common import respawn
AnsibleModule({}).exit_json(
    parent=os.getppid(), python=list(sys.version_info[:2]), archive=pathlib.Path(respawn.__file__).parents[3].is_file(),
    one_place=respawn.respawn_module.__code__.co_filename == respawn.__file__ == respawn.__spec__.origin, collects=gc.isenabled(),
)
"""
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - mine:
    - copy: {content: "one\\n", dest: "{{ playbook_dir }}/made", mode: "0600"}
    - lineinfile: {path: "{{ playbook_dir }}/made", line: two}
    - command: cat made
      args: {chdir: "{{ playbook_dir }}"}
    - setup: {gather_subset: [min]}
    - mine:
"""


def interpreter(minor):
    """One that really starts: among pyenv's, beside our own, in PATH."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    homes = (f"{pyenv}/versions", os.path.dirname(sys.base_prefix))
    found = [path for home in homes for path in sorted(glob.glob(f"{home}/3.{minor}.*/bin/python"))]
    for path in filter(None, [*found, shutil.which(f"python3.{minor}")]):
        if not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode:
            return path
    return None


def supported():
    """The minors of Python that the installed ansible-core supports on hosts."""
    core = versions.minor_of(importlib.metadata.version("ansible-core"))
    newest = max(int(python.partition(".")[2]) for python, minor in versions.PAIRS if minor == core)
    return range(OLDEST[core][1], newest + 1)


@pytest.fixture(params=range(8, 16), ids=lambda minor: f"3.{minor}")
def old(request):
    core = versions.minor_of(importlib.metadata.version("ansible-core"))
    if request.param not in supported():
        pytest.skip(f"ansible-core {core} does not support this Python on hosts")
    path = interpreter(request.param)
    if path is None:
        pytest.skip(f"there is no Python 3.{request.param} here (pyenv install 3.{request.param})")
    return path


@pytest.mark.matrix_ends
def test_modules_run_warm(old, tmp_path):
    (tmp_path / "library").mkdir()
    (tmp_path / "library/mine.py").write_text(MODULE)
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "hosts").write_text(f"there ansible_connection=local ansible_python_interpreter={old}\n")
    result = forkless.run(playbook="play.yml", inventory="hosts", engine="threads", cwd=tmp_path)
    result.raise_for_failures()
    said = [one.event_data["res"] for one in result.events if one.event == "runner_on_ok"]
    first, _, _, cat, facts, last = said
    assert first == last, "another interpreter"
    assert first["archive"] and first["one_place"]
    assert first["collects"], "the server's collector is off, a module's is not"
    assert f"/3.{first['python'][1]}" in old or old.endswith(f"python3.{first['python'][1]}")
    assert cat["stdout"] == "one\ntwo"
    assert facts["ansible_facts"]["ansible_python"]["version"]["minor"] == first["python"][1]


def test_what_only_some_tasks_need_is_sent_before_them(old, tmp_path):
    """Live output and jobs are parts of the server that come when the first task needs them."""
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - command: echo told\n    - {command: echo job, async: 60, poll: 1}\n    - command: echo again\n"
    )
    # HOME need not be the home that ansible-core's async_status looks in.
    (tmp_path / "hosts").write_text(
        f"there ansible_connection=local ansible_python_interpreter={old} ansible_async_dir={tmp_path / 'jobs'}\n"
    )
    result = forkless.run(playbook="play.yml", inventory="hosts", engine="threads", cwd=tmp_path, live_output=True)
    result.raise_for_failures()
    said = [one.event_data["res"]["stdout"] for one in result.events if one.event == "runner_on_ok"]
    assert said == ["told", "job", "again"]
    told = [one.event_data for one in result.events if one.event == "runner_on_output"]
    assert {"told", "job", "again"} <= {line for one in told for line in str(one).replace("'", " ").split()}, told


@pytest.mark.matrix
@pytest.mark.parametrize("off", ["", "host-bytecode"], ids=["on", "switched off"])
def test_modules_run_with_bytecode_of_that_python_if_it_is_here_too(tmp_path, monkeypatch, off):
    here = (one for one in (12, 13, 14, 11, 10) if one != sys.version_info[1] and interpreter(one))
    minor = next(here, None)
    if minor is None:
        pytest.skip("there is no second Python here")
    path = interpreter(minor)
    monkeypatch.setattr(bytecode, "ENOUGH", 1)
    monkeypatch.setattr(bytecode, "COMPILER", bytecode.HostBytecode())
    monkeypatch.setattr(warm_interpreter, "COMPILER", bytecode.COMPILER)
    (tmp_path / f"python3.{minor}").symlink_to(path)
    monkeypatch.setattr(bytecode, "FOLDERS", (str(tmp_path),))
    (tmp_path / "hosts").write_text(f"there ansible_connection=local ansible_python_interpreter={path}\n")
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - ping:\n    - command: echo told\n"
    )
    monkeypatch.setenv("FORKLESS_DISABLE", off)
    result = forkless.run(playbook="play.yml", inventory="hosts", engine="threads", cwd=tmp_path)
    result.raise_for_failures()
    keys = {key.partition(":")[2] for _, key in bytecode.COMPILER._codes}
    wanted = {"ansible/module_utils/basic.py", "ansible/modules/ping.py", "ansible/modules/command.py"}
    assert keys & wanted == (set() if off else wanted)


CRASHES = """
import os, threading
from ansible.module_utils.basic import AnsibleModule
class GoneError(BaseException):
    pass
def fail():
    raise LookupError("on a thread")
if "ELSEWHERE" in os.environ:
    reading, writing = os.pipe()
    os.dup2(writing, 2)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
if "ELSEWHERE" in os.environ:
    print(os.read(reading, 65536).decode())
raise GoneError("the module's own")
"""
# The variables of tasks that crash, without pipelining and with it.
SURROUNDINGS = [{}, {"NO_COLOR": "1"}, {"ELSEWHERE": "1"}, {"TERM": "dumb"}, {"TERM": "dumb", "FORCE_COLOR": "1"}]


def on_a_terminal(command, **environ):
    """All that the command prints on a terminal."""
    upper, lower = pty.openpty()
    with open(upper, "rb", buffering=0) as screen:
        with open(lower, "wb", buffering=0) as terminal:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env={**os.environ, **environ}
            )
        said = b""
        with contextlib.suppress(OSError):  # Linux says EIO when nobody has the terminal open any more
            while piece := screen.read(65536):
                said += piece
        process.wait()
    return said.decode()


def last_lines(text):
    """The last lines of the tracebacks in it: the frames of a module and of a script are not the same."""
    return [line for line in text.splitlines() if re.search(r"(LookupError|GoneError)\S*: ", line)]


@pytest.mark.matrix
def test_where_stock_has_a_terminal_python_colours_tracebacks(tmp_path, monkeypatch):
    path = next((path for minor in reversed(supported()) if minor >= 13 and (path := interpreter(minor))), None)
    if path is None:
        pytest.skip("there is no Python 3.13 or newer for hosts here; older ones have no colours")
    for name in ("NO_COLOR", "FORCE_COLOR", "PYTHON_COLORS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(transports, "has_terminal", lambda connection: not connection.get_option("pipelining"))
    tasks = [{"crashes": None, "environment": more} for more in SURROUNDINGS]
    tasks.append({"crashes": None, "vars": {"ansible_pipelining": True}})
    play = [{"hosts": "all", "gather_facts": False, "ignore_errors": True, "tasks": tasks}]
    (tmp_path / "library").mkdir()
    (tmp_path / "library/crashes.py").write_text(f"#!/usr/bin/python\n{CRASHES}")
    (tmp_path / "play.yml").write_text(json.dumps(play))
    (tmp_path / "hosts").write_text(f"there ansible_connection=local ansible_python_interpreter={path}\n")
    result = forkless.run(playbook="play.yml", inventory="hosts", engine="threads", cwd=tmp_path)
    said = [one.event_data["res"] for one in result.events if one.event == "runner_on_failed"]
    assert len(said) == len(tasks), result.stdout
    script = CRASHES.replace("from ansible", "# from ansible")
    for more, one in zip(SURROUNDINGS, said, strict=False):
        assert last_lines(one["module_stdout"]) == last_lines(on_a_terminal([path, "-c", script], **more)), more
    assert "\x1b[" in said[0]["module_stdout"]
    assert "\x1b[" not in said[-1]["module_stderr"] and last_lines(said[-1]["module_stderr"])


def test_errands_are_done(old, tmp_path):
    interpreter = WarmInterpreter("there", program=server_program(ask_groups=False))
    line = channel.ProgramChannel(interpreter, [old, "-c", BOOT])
    line.begin(become=None, password=None, verdict=30, greeting=30)
    interpreter.attach(line)
    try:
        folder = f"{tmp_path}/above/folder/"
        lay = {"folder": folder, "make": True, "files": [(f"{folder}one", base64.b64encode(b"1").decode(), 0o700)]}
        interpreter.request({"lay": lay}, interrupt=NEVER_INTERRUPTED)
        assert (tmp_path / "above/folder/one").read_text() == "1"
        with pytest.raises(warm_interpreter.NotStartedError):
            interpreter.request({"lay": lay}, interrupt=NEVER_INTERRUPTED)
        assert interpreter.request({"expand": "~root"}, interrupt=NEVER_INTERRUPTED) == b"/root"
        interpreter.request({"remove": folder}, interrupt=NEVER_INTERRUPTED)
        assert not (tmp_path / "above/folder").exists()
    finally:
        interpreter.retire(until=time.monotonic() + 5.0)
