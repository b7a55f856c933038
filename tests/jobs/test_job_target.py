# SPDX-License-Identifier: GPL-3.0-or-later
"""The target's side of jobs, called directly: whose processes are whose, odd files, what a job has printed."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import time
import types

import pytest

from jobs_controller import SOURCE, until

JID = "j123456789012.4711"


def target(name):
    sys.path.insert(0, str(SOURCE))
    try:
        return importlib.import_module(f"ansible_collections.forkless.core.plugins.module_utils.{name}")
    finally:
        sys.path.pop(0)


@pytest.fixture
def ps():
    return target("processes")


@pytest.fixture
def folder(tmp_path):
    """An async folder with the file of a job that says that it runs."""
    (tmp_path / JID).write_text(json.dumps({"started": 1, "finished": 0, "ansible_job_id": JID}))
    return str(tmp_path)


@pytest.fixture
def daemon(tmp_path):
    """
    The pid of a stranger's daemon, and its session, whose leader has ended: what is left when a number is given out again.

    It is a child of ours all the same, so that it can be waited for.
    """
    code = (
        "import os, sys, time\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(0) if os.fork() else (os.execvp('sleep', ['sleep', '700']))\n"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, stdin=subprocess.DEVNULL
    )
    session = int(leader.stdout.readline())
    leader.wait()
    leader.stdout.close()

    def left():
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        fields = file.read().rpartition(b")")[2].split()
                    with open(f"/proc/{name}/cmdline", "rb") as file:
                        argv = file.read()
                except OSError:
                    continue
                if int(fields[3]) == session and argv == b"sleep\x00700\x00":
                    return int(name)
        return 0

    pid = until(left, what="the daemon")
    yield pid, session
    os.kill(pid, signal.SIGKILL)
    until(lambda: not left(), what="its end")


@pytest.mark.spawns
def test_a_stranger_that_was_given_the_session_of_a_dead_job_is_neither_taken_for_it_nor_signalled(ps, folder, daemon):
    pid, session = daemon
    recorded = {"boot": ps.boot_id(), "session": session, "group": session, "pids": [[session, "1"], [pid, "1"]]}
    truth = target("jobs").status(JID, [folder], recorded)
    assert (truth["state"], truth["pids"]) == ("dead", [])
    after, seen = target("ending").kill(JID, [folder], recorded, signal.SIGKILL, 0)
    assert (after["state"], seen["signalled"], seen["killed"]) == ("dead", [], [])
    os.kill(pid, 0)


@pytest.mark.spawns
def test_what_shares_a_session_with_a_recorded_process_that_lives_belongs_to_the_job(ps, folder, daemon):
    pid, session = daemon
    start = ps.snapshot()[pid].start
    recorded = {"boot": ps.boot_id(), "session": session, "members": [[pid, start]]}
    assert target("jobs").status(JID, [folder], recorded)["pids"] == [pid]
    assert target("jobs").status(JID, [folder], recorded | {"boot": "another"})["pids"] == []


def test_an_id_that_somebody_made_up_is_not_taken_for_the_time_limit_of_another_job(ps):
    words = ["/usr/bin/python3", "/root/.ansible/tmp/x/async_wrapper.py", "j812354675219", "600", "/x/command.py", "_"]
    wrapper = ps.Process(7, 1, 7, 7, "1", words)
    assert ps.wrappers({7: wrapper}, "600.1") == []
    assert ps.wrappers({7: wrapper}, "j812354675219.4711") == [wrapper]


@pytest.mark.parametrize("mode", [0o1777, 0o2775, 0o755])
def test_in_an_async_folder_of_all_users_every_user_can_have_jobs(tmp_path, mode):
    """What is made there for the first user's job must let the others in as the folder itself does."""
    base = tmp_path / "async"
    base.mkdir()
    base.chmod(mode)
    name = base / "forkless" / ("0" * 24)
    target("slots").look(str(name), str(name / "c-1"), [], True)
    assert stat.S_IMODE((base / "forkless").stat().st_mode) == mode
    assert name.is_dir()


@pytest.mark.spawns
def test_a_process_with_another_start_time_is_not_signalled(ps):
    child = subprocess.Popen(["sleep", "701"])
    try:
        seen = ps.snapshot()[child.pid]
        other = ps.Process(seen.pid, seen.ppid, seen.group, seen.session, str(int(seen.start) - 1), seen.argv)
        assert ps.send(other, signal.SIGKILL) is False
        assert child.poll() is None
        assert ps.send(seen, signal.SIGTERM) is True
        assert child.wait(240) == -signal.SIGTERM
        assert ps.send(seen, signal.SIGTERM) is False
    finally:
        child.kill()
        child.wait()


@pytest.mark.spawns
def test_without_pidfds_the_start_time_is_compared_all_the_same(ps, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    test_a_process_with_another_start_time_is_not_signalled(ps)


@pytest.mark.spawns
def test_a_job_is_ended_though_the_clock_goes_back_all_the_time(ps, folder, monkeypatch):
    ending = target("ending")
    wall = iter(range(10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(wall)))
    stubborn = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], start_new_session=True, stdin=subprocess.DEVNULL
    )
    try:
        recorded = {"boot": ps.boot_id(), "members": [[stubborn.pid, ps.snapshot()[stubborn.pid].start]]}
        after, seen = ending.kill(JID, [folder], recorded, signal.SIGTERM, 0.5)
        assert stubborn.wait(240) == -signal.SIGKILL
        assert after["state"] == "killed"
        assert stubborn.pid in seen["killed"]
    finally:
        stubborn.kill()
        stubborn.wait()


