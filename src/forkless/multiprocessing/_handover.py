# SPDX-License-Identifier: GPL-3.0-or-later
"""
What crosses the border between a parent and its child, and how.

fork gave a child two things: its parent's objects, and descriptors of its own. On a thread the first comes for free
and the second does not. So by_reference() shares the objects, but duplicates the pipe ends, sockets, queues and shared
memory that are arguments (of a subclass of Process: the pipe ends and sockets that are attributes): who passes one on
closes his own afterwards, the stdlib's Pool and Manager among them.

spawn pickled everything. by_copy() does the same, and a descriptor in the pickle is a duplicate.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import time
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.heap import Arena
from multiprocessing.queues import Queue
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from forkless.multiprocessing._life import Life, Ticket, here
from forkless.multiprocessing._shelf import Shelved
from forkless.multiprocessing._stdlib import context, util

__all__ = ["Duplicate", "Handed", "by_copy", "by_reference", "give_back_queues", "rebuild_arena", "unpack"]

Process = Any


def by_reference(process: Process) -> Process:
    """A twin of the process object, for the child to call its own. Its attributes are the parent's, by reference."""
    twin = object.__new__(type(process))
    twin.__dict__.update({name: _own_end(thing) for name, thing in vars(process).items()})
    twin._config = dict(process._config)
    twin._args = tuple(_own(thing) for thing in process._args)
    twin._kwargs = {key: _own(thing) for key, thing in process._kwargs.items()}
    return twin


def _own(thing: Any) -> Any:
    """The child's own of whatever a child may close; anything else as it is."""
    if _is_a_queue(thing):
        return _own_queue(thing)
    if isinstance(thing, SharedMemory):
        return type(thing)(thing.name)
    if type(thing) is tuple:  # initargs, for one; the only container whose copy nobody can tell from the original
        return tuple(_own(inner) for inner in thing)
    return _own_end(thing)


def _own_end(thing: Any) -> Any:
    if isinstance(thing, Shelved):
        return thing if thing.closed else thing.twin()
    if isinstance(thing, Connection) and not thing.closed:
        return type(thing)(os.dup(thing.fileno()), thing.readable, thing.writable)
    if isinstance(thing, socket.socket) and thing.fileno() >= 0:
        return thing.dup()
    return thing


def _is_a_queue(thing: Any) -> bool:
    """The stdlib's own, or one made in their image (joblib has one): two ends of a pipe, and a way to be pickled."""
    parts = getattr(thing, "__dict__", {})
    return isinstance(parts.get("_reader"), Connection) and hasattr(thing, "__setstate__")


def _own_queue(queue: Any) -> Any:
    """The same pipe and the same locks, but its own descriptors, buffer and feeder: what a queue is after a fork."""
    twin = object.__new__(type(queue))
    twin.__dict__.update(vars(queue))
    context.set_spawning_popen(_own_queue)  # it gives away its parts to a child only; that is what this is for
    try:
        parts = queue.__getstate__()
    finally:
        context.set_spawning_popen(None)
    twin.__setstate__(tuple(_own_end(part) for part in parts))
    return twin


def give_back_queues(life: Life) -> None:
    """
    See off what the child put into queues that are not its own.

    A child closes the queues it has put into when it ends. One that it was lent by reference is still in use by its
    owner: it is emptied into its pipe instead, as join() promises, and left to its owner to close.
    """
    registry: dict[Any, Any] = util._finalizer_registry
    for key in [key for key in list(registry) if Ticket.owner_of(key[1]) == life.pid]:
        close = registry.get(key)
        queue: Any = (
            close._weakref()
            if close is not None and close._callback is vars(Queue)["_finalize_close"].__func__
            else None
        )
        owner = _maker(queue) if queue is not None else None
        if owner is None or owner == life.pid:
            continue
        for finalizer in (queue._close, queue._jointhread):
            if isinstance(finalizer, util.Finalize) and finalizer.still_active():
                _change_owner(finalizer, owner)
        _wait_until_fed(queue)


def _maker(queue: Any) -> int | None:
    """Who called its constructor; nobody, for one that was unpickled or duplicated."""
    for ticket, ident, _ in list(util._afterfork_registry.data):  # one step: see _bootstrap
        if ident == id(queue):
            return Ticket.owner_of(ticket)
    return None


def _change_owner(finalizer: Any, owner: int) -> None:
    registry: dict[Any, Any] = util._finalizer_registry
    priority, number = finalizer._key
    with contextlib.suppress(KeyError):  # it has run meanwhile
        del registry[finalizer._key]
        finalizer._key = (priority, Ticket.of(number, owner))
        registry[finalizer._key] = finalizer


def _wait_until_fed(queue: Any) -> None:
    """Until its feeder has nothing left to do, and waits for more. Nothing tells when; it takes milliseconds."""
    while queue._thread is not None and queue._thread.is_alive() and not queue._joincancelled:
        with queue._notempty:
            if not queue._buffer and queue._notempty._waiters:
                return
        time.sleep(0.001)


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


class Handed:
    """
    Stands for a descriptor inside a message, from one thread of this program to another.

    The stdlib's waits in a thread of its own, behind a socket in the file system, for the other process to come and get
    it. Here it has arrived already.
    """

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        self._pid = os.getpid()

    def detach(self) -> int:
        if self._pid != os.getpid():
            raise RuntimeError("a descriptor cannot be handed to another process while its sender works on threads")
        return self._fd


def rebuild_arena(size: int, duplicate: Any) -> Any:
    """A block of shared memory, from a parcel. The stdlib's leaves the descriptor to the end of the process."""
    arena = Arena(size, duplicate.detach())
    util.Finalize(arena, os.close, (arena.fd,))
    return arena


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
