# SPDX-License-Identifier: GPL-3.0-or-later
"""
What queues do otherwise between threads.

A SimpleQueue can be asked with a time limit, as every other queue can.

A Queue between processes copies each message through a pipe, and leaves the writing to a feeder thread, which runs
beside its caller and may block on a full pipe. Between threads of one program the copying is for nothing and the feeder
is a detour. So a message is pickled where it is put, and laid on a shelf that every twin of the queue shares; the pipe
carries its number only, in the four bytes that would have been its length. What poll(), select() and the end of the
pipe mean stays as it was. Whatever cannot be done on the spot goes by the feeder as it always did: the first message,
which starts it; what cannot be pickled, for it is the feeder that says so; and what the shelf has no room for.
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
from typing import Any

from forkless.multiprocessing import _shelf
from forkless.multiprocessing._abandoned import Stop

__all__ = ["get", "init", "put", "reset", "simple_init", "simple_put"]

# Numbers on the shelf. A pipe that may hold no more than one page still takes the numbers of all of them.
_PARCELS = 1000
# Bytes on the shelf. The feeder keeps objects as they are until the pipe has room for them; a shelf keeps copies.
_WEIGHT = 64 << 20
# In a connection, 0 and above is the length of what follows, and -1 says that a longer length does.
_FIRST = -2
_COUNT = 2**31 - 2
_NUMBER = struct.Struct("!i")
# Nothing in these has a way of its own to be pickled, so that the plain pickler does; it is only the faster one for
# what is short, because it grows its buffer as it goes.
_PLAIN = {bytes, str, int, float, bool, type(None)}
_SHORT = 4096


class _Shelf:
    """What was put into one queue and not yet fetched, by number."""

    def __init__(self) -> None:
        self.parcels: dict[int, bytes | memoryview] = {}
        self.numbers = itertools.count()
        # Of each pair, the first is only counted up by who holds the lock for writing, the second for reading.
        self.weight_in = self.weight_out = 0
        self.whole_in = self.whole_out = 0

    def has_room(self) -> bool:
        return (
            len(self.parcels) < _PARCELS
            and self.weight_in - self.weight_out < _WEIGHT
            # Messages that lie in the pipe itself may have filled it to the brim.
            and self.whole_in == self.whole_out
        )


class _Ends:
    """Both ends of a queue's pipe, as one of its twins has them. Knows nothing of the twin, so as not to keep it alive."""

    def __init__(self, shelf: _Shelf, reader: Any, writer: Any) -> None:
        self.shelf = shelf
        self._reader = reader
        self._writer = writer

    def send(self, parcel: bytes | memoryview) -> None:
        """In the place of the writer's send_bytes. To be called with the lock for writing."""
        shelf = self.shelf
        if not shelf.has_room():
            shelf.whole_in += 1
            self._writer.send_bytes(parcel)
            return
        number = next(shelf.numbers) % _COUNT
        # In this order: a thread that is stopped in between leaves a parcel that nobody fetches, not a number of nothing.
        shelf.parcels[number] = parcel
        shelf.weight_in += len(parcel)
        try:
            os.write(self._writer.fileno(), _NUMBER.pack(_FIRST - number))
        except OSError:
            shelf.weight_in -= len(parcel)
            del shelf.parcels[number]
            raise

    def receive(self) -> Any:
        """In the place of the reader's recv_bytes. To be called with the lock for reading."""
        reader, shelf = self._reader, self.shelf
        header = os.read(reader.fileno(), _NUMBER.size)
        if not header:
            raise EOFError
        if len(header) < _NUMBER.size:
            header += reader._recv(_NUMBER.size - len(header)).getvalue()
        (number,) = _NUMBER.unpack(header)
        if number > _FIRST:
            shelf.whole_out += 1
            if number == -1:
                (number,) = struct.unpack("!Q", reader._recv(8).getvalue())
            return reader._recv(number).getvalue()
        parcel = shelf.parcels.pop(_FIRST - number)
        shelf.weight_out += len(parcel)
        return parcel


