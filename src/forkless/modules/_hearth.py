# SPDX-License-Identifier: GPL-3.0-or-later
"""
A hearth: one interpreter that is kept warm on a host, seen from here.

`_far` is what runs there. A line carries bytes to it and back; which one (a child's pipes, a channel of SSH) is nobody's business here.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import itertools
import json
import re
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any, Protocol

from forkless.modules import _far
from forkless.modules._payload import MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless.modules._payload import Manifest, Wrapped

__all__ = ["BOOT", "Hearth", "Line", "LostError", "NotStartedError", "boot_text"]

# Reads exactly so many bytes, so that what follows them is still there; then becomes what they say.
BOOT = (
    "import os,sys,zlib;r=lambda n,b=bytes():b if len(b)>=n else r(n,b+(os.read(0,n-len(b)) or sys.exit(3)));"
    'exec(zlib.decompress(r({length})),dict(__name__="forkless_far"))'
)
GRACE = 5.0  # seconds for an interpreter to leave when it was asked to
# Of all texts but the first: may only stand at the top of one, or would look for a package that is not there.
_ELSEWHERE = re.compile(r"^from (?:__future__|forkless\.modules\._\w+) import (?:\([^)]*\)|.*)\n", re.MULTILINE)


def boot_text(*, ask_groups: bool) -> bytes:
    """The files of the far side as one: what each takes from those before it is there already."""
    here = importlib.resources.files("forkless.modules")
    texts = [here.joinpath(name).read_text("utf-8") for name in ("_parcel.py", "_forked.py", "_far.py")]
    joined = texts[0] + "".join(_ELSEWHERE.sub("", text) for text in texts[1:])
    return zlib.compress(f"{joined}\nmain({ask_groups})\n".encode(), 9)


class NotStartedError(Exception):
    """The module was not started, surely: it may be run another way."""


class LostError(Exception):
    """The interpreter went away while a module may have run."""


class Line(Protocol):
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


class Hearth:
    def __init__(self, name: str, *, login: bool = False) -> None:
        self.name = name
        self.login = login  # of whoever is logged in at a host, and of nobody that one has become there
        self.used = time.monotonic()
        self.ready = threading.Event()
        self.lost = False
        self.ended = threading.Event()
        self._closing = False
        self._line: Line | None = None
        self._same_python = False
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._sent: set[str] = set()
        # Guards what is sent: a frame goes out whole, and the pieces of a payload before the order that needs them.
        self._sending = threading.Lock()
        self._heard = bytearray()
        self._greeted = False

    # -- what the line calls, on a thread of its own

    def feed(self, data: bytes) -> None:
        self._heard += data
        if not self._greeted:
            at = self._heard.find(_far.MAGIC)
            if at < 0:
                return
            del self._heard[: at + len(_far.MAGIC)]
            self._greeted = True
        heard, at = self._heard, 0
        while len(heard) - at >= _far.HEAD.size:
            length, number, kind = _far.HEAD.unpack_from(heard, at)
            end = at + _far.HEAD.size + length
            if len(heard) < end:
                break
            self._hear(kind, number, bytes(heard[at + _far.HEAD.size : end]))
            at = end
        del heard[:at]

    def gone(self) -> None:
        self.lost = True
        self.ready.set()
        self.ended.set()
        for call in list(self._calls.values()):
            call.over.set()

    def _hear(self, kind: bytes, number: int, body: bytes) -> None:
        if kind == b"H":
            hello = json.loads(body)
            self._same_python = hello["magic"] == MAGIC
            self.ready.set()
            return
        call = self._calls.get(number)
        if call is None:
            return  # of a task that was given up
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

    # -- what a worker calls

    def warm(self, line: Line) -> None:
        self._line = line

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    def run(
        self, wrapped: Wrapped, *, cwd: str | None, environ: dict[str, str], reach: Any, lay: Any = None
    ) -> tuple[int, bytes, bytes]:
        order = {**wrapped.order, "cwd": cwd, "environ": environ, "lay": lay}
        return self._ask(lambda number: self._send_order(number, wrapped.manifest, order), reach)

    def carry(self, errand: dict[str, Any], *, reach: Any) -> bytes:
        """One of the errands that a shell would be started for. What it says."""
        frame = json.dumps(errand).encode()
        return self._ask(lambda number: self._send([_frame(b"C", number, frame)]), reach)[1]

    def _ask(self, send: Callable[[int], None], reach: Any) -> tuple[int, bytes, bytes]:
        self.used = time.monotonic()
        number, call = next(self._numbers), _Call()
        self._calls[number] = call
        try:
            with reach.closing(lambda: self._give_up(number, call)):
                with reach.shielded():  # a frame that is cut short would be the end of this line for everyone
                    send(number)
                call.over.wait()
        except NotStartedError:
            raise
        except BaseException:  # whoever comes away without an answer: what was ordered may have begun there
            self._give_up(number, call)
            raise
        finally:
            self._calls.pop(number, None)
            if self._closing and not self._calls:
                self.close()
        if call.refused is not None:
            raise NotStartedError(call.refused)
        if call.rc is None:
            raise LostError(self.name)
        return call.rc, b"".join(call.out), b"".join(call.err)

    def _send_order(self, number: int, manifest: Manifest, order: dict[str, Any]) -> None:
        with self._sending:
            frames: list[bytes] = []
            if manifest.digest not in self._sent:
                # By key: of two pieces that are the same one is enough.
                new = {piece.key: piece for _, _, piece in manifest.files if piece.key not in self._sent}
                code = {key: piece.code if self._same_python else b"" for key, piece in new.items()}
                line = json.dumps([(key, one.path, len(one.text), len(code[key])) for key, one in new.items()]).encode()
                body = b"".join([line, b"\n", *(part for key, one in new.items() for part in (one.text, code[key]))])
                frames += [_frame(b"F", 0, body), _frame(b"P", 0, manifest.order())]
                self._sent.update(new, (manifest.digest,))
            frames.append(_frame(b"R", number, json.dumps(order).encode()))
            self._put_new(frames)

    def _send(self, frames: list[bytes]) -> None:
        with self._sending:
            self._put_new(frames)

    def _put_new(self, frames: list[bytes]) -> None:
        if self.lost:
            raise NotStartedError("it is gone")
        self._put(b"".join(frames))

    def _put(self, data: bytes) -> None:
        try:
            if self._line is not None:
                self._line.send(data)
        except (OSError, ValueError) as err:  # the latter: of a file that is closed
            self.gone()
            # The order is the last of what was sent, and not all of that went out: nobody has read it.
            raise NotStartedError("it is gone") from err

    def _give_up(self, number: int, call: _Call) -> None:
        """Called on another thread than the worker's: end what it waits for, there and here."""
        with self._turn_to_send() as mine, contextlib.suppress(NotStartedError):
            if mine:
                self._put(_frame(b"K", number, b""))
        call.over.set()

    @contextlib.contextmanager
    def _turn_to_send(self) -> Iterator[bool]:
        """For those who end something: of who sends and cannot get rid of it, as the host does not read, they do not wait for ever."""
        mine = self._sending.acquire(timeout=GRACE)
        try:
            if not mine and self._line is not None:
                self._line.end_now()
            yield mine
        finally:
            if mine:
                self._sending.release()

    def retire(self, *, and_wait: bool = False) -> None:
        """No more orders; what runs is let run, and the last one closes it. With `and_wait` an idle one is gone from its host afterwards."""
        with self._turn_to_send() as mine:
            idle = not self._calls
            alive, self.lost, self._closing = not self.lost, True, True
            if mine and idle and alive and and_wait:
                with contextlib.suppress(NotStartedError):
                    self._put(_frame(b"L", 0, b""))
        if idle:
            try:
                if alive and and_wait:
                    self.ended.wait(GRACE)
            finally:
                self.close()

    def close(self) -> None:
        self.lost = True
        if self._line is not None:
            self._line.close()


def _frame(kind: bytes, number: int, body: bytes) -> bytes:
    return _far.HEAD.pack(len(body), number, kind) + body


class _Nobody:
    """Reach of who cannot be interrupted."""

    own_session = True

    def shielded(self) -> Any:
        return contextlib.nullcontext()

    def closing(self, _close: Callable[[], None]) -> Any:
        return contextlib.nullcontext()


NOBODY = _Nobody()
