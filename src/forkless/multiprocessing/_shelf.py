# SPDX-License-Identifier: GPL-3.0-or-later
"""
The pipe of a SimpleQueue whose ends are all threads of one program.

The stdlib's copies each message through the kernel. Between threads every such read and write gives the interpreter
away and has to win it back, which costs a hundred times what the message does: a Pool that is given its calls one by
one spends its time on that. So messages stay in memory, on a shelf that all ends of the pipe share, and who waits for
one waits on a lock. What the pipe means stays as it was:

- Once somebody looks at its descriptor (poll, select, connection.wait), it is readable whenever there is a message: a
  mark is written into it when the first one is laid down, and read when the last one is taken.
- Its end is the end: that of the last descriptor, which the pipe knows better than we do.
- Whoever finds it full waits until there is room; whoever writes to nobody gets the pipe's own error.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import itertools
import os
import select
import struct
import time
import weakref
from io import BytesIO
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from forkless.multiprocessing._life import here

__all__ = ["Shelved", "put_up"]

# How full it may be. The kernel's own pipe holds some hundred small messages, or a part of a big one.
_PARCELS = 1000
_WEIGHT = 16 << 20
# In a connection, 0 and above is the length of what follows, and -1 says that a longer length does.
_LENGTH = struct.Struct("!i")
_MARK = _LENGTH.pack(-2)


class _Turns:
    """Those who wait for a change, first come, first called. Who is called up looks again: it may be too late."""

    def __init__(self) -> None:
        self._waiting: collections.deque[_thread.LockType] = collections.deque()

    def line_up(self) -> _thread.LockType:
        turn = _thread.allocate_lock()
        turn.acquire()
        self._waiting.append(turn)
        return turn

    def wait(self, turn: _thread.LockType, seconds: float = -1) -> None:
        # Whoever tells the child to stop releases these, so that it comes by a bytecode.
        waits = here().waits
        waits.add(turn)
        try:
            turn.acquire(True, seconds)
        except BaseException:  # told to stop, or Ctrl-C: the next one must not miss what this one was called for
            self.call_up()
            raise
        finally:
            waits.discard(turn)
            if turn in self._waiting:  # it was not called up
                with contextlib.suppress(ValueError):  # but is now
                    self._waiting.remove(turn)

    def call_up(self) -> None:
        if self._waiting:
            with contextlib.suppress(IndexError, RuntimeError):  # nobody is waiting any more; or is awake already
                self._waiting.popleft().release()

    def call_all(self) -> None:
        while self._waiting:
            self.call_up()


class _Shelf:
    """What was sent and not yet received, oldest first. Whatever else lies in the pipe is younger."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.parcels: collections.deque[bytes] = collections.deque()
        self.weight = 0
        # Whether anybody has looked at the descriptor, and whether the mark is in the pipe.
        self.watched = False
        self.marked = False
        # How many messages went into the pipe itself, and came out.
        self.whole_in = self.whole_out = 0
        # Descriptors of the ends that are open. One on its way to a child is not among them, so that none here does not
        # mean that there is none: it is then left to the pipe what happens.
        self.readers: set[int] = set()
        self.writers: set[int] = set()
        self.for_parcels = _Turns()
        self.for_room = _Turns()
        # Guards all of the above. Never held while waiting for anyone. Re-entrant only so that its owner can be told:
        # a finalizer may send from inside an allocation made under it. That is laid aside, and goes afterwards.
        self.lock: Any = _thread.RLock()
        self.late: collections.deque[tuple[Shelved, bytes]] = collections.deque()
        _shelves[self.number] = self

    def full(self) -> bool:
        return len(self.parcels) >= _PARCELS or self.weight >= _WEIGHT

    def by_pipe_only(self) -> bool:
        return not self.readers or self.whole_in != self.whole_out

    def lay_down(self, parcel: bytes) -> None:
        self.parcels.append(parcel)
        self.weight += len(parcel)
        self.mark()
        self.for_parcels.call_up()

    def mark(self) -> None:
        """Make the descriptor readable, if it must be and is not."""
        if self.watched and self.parcels and not self.marked and self.whole_in == self.whole_out and self.writers:
            # In this order: a thread that is stopped in between leaves a mark too many, not one that nobody wrote.
            os.write(next(iter(self.writers)), _MARK)
            self.marked = True

    def watch(self) -> None:
        with self.lock:
            self.watched = True
            self.mark()

    def send_late(self) -> None:
        while self.late:
            end, parcel = self.late.popleft()
            end._lay_down(parcel)


_numbers = itertools.count(1)
_shelves: weakref.WeakValueDictionary[int, _Shelf] = weakref.WeakValueDictionary()


