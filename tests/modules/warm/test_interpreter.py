# SPDX-License-Identifier: GPL-3.0-or-later
"""Orders and ends that meet: nothing runs that nobody waits for, nobody waits for what does not run."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
import types
import zlib

import pytest

from forkless.core import platform
from forkless.engines.threads.workers.interrupt import Interrupt, WorkerStopped
from forkless.modules.warm import channel, payload
from forkless.modules.warm import interpreter as warm_interpreter
from forkless.modules.warm.interpreter import (
    NEVER_INTERRUPTED,
    InterpreterLostError,
    NotStartedError,
    WarmInterpreter,
)
from forkless.modules.warm.payload import Wrapped
from forkless.modules.warm.pool import DESCRIPTORS, TRIES, InterpreterPool
from forkless.modules.warm.program import BOOT, PATIENCE, PROGRAM, server_program
from forkless.modules.warm.remote import child, main


class Line:
    """What goes out, as (kind, number); `at` is called while an order is on its way."""

    def __init__(self, at=lambda _: None):
        self.frames, self._at, self.closed = [], at, False

    def send(self, data):
        frames = []
        while data:
            length, number, kind = main.HEAD.unpack_from(data)
            frames.append((kind, number))
            data = data[main.HEAD.size + length :]
        orders = any(kind == b"R" for kind, _ in frames)
        if orders:
            self._at("before")
        self.frames += frames
        if orders:
            self._at("after")

    def end_now(self):
        pass

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("orders", "parts"),
    [
        ([{}, {}], []),
        ([{}, {"live": True}, {"live": True}], [1]),
        ([{"argv": ("/stub", "j1")}, {"live": True}, {"argv": ("/stub", "j2"), "live": True}], [0, 1]),
    ],
)
def test_a_part_of_the_server_is_sent_once_before_the_first_order_that_needs_it(orders, parts):
    interpreter, line = WarmInterpreter("there"), Line()
    interpreter.attach(line)
    interpreter._sent.add("known")
    manifest = types.SimpleNamespace(digest="known")
    for number, order in enumerate(orders):
        interpreter._send_order(number, (manifest,), {"live": False, "argv": (), **order})
    expected = [
        frame
        for number in range(len(orders))
        for frame in ([(b"B", 0), (b"R", number)] if number in parts else [(b"R", number)])
    ]
    assert line.frames == expected


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_order_is_taken_back_when_its_worker_is_stopped_as_it_is_given(moment):
    interrupt, interpreter = Interrupt(), WarmInterpreter("there")
    stopping = []

    def at(now):
        if now == moment:
            thread = threading.Thread(target=interrupt.trigger, args=(WorkerStopped,))
            thread.start()
            stopping.append(thread)
            while interrupt._sent is None:
                time.sleep(0.001)

    line = Line(at)
    interpreter.attach(line)
    manifest = types.SimpleNamespace(digest="known")
    interpreter._sent.add("known")
    seen = []

    def work():
        interrupt.begin()
        try:
            wrapped = Wrapped(b"", manifest, {})
            interpreter.run(wrapped, {}, interrupt=interrupt)
        except WorkerStopped:
            seen.append("stopped")
        finally:
            interrupt.end()

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(240)
    stopping[0].join(240)
    assert seen == ["stopped"]
    assert not interpreter.busy
    order, *rest = line.frames
    assert order[0] == b"R"
    assert (b"K", order[1]) in rest


class Raw(Line):
    """What goes out, as it is."""

    def __init__(self):
        super().__init__()
        self.data = b""

    def send(self, data):
        self.data += data


@pytest.mark.parametrize(("magic", "kind"), [(payload.MAGIC, b"M"), ("", b"T"), ("00000000", b"T")])
def test_the_program_precedes_the_first_order_as_bytecode_if_the_host_has_this_python(magic, kind):
    program, line = server_program(ask_groups=False), Raw()
    interpreter = WarmInterpreter("there", program=program)
    interpreter.attach(line)
    interpreter.feed(
        b"a message of the day" + main.MAGIC + main.HEAD.pack(len(magic) + 4, 0, b"H") + f"{magic} 3.8".encode()
    )
    assert interpreter.ready.is_set()
    interpreter._sent.add("known")
    for number in (1, 2):
        interpreter._send_order(number, (types.SimpleNamespace(digest="known"),), {"live": False, "argv": ()})
    head, length = PROGRAM.unpack_from(line.data)
    body = line.data[PROGRAM.size :][:length]
    assert (head, body) == (kind, program.code if kind == b"M" else program.text)
    frames = Line()
    frames.send(line.data[PROGRAM.size + length :])
    assert frames.frames == [(b"R", 1), (b"R", 2)]


@pytest.mark.parametrize(
    ("said", "error"), [(b"F", NotStartedError), (b"S", InterpreterLostError), (b"", InterpreterLostError)]
)
def test_one_that_says_that_it_cannot_execute_its_program_has_started_nothing(said, error):
    """Who ends without a word may have executed it, and the order that came with it: its answers may be lost on the way."""
    interpreter, line = WarmInterpreter("there", program=server_program(ask_groups=False)), Line()
    interpreter.attach(line)
    interpreter._start()
    thread, came = asking(interpreter)
    if said:
        interpreter._hear(said, 0, b"")
    interpreter.gone()
    thread.join(240)
    assert [type(one) for one in came] == [error]


@pytest.mark.spawns
def test_one_whose_input_ends_before_its_program_says_that_it_has_started_nothing():
    done = subprocess.run([sys.executable, "-c", BOOT], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.stdout.endswith(bytes(8) + b"F")


SIGNALS = """
import os, signal, sys
{before}
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""


