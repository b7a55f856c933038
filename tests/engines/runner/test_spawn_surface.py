# SPDX-License-Identifier: GPL-3.0-or-later
"""RunnerSpawn is pexpect.spawn in everything that ansible-runner uses of it, and better where that one is wrong."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time

import pexpect
import pytest

from forkless.core import platform
from forkless.engines.runner import pty_spawn
from forkless.runner import RunnerSpawn

pytestmark = pytest.mark.spawns

PATTERNS = [pexpect.TIMEOUT, pexpect.EOF]


class Log:
    """What ansible-runner hangs on `logfile_read`; with a pause it is a reader that takes its time."""

    def __init__(self, pause=0.0):
        self.pieces = []
        self.pause = pause

    def write(self, text):
        self.pieces.append(text)
        if self.pause:
            time.sleep(self.pause)

    def flush(self):
        pass

    @property
    def text(self):
        return "".join(self.pieces)


def spawn(script, *, log=None, **options):
    options = {
        "ignore_sighup": True,
        "encoding": "utf-8",
        "codec_errors": "replace",
        "echo": False,
        "use_poll": True,
    } | options
    child = RunnerSpawn("/bin/sh", ["-c", script], **options)
    child.logfile_read = log
    return child


def to_the_end(child, patterns=None, answers=(), timeout=240):
    """ansible-runner's own loop."""
    patterns = [*(patterns or []), *PATTERNS]
    while child.isalive():
        index = child.expect(patterns, timeout=timeout, searchwindowsize=100)
        if index < len(answers):
            child.sendline(answers[index])
    child.expect(pexpect.EOF, timeout=240)
    child.close()


def finish(script, **options):
    log = Log(options.pop("pause", 0.0))
    child = spawn(script, log=log, **options)
    to_the_end(child)
    return child, log.text


def test_output_and_exit_status_come_back():
    child, text = finish("echo one; echo two >&2; exit 3")
    assert text == "one\r\ntwo\r\n"
    assert (child.exitstatus, child.signalstatus) == (3, None)
    assert os.WEXITSTATUS(child.status) == 3
    assert child.closed
    assert child.terminated


def test_death_by_a_signal_is_told_as_such():
    child, _ = finish("kill -TERM $$")
    assert (child.exitstatus, child.signalstatus) == (None, signal.SIGTERM)


def test_the_child_leads_a_session_whose_terminal_is_its_own():
    _, text = finish("exec 3<>/dev/tty && echo has-tty; tty; ps -o sid=,pid=,tty= -p $$")
    first, terminal, numbers = text.split("\r\n")[:3]
    assert first == "has-tty"
    assert terminal.startswith("/dev/pts/")
    session, pid, tty = numbers.split()
    assert session == pid
    assert "/dev/" + tty == terminal


@pytest.mark.parametrize("ignored", [True, False])
def test_a_hangup_is_ignored_if_asked(ignored):
    child, text = finish("kill -HUP $$; echo still here", ignore_sighup=ignored)
    assert text == ("still here\r\n" if ignored else "")
    assert child.signalstatus == (None if ignored else signal.SIGHUP)


def test_the_environment_arrives_as_it_was_given():
    env = {"PATH": os.defpath, "A": "1", "PWD": "/elsewhere", "UMLAUT": "grün"}
    log = Log()
    child = RunnerSpawn("/usr/bin/env", ["-0"], env=env, cwd="/", encoding="utf-8", ignore_sighup=True)
    child.logfile_read = log
    to_the_end(child)
    assert dict(pair.split("=", 1) for pair in log.text.split("\0") if pair) == env


def test_the_folder_and_the_size_of_the_terminal_are_as_asked(tmp_path):
    _, text = finish("pwd; stty size", cwd=str(tmp_path), dimensions=(30, 99))
    assert text == f"{tmp_path}\r\n30 99\r\n"


def test_one_word_is_split_into_a_command_and_its_arguments():
    child = RunnerSpawn("/bin/echo one two", encoding="utf-8")
    log = child.logfile_read = Log()
    to_the_end(child)
    assert log.text == "one two\r\n"


@pytest.mark.parametrize("echo", [True, False])
def test_what_is_typed_is_echoed_only_if_asked(echo):
    log = Log()
    child = spawn("read x; echo got $x", echo=echo, log=log)
    child.sendline("hello")
    to_the_end(child)
    assert log.text == ("hello\r\ngot hello\r\n" if echo else "got hello\r\n")


def test_prompts_on_the_terminal_itself_are_answered():
    log = Log()
    script = "printf 'Password: ' >/dev/tty; read x </dev/tty; echo got $x; printf 'Again: '; read y; echo $y"
    child = spawn(script, log=log)
    to_the_end(child, [re.compile(r"^Password:\s*?$", re.MULTILINE), re.compile("Again:")], ["secret", "more"])
    assert log.text == "Password: got secret\r\nAgain: more\r\n"


