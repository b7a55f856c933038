# SPDX-License-Identifier: GPL-3.0-or-later
"""
The controller's side of a warm interpreter.

`remote.main` runs on the host. A `Channel` carries bytes in both directions, over a child's pipes or an SSH channel.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import struct
import threading
import time
from typing import TYPE_CHECKING, Protocol

from forkless.core import thread_exception
from forkless.modules.warm.bytecode import COMPILER
from forkless.modules.warm.payload import MAGIC
from forkless.modules.warm.program import ASYNC_JOB, LIVE_OUTPUT, OLDEST, PROGRAM, server_part
from forkless.modules.warm.remote import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from forkless.core.run_context import Interruptible
    from forkless.modules.ansible_types import CommandOutput, TellOutput
    from forkless.modules.warm.payload import Manifest, Piece, Wrapped

__all__ = ["Channel", "InterpreterLostError", "NotStartedError", "WarmInterpreter", "not_removed"]

_OUTPUT = struct.Struct(">cI")  # stream, lines dropped before; the text follows
GRACE = 5.0  # seconds for an interpreter to end after it was asked to


class NotStartedError(Exception):
    """The module has certainly not started, so it may be run in another way."""


class InterpreterLostError(Exception):
    """The interpreter ended while a module may have been running."""


def not_removed(path: str, why: str) -> str:
    """Stock Ansible's warning of a temporary folder that could not be removed."""
    return f"Error deleting remote temporary files (rc: 1, stderr: {path}: {why})"


class Channel(Protocol):
    """Carries bytes to the interpreter. `send` is called by one thread at a time; `end_now` releases a blocked `send`."""

    def send(self, data: bytes) -> None: ...
    def end_now(self) -> None: ...
    def close(self) -> None: ...


class _Call:
    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.err: list[bytes] = []
        self.rc: int | None = None
        self.refused: str | None = None
        self.over = threading.Event()


