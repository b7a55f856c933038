# SPDX-License-Identifier: GPL-3.0-or-later
"""Queues, pipes and shared values between a program and its children, and the two patterns that Ansible uses."""

from __future__ import annotations

import multiprocessing
import multiprocessing.queues
import os
import queue as plain
import socket
import threading
import traceback

import pytest

import forkless.multiprocessing as fm

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
