# SPDX-License-Identifier: GPL-3.0-or-later
"""
Output of a module's programs while they run: secrets are masked, lines are put together, and their number is bounded.

A module's process masks what it reads from a program and writes it into a pipe that never blocks it; the warm interpreter
reads the pipe, keeps the newest lines, and sends them at most every `EVERY` seconds. Sent before the first order of a
task whose output is told; needs only the stdlib of 3.8. A module that runs in the controller's process uses the same classes.
"""

from __future__ import annotations

import os
import select
import struct
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import types

EVERY = 0.1  # seconds between two messages about a task
MOST_LINES = 100  # lines in one message
MOST_BYTES = 1 << 16  # bytes in one message
LONGEST = 4096  # bytes of one line
# After so many lines of a task its messages become rarer and shorter, so that an endless task does not fill a disk.
MANY_LINES = 10000
EVERY_OF_MANY = 1.0
MOST_LINES_OF_MANY = 20
BAR_EVERY = 1.0  # seconds between two looks at a line that carriage returns draw anew: a progress bar

# Callers of run_command that ask a program something: facts, and the names of locales. What they hear is no output of the task.
ASKING = ("ansible.module_utils.facts.", "ansible.module_utils.common.locale")

PART = struct.Struct(">cII")  # stream, lines that were lost before, length of the data
MASK = b"********"
CUT = "\u2026".encode()  # the end of a line that was too long
SHORTEST = 4  # bytes of a line that is masked by itself because it is one of a secret's lines


class Masker:
    """
    Replaces secrets in one stream of bytes, also where a secret is divided between two chunks.

    The end of a chunk that may be the beginning of a secret is held back until it is known: at most one byte less than
    the longest secret.
    """

    def __init__(self, secrets: list[bytes], mask: bytes = MASK) -> None:
        self._secrets = sorted((one for one in secrets if one), key=len, reverse=True)
        self._mask = mask
        self._held = b""

    def feed(self, data: bytes, end: bool = False) -> bytes:
        if not self._secrets:
            return data
        data = self._held + data
        held = 0 if end else self._may_begin_a_secret(data)
        found = []
        for secret in self._secrets:
            at = data.find(secret)
            while at >= 0:
                found.append((at, at + len(secret)))
                at = data.find(secret, at + 1)
        cut = len(data) - held
        masked: list[list[int]] = []
        for begin, over in sorted(found):  # secrets that overlap are masked as one
            if masked and begin < masked[-1][1]:
                masked[-1][1] = max(masked[-1][1], over)
            else:
                masked.append([begin, over])
        out, at = [], 0
        for begin, over in masked:
            if begin < cut < over:  # another secret may begin inside of this one, so both wait, but not for ever
                cut = begin if len(data) - begin <= 4 * len(self._secrets[0]) else over
            if begin >= cut:
                break
            out += [data[at:begin], self._mask]
            at = over
        out.append(data[at:cut])
        self._held = data[cut:]
        return b"".join(out)

    def _may_begin_a_secret(self, data: bytes) -> int:
        """The length of the longest end of `data` that a secret begins with."""
        longest = 0
        for secret in self._secrets:
            at = data.find(secret[:1], max(0, len(data) - len(secret) + 1))
            while 0 <= at < len(data) - longest:
                length = len(data) - at
                # The last byte is compared first: a secret may be long, and this is done at every place where it could begin.
                if secret[length - 1] == data[-1] and data.endswith(secret[:length]):
                    longest = length
                at = data.find(secret[:1], at + 1)
        return longest

    def feed_cut(self, data: bytes) -> bytes:
        """A text whose end was cut off: what may be the beginning of a secret is masked like a whole one."""
        out = self.feed(data)
        held, self._held = self._held, b""
        return out + self._mask if held else out