def test_a_prompt_longer_than_the_search_window_matches_from_its_start():
    log = Log()
    long = "/very" * 40
    child = spawn(f"echo line; printf 'Enter passphrase for {long}: '; read x; echo got $x", log=log)
    to_the_end(child, [re.compile("^Enter passphrase for .*: $", re.MULTILINE)], ["open sesame"])
    assert log.text.endswith("got open sesame\r\n")


def test_a_timeout_is_an_index_when_it_is_expected_and_loses_nothing():
    log = Log()
    child = spawn("echo before; read x; echo after", log=log)
    assert child.expect([pexpect.TIMEOUT, pexpect.EOF], timeout=0.3, searchwindowsize=100) == 0
    assert child.isalive()
    child.sendline("")
    to_the_end(child)
    assert log.text == "before\r\nafter\r\n"


def test_a_slow_reader_loses_nothing_of_the_tail(monkeypatch):
    # All that is left to read after the child's end takes longer than the five seconds that ansible-runner allows for
    # it: a flat limit loses it.
    log = Log()
    child = spawn("i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; echo END", log=log, maxread=100)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    log.pause = 0.3
    to_the_end(child)
    assert log.text.splitlines() == [*(f"line {n}" for n in range(200)), "END"]
    assert len(log.pieces) * log.pause > 5
    assert child.exitstatus == 0


def test_eight_megabytes_arrive_whole_and_are_not_kept():
    class Count(Log):
        size, last = 0, ""

        def write(self, text):
            self.size += len(text)
            self.last = (self.last + text)[-10:]

    log = Count()
    child = spawn("yes 0123456789012345678901234567890123456789 | head -n 195122; echo END", log=log)
    to_the_end(child)
    assert log.size == 195122 * 42 + 5
    assert log.last.endswith("END\r\n")
    assert len(child.before or "") < 10_000
    assert child._before.tell() < 10_000


def test_bytes_that_are_no_utf8_are_replaced():
    _, text = finish(r"printf 'a\377b\303'")
    assert text.startswith("a\ufffdb")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("/no/such/program", {}),
        ("no-such-program-anywhere", {}),
        ("/bin/true", {"cwd": "/no/such/folder"}),
        ("/bin/true", {"env": {"PATH": os.defpath, "BAD": "nul\0byte"}}),
        ("/bin/true", {"env": {"PATH": os.defpath, "NUMBER": 3}}),
        ("/bin/true", {"preexec_fn": print}),
    ],
)
def test_what_cannot_be_started_is_told_by_the_error_that_ansible_runner_knows(command, options):
    with pytest.raises(pexpect.ExceptionPexpect):
        RunnerSpawn(command, ["x"], encoding="utf-8", **options)


