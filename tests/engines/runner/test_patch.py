# SPDX-License-Identifier: GPL-3.0-or-later
"""People who call ansible_runner.run() get the cure with one line, and everything else as it was."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import ansible_runner
import ansible_runner.interface
import ansible_runner.runner
import pexpect
import pytest

import forkless.runner
from forkless.core.process_tree import ProcessTree
from pretend import SHORTEST

pytestmark = [
    pytest.mark.spawns,
    # ansible-runner 2.3 leaves the files it read to the collector, and 2.4 does so when a callback raises. What we leave
    # is seen by the leak guard.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SITES = (
    lambda: ansible_runner.runner.pexpect,
    lambda: vars(ansible_runner.runner.Runner)["run"],
    lambda: vars(ansible_runner.runner.Runner)["handle_termination"],
    lambda: ansible_runner.interface.signal_handler,
    lambda: ansible_runner.interface.init_runner,
)


@pytest.fixture
def ansible_on_path(monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture
def place(tmp_path, ansible_on_path):
    (tmp_path / "project").mkdir()

    def write(book):
        (tmp_path / "project" / "play.yml").write_text(book)
        return str(tmp_path)

    return write


@pytest.fixture
def patched():
    with forkless.runner.patched():
        yield


def command(tmp_path, script, **options):
    """A run of a shell script by ansible_runner.run_command, in its own folder."""
    options = {"quiet": True, "private_data_dir": str(tmp_path)} | options
    return ansible_runner.run_command(executable_cmd="/bin/sh", cmdline_args=["-c", script], **options)


def test_patching_is_undone_to_the_last_name():
    before = [site() for site in SITES]
    forkless.runner.patch()
    forkless.runner.patch()
    try:
        assert all(site() is not was for site, was in zip(SITES, before, strict=True))
        assert ansible_runner.runner.pexpect.EOF is pexpect.EOF
        assert ansible_runner.runner.pexpect.exceptions is pexpect.exceptions
        assert pexpect.spawn.__module__ == "pexpect.pty_spawn"
    finally:
        forkless.runner.unpatch()
    assert [site() for site in SITES] == before
    forkless.runner.unpatch()
    assert [site() for site in SITES] == before


def test_blocks_may_overlap_and_the_last_one_out_turns_off_the_light():
    stock = SITES[0]()
    first, second = forkless.runner.patched(), forkless.runner.patched()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert SITES[0]() is not stock
    forkless.runner.patch()
    second.__exit__(None, None, None)
    assert SITES[0]() is not stock
    forkless.runner.unpatch()
    assert SITES[0]() is stock


@pytest.mark.matrix
def test_a_playbook_runs_and_its_last_event_is_the_recap(place, patched):
    folder = place("- hosts: localhost\n  gather_facts: false\n  tasks:\n  - debug: msg=hello\n")
    run = ansible_runner.run(private_data_dir=folder, playbook="play.yml", quiet=True)
    assert (run.status, run.rc) == ("successful", 0)
    events = [event["event"] for event in run.events]
    assert events[-1] == "playbook_on_stats"
    assert run.stats["ok"] == {"localhost": 1}


def test_a_vars_prompt_is_answered(place, patched):
    folder = place(
        "- hosts: localhost\n  gather_facts: false\n  vars_prompt:\n  - {name: who, prompt: Who goes there, private: true}\n"
        "  tasks:\n  - debug: msg='it is {{ who }}'\n"
    )
    run = ansible_runner.run(
        private_data_dir=folder, playbook="play.yml", quiet=True, passwords={"Who goes there.*:\\s*?$": "a friend"}
    )
    assert run.status == "successful"
    with run.stdout as stdout:
        assert "it is a friend" in stdout.read()


def raw(tmp_path, line, **options):
    """A run of one command line by ansible_runner.run, which is what sets signals."""
    (tmp_path / "args").write_text(line)
    return ansible_runner.run(private_data_dir=str(tmp_path), quiet=True, **options)


def test_signals_are_as_before_after_a_run(tmp_path, patched):
    # ansible-runner leaves its own in place, and Ctrl-C is dead from then on.
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert raw(tmp_path, "/bin/true").status == "successful"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_signal_during_the_run_cancels_it(tmp_path, patched):
    def soon():
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=soon)
    thread.start()
    line = f"/bin/sh -c 'touch {tmp_path}/started; sleep 60'"
    run = raw(tmp_path, line, settings={"pexpect_timeout": 0.2})
    thread.join()
    assert run.status == "canceled"


def test_ctrl_c_works_again_after_a_run_on_another_thread(place, patched):
    """run_async sets the signals on this thread and ends on another, which cannot put them back. We still can."""
    code = (
        "import signal, sys, os, threading\n"
        "import ansible_runner, forkless.runner\n"
        "forkless.runner.patch()\n"
        "thread, run = ansible_runner.run_async(private_data_dir=sys.argv[1], playbook='play.yml', quiet=True)\n"
        "thread.join()\n"
        "assert run.status == 'successful', run.status\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    signal.pause()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    )
    folder = place("- hosts: localhost\n  gather_facts: false\n  tasks:\n  - debug: msg=hello\n")
    done = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout == "interrupted\n", done.stderr


@pytest.mark.parametrize("limit", ["job_timeout", "idle_timeout"])
def test_time_limits_hold_and_nothing_is_left(tmp_path, patched, limit):
    mark = tmp_path / "pid"
    run = ansible_runner.interface.init_command_config(
        "/bin/sh",
        cmdline_args=["-c", f"setsid sleep 300 & echo $! > {mark}; wait"],
        private_data_dir=str(tmp_path),
        quiet=True,
        cancel_callback=lambda: False,
    )
    setattr(run.config, limit, 1)
    run.config.pexpect_timeout = 0.2
    run.run()
    assert (run.status, run.rc) == ("timeout", 254)
    assert ProcessTree(int(mark.read_text())).alive() == []


def test_a_cancelled_play_leaves_no_process(place, patched, tmp_path):
    # Workers of ansible-core 2.19 and later are in sessions of their own; a killpg leaves them all.
    folder = place(
        "- hosts: a,b,c\n  gather_facts: false\n  connection: local\n"
        f"  tasks:\n  - command: sh -c 'echo $$ >> {tmp_path}/pids; exec sleep 300'\n"
    )
    pids = tmp_path / "pids"

    def cancel():
        return pids.exists() and len(pids.read_text().split()) == 3

    run = ansible_runner.run(
        private_data_dir=folder,
        playbook="play.yml",
        cmdline="-i a,b,c,",
        extravars={"ansible_python_interpreter": sys.executable},
        quiet=True,
        cancel_callback=cancel,
        settings={"pexpect_timeout": 0.2},
    )
    with run.stdout as stdout:
        assert run.status == "canceled", stdout.read()
    for pid in map(int, pids.read_text().split()):
        with contextlib.suppress(FileNotFoundError):
            assert "State:\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text()


def test_an_event_callback_that_raises_leaves_no_process(tmp_path, patched):
    def fail(event):
        raise ZeroDivisionError

    pid = tmp_path / "pid"
    with pytest.raises(ZeroDivisionError):
        command(tmp_path, f"setsid sleep 300 & echo $! > {pid}; echo an event; wait", event_handler=fail)
    assert ProcessTree(int(pid.read_text())).alive() == []


def test_a_slow_event_callback_misses_no_event(place, patched):
    folder = place(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n  - debug: msg={{ item }}\n    loop: '{{ range(60) | list }}'\n"
    )
    seen = []

    def slowly(event):
        time.sleep(0.1)
        seen.append(event["event"])
        return True

    run = ansible_runner.run(private_data_dir=folder, playbook="play.yml", quiet=True, event_handler=slowly)
    assert run.status == "successful"
    assert seen.count("runner_item_on_ok") == 60
    assert seen[-1] == "playbook_on_stats"
    assert not [name for name in os.listdir(os.path.join(run.config.artifact_dir, "job_events")) if "partial" in name]


def test_the_recap_of_the_shortest_run_is_never_lost(tmp_path, patched):
    program = tmp_path / "shortest"
    program.write_text(SHORTEST)
    program.chmod(0o755)
    count = int(os.environ.get("FORKLESS_SHORT_RUNS", "100"))
    told = []
    for number in range(count):
        run = raw(tmp_path, str(program), ident=str(number), cancel_callback=lambda: False)
        told.append((run.status, [event["event"] for event in run.events]))
    assert told == [("successful", ["playbook_on_stats"])] * count


def test_a_command_that_is_not_there_is_ansible_runners_own_127(tmp_path, patched):
    _, _, rc = ansible_runner.run_command(executable_cmd="/no/such/thing", private_data_dir=str(tmp_path), quiet=True)
    assert rc == 127


def test_a_folder_that_is_not_there_is_no_success(tmp_path, patched):
    out, _, rc = command(tmp_path, "exit 0", host_cwd=str(tmp_path / "nowhere"))
    assert rc == 127
    assert "nowhere" in out


def test_process_isolation_still_gets_its_arguments_and_a_terminal(place, patched, tmp_path, monkeypatch):
    # Stands where podman would: ansible-runner asks it for a terminal (--tty), which needs one on this side.
    podman = tmp_path / "bin" / "podman"
    podman.parent.mkdir()
    podman.write_text('#!/bin/sh\n[ -t 0 ] && echo "on a terminal: $*"\nexit 0\n')
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", str(podman.parent) + os.pathsep + os.environ["PATH"])
    folder = place("- hosts: localhost\n  tasks: []\n")
    run = ansible_runner.run(
        private_data_dir=folder,
        playbook="play.yml",
        quiet=True,
        process_isolation=True,
        process_isolation_executable="podman",
        container_image="an-image",
    )
    assert run.status == "successful"
    with run.stdout as stdout:
        text = stdout.read()
    assert text.startswith("on a terminal: run --rm --tty --interactive")
    assert "an-image ansible-playbook" in text


def test_stop_ends_the_tree_and_takes_the_pidfile(tmp_path, patched):
    pidfile = tmp_path / "pid"
    child = subprocess.Popen(
        ["/bin/sh", "-c", f"setsid sleep 300 & echo $! > {tmp_path}/grandchild; wait"], start_new_session=True
    )
    while not (tmp_path / "grandchild").exists() or not (tmp_path / "grandchild").read_text():
        time.sleep(0.01)
    pidfile.write_text(str(child.pid))
    ansible_runner.runner.Runner.handle_termination(child.pid, pidfile=str(pidfile))
    assert child.wait(240) < 0
    assert not pidfile.exists()
    assert ProcessTree(int((tmp_path / "grandchild").read_text())).alive() == []
    # 2.3 calls it so
    ansible_runner.runner.Runner.handle_termination(child.pid, is_cancel=False)


def test_a_program_that_runs_it_from_many_threads_does_not_hang(tmp_path, patched):
    """Thirty-two spawns on eight threads, with threads whose finalizers would log in a forked copy."""
    results = []

    def work(number):
        results.extend([command(tmp_path / str(number), f"echo {number}; exit 6")[2] for _ in range(4)])

    threads = [threading.Thread(target=work, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [6] * 32


def test_signal_actions_are_put_back_where_a_run_cannot_be_prepared(patched, tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(ansible_runner.exceptions.ConfigurationError):
        ansible_runner.run(private_data_dir=str(tmp_path))  # names nothing to run
    after = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for number, action in zip((signal.SIGINT, signal.SIGTERM), before):
        signal.signal(number, action)
    assert after == before
