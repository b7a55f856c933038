# SPDX-License-Identifier: GPL-3.0-or-later
"""A run is ended with all that it started, and with nothing else."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid

import pytest

from forkless.core import process_tree
from forkless.core.process_tree import ProcessGroup, ProcessTree, environ_of, start_time, wait_for_end

pytestmark = pytest.mark.spawns


def start(script, *, mark="", session=True, ready=None):
    """A shell whose script prints the numbers of what it started, one per line, and then 'ready'; or `ready` numbers."""
    env = dict(os.environ)
    if mark:
        name, _, value = mark.partition("=")
        env[name] = value
    child = subprocess.Popen(
        ["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=session, env=env
    )
    numbers = []
    for line in child.stdout:
        if line.strip() == "ready":
            break
        numbers.append(int(line))
        if len(numbers) == ready:
            break
    child.stdout.close()
    return child, numbers


def gone(pid):
    return wait_for_end(pid, 240)


def wait_for(condition):
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells it")


def test_children_in_sessions_of_their_own_end_too():
    child, others = start(
        "setsid sleep 300 & echo $!; (setsid sh -c 'sleep 301 & wait') & echo $!; sleep 302 & echo $!; echo ready; wait"
    )
    ProcessTree(child.pid).kill()
    assert child.wait(240) == -signal.SIGKILL
    assert all(gone(pid) for pid in others)


def test_a_gentle_end_is_tried_first():
    child, _ = start("trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done")
    ProcessTree(child.pid).end(10.0)
    assert child.wait(240) == 9


def test_who_does_not_listen_is_killed():
    child, others = start("trap '' TERM; setsid sleep 300 & echo $!; echo ready; while :; do sleep 0.1; done")
    ProcessTree(child.pid).end(0.3)
    assert child.wait(240) == -signal.SIGKILL
    assert gone(others[0])


def test_a_mark_finds_those_whose_parents_are_gone():
    mark = f"FORKLESS_TEST_MARK={uuid.uuid4()}"
    child, others = start("(setsid sleep 300 & echo $!); echo ready; wait", mark=mark)
    child.kill()
    child.wait()
    tree = ProcessTree(child.pid, mark)
    assert others[0] in tree.alive()
    tree.kill()
    assert gone(others[0])


def test_a_mark_that_we_have_ourselves_marks_nothing(monkeypatch):
    # We run inside a play, and so do our parents and the rest of that play.
    value = str(uuid.uuid4())
    mark = f"FORKLESS_TEST_MARK={value}"
    stranger, _ = start("echo ready; exec sleep 300", mark=mark)
    child, _ = start("echo ready; sleep 300", mark=mark)
    monkeypatch.setenv("FORKLESS_TEST_MARK", value)
    ProcessTree(child.pid, mark).kill()
    assert child.wait(240) == -signal.SIGKILL
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_job_that_ansible_means_to_outlive_its_play_is_spared():
    mark = f"FORKLESS_TEST_MARK={uuid.uuid4()}"
    child, others = start("(ANSIBLE_ASYNC_DIR=/x setsid sleep 300 & echo $!); echo ready; wait", mark=mark)
    deadline = time.monotonic() + 240
    while b"ANSIBLE_ASYNC_DIR" not in pathlib.Path(f"/proc/{others[0]}/environ").read_bytes():
        assert time.monotonic() < deadline, "the job never began"
        time.sleep(0.01)
    child.kill()
    child.wait()
    try:
        assert others[0] not in ProcessTree(child.pid, mark).alive()
    finally:
        os.kill(others[0], signal.SIGKILL)


def test_a_child_in_our_own_group_does_not_take_us_with_it():
    child, _ = start("echo ready; sleep 300", session=False)
    tree = ProcessTree(child.pid)
    assert os.getpid() not in tree.alive()
    assert os.getppid() not in tree.alive()
    tree.kill()
    assert child.wait(240) == -signal.SIGKILL


def test_a_tree_that_grows_while_it_is_felled_is_felled_whole():
    mark = f"FORKLESS_TEST_MARK={uuid.uuid4()}"
    child, _ = start(
        "grow() { while :; do setsid sleep 300 & sleep 0.01; done; }; grow & grow & echo ready; wait", mark=mark
    )
    ProcessTree(child.pid, mark).kill()
    child.wait(240)
    deadline = time.monotonic() + 240
    while (left := ProcessTree(child.pid, mark).alive()) and time.monotonic() < deadline:
        continue
    assert left == []


def test_a_process_that_is_not_there_is_an_empty_tree():
    child, _ = start("echo ready")
    child.wait()
    tree = ProcessTree(child.pid)
    tree.kill()
    assert tree.alive() == []
    assert environ_of(child.pid) == {}
    assert wait_for_end(child.pid, 0)


def test_the_slow_way_of_waiting_works_where_the_kernel_has_no_better(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    child, _ = start("echo ready; sleep 300")
    assert not wait_for_end(child.pid, 0.05)
    ProcessTree(child.pid).kill()
    assert wait_for_end(child.pid, 240)
    child.wait()


def test_ps_tells_the_same_where_there_is_no_proc():
    child, others = start("setsid sleep 300 & echo $!; echo ready; wait")
    try:
        told = process_tree._ask_ps()
        assert told[others[0]].parent == child.pid
        assert told[child.pid].group == child.pid
    finally:
        ProcessTree(child.pid).kill()
        child.wait()


# -- what starts, or leaves, at the very moment


@LINUX
@pytest.mark.parametrize("scan", [1, 2])
def test_a_program_that_a_shell_starts_between_a_scan_and_the_signal_is_asked_too(tmp_path, monkeypatch, scan):
    """The shell ends by the signal: its program is then a child of init, and cannot be found."""
    gate, pid = tmp_path / "gate", tmp_path / "pid"
    os.mkfifo(gate)
    child, _ = start(
        f"echo ready; read _ < {gate}; sleep 300 & echo $! > {pid}.new; mv {pid}.new {pid}; wait", session=False
    )
    scans, real = [], ProcessTree.look

    def look(tree):
        found = real(tree)
        scans.append(found)
        if len(scans) == scan:
            gate.write_text("go\n")
            wait_for(pid.exists)
        return found

    monkeypatch.setattr(ProcessTree, "look", look)
    try:
        ProcessTree(child.pid).ask_all(signal.SIGTERM)
        assert child.wait(240) == -signal.SIGTERM
        assert gone(int(pid.read_text()))
    finally:
        child.kill()
        if pid.exists() and not wait_for_end(int(pid.read_text()), 0):
            os.kill(int(pid.read_text()), signal.SIGKILL)


@LINUX
def test_all_are_asked_and_go_on_if_they_do_not_listen(tmp_path):
    """Nobody stays stopped."""
    heard = tmp_path / "heard"
    inner = tmp_path / "inner.sh"
    inner.write_text(f"trap 'echo $$ >> {heard}' TERM; echo $$; while :; do sleep 0.05; done")
    child, others = start(f"trap : TERM; sh {inner} & while :; do wait; done", ready=1)
    try:
        ProcessTree(child.pid).ask_all(signal.SIGTERM)
        wait_for(lambda: heard.exists() and heard.read_text().split() == [str(others[0])])
        assert child.poll() is None
    finally:
        ProcessTree(child.pid).kill()
        child.wait(240)
    assert gone(others[0])


@LINUX
def test_a_process_that_leaves_its_group_when_it_is_asked_to_end_is_killed_with_it(tmp_path):
    pid = tmp_path / "pid"
    leaves = f"trap 'setsid sh -c \"echo \\$\\$ > {pid}.new; mv {pid}.new {pid}; exec sleep 300\"' TERM"
    child, _ = start(f"{leaves}; echo ready; while :; do sleep 0.05; done")
    group = ProcessGroup(child.pid, start_time(child.pid))
    assert group.ask(signal.SIGTERM)
    wait_for(pid.exists)
    group.kill()
    assert child.wait(240) == -signal.SIGKILL
    try:
        assert gone(int(pid.read_text()))
    finally:
        if not wait_for_end(int(pid.read_text()), 0):
            os.kill(int(pid.read_text()), signal.SIGKILL)


@LINUX
def test_a_daemon_that_had_left_the_group_before_stays():
    child, others = start("setsid sleep 300 & echo $!; echo ready; wait")
    wait_for(lambda: process_tree._one(others[0]).session == others[0])
    group = ProcessGroup(child.pid, start_time(child.pid))
    try:
        assert group.ask(signal.SIGTERM)
        group.kill()
        assert child.wait(240) == -signal.SIGTERM
        assert not wait_for_end(others[0], 0)
    finally:
        os.kill(others[0], signal.SIGKILL)
    assert gone(others[0])


@LINUX
def test_a_process_that_has_the_number_of_another_one_which_has_ended_is_not_signalled():
    child, _ = start("echo ready; exec sleep 300")
    another = "1"  # a start time long before
    try:
        assert not ProcessGroup(child.pid, another).ask(signal.SIGTERM)
        ProcessGroup(child.pid, another).kill()
        tree = ProcessTree(child.pid, born=another)
        tree.ask_all(signal.SIGTERM)
        tree.kill()
        assert child.poll() is None
        assert process_tree._stands_still(child.pid) is False
    finally:
        child.kill()
        child.wait(240)


CHAIN = """
[ "$1" = 0 ] && exec sleep 300
echo "$1" >> "$2"
sh "$0" $(($1 - 1)) "$2" {how}
"""


@LINUX
@pytest.mark.parametrize(("how", "length"), [("&", 200), ("; true", 40)], ids=["each ends", "each waits"])
@pytest.mark.parametrize("end", ["asked", "killed"])
def test_a_chain_of_processes_that_is_ended_in_the_middle_is_ended_whole(tmp_path, how, length, end):
    """Each starts the next one, and ends or waits for it."""
    script, steps = tmp_path / "chain.sh", tmp_path / "steps"
    script.write_text(CHAIN.format(how=how))
    mark = str(uuid.uuid4())
    child = subprocess.Popen(
        ["/bin/sh", str(script), str(length), str(steps)],
        start_new_session=how == "&",
        env={**os.environ, "FORKLESS_TEST_MARK": mark},
    )

    def left():
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        marked = [pid for pid in numbers if environ_of(pid).get("FORKLESS_TEST_MARK") == mark]
        return [pid for pid in marked if (there := process_tree._one(pid)) is not None and not there.ended]

    try:
        wait_for(lambda: steps.exists() and len(steps.read_text().split()) > 5)
        tree = ProcessTree(child.pid)
        (tree.kill if end == "killed" else lambda: tree.ask_all(signal.SIGTERM))()
        wait_for(lambda: not left())
    finally:
        while pids := left():
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        child.wait(240)