@pytest.mark.spawns
@pytest.mark.parametrize(
    "before",
    ["pass", "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())", "signal.signal(signal.SIGALRM, signal.SIG_IGN)"],
    ids=["as usual", "blocked", "ignored"],
)  # fmt: skip
def test_one_whose_program_does_not_come_ends_whatever_the_program_that_started_it_did_to_signals(before):
    boot = BOOT.replace(f"alarm({PATIENCE})", "alarm(1)")
    command = [sys.executable, "-c", SIGNALS.format(before=before), boot]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:  # stdin stays open
        try:
            assert child.stdout.read().endswith(bytes(8) + b"F")
            assert child.wait(240) != 0
        finally:
            child.kill()


@pytest.mark.spawns
def test_one_that_says_other_things_all_the_time_is_given_up_like_one_that_says_nothing(monkeypatch):
    read = os.read
    monkeypatch.setattr(
        os, "read", lambda number, _most: read(number, 1)
    )  # the program is faster, however busy the machine
    line = channel.ProgramChannel(WarmInterpreter("there"), ["yes"])
    with pytest.raises(NotStartedError, match="did not greet in time"):
        line.begin(become=None, password=None, verdict=1.0, greeting=1.0)


@pytest.mark.spawns
@pytest.mark.parametrize("swallows", [True, False], ids=["swallowed", "let through"])
def test_one_whose_program_hangs_before_it_begins_ends(swallows):
    """In an import from a file system that does not answer, for example, under code that ignores errors of it."""
    body = b"import time\ntry: time.sleep(600)\nexcept Exception: %s\n" % (b"time.sleep(600)" if swallows else b"raise")
    program = zlib.compress(body)
    boot = BOOT.replace(f"alarm({PATIENCE})", "alarm(1)")
    with subprocess.Popen([sys.executable, "-c", boot], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            child.stdin.write(PROGRAM.pack(b"T", len(program)) + program)
            child.stdin.flush()
            assert child.stdout.read().endswith(bytes(8) + b"F")
        finally:
            child.kill()


def test_one_that_cannot_serve_is_not_started_again():
    pool, ended = InterpreterPool(), []
    interpreter = WarmInterpreter("there", program=server_program(ask_groups=False))
    line = Line()
    line.end_now = lambda: ended.append(True)  # releases a writer whose program nobody reads
    interpreter.attach(line)
    pool.get("place", "key", lambda: interpreter)
    interpreter._hear(b"F", 0, b"")
    assert ended
    pool.forget(interpreter)
    with pytest.raises(NotStartedError):
        pool.get("place", "key", lambda: pytest.fail("it was started again"))


def test_a_host_where_the_program_fails_is_left_alone_after_a_few_times():
    pool, made = InterpreterPool(), []

    def start():
        made.append(WarmInterpreter("there", program=server_program(ask_groups=False)))
        made[-1].attach(Line())
        return made[-1]

    for _ in range(TRIES):
        pool.forget(pool.get("place", "key", start))
    with pytest.raises(NotStartedError):
        pool.get("place", "key", start)
    assert len(made) == TRIES
    made.clear()
    for _ in range(TRIES + 1):
        pool.get("place", "other", start).serving = True
        pool.forget(made[-1])
    assert len(made) == TRIES + 1


@pytest.mark.parametrize(("python", "old"), [("3.7", True), ("2.7", True), ("", True), ("3.8", False), ("3.14", False)])
def test_a_python_that_is_too_old_for_the_program_is_noticed_by_its_greeting(python, old):
    interpreter = WarmInterpreter("there", program=server_program(ask_groups=False))
    interpreter._hear(b"H", 0, f"abc {python}".encode())
    with pytest.raises(NotStartedError) if old else contextlib.nullcontext():
        interpreter.check_version()


def test_one_without_an_order_is_ended_by_the_end_of_its_input():
    interpreter, line = WarmInterpreter("there", program=server_program(ask_groups=False)), Line()
    interpreter.attach(line)
    line.close = lambda: interpreter.gone()
    interpreter.retire(until=time.monotonic() + 240)
    assert interpreter.ended.is_set()
    assert line.frames == []


@pytest.mark.spawns
@pytest.mark.parametrize("fails", [False, True])
def test_the_program_is_executed_or_else_nothing_was_started(fails):
    program = server_program(ask_groups=False)
    if fails:
        program = payload.Piece("fails", "fails.py", zlib.compress(b"raise ImportError('no such library')"))
    interpreter = WarmInterpreter("there", program=program)
    line = channel.ProgramChannel(interpreter, [sys.executable, "-c", BOOT])
    line.begin(become=None, password=None, verdict=240, greeting=240)
    interpreter.attach(line)
    try:
        if fails:
            with pytest.raises(NotStartedError, match="before it could take orders"):
                interpreter.request({"expand": "~root"}, interrupt=NEVER_INTERRUPTED)
        else:
            assert interpreter.request({"expand": "~root"}, interrupt=NEVER_INTERRUPTED)
    finally:
        interpreter.close()


def test_the_removal_of_a_folder_is_waited_for_at_the_end_only(monkeypatch):
    monkeypatch.setattr(warm_interpreter, "GRACE", 240.0)
    interpreter, line = WarmInterpreter("there"), Line()
    interpreter.attach(line)
    for path in ("/one", "/two"):
        interpreter.remove_folder(path, interrupt=NEVER_INTERRUPTED)
    [(_, one), (_, two)] = line.frames
    closing = threading.Thread(target=interpreter.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    assert not line.closed
    interpreter._hear(b"N", one, b"Permission denied")
    interpreter._hear(b"X", two, b"0")
    closing.join(240)
    assert line.closed
    interpreter.close()
    assert interpreter.leftovers == [("/one", "Permission denied")]


@pytest.mark.parametrize("ends", ["retired", "retired while it works", "closed with the run"])
def test_what_an_interpreter_could_not_remove_after_its_last_task_is_known_to_its_pool(ends):
    pool, interpreter, line = InterpreterPool(), WarmInterpreter("there"), Line()
    interpreter.attach(line)
    pool.get("place", "key", lambda: interpreter)
    interpreter.remove_folder("/before", interrupt=NEVER_INTERRUPTED)
    interpreter._hear(b"N", line.frames[-1][1], b"Permission denied")
    assert interpreter.take_not_removed() == [("/before", "Permission denied")]
    interpreter.remove_folder("/one", interrupt=NEVER_INTERRUPTED)
    interpreter._hear(b"N", line.frames[-1][1], b"Permission denied")
    if ends == "retired while it works":
        line.frames.clear()
        thread, _ = asking(interpreter)
        pool.forget(interpreter)
        assert not line.closed
        interpreter._hear(b"X", line.frames[0][1], b"0")
        thread.join(240)
    elif ends == "retired":
        pool.forget(interpreter)
    else:
        pool.close()
    assert line.closed
    assert pool.take_not_removed() == [("/one", "Permission denied")]
    assert pool.take_not_removed() == []


def test_a_removal_that_could_not_be_asked_for_is_not_waited_for():
    class Closed(Line):
        def send(self, _data):
            raise BrokenPipeError

    interpreter = WarmInterpreter("there")
    interpreter.attach(Closed())
    with pytest.raises(NotStartedError):
        interpreter.remove_folder("/one", interrupt=NEVER_INTERRUPTED)
    assert not interpreter._removals


def asking(interpreter):
    """A thread that has made a request and waits for its answer; and what came of it."""
    came = []

    def work():
        try:
            came.append(interpreter.request({"expand": "~"}, interrupt=NEVER_INTERRUPTED))
        except Exception as err:  # noqa: BLE001  # is looked at
            came.append(err)

    thread = threading.Thread(target=work)
    thread.start()
    while not interpreter._channel.frames and thread.is_alive():
        time.sleep(0.001)
    return thread, came


def test_one_that_has_something_to_do_is_not_sent_home_before_it_is_done():
    interpreter, line = WarmInterpreter("there"), Line()
    interpreter.attach(line)
    thread, came = asking(interpreter)
    interpreter.retire(until=0.0)
    assert not line.closed
    assert [kind for kind, _ in line.frames] == [b"C"]
    interpreter._hear(b"O", line.frames[0][1], b"/home")
    interpreter._hear(b"X", line.frames[0][1], b"0")
    thread.join(240)
    assert came == [b"/home"]
    assert line.closed


def test_one_that_was_sent_home_takes_no_order():
    interpreter, line = WarmInterpreter("there"), Line()
    interpreter.attach(line)
    interpreter.retire(until=0.0)
    assert [kind for kind, _ in line.frames] == [b"L"]
    assert line.closed
    with pytest.raises(NotStartedError):
        interpreter.request({"expand": "~"}, interrupt=NEVER_INTERRUPTED)
    assert [kind for kind, _ in line.frames] == [b"L"]


def test_a_line_that_is_closed_is_one_that_is_gone():
    class Closed(Line):
        def send(self, _data):
            raise ValueError("I/O operation on closed file")

    interpreter = WarmInterpreter("there")
    interpreter.attach(Closed())
    with pytest.raises(NotStartedError):
        interpreter.request({"expand": "~"}, interrupt=NEVER_INTERRUPTED)
    with pytest.raises(NotStartedError):
        interpreter.request({"expand": "~"}, interrupt=NEVER_INTERRUPTED)


def test_who_stops_a_worker_does_not_wait_for_a_host_that_does_not_read(monkeypatch):
    monkeypatch.setattr(warm_interpreter, "GRACE", 0.01)
    ended = threading.Event()

    class Full(Line):
        def send(self, _data):
            self.frames.append((b"?", 0))
            assert ended.wait(240)
            raise BrokenPipeError

        def end_now(self):
            ended.set()

    interpreter = WarmInterpreter("there")
    interpreter.attach(Full())
    thread, came = asking(interpreter)
    interpreter._give_up(1, interpreter._calls[1])
    thread.join(240)
    assert [type(one) for one in came] == [NotStartedError]


@pytest.mark.parametrize("fails", ["fork", "second pipe"])
def test_a_host_that_cannot_fork_keeps_no_pipe_of_the_task(monkeypatch, fails):
    """At its limit of processes, or of files, it says so, and may be asked again as often as one likes."""
    far, said = main.RemoteServer(0, 1, ask_groups=False), []
    far.payloads["digest"] = {}
    monkeypatch.setattr(far, "say", lambda kind, number, body=b"": said.append((kind, number)))
    pipes, real = [], os.pipe

    def pipe():
        if fails == "second pipe" and len(pipes) % 2:
            pipes.append(None)
            raise OSError(24, "Too many open files")
        pipes.append(real())
        return pipes[-1]

    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "pipe", pipe)
    monkeypatch.setattr(os, "fork", fork)
    order = {"digest": "digest", "cwd": None, "lay": None, "remote_tmp": None, "argv": [], "one_stream": False}
    for number in (1, 2, 3):
        far.run(number, order)
    assert said == [(b"N", 1), (b"N", 2), (b"N", 3)]
    for fd in [fd for ends in pipes for fd in ends or ()]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_the_longest_idle_interpreters_are_closed_when_no_more_files_may_be_open(monkeypatch):
    """Each host of a run has one, and one that is at work is kept."""
    monkeypatch.setattr(platform, "open_files_limit", lambda: 10 * 2 * DESCRIPTORS)
    keep, clock = InterpreterPool(), itertools.count()
    closed = []

    class Resting:
        lost = busy = False

        def __init__(self):
            self.used = float(next(clock))

        def retire(self, *, until=None):
            closed.append(self.used)

    at_work = keep.get("host 0", "key", Resting)
    at_work.busy = True
    for number in range(1, 13):
        keep.get(f"host {number}", "key", Resting)
    assert closed == [1.0, 2.0, 3.0]
    assert keep.get("host 0", "key", Resting) is at_work
    assert keep.get("host 12", "key", Resting).used == 12.0
    assert closed == [1.0, 2.0, 3.0]


@pytest.mark.spawns
def test_a_run_on_more_hosts_than_files_may_be_open_reaches_them_all(tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec /bin/sh -c "$last"\n')
    ssh.chmod(0o755)
    told = f"ansible_ssh_executable={ssh} ansible_python_interpreter={sys.executable} ansible_ssh_common_args='-o ControlMaster=no'"
    (tmp_path / "hosts").write_text("".join(f"host{number} {told}\n" for number in range(30)))
    (tmp_path / "play.yml").write_text("- hosts: all\n  gather_facts: false\n  tasks: [ping: {}]\n")
    line = f"ulimit -n 80 && exec {sys.executable} -m forkless playbook -i hosts play.yml"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert done.stdout.count("ok: [host") == 30


def test_who_comes_to_a_machine_waits_for_interpreters_that_another_is_ending_there():
    """The next thing to be done there may be a `userdel`, which fails while the user has a process."""
    keep, may_end, asked = InterpreterPool(), threading.Event(), threading.Event()

    class Leaving:
        lost = busy = False
        used = 0.0

        def retire(self, *, until):
            asked.set()
            assert may_end.wait(240)

    for name in ("ann", "ben"):
        keep.get("here", name, Leaving, machine="m" + name, become_user=True)
    # Of one machine, as many users have them there.
    for slot in keep._slots.values():
        slot.become_user_on = "machine"
    first = threading.Thread(target=keep.close_idle_of_other_users, args=("machine",))
    second = threading.Thread(target=keep.close_idle_of_other_users, args=("machine",))
    first.start()
    assert asked.wait(240)
    assert keep.has_become_user_interpreters
    second.start()
    second.join(0.2)
    assert second.is_alive()
    may_end.set()
    for thread in (first, second):
        thread.join(240)
        assert not thread.is_alive()
    assert not keep.has_become_user_interpreters


def test_a_folder_is_removed_though_somebody_else_removes_a_file_in_it(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "abc":
        (folder / name).touch()
    unlink, others = os.unlink, []

    def somebody_was_faster(path, **where):
        unlink(path, **where)
        if not others:
            others.append(path)
            raise FileNotFoundError(path)

    monkeypatch.setattr(os, "unlink", somebody_was_faster)
    child.remove_folder(str(folder))
    assert others
    assert not folder.exists()
    child.remove_folder(str(folder))  # which is not there
