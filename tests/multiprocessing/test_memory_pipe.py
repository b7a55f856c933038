# SPDX-License-Identifier: GPL-3.0-or-later
"""A SimpleQueue keeps its messages in memory, and its pipe means what it always meant."""

from __future__ import annotations

import array
import fcntl
import gc
import multiprocessing
import multiprocessing.pool
import os
import select
import signal
import termios
import threading
import time
from multiprocessing import connection

import pytest

import forkless.multiprocessing as fm
from forkless.multiprocessing import memory_pipe as memory_pipe_module

WAIT = 30


@pytest.fixture
def queue(ctx):
    queue = ctx.SimpleQueue()
    yield queue
    queue.close()


def bytes_in(fd):
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def eventually(condition):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def waits_in(memory_pipe, turns="for_messages"):
    return lambda: len(getattr(memory_pipe, turns)._waiting) > 0


def background(function, *args):
    result = []
    thread = threading.Thread(target=lambda: result.append(function(*args)))
    thread.start()

    def answer():
        thread.join(WAIT)
        assert not thread.is_alive()
        return result[0]

    return answer


def small(number):
    return number + 1


def put_numbers(queue, count):
    for number in range(count):
        queue.put(number)


def get_into(queue, told):
    told.put("waiting")
    queue.get()


def close_ends_then_answer(inbox, outbox):
    inbox._writer.close()
    outbox._reader.close()
    for thing in iter(inbox.get, None):
        outbox.put(thing)


def test_nothing_goes_through_the_pipe_as_long_as_nobody_looks_at_it(queue):
    for number in range(5):
        queue.put(number)
    assert bytes_in(queue._reader._handle) == 0
    assert not queue.empty()
    assert [queue.get() for _ in range(5)] == list(range(5))
    assert queue.empty()


@pytest.mark.parametrize("first", ["looked at", "filled"])
def test_its_descriptor_is_readable_exactly_while_there_is_a_message(queue, first):
    if first == "looked at":
        assert connection.wait([queue._reader], timeout=0) == []
    queue.put(1)
    queue.put(2)
    for left in (1, 2):
        assert connection.wait([queue._reader], timeout=0) == [queue._reader]
        assert select.select([queue._reader], [], [], 0)[0] == [queue._reader]
        assert queue.get() == left
    assert connection.wait([queue._reader], timeout=0) == []
    assert bytes_in(queue._reader) == 0


def test_whoever_selects_is_woken_by_a_message_of_a_child(ctx, queue):
    child = ctx.Process(target=put_numbers, args=(queue, 3))
    child.start()
    got = []
    while len(got) < 3:
        assert connection.wait([queue._reader], timeout=WAIT) == [queue._reader]
        got.append(queue.get())
    child.join()
    assert got == [0, 1, 2]


def test_the_end_of_the_last_writer_is_the_end_and_not_before_the_last_message(queue):
    other = queue._writer.twin()
    queue.put("first")
    queue._writer.close()
    other.send("second")
    other.close()
    assert select.select([queue._reader], [], [], 0)[0] == [queue._reader]
    assert (queue.get(), queue.get()) == ("first", "second")
    assert queue._reader.poll(0)
    with pytest.raises(EOFError):
        queue.get()


def test_a_message_is_seen_while_the_only_writing_end_is_on_its_way_to_a_child(queue):
    on_its_way = os.dup(queue._writer._handle)
    queue.put("before it was closed here")
    queue._writer.close()
    assert connection.wait([queue._reader], timeout=0) == [queue._reader]
    assert queue.get() == "before it was closed here"
    assert connection.wait([queue._reader], timeout=0) == []
    arrived = memory_pipe_module.MemoryConnection(queue._reader._memory_pipe, on_its_way, False, True)
    arrived.send("and after it arrived")
    assert queue.get() == "and after it arrived"
    arrived.close()


def test_whoever_waits_sees_the_end(queue):
    def until_the_end():
        with pytest.raises(EOFError):
            queue.get()
        return "seen"

    answer = background(until_the_end)
    eventually(waits_in(queue._reader._memory_pipe))
    queue._writer.close()
    assert answer() == "seen"