class WarmInterpreter:
    """
    One interpreter on a host, shared by all workers with the same login, user and environment.

    The channel calls `feed` on one thread at a time; any thread may call the other methods. Every call ends: by the
    module's exit status, by the end of the channel (`gone` releases all waiting workers), or when its worker is
    interrupted.
    """

    def __init__(self, name: str, *, program: Piece | None = None, login: bool = False) -> None:
        """`program`: what it executes first (`server_program`), sent with the first order or request; None: it is being executed."""
        self.name = name
        self.login = login  # it runs as the login user of an SSH host, without become
        self.used = time.monotonic()
        self.ready = threading.Event()
        self.lost = False
        self.ended = threading.Event()
        self.serving = program is None
        """Whether the host executes the server."""
        self.cannot_serve = False
        """Whether the host said that it cannot execute the server, and so has started nothing."""
        self._program = program
        self._closing = False
        self._channel: Channel | None = None
        self._magic = self._python = ""  # the bytecode version of the host's Python, and its version, such as 3.11
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        # Who is told what the modules' programs print, by the number of the order. For a job this outlives the call.
        self._tells: dict[int, TellOutput] = {}
        self._removals: dict[int, str] = {}  # folders whose removal was not answered yet
        self._all_removed = (
            threading.Event()
        )  # set and cleared with the lock held, so that it never contradicts `_removals`
        self._removal_lock = threading.Lock()
        self._not_removed: list[tuple[str, str]] = []
        self.folders: dict[str, str] = {}
        """The full paths of the `remote_tmp` folders that the host has made, by their names in orders."""
        self.leftovers: list[tuple[str, str]] = []
        """Where `close` puts what is in no `take_not_removed`: the pool's, which outlives the interpreter."""
        self._sent: set[str] = set()
        self._parts: set[str] = set()
        # Serializes writes to the channel: frames never interleave, and a payload's files precede the order that needs
        # them.
        self._sending = threading.Lock()
        self._heard = bytearray()
        self._greeted = False

    # -- called by the channel

    def feed(self, data: bytes) -> None:
        self._heard += data
        if not self._greeted:
            at = self._heard.find(main.MAGIC)
            if at < 0:
                return
            del self._heard[: at + len(main.MAGIC)]
            self._greeted = True
        heard, at = self._heard, 0
        while len(heard) - at >= main.HEAD.size:
            length, number, kind = main.HEAD.unpack_from(heard, at)
            end = at + main.HEAD.size + length
            if len(heard) < end:
                break
            self._hear(kind, number, bytes(heard[at + main.HEAD.size : end]))
            at = end
        del heard[:at]

    def gone(self) -> None:
        """The channel has ended: release every waiting worker. May be called more than once, and by any thread."""
        self.lost = True
        self.ready.set()
        self.ended.set()
        self._all_removed.set()
        for call in list(self._calls.values()):
            call.over.set()

    def _hear(self, kind: bytes, number: int, body: bytes) -> None:
        if kind == b"H":
            self._magic, _, self._python = body.decode("ascii", "replace").partition(" ")
            self.ready.set()
            return
        if kind in (b"S", b"F"):
            self.serving, self.cannot_serve = kind == b"S", kind == b"F"
            if self.cannot_serve:
                # Its program is read by nobody, or by a wrapper that keeps it: the writer is released.
                self.gone()
                if self._channel is not None:
                    self._channel.end_now()
            return
        if kind == b"T":
            named, place = json.loads(body)
            self.folders[str(named)] = str(place)
            return
        if kind == b"V":
            tell = self._tells.get(number)
            if tell is not None:
                stream, dropped = _OUTPUT.unpack_from(body)
                tell("stderr" if stream == b"e" else "stdout", body[_OUTPUT.size :], dropped)
            return
        if number in self._removals:
            path = self._end_removal(number)
            if kind == b"N":
                self._not_removed.append((path, body.decode(errors="replace")))
            return
        call = self._calls.get(number)
        if call is None:
            return  # the task was given up
        if kind == b"O":
            call.out.append(body)
        elif kind == b"E":
            call.err.append(body)
        elif kind == b"N":
            call.refused = body.decode(errors="replace")
            call.over.set()
        elif kind == b"X":
            call.rc = int(body)
            call.over.set()

    # -- called on workers' threads, concurrently

    def check_version(self) -> None:
        """Raises NotStartedError if the Python that has greeted is too old for the server."""
        version = tuple(int(part) if part.isdigit() else 0 for part in self._python.split("."))
        if version < OLDEST:
            raise NotStartedError(f"the Python on {self.name} is older than {OLDEST[0]}.{OLDEST[1]}")

    def attach(self, line: Channel) -> None:
        self._channel = line

    @property
    def busy(self) -> bool:
        return bool(self._calls or self._tells)

    def run(
        self,
        wrapped: Wrapped,
        more: Mapping[str, object],
        *,
        interrupt: Interruptible,
        tell: TellOutput | None = None,
    ) -> CommandOutput:
        """
        Run the module on the host and wait for its end. Any number of threads may call this at once.

        NotStartedError: the module has not started. InterpreterLostError: the interpreter ended before the module's
        exit status arrived. If the worker is interrupted, the module's process group on the host is killed.

        `more`: the module's current folder (`cwd`) and variables (`environ`), files to write first (`lay`), a folder to
        create (`remote_tmp`), and whether stdout and stderr are one stream (`one_stream`). What the module's programs print
        while they run goes to `tell` on the channel's thread; that of a job that was started goes there until `end_tell`.
        """
        order = {
            "cwd": None,
            "environ": {},
            "lay": None,
            "remote_tmp": None,
            "one_stream": False,
            "live": tell is not None,
            **wrapped.whole_order,
            **more,
        }
        number, call = next(self._numbers), _Call()
        if tell is not None:
            self._tells[number] = tell
        started = False
        try:
            done = self._ask(number, call, lambda: self._send_order(number, wrapped.manifests, order), interrupt)
            started = wrapped.job is not None and done[0] == 0
        finally:
            if not started:
                self._tells.pop(number, None)
                self._close_if_over()
        return done

    def end_tell(self, tell: TellOutput, *, interrupt: Interruptible | None) -> None:
        """
        The output of a job goes to `tell` no longer. With `interrupt`, all that was printed so far is told first; None: it is
        not waited for.
        """
        for number in [number for number, one in list(self._tells.items()) if one == tell]:
            try:
                if interrupt is not None:
                    frame = json.dumps({"end_live": number}).encode()
                    own = next(self._numbers)
                    # Also to an interpreter that was retired: it ends with its last job.
                    self._ask(own, _Call(), functools.partial(self._send_anyway, _frame(b"C", own, frame)), interrupt)
            except (NotStartedError, InterpreterLostError):
                pass
            finally:
                self._tells.pop(number, None)
                self._close_if_over()

    def request(self, request: dict[str, object], *, interrupt: Interruptible) -> bytes:
        """
        Do what stock Ansible would start a shell for: expand a home, write files or remove a folder. Returns the
        output.

        Any number of threads may call this at once; it raises what `run` raises.
        """
        number, frame = next(self._numbers), json.dumps(request).encode()
        return self._ask(number, _Call(), lambda: self._send([_frame(b"C", number, frame)]), interrupt)[1]

    def remove_folder(self, path: str, *, interrupt: Interruptible) -> None:
        """
        Have a folder removed before the next order is carried out, without waiting for it: `close` does. NotStartedError: it was not asked for.

        Any thread may call this. What could not be removed is in the next `take_not_removed`, or after `close` in `leftovers`.
        """
        number, frame = next(self._numbers), json.dumps({"remove": path}).encode()
        self.used = time.monotonic()
        with self._removal_lock:
            self._all_removed.clear()
            self._removals[number] = path  # before the answer can come
        try:
            with interrupt.shielded():
                self._send([_frame(b"C", number, frame)])
        except BaseException:
            self._end_removal(number)
            raise

    def _end_removal(self, number: int) -> str:
        with self._removal_lock:
            path = self._removals.pop(number, "")
            if not self._removals:
                self._all_removed.set()
        return path

    def take_not_removed(self) -> list[tuple[str, str]]:
        """Folders that could not be removed, and why; each is returned once."""
        found, self._not_removed = self._not_removed, []
        return found

    def _ask(self, number: int, call: _Call, send: Callable[[], None], interrupt: Interruptible) -> CommandOutput:
        self.used = time.monotonic()
        self._calls[number] = call
        try:
            with interrupt.closing(lambda: self._give_up(number, call)):
                with interrupt.shielded():  # a truncated frame would break the channel for all workers
                    send()
                call.over.wait()
        except NotStartedError:
            raise
        except BaseException:  # the worker was interrupted, and the order may already run on the host
            self._give_up(number, call)
            raise
        finally:
            self._calls.pop(number, None)
            self._close_if_over()
        if call.refused is not None:
            raise NotStartedError(call.refused)
        if call.rc is None and self.cannot_serve:
            raise NotStartedError(f"the warm interpreter on {self.name} ended before it could take orders")
        if call.rc is None:
            raise InterpreterLostError(self.name)
        return call.rc, b"".join(call.out), b"".join(call.err)

    def _send_order(self, number: int, manifests: tuple[Manifest, ...], order: dict[str, object]) -> None:
        with self._sending:
            needed = [name for name, wanted in ((LIVE_OUTPUT, order["live"]), (ASYNC_JOB, order["argv"])) if wanted]
            frames = [_frame(b"B", 0, server_part(name)) for name in needed if name not in self._parts]
            self._parts.update(needed)
            # By key, so that two identical files are sent once.
            unsent = [one for one in manifests if one.digest not in self._sent]
            pieces = {piece.key: piece for one in unsent for _, _, piece in one.files if piece.key not in self._sent}
            code = self._code(pieces) if pieces or self._program is not None else {}
            frames.insert(0, self._start(code))
            for manifest in unsent:
                new = {piece.key: piece for _, _, piece in manifest.files if piece.key not in self._sent}
                lengths = [(key, one.path, len(one.text), len(code.get(key, b""))) for key, one in new.items()]
                parts = [part for key, one in new.items() for part in (one.text, code.get(key, b""))]
                body = b"".join([json.dumps(lengths).encode(), b"\n", *parts])
                frames += [_frame(b"F", 0, body), _frame(b"P", 0, manifest.order())]
                self._sent.update(new, (manifest.digest,))
            frames.append(_frame(b"R", number, json.dumps(order).encode()))
            self._put_new(frames)

    def _code(self, new: dict[str, Piece]) -> dict[str, bytes]:
        """The bytecode that is sent with these files, and with the server's program. Called before anything of them was sent."""
        if self._program is not None:
            new = {self._program.key: self._program, **new}
        if self._magic == MAGIC:
            return {key: piece.code for key, piece in new.items()}
        return COMPILER.of(self._magic, self._python, list(new.values()), greeting=not self._sent)

    def _start(self, code: dict[str, bytes] | None = None) -> bytes:
        """What precedes the first frame: the server's program, from `code` if it is there."""
        program, self._program = self._program, None
        if program is None:
            return b""
        compiled = (self._code({program.key: program}) if code is None else code).get(program.key)
        self._sent.add(program.key)
        body = compiled or program.text
        return PROGRAM.pack(b"M" if compiled else b"T", len(body)) + body

    def _send(self, frames: list[bytes]) -> None:
        with self._sending:
            self._put_new([self._start(), *frames])

    def _send_anyway(self, frame: bytes) -> None:
        with self._sending:
            if self.ended.is_set():  # nobody would answer
                raise NotStartedError(f"the warm interpreter on {self.name} has ended")
            self._put(frame)

    def _close_if_over(self) -> None:
        if self._closing and not self.busy:
            self.close()

    def _put_new(self, frames: list[bytes]) -> None:
        if self.lost:
            raise NotStartedError(f"the warm interpreter on {self.name} has ended")
        self._put(b"".join(frames))

    def _put(self, data: bytes) -> None:
        try:
            if self._channel is not None:
                self._channel.send(data)
        except (OSError, ValueError) as err:  # a closed file raises ValueError
            self.gone()
            # The order is the last frame and was not written completely, so the host cannot have run it.
            raise NotStartedError(f"the warm interpreter on {self.name} has ended") from err

    def _give_up(self, number: int, call: _Call) -> None:
        """Kill the task on the host and release its worker. Called by the interrupting thread or by the worker."""
        with self._turn_to_send() as mine, contextlib.suppress(NotStartedError):
            if mine and self._program is None:  # or no order has left
                self._put(_frame(b"K", number, b""))
        call.over.set()

    @contextlib.contextmanager
    def _turn_to_send(self) -> Iterator[bool]:
        """
        Acquire the right to send, or yield False after GRACE seconds.

        In that case another thread is blocked in `send` on a host that does not read. Ending the channel releases it.
        """
        mine = self._sending.acquire(timeout=GRACE)
        try:
            if not mine and self._channel is not None:
                self._channel.end_now()
            yield mine
        finally:
            if mine:
                self._sending.release()

    def retire(self, *, until: float | None = None) -> None:
        """
        Accept no more orders. Running tasks continue, and the last one closes the interpreter; an idle interpreter is
        closed now.

        With `until`, an idle interpreter is first asked to exit and waited for until that monotonic time, so that its
        process has left the host when this returns.
        """
        with self._turn_to_send() as mine:
            idle = not self.busy
            alive, self.lost, self._closing = not self.lost, True, True
            if mine and idle and alive and until is not None and self._program is None:
                with contextlib.suppress(NotStartedError):
                    self._put(_frame(b"L", 0, b""))
        if idle:
            try:
                if self._program is not None:  # it waits for a program, and exits when its input ends
                    self.close()
                if alive and until is not None:
                    self.ended.wait(max(0.0, until - time.monotonic()))
            finally:
                self.close()

    def close(self) -> None:
        self.lost = True
        if self._removals and not self.ended.is_set():  # the end of a connection may overtake what was sent over it
            self._all_removed.wait(GRACE)
        self.leftovers += self.take_not_removed()
        if self._channel is not None:
            self._channel.close()


def _frame(kind: bytes, number: int, body: bytes) -> bytes:
    return main.HEAD.pack(len(body), number, kind) + body


class _NeverInterrupted:
    """The Interrupt of a caller that cannot be interrupted."""

    own_session = True
    sent = None

    def raise_once(self, thread: int, error: type[BaseException]) -> None:
        thread_exception.send(thread, error)

    def shielded(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def closing(self, _close: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


NEVER_INTERRUPTED = _NeverInterrupted()
