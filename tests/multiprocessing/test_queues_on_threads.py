# SPDX-License-Identifier: GPL-3.0-or-later
"""Queues, pipes and shared values between a program and its children, and the two patterns that Ansible uses."""

from __future__ import annotations

import array
import fcntl
import multiprocessing
import multiprocessing.connection
import multiprocessing.queues
import os
import queue as plain
import socket
import termios
import threading
import time
import traceback

import pytest

import forkless.multiprocessing as fm
from forkless.multiprocessing import queues

WAIT = 30


class FinalQueue(multiprocessing.queues.SimpleQueue):
    """A SimpleQueue with a context of its choice, and a verb of its own."""

    def __init__(self, ctx):
        super().__init__(ctx=ctx)

    def send(self, thing):
        self.put(("sent", thing))


class WorkerQueue(multiprocessing.queues.Queue):
    def __init__(self, ctx):
        super().__init__(ctx=ctx)

    def get(self, *args, **kwargs):
        thing = super().get(*args, **kwargs)
        if isinstance(thing, BaseException):
            raise thing
        return thing


def answer(questions, answers):
    while (thing := questions.get()) is not None:
        answers.send(thing * 2)


def fail_into(queue):
    try:
        {}["no such key"]
    except KeyError as error:
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
        queue.put(error)


def put_many(queue, count):
    for number in range(count):
        queue.put(number)


def add(value, array, times):
    for _ in range(times):
        with value.get_lock():
            value.value += 1
        with array.get_lock():
            array[0] += 2


def use_and_close(conn, sock):
    conn.send_bytes(b"by pipe")
    conn.close()
    sock.sendall(b"by socket")
    sock.close()


def test_subclasses_of_both_queues_work_with_a_context(ctx):
    questions, answers = WorkerQueue(ctx), FinalQueue(ctx)
    child = ctx.Process(target=answer, args=(questions, answers))
    child.start()
    for number in range(3):
        questions.put(number)
        assert answers._reader.poll(WAIT)
        assert answers.get() == ("sent", number * 2)
    questions.put(None)
    child.join()
    assert child.exitcode == 0
    questions.close()
    questions.join_thread()
    answers.close()


def test_an_exception_crosses_a_queue_with_its_traceback(ctx):
    queue = WorkerQueue(ctx)
    child = ctx.Process(target=fail_into, args=(queue,))
    child.start()
    with pytest.raises(KeyError, match="no such key") as caught:
        queue.get(timeout=WAIT)
    assert "in fail_into" in caught.value.__notes__[0]
    child.join()
    queue.close()
    queue.join_thread()


def test_everything_put_is_there_once_the_child_is_joined(ctx):
    queue = ctx.Queue()
    child = ctx.Process(target=put_many, args=(queue, 200))
    child.start()
    child.join()
    assert [queue.get(block=False) for _ in range(200)] == list(range(200))
    with pytest.raises(plain.Empty):
        queue.get(timeout=0.01)
    queue.close()
    queue.join_thread()


def test_a_simple_queue_can_be_asked_with_a_time_limit(ctx):
    queue = ctx.SimpleQueue()
    for limit in ({"block": False}, {"timeout": 0.01}, {"block": True, "timeout": -1}):
        with pytest.raises(plain.Empty):
            queue.get(**limit)
    queue.put("here")
    assert queue.get(block=False) == "here"
    threading.Timer(0.05, queue.put, ("late",)).start()
    assert queue.get(timeout=WAIT) == "late"
    with queue._rlock, pytest.raises(plain.Empty):
        queue.get(timeout=0.01)
    queue.close()


def test_big_and_small_messages_keep_their_order(ctx):
    queue = ctx.Queue()
    sizes = [10, 10, 100_000, 10, 5_000, 10] * 20
    reader = threading.Thread(target=lambda: received.extend(len(queue.get(timeout=WAIT)) for _ in sizes))
    received = []
    reader.start()
    for size in sizes:
        queue.put(b"x" * size)
    reader.join()
    assert received == sizes
    queue.close()
    queue.join_thread()


def test_a_full_pipe_never_blocks_put(ctx):
    queue = ctx.Queue()
    for _ in range(2500):  # far more than a pipe holds, and than a message store does
        queue.put(b"x" * 1000)
    for number in range(2500):
        assert len(queue.get(timeout=WAIT)) == 1000
        if number == 1200:
            queue.put(b"y" * 1000)  # while the pipe is full of messages that found no room on the message store
    assert queue.get(timeout=WAIT) == b"y" * 1000
    queue.close()
    queue.join_thread()