def test_the_ends_that_a_child_closes_are_its_own(ctx):
    inbox, outbox = ctx.SimpleQueue(), ctx.SimpleQueue()
    child = ctx.Process(target=close_ends_then_answer, args=(inbox, outbox))
    child.start()
    for number in range(3):
        inbox.put(number)
        assert outbox.get() == number
    outbox._writer.close()
    inbox.put(None)
    child.join()
    with pytest.raises(EOFError):
        outbox.get()
    inbox.close()
    outbox.close()


def test_writing_to_nobody_is_a_broken_pipe(queue):
    queue.put("nobody will read this")
    queue._reader.close()
    for _ in range(2):
        with pytest.raises(BrokenPipeError):
            queue.put("nor this")


@pytest.mark.parametrize("thing", [7, "a word", b"x" * 10_000, ["a", {"list": 1}], None])
def test_what_arrives_is_equal_and_a_copy(queue, thing):
    queue.put(thing)
    got = queue.get()
    assert got == thing
    assert got is not thing or not isinstance(thing, list)


def test_a_closed_one_says_so(queue):
    queue.close()
    for thing in (1, [1]):
        with pytest.raises(OSError, match="handle is closed"):
            queue.put(thing)
    with pytest.raises(OSError, match="handle is closed"):
        queue.get()


def test_a_full_one_makes_its_writer_wait_until_there_is_room(queue, monkeypatch):
    monkeypatch.setattr(memory_pipe_module, "_MAX_MESSAGES", 10)
    answer = background(put_numbers, queue, 100)
    eventually(waits_in(queue._reader._memory_pipe, "for_room"))
    assert len(queue._reader._memory_pipe.messages) == 10
    assert [queue.get() for _ in range(100)] == list(range(100))
    answer()


def test_big_messages_fill_it_as_well(queue, monkeypatch):
    monkeypatch.setattr(memory_pipe_module, "_MAX_BYTES", 1_000_000)
    answer = background(lambda: [queue.put(b"x" * 700_000) for _ in range(5)])
    eventually(waits_in(queue._reader._memory_pipe, "for_room"))
    assert len(queue._reader._memory_pipe.messages) == 2
    assert {len(queue.get()) for _ in range(5)} == {700_000}
    answer()
    assert queue._reader._memory_pipe.weight == 0


def test_whoever_waits_for_room_is_told_that_nobody_reads_any_more(queue, monkeypatch):
    monkeypatch.setattr(memory_pipe_module, "_MAX_MESSAGES", 1)
    queue.put("full")

    def put_one_more():
        with pytest.raises(BrokenPipeError):
            queue.put("too much")
        return "told"

    answer = background(put_one_more)
    eventually(waits_in(queue._reader._memory_pipe, "for_room"))
    queue._reader.close()
    assert answer() == "told"


def test_what_is_sent_while_no_reader_is_known_arrives_in_its_order(queue):
    """A reading end on its way to a child is a descriptor, and not yet an end of ours."""
    reader = queue._reader
    queue.put("in memory")
    reader._memory_pipe.readers.clear()
    queue.put("in the pipe")
    queue.put(b"x" * 1000)
    reader._memory_pipe.readers.add(reader._handle)
    queue.put("in the pipe as well: it is younger")
    assert connection.wait([reader], timeout=0) == [reader]
    assert [queue.get() for _ in range(2)] == ["in memory", "in the pipe"]
    assert len(queue.get()) == 1000
    assert queue.get() == "in the pipe as well: it is younger"
    queue.put("in memory again")
    assert len(reader._memory_pipe.messages) == 1
    assert queue.get() == "in memory again"


def test_a_mark_that_a_stopped_thread_left_is_not_taken_for_a_message(queue):
    queue._reader.fileno()
    os.write(queue._writer._handle, memory_pipe_module._MARK)
    queue.put("after it")
    assert queue.get() == "after it"
    answer = background(queue.get)
    queue.put("and after that")
    assert answer() == "and after that"
    assert not queue._reader.poll(0)
    queue._writer.close()
    with pytest.raises(EOFError):
        queue._reader.recv_bytes()


