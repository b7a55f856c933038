# SPDX-License-Identifier: GPL-3.0-or-later
"""A run is ended with all that it started, and with nothing else."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time
import uuid

import pytest

from forkless.core import process_tree
from forkless.core.process_tree import ProcessTree, environ_of, wait_for_end

pytestmark = pytest.mark.spawns


def start(script, *, mark="", session=True):
    """A shell whose script prints the numbers of what it started, one per line, and then 'ready'."""
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
    child.stdout.close()
    return child, numbers


def gone(pid):
    return wait_for_end(pid, 240)


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
