# SPDX-License-Identifier: GPL-3.0-or-later
"""
The pipe of a SimpleQueue whose ends are used by threads of one program.

The stdlib copies each message through the kernel. Every such read and write releases and reacquires the GIL, which
costs a hundred times as much as the message; a Pool that gets its calls one by one spends most of its time there. So
messages stay in memory, in a _MemoryPipe that all ends share, and a reader waits on a lock. Any thread may use any end.
The pipe's guarantees remain:

- After the first poll, select or connection.wait on its descriptor, the descriptor is readable whenever there is a
  message: a mark is written into the kernel's pipe with the first message and read with the last.
- EOF comes when the last descriptor of the other end is closed; the kernel's pipe decides that.
- A writer waits while the pipe is full. A writer without a reader gets the kernel's error (BrokenPipeError).
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

from forkless.multiprocessing.process_state import current_state

__all__ = ["MemoryConnection", "use_memory_pipe"]

# Limits at which a writer waits. The kernel's pipe holds some hundred small messages, or a part of a large one.
_MAX_MESSAGES = 1000
_MAX_BYTES = 16 << 20
# A Connection's header is the length of the message, or -1 before an 8-byte length; -2 is therefore free for the mark.
_LENGTH = struct.Struct("!i")
_MARK = _LENGTH.pack(-2)


class _FairWaiters:
    """
    Threads that wait for a change, woken in the order of their arrival.

    A woken thread must check the condition again, because a thread that did not wait may have been faster.
    """

    def __init__(self) -> None:
        self._waiting: collections.deque[_thread.LockType] = collections.deque()

    def line_up(self) -> _thread.LockType:
        turn = _thread.allocate_lock()
        turn.acquire()
        self._waiting.append(turn)
        return turn

    def wait(self, turn: _thread.LockType, seconds: float = -1) -> None:
        # Stopper releases these locks, so that a blocked thread reaches a bytecode at which ThreadStopped is raised.
        waits = current_state().waits
        waits.add(turn)
        try:
            turn.acquire(True, seconds)
        except BaseException:  # stopped or interrupted: this thread may have consumed a wake-up, so it is passed on
            self.wake_one()
            raise
        finally:
            waits.discard(turn)
            if turn in self._waiting:  # it was not woken by wake_one
                with contextlib.suppress(ValueError):  # but has been since the check
                    self._waiting.remove(turn)

    def wake_one(self) -> None:
        if self._waiting:
            with contextlib.suppress(IndexError, RuntimeError):  # the last waiter has left, or is already awake
                self._waiting.popleft().release()

    def wake_all(self) -> None:
        while self._waiting:
            self.wake_one()


class _MemoryPipe:
    """Messages sent and not yet received, oldest first. Messages in the kernel's pipe are newer than all of these."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.messages: collections.deque[bytes] = collections.deque()
        self.weight = 0
        # Whether the reader's descriptor has been polled, and whether the mark is in the kernel's pipe.
        self.watched = False
        self.marked = False
        # Counts of messages written into and read from the kernel's pipe.
        self.whole_in = self.whole_out = 0
        # Descriptors of the open ends. A descriptor on its way to a child is not included, so an empty set does not
        # prove that no end is open: then the kernel's pipe is used.
        self.readers: set[int] = set()
        self.writers: set[int] = set()
        self.for_messages = _FairWaiters()
        self.for_room = _FairWaiters()
        # Guards all of the above; never held while waiting. It is re-entrant only to detect its owner: a finalizer that
        # runs during an allocation under this lock may send. Such messages are queued in `late` and sent after the lock
        # is released.
        self.lock: Any = _thread.RLock()
        self.late: collections.deque[tuple[MemoryConnection, bytes]] = collections.deque()
        _memory_pipes[self.number] = self

    def full(self) -> bool:
        return len(self.messages) >= _MAX_MESSAGES or self.weight >= _MAX_BYTES

    def by_pipe_only(self) -> bool:
        return not self.readers or self.whole_in != self.whole_out

    def push(self, message: bytes) -> None:
        self.messages.append(message)
        self.weight += len(message)
        self.mark()
        self.for_messages.wake_one()

    def mark(self) -> None:
        """Make the reader's descriptor readable if it must be and is not. Called with the lock held."""
        if self.watched and self.messages and not self.marked and self.whole_in == self.whole_out and self.writers:
            # Written before it is recorded: a thread stopped in between leaves a surplus mark, which readers skip. In
            # the other order a reader would block on a mark that was never written.
            os.write(next(iter(self.writers)), _MARK)
            self.marked = True

    def watch(self) -> None:
        with self.lock:
            self.watched = True
            self.mark()

    def send_late(self) -> None:
        while self.late:
            end, message = self.late.popleft()
            end._push(message)