class OutputLines:
    """
    Puts lines together and keeps the newest ones until they are taken; counts those that it drops.

    A line that has not ended and that carriage returns draw anew, as progress bars do, is told as it is now, each time as a line.

    `due` is the monotonic time from which on `take` should be called, or None. One thread at a time uses it.
    """

    def __init__(self) -> None:
        self._partial = {b"o": b"", b"e": b""}
        self._cutting = {b"o": False, b"e": False}  # the rest of a line that was too long is skipped
        self._lines: dict[bytes, list[bytes]] = {b"o": [], b"e": []}
        self._dropped = {b"o": 0, b"e": 0}
        self._bar = {b"o": b"", b"e": b""}  # what was told of a line that has not ended
        self._sent = 0
        self._next = 0.0
        self._next_bar = 0.0

    @property
    def due(self) -> float | None:
        if any(self._lines.values()):
            return self._next
        return max(self._next, self._next_bar) if any(map(self._new_bar, self._partial)) else None

    def feed(self, stream: bytes, data: bytes, lost: int = 0) -> None:
        if lost:  # something is missing before `data`, so its first line is not whole
            # A line of which a part was told already, or that was counted when another part of it was lost, is not counted again.
            self._dropped[stream] += lost - (self._cutting[stream] or bool(self._bar[stream]))
            self._partial[stream], self._bar[stream], self._cutting[stream] = b"", b"", True
        if self._cutting[stream]:
            _, newline, data = data.partition(b"\n")
            if not newline:
                return
            self._cutting[stream] = False
        count = data.count(b"\n")
        kept = self._lines[stream]
        if count:
            *new, rest = data.rsplit(b"\n", MOST_LINES + 1)
            if count > MOST_LINES:
                del new[0]  # everything before the newest lines, in one piece
                self._dropped[stream] += count - len(new) + len(kept) - bool(self._bar[stream])
                self._bar[stream] = b""
                kept.clear()
            else:
                self._end_line(stream, new.pop(0))
            self._keep(stream, [one if len(one) <= LONGEST else _cut(one) for one in new])
            self._partial[stream] = rest
        else:
            self._partial[stream] += data
        if len(self._partial[stream]) > LONGEST:
            self._partial[stream] = _redrawn(self._partial[stream])
        if len(self._partial[stream]) > LONGEST:
            self._keep(stream, [_cut(self._partial[stream])])
            self._partial[stream], self._bar[stream], self._cutting[stream] = b"", b"", True

    def _end_line(self, stream: bytes, end: bytes) -> None:
        """The line that has begun is over: its last part, which may be empty, is there."""
        line, told = self._partial[stream] + end, self._bar[stream]
        self._partial[stream] = self._bar[stream] = b""
        if told:
            line = _as_drawn(line)
        if not told or line != told:
            self._keep(stream, [line if len(line) <= LONGEST else _cut(line)])

    def _new_bar(self, stream: bytes) -> bytes:
        """What an unfinished line that is drawn anew shows now; empty if that was told."""
        partial = self._partial[stream]
        drawn = _as_drawn(partial) if b"\r" in partial else b""
        return b"" if drawn == self._bar[stream] else drawn

    def _keep(self, stream: bytes, lines: list[bytes]) -> None:
        """Every line comes in here, so that no more than the newest ones wait, however they ended."""
        kept = self._lines[stream]
        kept += lines
        if len(kept) > MOST_LINES:
            self._dropped[stream] += len(kept) - MOST_LINES
            del kept[: len(kept) - MOST_LINES]

    def end(self, stream: bytes) -> None:
        """The stream has ended: what stands after its last newline is a line."""
        if self._partial[stream]:
            self._end_line(stream, b"")
        self._cutting[stream] = False

    def take(self, now: float) -> list[tuple[bytes, int, bytes]]:
        """The lines that wait, as (stream, lines dropped before them, text). The caller has looked at `due`."""
        if now >= self._next_bar:
            for stream in self._partial:
                drawn = self._new_bar(stream)
                if drawn:
                    self._keep(stream, [drawn])
                    self._partial[stream], self._bar[stream] = _redrawn(self._partial[stream]), drawn
                    self._next_bar = now + BAR_EVERY
        many = self._sent > MANY_LINES
        most = MOST_LINES_OF_MANY if many else MOST_LINES
        self._next = now + (EVERY_OF_MANY if many else EVERY)
        taken = []
        for stream, lines in self._lines.items():
            if lines:
                size, first = 0, len(lines)
                while first and len(lines) - first < most and size + len(lines[first - 1]) <= MOST_BYTES:
                    first -= 1
                    size += len(lines[first])
                taken.append((stream, self._dropped[stream] + first, b"\n".join(lines[first:])))
                self._sent += len(lines) + self._dropped[stream]
                self._dropped[stream] = 0
                lines.clear()
        return taken