@pytest.mark.parametrize(
    "odd", [b"[]", b"null", b"7", b'"text"', b"[" * 100_000 + b"]" * 100_000, b"\xff\xfe", b""], ids=range(7)
)
def test_an_odd_file_of_a_job_is_a_result_that_cannot_be_read(folder, odd):
    with open(os.path.join(folder, JID), "wb") as file:
        file.write(odd)
    truth = target("jobs").status(JID, [folder])
    assert truth["state"] == "dead"
    assert "unreadable" in truth["why"]


def test_text_of_a_job_that_is_not_unicode_is_shown_as_text(folder):
    with open(os.path.join(folder, JID), "w") as file:
        file.write(r'{"rc": 1, "failed": true, "msg": "\ud800", "stdout": "a\udfffb", "stderr": ["\ud800"]}')
    truth = target("jobs").status(JID, [folder])
    assert truth["state"] == "failed"
    assert json.dumps(truth, ensure_ascii=False).encode()
    assert truth["stdout"] == "a?b"


# -- what a job has printed


def read_all(content, limit, at_once, running=True):
    """Read in parts of so many bytes, as they come in one by one or all at once; and what is said at the end."""
    ending = target("ending")
    text, offset = "", 0
    for end in [len(content)] if at_once else [*range(len(content) + 1), len(content)]:
        while True:
            part = ending.shown(content[offset:end][:limit], offset, end, running)
            text, offset = text + part["output"], part["offset"]
            if not part["output"]:
                break
    last = ending.shown(content[offset:], offset, len(content), False)
    return text + last["output"], last["offset"]


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize("limit", [4, 5, 1000])
@pytest.mark.parametrize(
    "content",
    [
        b"plain",
        "ä€😀 and so on 😀".encode(),
        b"latin \xe4\xf6\xfc one \xff\xfe",
        b"\x80\x80 cut \xf0\x9f\x98",
        b"\xf0\x9f\x98\x80" * 5 + b"\xf0",
    ],
    ids=range(5),
)
def test_no_byte_of_the_output_is_lost_however_it_is_split(content, limit, at_once):
    text, offset = read_all(content, limit, at_once)
    assert offset == len(content)
    if b"\xff" not in content and content.decode("utf-8", "ignore").encode() == content:
        assert text == content.decode()
    else:
        assert text.replace("�", "") == content.decode("utf-8", "ignore")


def test_output_that_was_truncated_is_read_from_its_start(folder, tmp_path):
    ending = target("ending")
    path = tmp_path / "out"
    path.write_text("first\nsecond\n")
    _, part = ending.output(JID, [folder], {}, str(path), 0, 1000)
    assert (part["output"], part["offset"]) == ("first\nsecond\n", 13)
    path.write_text("anew\n")
    _, part = ending.output(JID, [folder], {}, str(path), part["offset"], 1000)
    assert (part["output"], part["offset"], part["size"]) == ("anew\n", 5, 5)


@pytest.mark.spawns
@pytest.mark.parametrize(("limit", "state"), [(3, "running"), (3, "done"), (100, "running")])
def test_output_that_was_followed_ends_with_a_whole_character(tmp_path, monkeypatch, limit, state):
    """The rest of a character that the limit divides, or that the job has not printed yet, is for the next time."""
    path = tmp_path / "out"
    path.write_bytes("ää".encode() if limit == 3 else "ä".encode() + "ä".encode()[:1])
    target("ending")  # the module imports it
    probe = importlib.import_module("ansible_collections.forkless.core.plugins.modules.async_job_probe")
    monkeypatch.setattr(probe, "_answer", lambda asked, check_mode: {"job": {"state": state}})

    def run_command(words, encoding):
        done = subprocess.run(words, capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    module = types.SimpleNamespace(params={"limit": limit, "follow": 0.0}, check_mode=False, run_command=run_command)
    first = {"source": str(path), "start": 0, "job": {"pids": [os.getpid()]}}
    found = probe._followed(module, first)
    assert (found["output"], found["offset"]) == ("ä", 2)


def test_sweeping_up_after_one_job_leaves_the_output_of_a_later_one_in_the_same_folder(tmp_path):
    slot = tmp_path / "forkless" / ("0" * 24) / "open"
    slot.mkdir(parents=True)
    (slot / "output.log").write_text("of the later one")
    (slot / "j2.2").write_text("{}")
    target("slots").sweep(str(slot), "j1.1")
    assert (slot / "output.log").exists()
    (slot / "j2.2").unlink()
    target("slots").sweep(str(slot), "j2.2")
    assert not slot.exists()


@pytest.mark.parametrize(
    ("text", "lines", "shown"),
    [
        (b"one\ntwo\nthree\n", 2, b"two\nthree\n"),
        (b"one\ntwo\nthr", 2, b"two\nthr"),
        (b"one\n", 5, b"one\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"", 3, b""),
        (b"one\n", 0, b""),
    ],
)
@pytest.mark.parametrize("block", [1, 3, 4, 65536])
def test_the_last_lines_are_found_from_the_end_whatever_the_size_of_a_block(text, lines, shown, block):
    ending = target("ending")
    assert text[ending._tail_start(io.BytesIO(text), len(text), lines, block) :] == shown