_numbers = itertools.count(1)
_memory_pipes: weakref.WeakValueDictionary[int, _MemoryPipe] = weakref.WeakValueDictionary()


class MemoryConnection(Connection):
    """One end of a memory pipe. Any thread may use it."""

    # Attributes of Connection, declared for the type checker.
    _handle: int
    _readable: bool
    _writable: bool
    _check_closed: Any
    _check_writable: Any
    _recv: Any

    def __init__(self, memory_pipe: _MemoryPipe, handle: int, readable: bool, writable: bool) -> None:
        super().__init__(handle, readable, writable)
        self._memory_pipe = memory_pipe
        with memory_pipe.lock:
            (memory_pipe.readers if readable else memory_pipe.writers).add(handle)

    def _close(self) -> None:
        memory_pipe = self._memory_pipe
        with memory_pipe.lock:
            if self._handle in memory_pipe.writers:
                memory_pipe.watched = memory_pipe.watched or len(memory_pipe.writers) == 1
                with contextlib.suppress(OSError):  # all readers are closed
                    memory_pipe.mark()  # only an open writer can write the mark, and this may be the last one
                memory_pipe.writers.discard(self._handle)
                if not memory_pipe.writers:
                    memory_pipe.for_messages.wake_all()
            else:
                memory_pipe.readers.discard(self._handle)
                if not memory_pipe.readers:
                    memory_pipe.for_room.wake_all()
            os.close(self._handle)

    def fileno(self) -> int:
        if self._readable and not self.closed:
            self._memory_pipe.watch()
        return super().fileno()

    def twin(self) -> MemoryConnection:
        """A new connection for the same end, with a descriptor of its own."""
        return MemoryConnection(self._memory_pipe, os.dup(self._handle), self._readable, self._writable)

    def __reduce__(self) -> Any:
        self._check_closed()
        duplicate = reduction.DupFd(self._handle)
        return _rebuild, (self._memory_pipe.number, duplicate, self._readable, self._writable)

    def _send_bytes(self, buf: Any) -> None:
        # A copy, because the caller may modify the buffer when this returns.
        self._push(bytes(buf))

    def send_message(self, message: bytes) -> None:
        """send_bytes() without a copy, for a message that is never modified."""
        self._check_closed()
        self._check_writable()
        self._push(message)

    def _push(self, message: bytes) -> None:
        memory_pipe = self._memory_pipe
        if memory_pipe.lock._is_owned():
            memory_pipe.late.append((self, message))
            return
        while True:
            with memory_pipe.lock:
                whole = memory_pipe.by_pipe_only()
                if whole:
                    memory_pipe.whole_in += 1
                    memory_pipe.for_messages.wake_all()
                    break
                if not memory_pipe.full():
                    memory_pipe.push(message)
                    break
                turn = memory_pipe.for_room.line_up()
            memory_pipe.for_room.wait(turn)
        if whole:
            super()._send_bytes(message)  # type: ignore[misc]
        if memory_pipe.late:
            memory_pipe.send_late()

    def _recv_bytes(self, maxsize: int | None = None) -> BytesIO | None:
        memory_pipe = self._memory_pipe
        while True:
            with memory_pipe.lock:
                message = self._take()
                by_pipe = message is None and (not memory_pipe.writers or memory_pipe.whole_in != memory_pipe.whole_out)
                turn = memory_pipe.for_messages.line_up() if message is None and not by_pipe else None
            if memory_pipe.late:
                memory_pipe.send_late()
            if message is not None:
                return BytesIO(message) if maxsize is None or len(message) <= maxsize else None
            if turn is not None:
                memory_pipe.for_messages.wait(turn)
            elif (header := self._first_bytes()) is not None:
                return self._whole(header, maxsize)

    def _take(self) -> bytes | None:
        """Remove and return the oldest message in memory, or None. Called with the lock held."""
        memory_pipe = self._memory_pipe
        if not memory_pipe.messages:
            return None
        message = memory_pipe.messages.popleft()
        memory_pipe.weight -= len(message)
        if memory_pipe.marked and not memory_pipe.messages:
            memory_pipe.marked = False
            os.read(self._handle, len(_MARK))
        memory_pipe.for_room.wake_one()
        return message

    def _first_bytes(self) -> bytes | None:
        """Wait for the kernel's pipe. Return the first bytes of the message in it; None if the next message is in memory."""
        memory_pipe = self._memory_pipe
        memory_pipe.watch()
        look = self._look(None)
        with memory_pipe.lock:
            if memory_pipe.messages or not look.poll(0):  # another reader was faster
                return None
            header = os.read(self._handle, len(_MARK))
            if header == _MARK:  # a surplus mark: see `mark`
                memory_pipe.marked = False
                return None
        return header

    def _whole(self, header: bytes, maxsize: int | None) -> BytesIO | None:
        """Read the rest of a message from the kernel's pipe, as Connection._recv_bytes does after the header."""
        if not header:
            raise EOFError
        header += self._recv(len(_MARK) - len(header)).getvalue()
        (size,) = _LENGTH.unpack(header)
        if size == -1:
            (size,) = struct.unpack("!Q", self._recv(8).getvalue())
        if maxsize is not None and size > maxsize:
            return None
        message: BytesIO = self._recv(size)
        with self._memory_pipe.lock:
            self._memory_pipe.whole_out += 1
            self._memory_pipe.mark()
        return message

    def _poll(self, timeout: float | None) -> bool:
        memory_pipe = self._memory_pipe
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = -1 if deadline is None else max(0.0, deadline - time.monotonic())
            with memory_pipe.lock:
                if memory_pipe.messages:
                    # poll() takes no message, but may have consumed the wake-up of a reader, so it is passed on.
                    memory_pipe.for_messages.wake_one()
                    return True
                by_pipe = not memory_pipe.writers or memory_pipe.whole_in != memory_pipe.whole_out
                if left == 0 and not by_pipe:
                    return False
                turn = None if by_pipe else memory_pipe.for_messages.line_up()
            if turn is None:
                memory_pipe.watch()
                return bool(self._look(None if deadline is None else left).poll(0))
            memory_pipe.for_messages.wait(turn, min(left, _thread.TIMEOUT_MAX))

    def _look(self, timeout: float | None) -> select.poll:
        """Wait until the descriptor is readable or at EOF, `timeout` seconds at most; None waits without limit."""
        look = select.poll()
        look.register(self._handle, select.POLLIN)
        look.poll(None if timeout is None else max(0.0, timeout * 1000))
        return look


def _rebuild(number: int, duplicate: Any, readable: bool, writable: bool) -> MemoryConnection:
    return MemoryConnection(_memory_pipes[number], duplicate.detach(), readable, writable)


def use_memory_pipe(queue: Any) -> None:
    """Give a new SimpleQueue a memory pipe."""
    memory_pipe = _MemoryPipe()
    for name in ("_reader", "_writer"):
        end = getattr(queue, name)
        setattr(queue, name, MemoryConnection(memory_pipe, end._handle, end.readable, end.writable))
        end._handle = None  # the new connection owns the descriptor
    queue._poll = queue._reader.poll
