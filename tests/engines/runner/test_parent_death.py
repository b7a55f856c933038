# SPDX-License-Identifier: GPL-3.0-or-later
"""A program that is killed in the middle of a run: its run ends with it, and nothing secret stays."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from forkless.core import process_tree
from forkless.core.process_tree import ProcessTree, environ_of, wait_for_end
from forkless.engines.runner import parent_death
from forkless.engines.runner.parent_death import ParentDeathWatch

pytestmark = [pytest.mark.spawns]

SECRET = "correct-horse-battery"
MARK = "AWX_ISOLATED_DATA_DIR"

# Acts until it is ended, and writes down in which folder its run has its files.
ACTS = """
- hosts: all
  gather_facts: false
  tasks:
    - shell: "echo $AWX_ISOLATED_DATA_DIR >> {{ folder }}/acts; {{ then }}"
      loop: "{{ range(10000) | list }}"
"""
# The same before the play begins, when the files with variables and passwords are still needed.
INVENTORY = """#!/bin/sh
echo $AWX_ISOLATED_DATA_DIR >> {folder}/acts
ls $AWX_ISOLATED_DATA_DIR >> {folder}/files
exec sleep 600
"""

ENGINE = """
import sys, forkless
from forkless.engines.runner.engine import RunnerEngine
folder, inventory, child, then = sys.argv[1:]
forkless.run(
    folder + "/play.yml", inventory=inventory, engine=RunnerEngine(child), forks=2, args=["-c", "local"],
    extra_vars={"folder": folder, "then": then, "password": "correct-horse-battery", "ansible_python_interpreter": sys.executable},
)
"""
PATCHED = """
import sys, ansible_runner, forkless.runner
folder, inventory, _child, then = sys.argv[1:]
forkless.runner.patch()
ansible_runner.run(
    private_data_dir=folder + "/job", playbook=folder + "/play.yml", inventory=inventory, cmdline="-c local --forks 2", quiet=True,
    extravars={"folder": folder, "then": then, "ansible_python_interpreter": sys.executable},
)
"""


@pytest.fixture
def program(tmp_path):
    """Starts a program that runs the play; returns it and the folder of its run once the run has acted."""
    (tmp_path / "play.yml").write_text(ACTS)
    (tmp_path / "job").mkdir()
    started = []

    def start(text, *, inventory="h1,h2,", child="threads", then="sleep 0.2"):
        with open(tmp_path / "said", "wb") as said:
            popen = subprocess.Popen(
                [sys.executable, "-c", text, str(tmp_path), inventory, child, then],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True, cwd=tmp_path,
                # ansible-runner looks for ansible-playbook there
                env={**os.environ, "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]},
            )  # fmt: skip
        started.append(popen)
        acts = tmp_path / "acts"
        until(lambda: popen.poll() is not None or (acts.exists() and acts.read_text().endswith("\n")), "the first act")
        assert popen.poll() is None, (tmp_path / "said").read_text()
        return popen, acts.read_text().split()[0]

    yield start
    for popen in started:
        ProcessTree(popen.pid).kill()
        popen.wait()


def until(condition, what, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)


def processes_of(folder):
    """Everything that has the mark of the run and has not ended."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in numbers if environ_of(pid).get(MARK) == folder and not wait_for_end(pid, 0)]


def watcher_of(folder):
    """The process that has the run's folder as an argument, and not the run's mark."""

    def arguments(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return []

    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    [found] = [pid for pid in numbers if os.fsencode(folder) in arguments(pid) and MARK not in environ_of(pid)]
    return found


def end_of_all(folder):
    """Whatever is left of a run; a test that fails must not leave it to the machine."""
    ProcessTree(0, f"{MARK}={folder}").kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("child", ["threads", "ansible"])
def test_a_killed_program_takes_its_run_along(program, child):
    popen, folder = program(ENGINE, child=child)
    try:
        assert processes_of(folder)
        os.kill(popen.pid, signal.SIGKILL)
        popen.wait()
        # Sooner than a task that ends by itself would take.
        until(lambda: not processes_of(folder), "the end of the run", seconds=30)
        until(lambda: not os.path.exists(folder), "the end of its files", seconds=30)
    finally:
        end_of_all(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
@pytest.mark.parametrize("child", ["threads", "ansible"])
def test_a_run_ends_though_its_watcher_is_killed_together_with_the_program(program, child):
    popen, folder = program(ENGINE, child=child)
    try:
        os.kill(watcher_of(folder), signal.SIGKILL)
        os.kill(popen.pid, signal.SIGKILL)
        popen.wait()
        until(lambda: not processes_of(folder), "the end of the run", seconds=30)
    finally:
        end_of_all(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_a_process_whose_program_died_before_it_could_ask_ends_at_once():
    line = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        parent_death.END_WITH + "print('on')",
        str(os.getppid()),
        str(int(signal.SIGTERM)),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, 0])
def test_a_first_process_that_the_kernel_has_asked_is_not_asked_again(tmp_path, monkeypatch, number):
    """Ansible takes a second SIGINT for an order to end without cleaning up."""
    asked = []
    monkeypatch.setattr(ProcessTree, "ask", lambda self, number: asked.append(number))
    monkeypatch.setattr(parent_death, "_GRACE", 0.01)
    popen = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(tmp_path)}, start_new_session=True)
    try:
        parent_death.clean_up_after(popen.pid, f"{MARK}={tmp_path}", "", number)
        popen.wait(240)  # the tree may have reaped it, so its status is not known
        assert asked == ([number] if number else [])
    finally:
        popen.kill()
        popen.wait()


