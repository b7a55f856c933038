# SPDX-License-Identifier: GPL-3.0-or-later
"""Stopping really stops: time-outs, cancel and Ctrl-C reach blocked work, and what cannot be reached is named."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

import forkless
import sshd_targets
from engines_support import shown
from forkless.engines.threads.workers import interrupt

pytestmark = [pytest.mark.spawns, pytest.mark.interrupts]

# Far above what any of it takes, far below what the blocked work would take.
LONG = 300
SOON = 150


def begun(run, name="runner_on_start"):
    for event in run.events():
        if event.event == name:
            return event
    raise AssertionError(f"the run ended without {name}: {run.wait().stdout}")


def wait_for(condition, seconds=SOON):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def alive(pidfile: pathlib.Path) -> bool:
    pid = int(pidfile.read_text())
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def blocked_command(project) -> tuple[str, pathlib.Path]:
    """A shell with a child of its own that ignores SIGTERM: the whole group must go, by force."""
    pidfile = project.folder / "pid"
    script = project.write(
        "block.sh",
        f"#!/bin/sh\ntrap '' TERM\nsh -c 'trap \"\" TERM; echo $$ > {pidfile}.new; mv {pidfile}.new {pidfile}; sleep {LONG}; sleep {LONG}' &\nwait\nsleep {LONG}\n",
        0o755,
    )
    return str(script), pidfile


@pytest.mark.matrix
def test_a_local_command_is_killed_with_its_group_when_its_task_times_out(project):
    script, pidfile = blocked_command(project)
    start = time.monotonic()
    # The first builds the module, so that the time-out of the second is spent in the command, however slow the machine.
    result = project.run(f"- command: 'true'\n- command: {script}\n  timeout: 15\n", limit="h1")
    assert time.monotonic() - start < LONG / 2
    assert result.rc == 2
    failed = next(e for e in result.events if e.event == "runner_on_failed")
    assert "timed" in failed.event_data["res"]["msg"].lower() or "time frame" in failed.event_data["res"]["msg"]
    assert "timedout" in failed.event_data["res"], failed.event_data["res"]
    wait_for(lambda: not alive(pidfile))


def test_a_time_out_can_be_rescued_and_the_play_goes_on(project):
    result = project.run(
        f"""
        - block:
            - command: sleep {LONG}
              timeout: 1
          rescue:
            - debug: {{msg: rescued}}
        - debug: {{msg: went on}}
        """,
        limit="h1",
    )
    assert result.rc == 0, result.stdout
    assert result.hosts["h1"]["rescued"] == 1
    assert "went on" in result.stdout


def test_a_time_out_that_does_not_come_leaves_no_trace(project):
    result = project.run("- debug: {msg: '{{ item }}'}\n  timeout: 60\n  loop: [1, 2, 3]\n", forks=6)
    assert result.rc == 0, result.stdout


BLOCKED = {
    "command": f"- command: sleep {LONG}\n",
    "wait_for": f"- wait_for: {{path: /nonexistent/x, timeout: {LONG}}}\n",
    "pause": f"- pause: {{seconds: {LONG}}}\n",
    "retries": f"- command: 'false'\n  register: out\n  until: out.rc == 0\n  retries: 5\n  delay: {LONG}\n",
    # Ansible means the job to outlive the play: it waits for this test, and is found again by its folder.
    "async poll": f"- command: sh -c 'while test -e waits; do sleep 0.1; done'\n  args: {{chdir: '{{{{ playbook_dir }}}}'}}\n"
    f"  async: {LONG}\n  poll: {LONG}\n  vars: {{ansible_async_dir: '{{{{ playbook_dir }}}}/async'}}\n",
    "pipe lookup": f"- debug: {{msg: \"{{{{ lookup('pipe', 'sleep {LONG}') }}}}\"}}\n",
    "loop pause": f"- debug: {{msg: a}}\n  loop: [1, 2]\n  loop_control: {{pause: {LONG}}}\n",
}


@pytest.mark.parametrize("what", BLOCKED)
def test_cancel_reaches(project, what, request):
    (project.folder / "waits").touch()
    request.addfinalizer((project.folder / "waits").unlink)
    run = project.start(BLOCKED[what], limit="h1")
    begun(run)
    run.cancel()
    result = run.wait(SOON)
    assert result.status is forkless.Status.CANCELED
    assert result.rc == 99
    with pytest.raises(forkless.RunCancelled):
        result.raise_for_failures()


@pytest.mark.matrix
def test_cancel_starts_no_new_task(project):
    run = project.start(f"- command: sleep {LONG}\n- file: {{path: {project.folder}/never, state: touch}}\n", forks=2)
    begun(run)
    run.cancel()
    result = run.wait(SOON)
    assert result.status is forkless.Status.CANCELED
    assert not (project.folder / "never").exists()


def test_the_run_passes_its_time_limit(project):
    result = project.run(f"- command: sleep {LONG}\n", limit="h1", timeout=2)
    assert result.status is forkless.Status.TIMEOUT
    with pytest.raises(forkless.RunTimeout):
        result.raise_for_failures()


def test_a_run_after_a_cancelled_one_is_whole(project):
    run = project.start(f"- command: sleep {LONG}\n", forks=6)
    begun(run)
    run.cancel()
    run.wait(SOON)
    result = project.run("- debug: {msg: hi}\n", forks=6)
    assert result.rc == 0, result.stdout
    assert all(counts["ok"] == 1 for counts in result.hosts.values())


STUBBORN = """
import ctypes, os
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        # Deaf: in C no exception is seen, and one that comes in between is not heeded.
        nap = ctypes.CDLL(None).usleep
        while True:
            try:
                open(self._task.args['flag'], 'w').close()
                while not os.path.exists(self._task.args['until']):
                    nap(20_000)
                return dict(changed=False)
            except BaseException:
                continue
