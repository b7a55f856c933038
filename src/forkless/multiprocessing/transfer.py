# SPDX-License-Identifier: GPL-3.0-or-later
"""
How a parent's objects are passed to its child.

A forked child has its parent's objects and descriptors of its own. A thread has the objects, but shares the
descriptors. So by_reference() shares the objects, and duplicates the pipe ends, sockets, queues and shared memory among
the arguments (and the pipe ends and sockets among the attributes of a Process subclass): callers such as the stdlib's
Pool and Manager close their own after start().

A spawned child gets everything pickled. by_copy() does the same, with duplicates of the descriptors.
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

from forkless.multiprocessing.memory_pipe import MemoryConnection
from forkless.multiprocessing.process_state import OwnedNumber, ProcessState, current_state
from forkless.multiprocessing.stdlib import context, util

__all__ = ["FdInMessage", "FdInPickle", "by_copy", "by_reference", "give_back_queues", "rebuild_arena", "unpack"]

Process = Any


def by_reference(process: Process) -> Process:
    """A second process object for the child. Its attributes are the parent's objects, except for duplicated descriptors."""
    twin = object.__new__(type(process))
    twin.__dict__.update({name: _own_end(thing) for name, thing in vars(process).items()})
    twin._config = dict(process._config)
    twin._args = tuple(_own(thing) for thing in process._args)
    twin._kwargs = {key: _own(thing) for key, thing in process._kwargs.items()}
    return twin


def _own(thing: object) -> object:
    """A duplicate of an object that the child may close; any other object unchanged."""
    if _is_a_queue(thing):
        return _own_queue(thing)
    if isinstance(thing, SharedMemory):
        return type(thing)(thing.name)
    if type(thing) is tuple:  # such as initargs; a copied list or dict would not show the parent's later changes
        return tuple(_own(inner) for inner in thing)
    return _own_end(thing)


def _own_end(thing: object) -> object:
    if isinstance(thing, MemoryConnection):
        return thing if thing.closed else thing.twin()
    if isinstance(thing, Connection) and not thing.closed:
        return type(thing)(os.dup(thing.fileno()), thing.readable, thing.writable)
    if isinstance(thing, socket.socket) and thing.fileno() >= 0:
        return thing.dup()
    return thing


def _is_a_queue(thing: object) -> bool:
    """Whether it is a stdlib queue or built like one (joblib's is): it has pipe ends and can be pickled."""
    parts = getattr(thing, "__dict__", {})
    return isinstance(parts.get("_reader"), Connection) and hasattr(thing, "__setstate__")


def _own_queue(queue: Any) -> object:
    """A copy with the same pipe and locks but its own descriptors, buffer and feeder, as after a fork."""
    twin = object.__new__(type(queue))
    twin.__dict__.update(vars(queue))
    context.set_spawning_popen(_own_queue)  # __getstate__ refuses unless a child is being started
    try:
        parts = queue.__getstate__()
    finally:
        context.set_spawning_popen(None)
    twin.__setstate__(tuple(_own_end(part) for part in parts))
    return twin


def give_back_queues(state: ProcessState) -> None:
    """
    Flush queues of other process states that this child has put into, and leave it to their owners to close them.

    An ending child runs the finalizers of queues it has put into, which close them. A queue shared by reference is
    still used by its owner, so its finalizers are moved to the owner. This only waits until the feeder has written the
    messages, as join() guarantees.
    """
    registry: dict[Any, Any] = util._finalizer_registry
    for key in [key for key in list(registry) if OwnedNumber.owner_of(key[1]) == state.pid]:
        close = registry.get(key)
        queue: Any = (
            close._weakref()
            if close is not None and close._callback is vars(Queue)["_finalize_close"].__func__
            else None
        )
        owner = _maker(queue) if queue is not None else None
        if owner is None or owner == state.pid:
            continue
        for finalizer in (queue._close, queue._jointhread):
            if isinstance(finalizer, util.Finalize) and finalizer.still_active():
                _change_owner(finalizer, owner)
        _wait_until_fed(queue)


def _maker(queue: object) -> int | None:
    """The pid of the process state that constructed the queue; None if it was unpickled or duplicated."""
    for ticket, ident, _ in list(util._afterfork_registry.data):  # list() of a plain dict is atomic
        if ident == id(queue):
            return OwnedNumber.owner_of(ticket)
    return None


def _change_owner(finalizer: Any, owner: int) -> None:
    registry: dict[object, object] = util._finalizer_registry
    priority, number = finalizer._key
    with contextlib.suppress(KeyError):  # the finalizer has run meanwhile
        del registry[finalizer._key]
        finalizer._key = (priority, OwnedNumber.of(number, owner))
        registry[finalizer._key] = finalizer


def _wait_until_fed(queue: Any) -> None:
    """Wait until the feeder is idle. The stdlib has no event for that, so this polls; it takes milliseconds."""
    while queue._thread is not None and queue._thread.is_alive() and not queue._joincancelled:
        with queue._notempty:
            if not queue._buffer and queue._notempty._waiters:
                return
        time.sleep(0.001)


def by_copy(process: Process, popen: object) -> memoryview:
    """The pickled process object, as a spawned child would receive it."""
    buffer = io.BytesIO()
    context.set_spawning_popen(popen)
    try:
        reduction.dump(process, buffer)
    finally:
        context.set_spawning_popen(None)
    return buffer.getbuffer()


def unpack(pickled: memoryview) -> Process:
    """Unpickle the process object. Called on the child's thread, so that the objects belong to its process state."""
    return pickle.loads(pickled)  # noqa: S301  (by_copy made it)


class FdInMessage:
    """
    A descriptor inside a message from one thread of this program to another.

    The stdlib's DupFd serves the descriptor from a thread, over a socket in the file system. Within one process the
    number is enough.
    """

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        self._pid = os.getpid()

    def detach(self) -> int:
        if self._pid != os.getpid():
            raise RuntimeError("a descriptor cannot be handed to another process while its sender works on threads")
        return self._fd


def rebuild_arena(size: int, duplicate: Any) -> object:
    """Rebuild a block of shared memory from a pickle. The stdlib's version never closes the descriptor."""
    arena = Arena(size, duplicate.detach())
    util.Finalize(arena, os.close, (arena.fd,))
    return arena


class FdInPickle:
    """A duplicated descriptor inside a pickled process object. The child owns it after detach()."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def detach(self) -> int:
        current_state().unclaimed_fds.discard(self._fd)
        return self._fd

    @staticmethod
    def of(fd: int, state: ProcessState) -> int:
        duplicate = os.dup(fd)
        state.unclaimed_fds.add(duplicate)
        return duplicate

    @staticmethod
    def drop_unclaimed(state: ProcessState) -> None:
        """Close the descriptors that were never detached, because the pickle was not or not completely loaded."""
        while state.unclaimed_fds:
            os.close(state.unclaimed_fds.pop())