def test_a_first_process_in_the_midst_of_execve_is_looked_at_again(tmp_path, monkeypatch):
    """The kernel shows no environment of such a process."""
    looks = []

    def as_in_execve(pid):
        looks.append(pid)
        return environ_of(pid) if len(looks) > 3 else {}

    monkeypatch.setattr(process_tree, "environ_of", as_in_execve)
    monkeypatch.setattr(parent_death, "_EXECVE", 240)
    popen = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        monkeypatch.setattr(
            process_tree, "_environ", lambda pid: f"{MARK}={tmp_path}\0".encode() if pid == popen.pid else b""
        )
        assert parent_death._is_marked(popen.pid, f"{MARK}={tmp_path}")
        assert looks == [popen.pid] * 4
        assert not parent_death._is_marked(popen.pid, f"{MARK}=other")
    finally:
        popen.kill()
        popen.wait()


@pytest.mark.parametrize("child", ["threads", "ansible"])
def test_files_with_secrets_do_not_outlive_a_program_that_is_killed_before_the_play_begins(program, tmp_path, child):
    script = tmp_path / "inventory.sh"
    script.write_text(INVENTORY.format(folder=tmp_path))
    script.chmod(0o755)
    popen, folder = program(ENGINE, inventory=str(script), child=child)
    try:
        until((tmp_path / "files").exists, "the list of files")
        until(lambda: "extra-vars.json" in (tmp_path / "files").read_text(), "the file with secrets")
        os.kill(popen.pid, signal.SIGKILL)
        popen.wait()
        until(lambda: not os.path.exists(folder), "the end of the files", seconds=30)
        assert processes_of(folder) == []
    finally:
        end_of_all(folder)


def test_a_killed_program_that_uses_ansible_runner_takes_its_workers_along(program):
    pytest.importorskip("ansible_runner", reason="pip install 'forkless[runner]'")
    popen, folder = program(PATCHED, then="sleep 600")
    try:
        assert processes_of(folder)
        os.kill(popen.pid, signal.SIGKILL)
        popen.wait()
        until(lambda: not processes_of(folder), "the end of the run", seconds=30)
    finally:
        end_of_all(folder)


def test_the_key_that_a_command_writes_for_ssh_does_not_outlive_it(tmp_path):
    text = (
        "import contextlib, sys, time\n"
        "from forkless.cli.private_data_dir import PrivateDataDir\n"
        "with contextlib.ExitStack() as around:\n"
        "    print(PrivateDataDir(sys.argv[1], around)._private('ssh_key', 'a key'), flush=True)\n"
        "    time.sleep(600)\n"
    )
    popen = subprocess.Popen([sys.executable, "-c", text, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with popen.stdout:
        key = popen.stdout.readline().strip()
    try:
        assert os.path.exists(key)
        popen.kill()
        popen.wait()
        until(lambda: not os.path.exists(os.path.dirname(key)), "the end of the key", seconds=30)
    finally:
        shutil.rmtree(os.path.dirname(key), ignore_errors=True)


def test_the_folder_of_a_run_that_ends_well_is_left_to_the_run(tmp_path):
    (tmp_path / "file").touch()
    with ParentDeathWatch(folder=str(tmp_path)):
        pass
    assert (tmp_path / "file").exists()


def test_the_death_of_the_program_is_seen_though_a_forked_child_holds_the_pipe(tmp_path):
    if not hasattr(os, "pidfd_open"):
        pytest.skip("this system cannot watch a process by a descriptor")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "secret").write_text(SECRET)
    text = (
        "import os, sys, time\n"
        "from forkless.engines.runner.parent_death import ParentDeathWatch\n"
        "watch = ParentDeathWatch(folder=sys.argv[1])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    time.sleep(600)\n"
        "print(child, flush=True)\n"
        "time.sleep(600)\n"
    )
    popen = subprocess.Popen([sys.executable, "-c", text, str(kept)], stdout=subprocess.PIPE, text=True)
    child = int(popen.stdout.readline())
    try:
        popen.kill()
        popen.wait()
        until(lambda: not kept.exists(), "the end of the files", seconds=30)
    finally:
        popen.stdout.close()
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("env", [{}, {"A": "b"}, {MARK: "/another/run"}], ids=str)
def test_a_number_that_another_process_has_got_meanwhile_is_not_signalled(tmp_path, env):
    stranger = subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
    try:
        parent_death.clean_up_after(stranger.pid, f"{MARK}={tmp_path}/run", str(tmp_path / "none"), signal.SIGTERM)
        assert stranger.poll() is None
        assert not pathlib.Path(tmp_path / "none").exists()
    finally:
        stranger.kill()
        stranger.wait()
