# SPDX-License-Identifier: GPL-3.0-or-later
"""
The live view on a terminal: Ansible's output scrolls as usual, and a panel stays below it.

The output is written unchanged, byte for byte. Only the panel is drawn here, and it is removed before the next output. So
no output is lost, and after the run the screen looks as it would after a run without the live view.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console

from forkless.core.thread_stack import OwnThread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forkless.cli.view.panel import Panel

__all__ = ["Screen"]

# Seconds between two drawings of the panel; also the longest delay of text.
EVERY = 0.125
_ERASE = "\r\x1b[J"
# Characters that wait for a terminal that takes none (Ctrl-S). What tasks print while they run is dropped then; what Ansible prints is not.
ROOM = 1 << 20


class Screen:
    """
    A text stream for the run's output, and the panel below it. A thread draws both; any thread may write. `close()`
    removes the panel for good.
    """

    def __init__(self, panel: Panel, out: Any = None) -> None:
        self._panel = panel
        self._out: Any = out or sys.stdout
        self.encoding = self._out.encoding
        self.errors = self._out.errors
        self._fd: int = self._out.fileno()
        # Guards _pending, _size and _missed only, so that a thread that writes text never waits for the terminal.
        self._saying = threading.Lock()
        self._pending: list[str] = []
        self._size = 0
        self._missed = 0
        # Guards the fields below, and must be held by a thread that writes to the terminal.
        self._lock = threading.RLock()
        self._painted = 0
        self._fresh_line = True
        self._begun = False
        self._away = 0
        self._woken = threading.Event()
        self._over = False
        self._thread = OwnThread(target=self._draw, name="forkless-live-view", daemon=True)

    def __enter__(self) -> Self:
        self._out.flush()
        with contextlib.suppress(RuntimeError):  # no thread can be started: everything is drawn at the end
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """Start to show the panel. Before the run begins, Ansible may prompt for passwords."""
        self._begun = True

    def close(self) -> None:
        self._over = True
        self._woken.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            self._paint(panel=False)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Inside this context there is no panel, so that the user can type, or other code can write to the terminal."""
        with self._lock:
            self._away += 1
            self._paint(panel=False)
        try:
            yield
        finally:
            with self._lock:
                self._away -= 1
                self._fresh_line = True

    # -- the stream ------------------------------------------------------------------------------------------------

    def write(self, text: str) -> int:
        with self._saying:
            self._pending.append(text)
            self._size += len(text)
        if self._away or self._over:
            with self._lock:
                self._paint(panel=False)
        self._woken.set()
        return len(text)

    def write_if_room(self, lines: str) -> bool:
        """Write whole lines, unless the terminal takes none and much waits already. Lines that are dropped are counted, and told of."""
        with self._saying:
            full = self._size > ROOM
            if full:
                self._missed += lines.count("\n")
        if not full:
            self.write(lines)
        return not full

    def flush(self) -> None:
        """Does nothing: text is shown within `EVERY` seconds. Code that needs it at once uses `away()`."""

    def isatty(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        number: int = self._out.fileno()
        return number

    @property
    def buffer(self) -> object:
        return self._out.buffer

    def reconfigure(self, **how: object) -> None:
        self._out.reconfigure(**how)
        self.encoding, self.errors = self._out.encoding, self._out.errors

    # -- drawing ---------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        while not self._over:
            # New text or the time-out wakes this thread; it then waits a moment, so that much text is drawn at once.
            self._woken.wait(EVERY)
            self._woken.clear()
            with self._lock:
                if self._over:
                    return
                if not self._away:
                    self._paint(panel=self._begun)
            threading.Event().wait(EVERY / 2)

    def _paint(self, *, panel: bool) -> None:
        with self._saying:
            text = "".join(self._pending)
            if self._missed:
                begun = "" if text.endswith("\n") else "\n"
                text += f"{begun}({self._missed} lines are not shown: the terminal took none)\n"
            self._pending.clear()
            self._size = self._missed = 0
        pieces = []
        if self._painted:
            pieces.append((f"\x1b[{self._painted - 1}A" if self._painted > 1 else "") + _ERASE)
            self._painted = 0
        if text:
            pieces.append(text)
            self._fresh_line = text.endswith("\n")
        if panel and self._fresh_line:
            drawn, self._painted = self._drawn()
            pieces.append(drawn)
        if pieces:
            self._put("".join(pieces).encode(self.encoding, "replace"))

    def _put(self, piece: bytes) -> None:
        """
        Write all bytes to the terminal.

        Not through sys.stdout: Ansible guards that with a lock of its own, and holds the lock while it writes to this object.
        """
        while piece:
            try:
                piece = piece[os.write(self._fd, piece) :]
            except BlockingIOError:  # another process has made the terminal non-blocking
                select.select([], [self._fd], [])
            except OSError:
                return  # a closed terminal must not end the run: stock Ansible continues as well, without a message

    def _drawn(self) -> tuple[str, int]:
        try:
            width, height = os.get_terminal_size(self._out.fileno())
        except OSError:
            width, height = 80, 24
        if width < 20 or height < 8:
            return "", 0
        room = max(4, min(16, height // 2 - 1))
        made = self._panel.lines(width - 1, room)
        text = io.StringIO()
        console = Console(
            file=text,
            width=width,
            force_terminal=True,
            no_color=bool(os.environ.get("NO_COLOR") or os.environ.get("ANSIBLE_NOCOLOR")),
            highlight=False,
            legacy_windows=False,
            color_system="standard",
        )
        for number, line in enumerate(made):
            console.print(line, end="\n" if number + 1 < len(made) else "", soft_wrap=True)
        return text.getvalue(), len(made)