class Shelved(Connection):
    """One end of such a pipe."""

    # Of Connection, for the types only.
    _handle: int
    _readable: bool
    _writable: bool
    _check_closed: Any
    _check_writable: Any
    _recv: Any

    def __init__(self, shelf: _Shelf, handle: int, readable: bool, writable: bool) -> None:
        super().__init__(handle, readable, writable)
        self._shelf = shelf
        with shelf.lock:
            (shelf.readers if readable else shelf.writers).add(handle)

    def _close(self) -> None:
        shelf = self._shelf
        with shelf.lock:
            if self._handle in shelf.writers:
                shelf.watched = shelf.watched or len(shelf.writers) == 1
                with contextlib.suppress(OSError):  # nobody reads any more
                    shelf.mark()  # as long as there is someone who can
                shelf.writers.discard(self._handle)
                if not shelf.writers:
                    shelf.for_parcels.call_all()
            else:
                shelf.readers.discard(self._handle)
                if not shelf.readers:
                    shelf.for_room.call_all()
            os.close(self._handle)

    def fileno(self) -> int:
        if self._readable and not self.closed:
            self._shelf.watch()
        return super().fileno()

    def twin(self) -> Shelved:
        """Another one of the same end."""
        return Shelved(self._shelf, os.dup(self._handle), self._readable, self._writable)

    def __reduce__(self) -> Any:
        self._check_closed()
        duplicate = reduction.DupFd(self._handle)
        return _rebuild, (self._shelf.number, duplicate, self._readable, self._writable)

    def _send_bytes(self, buf: Any) -> None:
        # A copy: the caller may write on what it sent as soon as this returns.
        self._lay_down(bytes(buf))

    def send_parcel(self, parcel: bytes) -> None:
        """send_bytes() of what nobody writes on any more."""
        self._check_closed()
        self._check_writable()
        self._lay_down(parcel)

    def _lay_down(self, parcel: bytes) -> None:
        shelf = self._shelf
        if shelf.lock._is_owned():
            shelf.late.append((self, parcel))
            return
        while True:
            with shelf.lock:
                whole = shelf.by_pipe_only()
                if whole:
                    shelf.whole_in += 1
                    shelf.for_parcels.call_all()
                    break
                if not shelf.full():
                    shelf.lay_down(parcel)
                    break
                turn = shelf.for_room.line_up()
            shelf.for_room.wait(turn)
        if whole:
            super()._send_bytes(parcel)  # type: ignore[misc]
        if shelf.late:
            shelf.send_late()

    def _recv_bytes(self, maxsize: int | None = None) -> BytesIO | None:
        shelf = self._shelf
        while True:
            with shelf.lock:
                parcel = self._take()
                by_pipe = parcel is None and (not shelf.writers or shelf.whole_in != shelf.whole_out)
                turn = shelf.for_parcels.line_up() if parcel is None and not by_pipe else None
            if shelf.late:
                shelf.send_late()
            if parcel is not None:
                return BytesIO(parcel) if maxsize is None or len(parcel) <= maxsize else None
            if turn is not None:
                shelf.for_parcels.wait(turn)
            elif (header := self._first_bytes()) is not None:
                return self._whole(header, maxsize)

    def _take(self) -> bytes | None:
        """The oldest parcel on the shelf. To be called with its lock."""
        shelf = self._shelf
        if not shelf.parcels:
            return None
        parcel = shelf.parcels.popleft()
        shelf.weight -= len(parcel)
        if shelf.marked and not shelf.parcels:
            shelf.marked = False
            os.read(self._handle, len(_MARK))
        shelf.for_room.call_up()
        return parcel

    def _first_bytes(self) -> bytes | None:
        """Wait for the pipe. The beginning of the message that is in it; None, if the next one is on the shelf."""
        shelf = self._shelf
        shelf.watch()
        look = self._look(None)
        with shelf.lock:
            if shelf.parcels or not look.poll(0):  # another reader was faster
                return None
            header = os.read(self._handle, len(_MARK))
            if header == _MARK:  # one too many
                shelf.marked = False
                return None
        return header

    def _whole(self, header: bytes, maxsize: int | None) -> BytesIO | None:
        """The rest of a message that goes by the pipe. This is Connection._recv_bytes, but for its first line."""
        if not header:
            raise EOFError
        header += self._recv(len(_MARK) - len(header)).getvalue()
        (size,) = _LENGTH.unpack(header)
        if size == -1:
            (size,) = struct.unpack("!Q", self._recv(8).getvalue())
        if maxsize is not None and size > maxsize:
            return None
        message: BytesIO = self._recv(size)
        with self._shelf.lock:
            self._shelf.whole_out += 1
            self._shelf.mark()
        return message

    def _poll(self, timeout: float | None) -> bool:
        shelf = self._shelf
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = -1 if deadline is None else max(0.0, deadline - time.monotonic())
            with shelf.lock:
                if shelf.parcels:
                    # Whoever waits beside us: we only look, and may have been called up in their place.
                    shelf.for_parcels.call_up()
                    return True
                by_pipe = not shelf.writers or shelf.whole_in != shelf.whole_out
                if left == 0 and not by_pipe:
                    return False
                turn = None if by_pipe else shelf.for_parcels.line_up()
            if turn is None:
                shelf.watch()
                return bool(self._look(None if deadline is None else left).poll(0))
            shelf.for_parcels.wait(turn, min(left, _thread.TIMEOUT_MAX))

    def _look(self, timeout: float | None) -> select.poll:
        """Wait that long, or for ever, until the descriptor is readable or at its end."""
        look = select.poll()
        look.register(self._handle, select.POLLIN)
        look.poll(None if timeout is None else max(0.0, timeout * 1000))
        return look


def _rebuild(number: int, duplicate: Any, readable: bool, writable: bool) -> Shelved:
    return Shelved(_shelves[number], duplicate.detach(), readable, writable)


def put_up(queue: Any) -> None:
    """Give a new SimpleQueue a shelf."""
    shelf = _Shelf()
    for name in ("_reader", "_writer"):
        end = getattr(queue, name)
        setattr(queue, name, Shelved(shelf, end._handle, end.readable, end.writable))
        end._handle = None  # it is not the one that closes it
    queue._poll = queue._reader.poll
