# SPDX-License-Identifier: GPL-3.0-or-later
"""Signals to the shim, and readers of its output that wait or go away: as stock, and no task outlives the command."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess

import pytest

from forkless.core import versions
from forkless.patching import seams
from shim_support import environ, environment, shim
from terminal import Terminal

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(300)]

# By the name of the action. The program of `shell` is ended by its interpreter as well, that of `raw` by the command alone.
LONG = "- hosts: one\n  gather_facts: false\n  tasks:\n    - ACTION: 'echo $$ > {{ out }}; exec sleep 1000'\n"

# Two hosts: the task of one runs, and that of the other is blocked in a lookup, where nothing reaches it.
BLOCKED = """\
- hosts: all
  gather_facts: false
  tasks:
    - raw: "{{ ('echo $$ > ' ~ out ~ '; exec sleep 1000') if inventory_hostname == 'one' else lookup('blocks', out) }}"
"""
BLOCKS = """\
# SPDX-License-Identifier: GPL-3.0-or-later
import ctypes
from ansible.plugins.lookup import LookupBase
class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        nap = ctypes.CDLL(None).usleep
        while True:  # in C no exception is seen, and one that comes in between is not heeded
            try:
                with open(terms[0] + "-blocks", "w"):
                    pass
                while True:
                    nap(20_000)
            except BaseException:
                pass
"""
# Without the second interrupt the command would wait this long for the lookup.
PATIENT = """\
import os
if "FORKLESS_SHIM_STOCK" in os.environ:
    from forkless.engines.threads import engine, run_thread
    from forkless.engines.threads.patches import strategy
    engine.GRACE = run_thread.GRACE = run_thread._PATIENCE = strategy.GRACE = 1000.0
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The shim, and the bin of an environment with forkless."""
    folder = tmp_path_factory.mktemp("places")
    return shim(folder / "bin-shim"), environment(folder / "env")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "hosts").write_text("one ansible_connection=local ansible_python_interpreter=/usr/bin/python3\n")
    (tmp_path / "long-shell.yml").write_text(LONG.replace("ACTION", "shell"))
    (tmp_path / "long-raw.yml").write_text(LONG.replace("ACTION", "raw"))
    return tmp_path


def started(folder, on_path, which, play="long-shell.yml"):
    """A command with a task that runs, and the pid of the task. All that stock has printed by then must have arrived."""
    out = folder / f"pid-{which}"
    os.mkfifo(out)
    command = subprocess.Popen(
        ["/usr/bin/env", "ansible-playbook", "-i", "hosts", play, "-e", f"out={out}"],
        env=environ(folder, *on_path), cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    return command, int(out.read_text())  # blocks until the task runs


def arrived(command):
    """What a program that reads the output has when the task runs."""
    text = b""
    while not re.search(rb"TASK \[.*\*\n$", text):
        assert select.select([command.stdout], [], [], 120)[0], f"nothing more comes after {text!r}"
        piece = os.read(command.stdout.fileno(), 1 << 16)
        assert piece, text
        text += piece
    return text


def wait_until_gone(pid):
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], 120)[0], f"{pid} still runs"
    finally:
        os.close(process)


@pytest.mark.parametrize(
    ("number", "play"),
    [(signal.SIGINT, "long-raw.yml"), (signal.SIGTERM, "long-shell.yml"), (signal.SIGHUP, "long-raw.yml")],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_to_the_group_ends_it_as_it_ends_stock(places, folder, number, play):
    path, bin_ = places
    told = []
    for which, on_path in (("stock", [bin_]), ("ours", [path, bin_])):
        command, task = started(folder, on_path, which, play)
        first = arrived(command)
        os.killpg(command.pid, number)
        out, err = command.communicate(timeout=120)
        told.append((command.returncode, first + out, err))
        if which == "ours":
            wait_until_gone(task)
        else:  # stock's task is in a session of its own, and lives on
            with contextlib.suppress(ProcessLookupError):
                os.kill(task, signal.SIGKILL)
    assert told[0] == told[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_a_signal_that_was_ignored_at_the_start_ends_it_as_it_ends_stock(places, folder, number):
    """A shell script starts its background jobs with SIGINT ignored. Stock sets handlers all the same, since 2.19."""
    if seams.minor(seams.version()) not in versions.since("2.19"):
        pytest.skip("ansible-core 2.18 leaves signals ignored that were ignored")
    path, bin_ = places
    told = []
    for which, on_path in (("stock", [bin_]), ("ours", [path, bin_])):
        before = signal.signal(number, signal.SIG_IGN)
        try:
            command, task = started(folder, on_path, which)
        finally:
            signal.signal(number, before)
        first = arrived(command)
        os.killpg(command.pid, number)
        out, err = command.communicate(timeout=120)
        told.append((command.returncode, first + out, err))
        if which == "ours":
            wait_until_gone(task)
        else:  # stock's task is in a session of its own, and lives on
            with contextlib.suppress(ProcessLookupError):
                os.kill(task, signal.SIGKILL)
    assert told[0] == told[1]


def test_who_insists_on_an_interrupt_ends_it_at_once_and_the_task_too(places, folder):
    path, _ = places
    bin_ = environment(folder / "own")
    (site,) = (folder / "own").glob("lib/*/site-packages")
    # Debian's Python has a sitecustomize of its own. The name comes after shared.pth, which makes forkless importable.
    (site / "so_patient.py").write_text(PATIENT)
    (site / "so_patient.pth").write_text("import so_patient\n")
    (folder / "lookup_plugins").mkdir()
    (folder / "lookup_plugins" / "blocks.py").write_text(BLOCKS)
    (folder / "blocked.yml").write_text(BLOCKED)
    with open(folder / "hosts", "a") as hosts:
        hosts.write("two ansible_connection=local ansible_python_interpreter=/usr/bin/python3\n")
    os.mkfifo(folder / "pid-ours-blocks")
    command, task = started(folder, [path, bin_], "ours", "blocked.yml")
    (folder / "pid-ours-blocks").read_text()
    code = None
    for _ in range(600):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = command.wait(0.2)
            break
    if code is None:
        command.kill()
    assert code in (99, -signal.SIGINT)  # one that came after the handlers were taken back
    wait_until_gone(task)
    assert b"Traceback" not in command.communicate()[1]


def test_a_terminal_that_goes_away_takes_the_command_and_its_task_along(places, folder):
    path, bin_ = places
    os.mkfifo(folder / "pid")
    words = ["-i", "hosts", "long-raw.yml", "-e", f"out={folder / 'pid'}"]
    with Terminal(
        *words, cwd=folder, env=environ(folder, path, bin_), program=[str(path / "ansible-playbook")]
    ) as terminal:
        task = int((folder / "pid").read_text())
        assert terminal.hang_up() == -signal.SIGHUP
    wait_until_gone(task)


def test_a_reader_that_goes_away_does_not_cut_the_run_short(places, folder):
    """Stock leaves out all further tasks without a word, and exits with 120."""
    path, bin_ = places
    tasks = "".join(f"    - file: {{path: '{folder}/made-{number}', state: touch}}\n" for number in range(3))
    (folder / "makes.yml").write_text(f"- hosts: one\n  gather_facts: false\n  tasks:\n{tasks}    - fail:\n")
    command = "ansible-playbook -i hosts makes.yml | true; exit ${PIPESTATUS[0]}"
    done = subprocess.run(
        ["bash", "-c", command], env=environ(folder, path, bin_), cwd=folder, capture_output=True, text=True, check=False, timeout=250
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert {one.name for one in folder.glob("made-*")} == {"made-0", "made-1", "made-2"}
    assert "Traceback" not in done.stderr