def test_a_file_that_may_not_be_executed_is_told_the_same_way(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(pexpect.ExceptionPexpect):
        RunnerSpawn(str(script), ["x"], encoding="utf-8")


def test_an_interpreter_that_is_not_there_gives_127(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    child = RunnerSpawn(str(script), ["x"], encoding="utf-8", ignore_sighup=True)
    to_the_end(child)
    assert child.exitstatus == 127


def equals_sign(tmp_path):
    """A command that env(1) would take for an assignment."""
    script = tmp_path / "a=b"
    script.write_text("#!/bin/sh\nkill -HUP $$\nexec 3<>/dev/tty && echo has-tty $1\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


@pytest.mark.parametrize("tools", ["with", "without"])
def test_the_step_in_python_does_the_same(tmp_path, monkeypatch, tools):
    if tools == "without":
        monkeypatch.setattr(platform, "ctty_tools", lambda: None)
    log = Log()
    child = RunnerSpawn(equals_sign(tmp_path), ["it"], encoding="utf-8", ignore_sighup=True, echo=False)
    child.logfile_read = log
    to_the_end(child)
    assert log.text == "has-tty it\r\n"
    assert child.exitstatus == 0


def test_without_setsid_and_without_a_python_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(platform, "ctty_tools", lambda: None)
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(pexpect.ExceptionPexpect, match="terminal of its own"):
        RunnerSpawn("/bin/true", ["x"], encoding="utf-8")


def test_a_child_that_closed_its_output_and_runs_on_is_alive_and_asking_does_not_block():
    child = spawn("exec </dev/null >/dev/null 2>&1; sleep 600")
    assert child.expect(PATTERNS, timeout=240, searchwindowsize=100) == 1
    before = time.monotonic()
    assert child.isalive()
    assert time.monotonic() - before < 240
    child.close()
    assert child.signalstatus


def test_close_escalates_to_the_whole_tree():
    child = spawn('trap "" INT HUP; setsid sleep 300 & echo $!; wait; wait', ignore_sighup=True)
    child.expect(re.compile(r"(\d+)\r\n"), timeout=240)
    grandchild = int(child.match.group(1))
    child.close(force=True)
    assert child.signalstatus == signal.SIGKILL
    asked = subprocess.run(["ps", "-o", "stat=", "-p", str(grandchild)], capture_output=True, text=True, check=False)
    assert asked.stdout.strip()[:1] in ("", "Z")


def test_close_without_force_says_so_when_the_child_will_not_go():
    child = spawn('trap "" INT HUP; echo ready; while :; do sleep 1; done')
    child.expect("ready", timeout=240)
    with pytest.raises(pexpect.ExceptionPexpect):
        child.close(force=False)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()


def test_close_right_after_the_end_of_output_keeps_the_exit_status():
    # pexpect's popen_spawn, closed here, sends a hangup to a child that is about to exit: 3.8 % wrong statuses.
    for _ in range(25):
        child = spawn("echo x; exit 5", ignore_sighup=False)
        child.expect(pexpect.EOF, timeout=240)
        child.close()
        assert child.exitstatus == 5


def test_closing_twice_is_fine_and_so_is_forgetting_to():
    child = spawn("sleep 60")
    child.close()
    child.close()
    del child
    spawn("sleep 60")  # the guard looks for what this leaves


def test_a_background_process_that_holds_the_output_does_not_hold_the_end():
    # It ends when the child ends: not with the process that keeps the terminal open, nor after as long as
    # ansible-runner would wait for output.
    log = Log()
    child = spawn("(trap '' HUP; exec sleep 1000) & echo $!; exit 3", log=log)
    before = time.monotonic()
    to_the_end(child, timeout=1000)
    assert time.monotonic() - before < 240
    assert child.exitstatus == 3
    os.kill(int(log.text), signal.SIGKILL)


def test_output_that_never_ends_after_the_child_has_is_cut_off():
    log = Log()
    child = spawn("(trap '' HUP; exec yes) & echo $!; read x; exit 4", log=log)
    child.expect(re.compile(r"(\d+)\r\n"), timeout=240)
    writer = int(child.match.group(1))
    try:
        child.expect("y\r\n", timeout=240)
        child.sendline("")
        to_the_end(child, timeout=0.5)
        assert child.exitstatus == 4
        assert len(log.text) > 100
    finally:
        os.kill(writer, signal.SIGKILL)


def test_an_exit_status_that_someone_else_took_never_looks_like_success(caplog):
    child = spawn("exit 3")
    os.waitpid(child.pid, 0)
    assert not child.isalive()
    assert child.exitstatus is None
    child.close()
    assert "taken by other code" in caplog.text


def test_an_answer_to_a_child_that_is_gone_is_no_error():
    child = spawn("exit 0")
    child.expect(pexpect.EOF, timeout=240)
    child.sendline("too late")
    child.close()
    assert child.sendline("later still") == 0


def test_the_terminal_is_not_inherited_by_others():
    child = spawn("read x")
    try:
        assert not os.get_inheritable(child.child_fd)
    finally:
        child.close()


def test_pexpect_itself_is_left_alone():
    assert pexpect.spawn is not RunnerSpawn
    assert pexpect.spawn.__module__ == "pexpect.pty_spawn"
    assert pty_spawn.pexpect is pexpect


def test_the_kernel_never_sees_our_memory_copied():
    if not os.access("/usr/bin/strace", os.X_OK):
        pytest.skip("strace is not installed (apt install strace)")
    code = (
        "import pexpect\n"
        "from forkless.core import platform\n"
        "from forkless.runner import RunnerSpawn\n"
        "platform.ctty_tools()\n"
        "c = RunnerSpawn('/bin/true', ['x'], encoding='utf-8', ignore_sighup=True)\n"
        "c.expect(pexpect.EOF, timeout=240); c.close(); print(c.exitstatus)\n"
    )
    traced = subprocess.run(
        ["strace", "-f", "-e", "trace=process", "-e", "signal=none", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    if traced.returncode and "ptrace" in traced.stderr:
        pytest.skip("strace may not trace here")
    assert traced.stdout == "0\n"
    # A copy of our memory is a fork by any name: a clone without CLONE_VM, or the old call.
    starts = re.findall(r"(?:^|\] )((?:v?fork|clone3?)\(.*)$", traced.stderr, re.MULTILINE)
    assert starts
    assert [line for line in starts if not line.startswith("vfork") and "CLONE_VM" not in line] == []