def _as_drawn(line: bytes) -> bytes:
    """What stands after the last carriage return that something follows."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _redrawn(line: bytes) -> bytes:
    """The line without what carriage returns have drawn over; a line without any as it is."""
    if b"\r" not in line:
        return line
    return b"\r" + _as_drawn(line) + (b"\r" if line.endswith(b"\r") else b"")


def _cut(line: bytes) -> bytes:
    """A line that is too long; of one that was drawn anew what it showed in the end."""
    drawn = _as_drawn(line) if b"\r" in line else line
    return drawn if len(drawn) <= LONGEST else drawn[:LONGEST] + CUT


class OutputPipe:
    """
    The module's end of the pipe to the warm interpreter. Writing never waits: what does not fit is dropped and counted.

    Only the process that made it writes: a fork of the module would write into the middle of a part.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd, self._pid = fd, os.getpid()
        self._unsent = b""
        self._lost = {b"o": 0, b"e": 0}
        self._tail = {b"o": b"", b"e": b""}

    def write(self, stream: bytes, data: bytes) -> None:
        if os.getpid() != self._pid or not data:
            return
        tail, lost = self._tail[stream], self._lost[stream]
        if self._send():
            part = tail + data
            self._unsent = PART.pack(stream, max(0, lost - tail.count(b"\n")), len(part)) + part
            self._lost[stream], self._tail[stream] = 0, b""
            self._send()
        else:
            # One more than the newlines that are lost: the line in whose middle the loss ends is lost as well.
            self._lost[stream] = (lost or 1) + data.count(b"\n")
            self._tail[stream] = (tail + data)[-LONGEST:]  # the newest lines go with what is sent next

    def tell_waiting(self) -> None:
        """Send the newest lines that did not fit, and how many are missing before them. Called when a program prints nothing more."""
        if os.getpid() != self._pid or not self._send():
            return
        for stream, tail in self._tail.items():
            if tail:
                self._tail[stream] = b""
                self._lost[stream] -= tail.count(b"\n")  # these lines are sent after all
                self.write(stream, tail)

    def end(self, stream: bytes) -> None:
        """A program has ended; its last lines are worth a short wait."""
        if os.getpid() != self._pid:
            return
        tail = self._tail[stream]
        if tail and self._send(1.0):
            self._tail[stream] = b""
            self._lost[stream] -= tail.count(b"\n")  # these lines are sent after all
            self.write(stream, tail)
        if self._send(1.0):
            self._unsent = PART.pack(stream, 0, 0)
            self._send(1.0)

    def _send(self, patience: float = 0.0) -> bool:
        """Whether nothing is left of what was to be sent."""
        deadline = time.monotonic() + patience
        while self._unsent:
            try:
                self._unsent = self._unsent[os.write(self._fd, self._unsent) :]
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                watch = select.poll()
                watch.register(self._fd, select.POLLOUT)
                watch.poll(left * 1000)
            except OSError:  # the interpreter has ended
                self._unsent = b""
        return True


class OutputReader:
    """The warm interpreter's end of that pipe: the lines of one module. One thread at a time uses it."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd: int | None = fd
        """None after the end of the pipe: no process has its other end any more."""
        self.lines = OutputLines()
        self._heard = bytearray()

    def read(self) -> bool:
        """Read once what is there. False if there was nothing, and at the end of the pipe."""
        if self.fd is None:
            return False
        try:
            chunk = os.read(self.fd, 1 << 18)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
            return False
        heard, at = self._heard, 0
        heard += chunk
        while len(heard) - at >= PART.size:
            stream, lost, length = PART.unpack_from(heard, at)
            if len(heard) - at - PART.size < length:
                break
            at += PART.size
            if length:
                self.lines.feed(stream, bytes(heard[at : at + length]), lost)
            else:
                self.lines.end(stream)
            at += length
        del heard[:at]
        return True

    def read_rest(self) -> None:
        """The module has ended: read what is left, without waiting for programs that still hold the pipe."""
        while self.read():
            pass
        self.close()
        for stream in (b"o", b"e"):
            self.lines.end(stream)

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class OutputListener(Protocol):
    """Takes what a program prints; an OutputPipe, or what replaces it in the controller's process. It does not block."""

    def write(self, stream: bytes, data: bytes) -> None: ...
    def end(self, stream: bytes) -> None: ...


class TappedFile:
    """A pipe from a program as AnsibleModule.run_command reads it. What is read is also passed to the listener; nothing else differs."""

    def __init__(self, file: Any, stream: bytes, tell: OutputListener, secrets: list[bytes]) -> None:
        self._file, self._stream, self._tell, self._masker = file, stream, tell, Masker(secrets)
        self._over = False

    def read(self, *size: int) -> bytes | None:
        data: bytes | None = self._file.read(*size)
        if data is not None:
            self.heard(data)
        return data

    def heard(self, data: bytes) -> None:
        """Tell of what was read; of the end if it is empty."""
        if data:
            self._tell.write(self._stream, self._masker.feed(data))
        else:
            self._end()

    def close(self) -> None:
        self._end()
        self._file.close()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._tell.write(self._stream, self._masker.feed(b"", end=True))
            self._tell.end(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def asks(caller: types.FrameType) -> bool:
    """Whether the code that calls run_command only asks a program something."""
    return str(caller.f_globals.get("__name__")).startswith(ASKING)


def tap(process: Any, tell: OutputListener, secrets: list[bytes]) -> None:
    """Pass on what `process` (a Popen) prints while run_command reads it."""
    if process.stdout is not None:
        process.stdout = TappedFile(process.stdout, b"o", tell, secrets)
    if process.stderr is not None:
        process.stderr = TappedFile(process.stderr, b"e", tell, secrets)


def secret_forms(secrets: list[object]) -> list[bytes]:
    """
    What is masked for these secrets: each as it is, and of one with several lines also every line by itself.

    Programs indent lines or put something before them, terminals end lines in CR LF, and lines that are printed too fast are
    dropped, so the lines of a secret need not follow each other as they do in the secret.
    """
    found: dict[bytes, None] = {}
    for one in secrets:
        secret = one if isinstance(one, bytes) else str(one).encode("utf-8", "surrogateescape")
        found[secret] = None
        lines = secret.strip().splitlines()
        if lines and lines != [secret]:
            found.update(dict.fromkeys((b"\n".join(lines), b"\r\n".join(lines))))
            found.update({line.strip(): None for line in lines if len(line.strip()) >= SHORTEST})
    return list(found)