"""


@pytest.mark.matrix
def test_a_worker_that_cannot_be_stopped_is_named_and_does_no_harm_when_it_comes_back(project):
    """When it comes back the run is over and nothing of ours is in Ansible's modules: its way out must not be the program's."""
    project.write("action_plugins/stubborn.py", STUBBORN)
    flag, free = project.folder / "begun", project.folder / "go"
    before = set(threading.enumerate())
    # The error is made after the run, which then has forgotten what ansible-core masks since 2.22.
    secret = "'stub' | register_secret" if shown("stub") != "stub" else "'stub'"
    task = f"- name: be {{{{ {secret} }}}}born\n  stubborn: {{flag: '{flag}', until: '{free}'}}\n"
    run = project.start(task, limit="h1")
    wait_for(flag.exists)
    run.cancel()
    with pytest.raises(forkless.StuckWorkerError) as caught:
        run.wait(SOON)
    assert caught.value.host == "h1"
    assert caught.value.task == f"be {shown('stub')}born"
    assert "stubborn.py" in caught.value.stack
    assert f"be {shown('stub')}born" in str(caught.value)
    free.touch()
    wait_for(lambda: set(threading.enumerate()) <= before)  # that there is still someone to look is half of the test


@pytest.mark.matrix
def test_the_watchdog_names_host_task_and_stack_and_stops_nothing(project):
    gate = project.folder / "go"
    run = project.start(
        f"- name: the slow one\n  wait_for: {{path: {gate}, timeout: {LONG}}}\n", limit="h1", stuck_after=0.5
    )
    event = begun(run, "worker_stuck")
    assert event.event_data["host"] == "h1"
    assert event.event_data["task"] == "the slow one"
    assert "File" in event.event_data["stack"]
    gate.touch()
    assert run.wait(SOON).rc == 0


def command_line(project, tasks, *args):
    spec = project.spec(tasks)
    line = [sys.executable, "-m", "forkless", "playbook", "-i", spec["inventory"], *args, spec["playbook"]]
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=project.folder, start_new_session=True
    )


@pytest.mark.matrix
def test_ctrl_c_once_ends_the_run_with_its_children(project):
    script, pidfile = blocked_command(project)
    process = command_line(project, f"- command: {script}\n- debug: {{msg: never}}\n", "-l", "h1")
    wait_for(lambda: pidfile.exists() and pidfile.read_text().strip())
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=SOON)
    assert process.returncode == 99, out
    assert "User interrupted execution" in out
    assert "Traceback" not in out
    assert "never" not in out
    wait_for(lambda: not alive(pidfile))


def test_ctrl_c_twice_is_out_at_once(project):
    project.write("action_plugins/stubborn.py", STUBBORN)
    flag = project.folder / "begun"
    process = command_line(project, f"- stubborn: {{flag: '{flag}', until: /nowhere}}\n", "-l", "h1")
    wait_for(flag.exists)
    os.kill(process.pid, signal.SIGINT)
    # Two that come before the first is answered are one to the kernel. It has been answered when the command says that the run is stopping.
    said = next((line for line in process.stdout if line.startswith("forkless: ")), "nothing")
    assert "stopping" in said
    out = None
    while out is None:
        os.kill(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it came while the first was still being answered
            out, _ = process.communicate(timeout=30)
    assert process.returncode == 99, out


def test_sigterm_ends_the_command_and_its_children(project):
    script, pidfile = blocked_command(project)
    process = command_line(project, f"- command: {script}\n", "-l", "h1")
    wait_for(lambda: pidfile.exists() and pidfile.read_text().strip())
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=SOON)
    assert process.returncode == -signal.SIGTERM
    wait_for(lambda: not alive(pidfile))


def test_cancel_reaches_an_ssh_child(project):
    """The builtin ssh connection: the ssh program is a child of ours, and blocks in what the host does."""
    if sshd_targets.SSHD is None:
        pytest.fail(sshd_targets.MISSING, pytrace=False)
    with sshd_targets.targets(1, more=sshd_targets.QUICK_KEY_EXCHANGE) as up:
        project.write("hosts.ini", up.inventory(connection="ssh", more="ansible_ssh_args=-o ControlPersist=no"))
        run = project.start(f"- raw: sleep {LONG}\n")
        begun(run)
        wait_for(lambda: "Starting session" in up.hosts[0].log())
        run.cancel()
        assert run.wait(SOON).status is forkless.Status.CANCELED


def test_a_child_that_is_being_started_is_waited_for_and_ended_before_a_signal_ends_the_command():
    stopped, entered, waited_for, children = interrupt.Interrupt(), threading.Event(), threading.Event(), []

    def start():
        with interrupt.starting_child():
            entered.set()
            assert waited_for.wait(240)
            children.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
            stopped.adopt(children[0])

    thread = threading.Thread(target=start)
    thread.start()
    assert entered.wait(240)
    stopped.release(interrupt.WorkerStopped)
    (registered,) = interrupt._starting
    wait = registered.wait
    registered.wait = lambda seconds: waited_for.set() or wait(240)
    interrupt.wait_for_children()
    ended = [child.poll() for child in children]
    waited_for.set()
    thread.join(240)
    assert ended == [-signal.SIGTERM]
    assert not interrupt._starting
    with interrupt.starting_child():  # as a signal handler on that thread: it does not wait for itself
        interrupt.wait_for_children()


def test_the_end_of_children_is_waited_for_also_while_the_thread_that_sees_to_it_is_about_to_start(monkeypatch):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    monkeypatch.setattr(interrupt, "GRACE", 0.01)
    real = threading.Thread.start

    def start(thread):
        threading._limbo[thread] = thread  # as in the middle of start(): it is among all threads, and cannot be joined
        try:
            interrupt.wait_for_ended_groups()
        finally:
            del threading._limbo[thread]
        real(thread)

    with monkeypatch.context() as starting:
        starting.setattr(threading.Thread, "start", start)
        interrupt.end_groups([child])
    monkeypatch.setattr(interrupt, "GRACE", 60)
    interrupt.wait_for_ended_groups()
    assert child.wait(240) == -signal.SIGTERM
    assert not interrupt._ending
