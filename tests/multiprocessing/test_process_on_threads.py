# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process is to those who use it: names, exit codes, parents, sentinels."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import select
import signal
import sys
import threading
from multiprocessing import connection

import pytest

import forkless.multiprocessing as fm

WAIT = 30


def leave(code):
    sys.exit(code)


def fail():
    raise LookupError("nobody is called that")


def tell(conn):
    me, parent = multiprocessing.current_process(), multiprocessing.parent_process()
    conn.send((me.name, me.pid, me.ident, me.daemon, me.is_alive(), parent.name, parent.pid, repr(me)))
    conn.close()


def wait_for(event):
    event.wait(WAIT)


def start_thread_and_return(queue):
    def late():
        queue.put((multiprocessing.current_process().name, threading.current_thread().daemon))

    threading.Timer(0.2, late).start()


def have_children(conn):
    ctx = multiprocessing.get_context()
    event = ctx.Event()
    children = [ctx.Process(target=wait_for, args=(event,)) for _ in range(2)]
    for child in children:
        child.start()
    conn.send(([child.name for child in children], len(multiprocessing.active_children()), ctx.get_start_method()))
    event.set()
    for child in children:
        child.join()
    conn.send(multiprocessing.active_children())


class Shouter(multiprocessing.Process):
    """The other way to use it: a subclass that overrides run(), with what it needs as attributes."""

    def __init__(self, queue, word):
        super().__init__()
        self.queue, self.word = queue, word

    def run(self):
        self.word = self.word.upper()
        self.queue.put((self.word, self is multiprocessing.current_process()))


EXITCODES = [(None, 0), (0, 0), (7, 7), (300, 44), (-1, 255), (True, 1), ("so long", 1)]


def test_exit_codes_are_those_of_a_process(ctx, capsys):
    children = [ctx.Process(target=leave, args=(code,)) for code, _ in EXITCODES]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [exitcode for _, exitcode in EXITCODES]
    assert capsys.readouterr().err == "so long\n"


def test_an_uncaught_exception_prints_its_traceback_and_exits_with_1(ctx, capsys):
    child = ctx.Process(target=fail, name="Ishmael")
    child.start()
    child.join()
    err = capsys.readouterr().err
    assert child.exitcode == 1
    assert err.startswith("Process Ishmael:\nTraceback (most recent call last):")
    assert err.rstrip().endswith("LookupError: nobody is called that")


def test_a_child_knows_itself_and_its_parent(ctx):
    ours, theirs = ctx.Pipe(duplex=False)
    child = ctx.Process(target=tell, args=(theirs,), daemon=True)
    child.start()
    theirs.close()
    name, pid, ident, daemon, alive, parent, parent_pid, text = ours.recv()
    with pytest.raises(EOFError):
        ours.recv()
    ours.close()
    child.join()
    assert (name, pid, ident, daemon, alive) == (child.name, child.pid, child.ident, True, True)
    assert (parent, parent_pid) == ("MainProcess", os.getpid())
    assert " started daemon>" in text
    assert multiprocessing.parent_process() is None
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)  # a made-up number must never be somebody's


def test_a_child_has_children_of_its_own(ctx):
    ours, theirs = ctx.Pipe(duplex=False)
    child = ctx.Process(target=have_children, args=(theirs,), name="Adam")
    child.start()
    names, active, method = ours.recv()
    assert [name.rpartition("-")[2] for name in names] == [f"{child._identity[0]}:1", f"{child._identity[0]}:2"]
    assert active == 2
    assert method == ctx.get_start_method()
    assert ours.recv() == []
    child.join()
    assert multiprocessing.active_children() == []
    ours.close()
    theirs.close()


def test_the_sentinel_becomes_ready_at_the_end_and_not_before(ctx):
    event = ctx.Event()
    child = ctx.Process(target=wait_for, args=(event,))
    with pytest.raises(ValueError, match="process not started"):
        child.sentinel  # noqa: B018
    child.start()
    assert isinstance(child.sentinel, int)
    assert connection.wait([child.sentinel], 0.01) == []
    assert child.join(0.01) is None
    assert child.is_alive()
    assert child.exitcode is None
    event.set()
    assert connection.wait([child.sentinel], WAIT) == [child.sentinel]
    assert select.select([child.sentinel], [], [], 0)[0] == [child.sentinel]
    child.join()
    assert connection.wait([child.sentinel], 0) == [child.sentinel]
    child.close()


def pipes():
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.readlink(link).startswith("pipe:") for link in links if os.path.islink(link))


def test_a_child_that_is_only_joined_opens_no_pipe(ctx):
    before = pipes()
    event = ctx.Event()
    children = [ctx.Process(target=wait_for, args=(event,)) for _ in range(5)]
    for child in children:
        child.start()
    during = pipes()
    event.set()
    for child in children:
        child.join()
    assert during == before
    children[0].sentinel  # noqa: B018
    assert pipes() == before + 1
    children[0].close()
    assert pipes() == before


def test_the_end_of_a_child_waits_for_the_threads_it_started(ctx):
    queue = ctx.Queue()
    child = ctx.Process(target=start_thread_and_return, args=(queue,))
    child.start()
    child.join()
    assert queue.get(timeout=WAIT) == (child.name, False)
    queue.close()
    queue.join_thread()


