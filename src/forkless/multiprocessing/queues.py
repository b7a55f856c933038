# SPDX-License-Identifier: GPL-3.0-or-later
"""
How queues differ between threads.

SimpleQueue.get accepts a timeout, as Queue.get does.

A stdlib Queue copies each message through a pipe, and a feeder thread writes it, because the pipe may be full. Between
threads of one program neither is needed. So put() pickles the message and stores it in a _MessageStore that all copies
of the queue share; the pipe carries only the message's number, in the four bytes of its length. poll(), select() and
EOF work as before. The feeder still sends what put() cannot send at once: the first message, which starts the feeder;
an object that cannot be pickled, because the feeder reports that; and a message for which the store has no room.
"""

from __future__ import annotations

import itertools
import os
import pickle
import struct
import sys
import time
from multiprocessing import queues
from queue import Empty, Full
from typing import TYPE_CHECKING, Any

from forkless.multiprocessing import memory_pipe
from forkless.multiprocessing.stopping import ThreadStopped

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["get", "init", "put", "reset", "simple_init", "simple_put"]

# Messages in the store. The numbers of all of them fit into a pipe of one page.
_MAX_MESSAGES = 1000
# Bytes in the store. Above the limit the feeder keeps the objects themselves, while the store would keep pickled
# copies.
_MAX_BYTES = 64 << 20
# A Connection's header is the length of the message, or -1 before an 8-byte length; the numbers from -2 down are free.
_FIRST = -2
_COUNT = 2**31 - 2
_NUMBER = struct.Struct("!i")
# Types without a custom reducer, so that the plain pickler gives the same result. It is faster only for short values,
# because it grows its buffer repeatedly.
_PLAIN = {bytes, str, int, float, bool, type(None)}
_SHORT = 4096


class _MessageStore:
    """The messages that were put into one queue and not yet fetched, by number. The queue's locks guard it."""

    def __init__(self) -> None:
        self.messages: dict[int, bytes | memoryview] = {}
        self.numbers = itertools.count()
        # Of each pair, the first is changed only under the queue's write lock, the second only under its read lock.
        self.weight_in = self.weight_out = 0
        self.whole_in = self.whole_out = 0

    def has_room(self) -> bool:
        return (
            len(self.messages) < _MAX_MESSAGES
            and self.weight_in - self.weight_out < _MAX_BYTES
            # Messages in the pipe itself may have filled it, and then writing a number would block.
            and self.whole_in == self.whole_out
        )


class _Ends:
    """Both pipe ends of one copy of a queue. It does not reference the queue, so as not to keep it alive."""

    def __init__(self, store: _MessageStore, reader: Any, writer: Any) -> None:
        self.store = store
        self._reader = reader
        self._writer = writer

    def send(self, message: bytes | memoryview) -> None:
        """Replaces the writer's send_bytes. Called with the queue's write lock held."""
        store = self.store
        if not store.has_room():
            store.whole_in += 1
            self._writer.send_bytes(message)
            return
        number = next(store.numbers) % _COUNT
        # Stored before its number is written: a thread stopped in between leaves a message that is never fetched. In
        # the other order a reader would find a number without a message.
        store.messages[number] = message
        store.weight_in += len(message)
        try:
            os.write(self._writer.fileno(), _NUMBER.pack(_FIRST - number))
        except OSError:
            store.weight_in -= len(message)
            del store.messages[number]
            raise

    def receive(self) -> object:
        """Replaces the reader's recv_bytes. Called with the queue's read lock held."""
        reader, store = self._reader, self.store
        header = os.read(reader.fileno(), _NUMBER.size)
        if not header:
            raise EOFError
        if len(header) < _NUMBER.size:
            header += reader._recv(_NUMBER.size - len(header)).getvalue()
        (number,) = _NUMBER.unpack(header)
        if number > _FIRST:
            store.whole_out += 1
            if number == -1:
                (number,) = struct.unpack("!Q", reader._recv(8).getvalue())
            return reader._recv(number).getvalue()
        message = store.messages.pop(_FIRST - number)
        store.weight_out += len(message)
        return message