def test_what_is_sent_can_be_written_on_afterwards(queue):
    message = bytearray(b"as it was")
    queue._writer.send_bytes(message)
    message[:] = b"overdrawn"
    assert queue._reader.recv_bytes() == b"as it was"


def test_a_message_that_is_too_long_is_refused_as_the_stdlib_does(queue):
    queue._writer.send_bytes(b"four")
    with pytest.raises(OSError, match="bad message length"):
        queue._reader.recv_bytes(3)
    assert queue._reader.closed


def test_a_finalizer_that_puts_while_its_own_queue_is_busy_is_heard_afterwards(queue):
    class Last:
        def __del__(self):
            queue.put("last words")

    memory_pipe = queue._reader._memory_pipe
    last = Last()
    queue.put("first")
    with memory_pipe.lock:
        del last
        gc.collect()
        assert len(memory_pipe.messages) == 1
    assert queue.get() == "first"
    assert queue.get() == "last words"


def test_a_child_that_waits_for_a_message_can_be_stopped(ctx, queue):
    told = ctx.SimpleQueue()
    child = ctx.Process(target=get_into, args=(queue, told))
    child.start()
    assert told.get() == "waiting"
    eventually(waits_in(queue._reader._memory_pipe))
    child.terminate()
    child.join(WAIT)
    assert child.exitcode == -signal.SIGTERM
    eventually(lambda: not fm.abandoned())
    queue.put("for the next one")
    assert queue.get() == "for the next one"
    told.close()


def test_ctrl_c_reaches_whoever_waits(queue):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        queue.get()
    queue.put("still works")
    assert queue.get() == "still works"


def test_asking_with_a_time_limit_does_not_rob_whoever_waits_of_its_turn(queue):
    memory_pipe = queue._reader._memory_pipe
    asks = background(queue._reader.poll, WAIT)
    eventually(waits_in(memory_pipe))
    reads = background(queue._reader.recv)
    eventually(lambda: len(memory_pipe.for_messages._waiting) == 2)
    queue.put("for the second in the line")
    assert asks() is True
    assert reads() == "for the second in the line"


def test_many_writers_and_many_readers_lose_nothing(ctx):
    queue, out = ctx.SimpleQueue(), ctx.SimpleQueue()
    readers = [ctx.Process(target=close_ends_then_answer, args=(queue, out)) for _ in range(3)]
    writers = [ctx.Process(target=put_numbers, args=(queue, 300)) for _ in range(4)]
    for child in writers + readers:
        child.start()
    got = [out.get() for _ in range(1200)]
    for _ in readers:
        queue.put(None)
    for child in writers + readers:
        child.join()
    assert sorted(got) == sorted(list(range(300)) * 4)
    queue.close()
    out.close()


def test_one_that_is_meant_for_real_processes_goes_by_its_pipe():
    with fm.installed(stand_in=False):
        queue = multiprocessing.get_context("fork").SimpleQueue()
        queue.put("by pipe")
        assert bytes_in(queue._reader) > 4
        assert queue.get() == "by pipe"
        queue.close()


def test_a_pool_does_not_look_for_dead_workers_at_every_result(ctx, monkeypatch):
    """Beside threads that look would cost more than the work, and keep everybody else from theirs."""
    looks = []
    stock = multiprocessing.pool.Pool._wait_for_updates
    monkeypatch.setattr(
        multiprocessing.pool.Pool,
        "_wait_for_updates",
        staticmethod(lambda *args, **kwargs: looks.append(1) or stock(*args, **kwargs)),
    )
    with ctx.Pool(2) as pool:
        assert pool.map(small, range(500), chunksize=1) == list(range(1, 501))
        assert len(looks) < 20
        (queue,) = {pool._outqueue}
        assert not queue._reader._memory_pipe.watched