@pytest.mark.parametrize("method", ["thread", "fork", "spawn", "forkserver"])
def test_a_subclass_that_overrides_run_works_and_keeps_its_changes_to_itself(method):
    with fm.installed():
        before = multiprocessing.get_start_method(allow_none=True)
        multiprocessing.set_start_method(method, force=True)
        try:
            queue = multiprocessing.SimpleQueue()
            child = Shouter(queue, "ahoy")
            child.start()
            assert queue.get() == ("AHOY", True)
            child.join()
            assert child.word == "ahoy"
            queue.close()
        finally:
            multiprocessing.set_start_method(before, force=True)


def test_nothing_of_the_target_is_kept_alive(ctx):
    import weakref

    class Thing:
        def __reduce__(self):
            return (object, ())

    thing = Thing()
    seen = weakref.ref(thing)
    child = ctx.Process(target=wait_for_nothing, args=(thing,))
    del thing
    child.start()
    child.join()
    assert seen() is None


def wait_for_nothing(thing):
    pass


def test_two_hundred_children_at_once(ctx):
    event = ctx.Event()
    children = [ctx.Process(target=wait_for, args=(event,)) for _ in range(200)]
    for child in children:
        child.start()
    assert len({child.pid for child in children}) == 200
    assert len(multiprocessing.active_children()) == 200
    event.set()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 200


def test_several_who_wait_for_one_child_all_see_its_end(ctx):
    event = ctx.Event()
    child = ctx.Process(target=wait_for, args=(event,))
    child.start()
    seen = []
    waiters = [threading.Thread(target=lambda: seen.append(child._popen.wait(WAIT))) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    assert child._popen.wait(0.01) is None
    event.set()
    for waiter in waiters:
        waiter.join(WAIT)
    assert seen == [0] * 4
    assert child._popen.state._waiters == []
    child.join()


def test_a_thread_that_nobody_announced_belongs_to_the_program_and_is_not_made_up_for_it(ctx):
    """threading would make up an entry for it, which stays in threading.enumerate() when the thread is gone."""
    before, answers = threading.enumerate(), []
    done = threading.Lock()
    done.acquire()

    def ask():
        answers.append(multiprocessing.current_process().name)
        done.release()

    _thread.start_new_thread(ask, ())
    assert done.acquire(timeout=WAIT)
    assert answers == ["MainProcess"]
    assert threading.enumerate() == before


@pytest.mark.spawns
def test_what_is_left_running_is_seen_to_at_the_end_of_the_program(python):
    done = python("""
import forkless.multiprocessing
forkless.multiprocessing.install()
import multiprocessing, time

def finish():
    time.sleep(0.3)
    print("finished", flush=True)

def never(event):
    event.set()
    time.sleep(300)

event = multiprocessing.Event()
multiprocessing.Process(target=never, args=(event,), daemon=True, name="Methuselah").start()
event.wait()
multiprocessing.Process(target=finish).start()
print("main is done", flush=True)
""")
    assert done.stdout.split("\n")[:2] == ["main is done", "finished"]
    assert "Methuselah was told to stop" in done.stderr


def test_a_signal_reaches_the_main_thread_while_it_joins(ctx):
    event = ctx.Event()
    child = ctx.Process(target=wait_for, args=(event,))
    child.start()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        child.join()
    event.set()
    child.join()
    assert child.exitcode == 0


def show_lock(lock, queue):
    with lock:
        queue.put(repr(lock))


def test_a_lock_that_a_child_holds_shows_the_child_and_no_thread(ctx):
    queue = ctx.SimpleQueue()
    child = ctx.Process(target=show_lock, args=(ctx.Lock(), queue), name="Absalom")
    child.start()
    assert queue.get() == "<Lock(owner=Absalom)>"
    child.join(WAIT)
    queue.close()


@pytest.mark.matrix
@pytest.mark.spawns
def test_starting_a_child_does_not_choose_the_default_start_method(python):
    script = """
import multiprocessing
import forkless.multiprocessing

if __name__ == "__main__":
    forkless.multiprocessing.install()
    child = multiprocessing.get_context("spawn").Process(target=abs, args=(1,))
    child.start()
    child.join()
    assert multiprocessing.get_start_method(allow_none=True) is None
    """
    python(script)


@pytest.mark.matrix
@pytest.mark.spawns
def test_the_default_start_method_is_the_pythons_and_its_children_are_threads(python):
    """It is fork up to 3.13 on Linux, and forkserver since 3.14."""
    script = """
import multiprocessing
import os
import threading
import forkless.multiprocessing

def tell(queue):
    queue.put((os.getpid(), threading.get_native_id(), multiprocessing.get_start_method()))

if __name__ == "__main__":
    forkless.multiprocessing.install()
    queue = multiprocessing.Queue()
    child = multiprocessing.Process(target=tell, args=(queue,))
    child.start()
    pid, thread, method = queue.get(timeout=60)
    child.join()
    assert (child.exitcode, pid) == (0, os.getpid())
    assert thread != threading.get_native_id()
    print(method, multiprocessing.get_start_method(), type(child._popen).method)
    """
    stock = python("import multiprocessing\nprint(multiprocessing.get_start_method())").stdout.strip()
    assert python(script).stdout.split() == [stock] * 3


@pytest.mark.matrix
def test_the_tracker_takes_names_in_any_alphabet_up_to_255_bytes():
    from multiprocessing import resource_tracker

    with fm.installed():
        for name in ("/" + "ж" * 127, "/" + "x" * 254, "/two\nlines"):
            resource_tracker.register(name, "shared_memory")
            resource_tracker.unregister(name, "shared_memory")
        with pytest.raises(ValueError, match=r"too long \(max 255 bytes\)"):
            resource_tracker.register("/x" + "ж" * 127, "shared_memory")