def init(stock: Callable[..., object]) -> object:
    """Queue.__init__. Only this creates a message store: the copy of a queue without a store must not use one."""

    def __init__(self: object, *args: object, **kwargs: object) -> None:  # noqa: N807
        stock(self, *args, **kwargs)
        core = _core(self)
        if core is not None:
            core.store = _MessageStore()
            _attach(self, core.store)

    return __init__


def reset(stock: Callable[..., object]) -> object:
    """Queue._reset, which runs for every copy of a queue and attaches the shared message store to it."""

    def _reset(self: object, *args: object, **kwargs: object) -> None:
        stock(self, *args, **kwargs)
        store = getattr(_core(self), "store", None)
        if store is not None:
            _attach(self, store)

    return _reset


def _core(queue: Any) -> Any:
    """The semaphore inside the queue's write lock, which all its copies share; None if the lock is the system's."""
    return getattr(getattr(queue._wlock, "_semlock", None), "_core", None)


def _attach(queue: Any, store: _MessageStore) -> None:
    queue._forkless_ends = ends = _Ends(store, queue._reader, queue._writer)
    queue._send_bytes = ends.send
    queue._recv_bytes = ends.receive


def put(stock: Callable[..., object]) -> object:
    def put(self: Any, obj: object, block: bool = True, timeout: float | None = None) -> None:
        ends = vars(self).get("_forkless_ends")
        message = None
        if ends is not None and self._thread is not None and not (self._closed or self._buffer):
            message = _packed(obj) if ends.store.has_room() else None
        if message is None:
            stock(self, obj, block, timeout)
            return
        if not self._sem.acquire(block, timeout):
            raise Full
        with self._notempty:
            if not _sent(self, ends, message):
                self._buffer.append(obj)
                self._notempty.notify()

    return put


def _packed(obj: object) -> bytes | memoryview | None:
    if type(obj) in _PLAIN and sys.getsizeof(obj) < _SHORT:
        return pickle.dumps(obj)
    try:
        message: memoryview = queues._ForkingPickler.dumps(obj)  # type: ignore[attr-defined]
    except ThreadStopped:
        raise
    except (Exception, SystemExit):  # noqa: BLE001  (the feeder will get the same exception and report it)
        return None
    return message


def _sent(queue: Any, ends: _Ends, message: bytes | memoryview) -> bool:
    """Send without blocking; return whether that was possible. Called with _notempty held, so that the feeder stays idle."""
    idle = not queue._buffer and queue._notempty._waiters
    if not idle or not queue._wlock.acquire(False):
        return False
    try:
        if not ends.store.has_room():
            return False
        ends.send(message)
    except OSError:
        return False  # all readers are closed: the feeder handles that error
    finally:
        queue._wlock.release()
    return True


def simple_init(stock: Callable[..., object]) -> object:
    """SimpleQueue.__init__, which replaces the pipe by a memory pipe: see `memory_pipe`."""

    def __init__(self: object, *args: object, **kwargs: object) -> None:  # noqa: N807
        stock(self, *args, **kwargs)
        if _core(self) is not None:
            memory_pipe.use_memory_pipe(self)

    return __init__


def simple_put(stock: Callable[..., object]) -> object:
    """SimpleQueue.put, with the plain pickler for short values of plain types."""

    def put(self: Any, obj: object) -> None:
        if (
            type(obj) in _PLAIN
            and sys.getsizeof(obj) < _SHORT
            and isinstance(self._writer, memory_pipe.MemoryConnection)
        ):
            message = pickle.dumps(obj)
            with self._wlock:
                self._writer.send_message(message)
        else:
            stock(self, obj)

    return put


def get(stock: Callable[..., object]) -> object:
    """SimpleQueue.get, with the arguments and errors of Queue.get."""

    def get(self: Any, block: bool = True, timeout: float | None = None) -> object:
        if block and timeout is None:
            return stock(self)
        seconds = max(0.0, timeout or 0.0) if block else 0.0
        deadline = time.monotonic() + seconds
        if not self._rlock.acquire(block, seconds):
            raise Empty
        try:
            if not self._poll(max(0.0, deadline - time.monotonic())):
                raise Empty
            message = self._reader.recv_bytes()
        finally:
            self._rlock.release()
        return queues._ForkingPickler.loads(message)  # type: ignore[attr-defined]

    return get
