# SPDX-License-Identifier: GPL-3.0-or-later
"""What `raw` and `script` print is seen while they run, on every connection, and what they return is what they return without."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types

import pytest

import forkless
import sshd_targets
from forkless.modules import live_command

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600)]

SCRIPT = "#!/bin/sh\necho script $1; id -un; echo trouble >&2\n"
VOLATILE = ("start", "end", "delta")


def run(folder, tasks, inventory, *, live=True, variables=None, **options):
    book = folder / "play.yml"
    book.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    (folder / "it.sh").write_text(SCRIPT)
    env = {"ANSIBLE_HOST_KEY_CHECKING": "true", "ANSIBLE_SSH_ARGS": "-o ControlMaster=no"}
    return forkless.start(
        str(book), inventory=inventory, extra_vars=variables or {}, live_output=live, timeout=240, env=env, **options
    )


def hosts(sshds, folder, connection):
    if connection == "local":
        return "web1,", {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    path = folder / "hosts"
    path.write_text(sshds.inventory(connection))
    return str(path), {}


@pytest.fixture
def open_folder():
    """One that the users of hosts may look into."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


def told(events):
    found = {}
    for event in events:
        if event.event == "runner_on_output":
            about = event.event_data
            found.setdefault((event.task, about["stream"]), []).extend(about["text"].split("\n"))
    return {key: [line for line in lines if not line.endswith("closed.")] for key, lines in found.items()}


def results(events):
    ends = [one for one in events if one.event in ("runner_on_ok", "runner_on_failed")]
    return [{key: value for key, value in one.event_data["res"].items() if key not in VOLATILE} for one in ends]


@pytest.mark.parametrize("connection", ["local", "ssh", "forkless.core.ssh"])
def test_raw_and_script_are_heard_while_they_run_and_return_what_they_always_do(
    sshds, tmp_path, open_folder, connection
):
    inventory, variables = hosts(sshds, tmp_path, connection)
    first = "web1" if connection == "local" else sshds.hosts[0].name
    gate = open_folder / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    tasks = [
        {"name": "Raw", "raw": f"echo first; {wait}; printf last"},
        {"name": "Error", "raw": "echo trouble >&2; exit 3", "ignore_errors": True},
        {"name": "Script", "script": "it.sh word", "args": {"creates": "/no/such/file"}},
        {"name": "Become", "raw": "id -un; echo trouble >&2", "become": True},
        {"name": "Become script", "script": "it.sh word", "become": True},
    ]
    seen = []
    running = run(tmp_path, tasks, inventory, variables=variables, limit=first)
    for event in running.events():
        seen.append(event)
        if event.event == "runner_on_output" and event.event_data["text"] == "first":
            gate.touch()  # without its output the task would wait for this until the run's time is over
    assert running.wait().rc == 0, running.wait().stdout
    silent = run(tmp_path, tasks, inventory, variables=variables, live=False, limit=first).wait()
    assert results(seen) == results(silent.events)
    lines = told(seen)
    trouble = (
        "stdout" if connection != "local" else "stderr"
    )  # ssh -tt gives the command a terminal, which has one stream
    assert lines.pop(("Raw", "stdout")) == ["first", "last"]
    assert lines.pop(("Error", trouble)) == ["trouble"]
    user = results(seen)[2]["stdout_lines"][1]
    assert sorted(sum((lines.pop(("Script", name), []) for name in ("stdout", "stderr")), [])) == sorted(
        ["script word", "trouble", user]
    )
    for task in ("Become", "Become script"):
        said = sum((lines.pop((task, name), []) for name in ("stdout", "stderr")), [])
        assert [one for one in said if "BECOME" in one] == []
        assert {"root", "trouble"} <= set(said)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a user who may use sudo with a password")
