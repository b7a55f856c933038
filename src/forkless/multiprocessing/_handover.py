# SPDX-License-Identifier: GPL-3.0-or-later
"""
What crosses the border between a parent and its child, and how.

fork gave a child two things: its parent's objects, and descriptors of its own. On a thread the first comes for free
and the second does not. So by_reference() shares the objects, but duplicates the pipe ends among the arguments: who
passes one on closes his own afterwards, the stdlib's Pool and Manager among them.

spawn pickled everything. by_copy() does the same, and a descriptor in the pickle is a duplicate.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
from multiprocessing import context, reduction
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue, SimpleQueue
from typing import Any

from forkless.multiprocessing._life import Life, here

__all__ = ["Duplicate", "by_copy", "by_reference", "unpack"]

Process = Any


def by_reference(process: Process) -> Process:
    """A twin of the process object, for the child to call its own. Its attributes are the parent's, by reference."""
    twin = object.__new__(type(process))
    twin.__dict__.update(vars(process))
    twin._config = dict(process._config)
    twin._args = tuple(_own(thing) for thing in process._args)
    twin._kwargs = {key: _own(thing) for key, thing in process._kwargs.items()}
    return twin


def _own(thing: Any) -> Any:
    """The child's own end of a pipe, socket or queue; anything else as it is."""
    if isinstance(thing, Connection):
        if thing.closed:
            return thing
        return type(thing)(os.dup(thing.fileno()), thing.readable, thing.writable)
    if isinstance(thing, socket.socket):
        return thing if thing.fileno() < 0 else thing.dup()
    if isinstance(thing, (Queue, SimpleQueue)):
        return _own_queue(thing)
    return thing


def _own_queue(queue: Any) -> Any:
    """The same pipe and the same locks, but its own descriptors, buffer and feeder: what a queue is after a fork."""
    twin = object.__new__(type(queue))
    twin.__dict__.update(vars(queue))
    twin._reader, twin._writer = _own(queue._reader), _own(queue._writer)
    if isinstance(queue, Queue):
        twin._reset()
    else:
        twin._poll = twin._reader.poll
    return twin


def by_copy(process: Process, popen: Any) -> memoryview:
    """The process object as the bytes that a spawned child would have been sent."""
    buffer = io.BytesIO()
    context.set_spawning_popen(popen)
    try:
        reduction.dump(process, buffer)
    finally:
        context.set_spawning_popen(None)
    return buffer.getbuffer()


def unpack(parcel: memoryview) -> Process:
    """The child's copy, made on its own thread, so that what is built there belongs to it."""
    return pickle.loads(parcel)  # noqa: S301  (we packed it ourselves)


class Duplicate:
    """Stands for a descriptor inside a parcel."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def detach(self) -> int:
        here().luggage.discard(self._fd)
        return self._fd

    @staticmethod
    def of(fd: int, life: Life) -> int:
        duplicate = os.dup(fd)
        life.luggage.add(duplicate)
        return duplicate

    @staticmethod
    def drop_unclaimed(life: Life) -> None:
        """Close what nobody took: the parcel was never opened, or not to its end."""
        while life.luggage:
            os.close(life.luggage.pop())