def warm(queue):
    """The first message starts the feeder. Once that sleeps again, the next go without it."""
    queue.put("first")
    assert queue.get(timeout=WAIT) == "first"
    deadline = time.monotonic() + WAIT
    while not queue._notempty._waiters and time.monotonic() < deadline:
        time.sleep(0.001)


def waiting_in(pipe):
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


@pytest.mark.parametrize("message", [b"x" * 1_000_000, "é" * 400_000, [b"x" * 500_000, {"a": 1}], 7, None])
def test_a_message_of_any_size_stays_in_memory_and_its_number_can_be_waited_for(ctx, message):
    queue = ctx.Queue()
    warm(queue)
    assert multiprocessing.connection.wait([queue._reader], timeout=0) == []
    queue.put(message)
    assert waiting_in(queue._reader) == 4
    assert multiprocessing.connection.wait([queue._reader], timeout=0) == [queue._reader]
    assert (queue.empty(), queue.qsize()) == (False, 1)
    assert queue.get(block=False) == message
    assert (queue.empty(), queue.qsize()) == (True, 0)
    queue.close()
    queue.join_thread()


def test_what_is_put_is_a_copy(ctx):
    queue = ctx.Queue()
    warm(queue)
    thing = ["as it was"]
    queue.put(thing)
    thing.append("changed later")
    assert queue.get(timeout=WAIT) == ["as it was"]
    queue.close()
    queue.join_thread()


def test_a_shelf_is_not_filled_without_end(ctx, monkeypatch):
    monkeypatch.setattr(queues, "_MAX_BYTES", 3_000_000)
    queue = ctx.Queue()
    warm(queue)
    store = queue._forkless_ends.store
    for number in range(20):
        queue.put((number, b"x" * 1_000_000))
    assert 1_000_000 < store.weight_in - store.weight_out < 4_100_000
    assert [queue.get(timeout=WAIT)[0] for _ in range(20)] == list(range(20))
    assert store.messages == {}
    queue.close()
    queue.join_thread()


def test_numbers_start_again_when_they_are_used_up(ctx, monkeypatch):
    monkeypatch.setattr(queues, "_COUNT", 5)
    queue = ctx.Queue()
    warm(queue)
    for number in range(40):
        queue.put(number)
        assert queue.get(timeout=WAIT) == number
    queue.close()
    queue.join_thread()


def test_what_is_in_a_queue_is_still_there_after_stepping_out():
    with fm.installed():
        queue = multiprocessing.get_context("fork").Queue()
        warm(queue)
        queue.put(b"x" * 100_000)
    assert queue.get(timeout=WAIT) == b"x" * 100_000
    queue.put("and after")
    assert queue.get(timeout=WAIT) == "and after"
    queue.close()
    queue.join_thread()


def test_a_queue_that_was_made_before_goes_by_its_pipe_as_before():
    queue = multiprocessing.get_context("fork").Queue()
    with fm.installed():
        warm(queue)
        queue.put(b"x" * 1000)
        assert len(queue.get(timeout=WAIT)) == 1000
        assert "_forkless_ends" not in vars(queue)
        queue.close()
        queue.join_thread()


def read_then_write(inbox, outbox):
    for thing in iter(inbox.get, None):
        outbox.put(thing)


def test_big_messages_reach_a_child_and_come_back(ctx):
    inbox, outbox = ctx.Queue(), ctx.Queue()
    child = ctx.Process(target=read_then_write, args=(inbox, outbox))
    child.start()
    for size in (1, 1_000_000, 10, 3_000_000):
        inbox.put(b"x" * size)
        assert len(outbox.get(timeout=WAIT)) == size
    inbox.put(None)
    child.join()
    assert child.exitcode == 0
    for queue in (inbox, outbox):
        queue.close()
        queue.join_thread()