@pytest.mark.parametrize("connection", ["ssh", "forkless.core.ssh"])
@pytest.mark.parametrize("tty", [True, False])
def test_neither_the_prompt_nor_the_password_of_become_is_told(sshds, tmp_path, connection, tty):
    inventory, variables = hosts(sshds, tmp_path, connection)
    variables |= {"ansible_become_password": sshd_targets.PASSWORD, "ansible_ssh_use_tty": tty}
    tasks = [{"name": "Ask", "raw": f"echo mine >&2; echo '{sshd_targets.PASSWORD}'; id -un", "become": True}]
    done = run(
        tmp_path,
        [{**tasks[0], "become_user": "nobody"}],
        inventory,
        variables=variables,
        limit=sshds.hosts[0].name,
    ).wait()
    assert done.rc == 0, done.stdout
    said = sum(told(done.events).values(), [])
    assert {"mine", "********", "nobody"} <= set(said)
    assert not [one for one in said if "assword" in one or "BECOME" in one or sshd_targets.PASSWORD in one]


def test_tasks_with_no_log_say_nothing(tmp_path):
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    tasks = [
        {"raw": "echo hidden", "no_log": True},
        {"block": [{"script": "it.sh hidden"}], "no_log": True},
        {"raw": "echo {{ item }}", "loop": ["hidden", "seen"], "no_log": "{{ item == 'hidden' }}"},
    ]
    done = run(tmp_path, tasks, "web1,", variables=variables).wait()
    assert done.rc == 0, done.stdout
    assert told(done.events) == {("raw", "stdout"): ["seen"]}


# -- the parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_what_stands_before_the_success_of_become_is_left_out_wherever_it_is_divided(size):
    become = types.SimpleNamespace(success="BECOME-SUCCESS-x", prompt="key=x password:", expect_prompt=lambda: True)
    heard = {b"o": b"", b"e": b""}
    before = live_command.AfterBecome(become)
    parts = [(b"e", b"lecture\nkey=x password:mine"), (b"o", b"echoed\r\nBECOME-SUCCESS-x\r\nfirst\n"), (b"e", b"last")]
    for stream, data in parts:
        for at in range(0, len(data), size):
            for which, part in before.feed(stream, data[at : at + size]):
                heard[which] += part
    assert heard == {b"o": b"first\n", b"e": b"minelast"}


def test_a_tapped_program_is_read_and_written_to_as_by_the_stdlib(tmp_path):
    data = bytes(range(256)) * 2000
    command = "cat; echo end >&2; head -c 300000 /dev/zero >&2"
    heard = []
    listener = types.SimpleNamespace(write=lambda stream, data: heard.append((stream, data)), end=lambda stream: None)
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, shell=True, **streams) as process:
        live_command.tap(process, listener, [])
        ours = live_command.communicate(process, data)
    theirs = subprocess.run(command, shell=True, input=data, capture_output=True, check=True)
    assert ours == (theirs.stdout, theirs.stderr)
    assert b"".join(part for stream, part in heard if stream == b"o") == data
    assert process.returncode == 0
    with subprocess.Popen("exec <&-; echo x", shell=True, **streams) as process:  # nobody reads its input
        live_command.tap(process, listener, [])
        assert live_command.communicate(process, data) == (b"x\n", b"")


OTHER_CONNECTION = """
DOCUMENTATION = '''
name: other
short_description: reads its program as text, by a time limit
description: as connections to containers do
extends_documentation_fragment: [connection_pipelining]
'''
import subprocess
from ansible.plugins.connection.local import Connection as Local

class Connection(Local):
    transport = 'other'

    def exec_command(self, cmd, in_data=None, sudoable=True):
        try:
            done = subprocess.run(['sh', '-c', cmd], capture_output=True, text=True, timeout=1 if 'sleep' in cmd else 200)
        except subprocess.TimeoutExpired:
            return 124, b'', b'too long'
        return done.returncode, done.stdout.encode(), done.stderr.encode()
"""


def test_programs_of_other_connections_are_read_as_these_read_them(tmp_path):
    (tmp_path / "connection_plugins").mkdir()
    (tmp_path / "connection_plugins" / "other.py").write_text(OTHER_CONNECTION)
    tasks = [{"raw": "echo as text"}, {"raw": "exec sleep 600", "failed_when": False}]
    result = run(tmp_path, tasks, "web1,", variables={"ansible_connection": "other"}).wait()
    assert result.ok, result.stdout
    assert [(one["rc"], one["stdout"], one["stderr"]) for one in results(result.events)] == [
        (0, "as text\n", ""), (124, "", "too long")
    ]  # fmt: skip