def init(stock: Any) -> Any:
    """Queue.__init__. Only here is a shelf put up: a twin of a queue that has none must not use one."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        stock(self, *args, **kwargs)
        core = _core(self)
        if core is not None:
            core.shelf = _Shelf()
            _attach(self, core.shelf)

    return __init__


def reset(stock: Any) -> Any:
    """Queue._reset, which every twin goes through."""

    def _reset(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        shelf = getattr(_core(self), "shelf", None)
        if shelf is not None:
            _attach(self, shelf)

    return _reset


def _core(queue: Any) -> Any:
    """What all twins of a queue share: what is inside of their lock. None, if that lock is the system's."""
    return getattr(getattr(queue._wlock, "_semlock", None), "_core", None)


def _attach(queue: Any, shelf: _Shelf) -> None:
    queue._forkless_ends = ends = _Ends(shelf, queue._reader, queue._writer)
    queue._send_bytes = ends.send
    queue._recv_bytes = ends.receive


def put(stock: Any) -> Any:
    def put(self: Any, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        ends = vars(self).get("_forkless_ends")
        parcel = None
        if ends is not None and self._thread is not None and not (self._closed or self._buffer):
            parcel = _packed(obj) if ends.shelf.has_room() else None
        if parcel is None:
            stock(self, obj, block, timeout)
            return
        if not self._sem.acquire(block, timeout):
            raise Full
        with self._notempty:
            if not _sent(self, ends, parcel):
                self._buffer.append(obj)
                self._notempty.notify()

    return put


def _packed(obj: Any) -> bytes | memoryview | None:
    if type(obj) in _PLAIN and sys.getsizeof(obj) < _SHORT:
        return pickle.dumps(obj)
    try:
        parcel: memoryview = queues._ForkingPickler.dumps(obj)  # type: ignore[attr-defined]
    except Stop:
        raise
    except (Exception, SystemExit):  # noqa: BLE001  (the feeder will meet it again, and report it)
        return None
    return parcel


def _sent(queue: Any, ends: _Ends, parcel: bytes | memoryview) -> bool:
    """Whether it could be sent without waiting for anyone. Called with _notempty held, so that the feeder stays idle."""
    idle = not queue._buffer and queue._notempty._waiters
    if not idle or not queue._wlock.acquire(False):
        return False
    try:
        if not ends.shelf.has_room():
            return False
        ends.send(parcel)
    except OSError:
        return False  # nobody reads any more: the feeder knows what to do
    finally:
        queue._wlock.release()
    return True


def simple_init(stock: Any) -> Any:
    """SimpleQueue.__init__. Its messages stay in memory as well, by another road: see _shelf."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        stock(self, *args, **kwargs)
        if _core(self) is not None:
            _shelf.put_up(self)

    return __init__


def simple_put(stock: Any) -> Any:
    """SimpleQueue.put, by the faster pickler where that does."""

    def put(self: Any, obj: Any) -> None:
        if type(obj) in _PLAIN and sys.getsizeof(obj) < _SHORT and isinstance(self._writer, _shelf.Shelved):
            parcel = pickle.dumps(obj)
            with self._wlock:
                self._writer.send_parcel(parcel)
        else:
            stock(self, obj)

    return put


def get(stock: Any) -> Any:
    """SimpleQueue.get, with the arguments of Queue.get."""

    def get(self: Any, block: bool = True, timeout: float | None = None) -> Any:
        if block and timeout is None:
            return stock(self)
        seconds = max(0.0, timeout or 0.0) if block else 0.0
        deadline = time.monotonic() + seconds
        if not self._rlock.acquire(block, seconds):
            raise Empty
        try:
            if not self._poll(max(0.0, deadline - time.monotonic())):
                raise Empty
            parcel = self._reader.recv_bytes()
        finally:
            self._rlock.release()
        return queues._ForkingPickler.loads(parcel)  # type: ignore[attr-defined]

    return get