def test_many_writers_and_many_readers_lose_nothing(ctx):
    queue, out = ctx.Queue(), ctx.Queue()
    writers = [ctx.Process(target=put_many, args=(queue, 300)) for _ in range(4)]
    readers = [ctx.Process(target=read_then_write, args=(queue, out)) for _ in range(3)]
    for child in writers + readers:
        child.start()
    got = [out.get(timeout=WAIT) for _ in range(1200)]
    for _ in readers:
        queue.put(None)
    for child in writers + readers:
        child.join()
    assert sorted(got) == sorted(list(range(300)) * 4)
    for each in (queue, out):
        each.close()
        each.join_thread()


def test_what_cannot_be_pickled_is_told_and_gives_its_place_back(ctx, capsys):
    queue = ctx.Queue(1)
    warm(queue)
    queue.put(threading.Lock())
    queue.put("after it", timeout=WAIT)
    assert queue.get(timeout=WAIT) == "after it"
    assert "cannot pickle" in capsys.readouterr().err
    queue.close()
    queue.join_thread()


def test_nobody_left_to_read_is_no_error_of_put(ctx):
    queue = ctx.Queue()
    queue._ignore_epipe = True
    warm(queue)
    queue._reader.close()
    queue.put(b"x" * 100)
    assert queue._forkless_ends.store.messages == {}
    queue.cancel_join_thread()
    queue._writer.close()


class Holder:
    """Holds a queue where no start method looks for one."""

    def __init__(self, queue):
        self.queue = queue

    def __call__(self):
        put_many(self.queue, 50)


@pytest.mark.parametrize("method", ["thread", "fork"])
def test_a_queue_lent_by_reference_is_still_open_after_its_borrower_is_gone(method):
    with fm.installed():
        ctx = multiprocessing.get_context(method)
        queue = ctx.Queue()
        for _ in range(2):
            child = ctx.Process(target=Holder(queue))
            child.start()
            child.join()
            assert [queue.get(block=False) for _ in range(50)] == list(range(50))
        queue.put("still mine")
        assert queue.get(timeout=WAIT) == "still mine"
        queue.close()
        queue.join_thread()


def test_a_child_may_close_its_end_and_the_parent_its_own(ctx):
    ours, theirs = ctx.Pipe()
    left, right = socket.socketpair()
    child = ctx.Process(target=use_and_close, args=(theirs, right))
    child.start()
    theirs.close()
    right.close()
    assert ours.recv_bytes() == b"by pipe"
    assert left.recv(100) == b"by socket"
    assert left.recv(100) == b""
    with pytest.raises(EOFError):
        ours.recv_bytes()
    child.join()
    ours.close()
    left.close()


def test_a_pipe_end_and_a_socket_travel_through_a_pipe_of_their_own(ctx):
    ours, theirs = ctx.Pipe()
    inner, other = ctx.Pipe(duplex=False)
    left, right = socket.socketpair()
    ours.send((other, right))
    received, sock = theirs.recv()
    other.close()
    right.close()
    received.send("by way of a message")
    sock.sendall(b"likewise")
    assert inner.recv() == "by way of a message"
    assert left.recv(100) == b"likewise"
    for end in (ours, theirs, inner, received, left, sock):
        end.close()


def test_values_and_arrays_are_shared(ctx):
    value, array = ctx.Value("i", 0), ctx.Array("l", 1)
    children = [ctx.Process(target=add, args=(value, array, 100)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert value.value == 400
    assert array[0] == 800


def test_a_lock_given_away_at_once_reaches_the_child(ctx):
    for _ in range(20):
        child = ctx.Process(target=release, args=(ctx.Lock(),))
        child.start()
        child.join()
        assert child.exitcode == 0


def release(lock):
    with lock:
        pass


def test_fork_shares_objects_and_spawn_copies_them():
    with fm.installed():
        seen = []
        child = multiprocessing.get_context("fork").Process(target=seen.append, args=("by reference",))
        child.start()
        child.join()
        assert seen == ["by reference"]
        child = multiprocessing.get_context("spawn").Process(target=seen.append, args=("to a copy",))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert seen == ["by reference"]


def test_no_descriptor_is_left_when_a_child_cannot_be_packed(ctx):
    ours, theirs = ctx.Pipe()
    before = set(os.listdir("/proc/self/fd"))
    child = ctx.Process(target=release, args=(theirs, threading.Lock()))
    if ctx.get_start_method() in ("spawn", "forkserver"):
        with pytest.raises(TypeError, match="cannot pickle"):
            child.start()
    assert set(os.listdir("/proc/self/fd")) == before
    ours.close()
    theirs.close()
