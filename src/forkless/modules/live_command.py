# SPDX-License-Identifier: GPL-3.0-or-later
"""
Output of a command that a connection executes, while it runs: the tasks `raw` and `script`, which run no module.

The connections local and ssh start a program, whose pipes are tapped (`tap_if_live`); forkless.core.ssh passes on what it receives
(`tell_output`). What the connection returns in the end is not touched.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import selectors
from typing import IO, TYPE_CHECKING

from forkless.modules.live_output import TimedOutput, live_output_of, run_secrets
from forkless.modules.warm import remote_temp_dir as remote_temp_dirs
from forkless.modules.warm import transports
from forkless.modules.warm.remote.live_output import Masker, TappedFile, secret_forms, tap

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection, Iterator

    from forkless.modules.ansible_types import AnsibleAction, BecomePlugin, CommandOutput

__all__ = ["LiveCommand", "communicate", "tap_if_live", "told"]

# The actions whose command, and not a module, is the task, and an argument that only this command is given.
ACTIONS = {"ansible.plugins.action.raw": "executable", "ansible.plugins.action.script": "chdir"}
_MOST_HELD = 1 << 16
_PIPE = 512  # bytes that a pipe which is ready takes without blocking (PIPE_BUF of POSIX)

_current: contextvars.ContextVar[LiveCommand | None] = contextvars.ContextVar("forkless.live_command", default=None)


class AfterBecome:
    """Leaves out what stands before the success message of a become plugin: prompts, and what a terminal echoes."""

    def __init__(self, become: BecomePlugin) -> None:
        self._become = become
        self._success = str(become.success).encode()
        self._held = {b"o": b"", b"e": b""}
        self._begun = False

    def feed(self, stream: bytes, data: bytes) -> list[tuple[bytes, bytes]]:
        if self._begun:
            return [(stream, data)]
        held = self._held[stream] = (self._held[stream] + data)[-_MOST_HELD:]
        at = held.find(self._success) if stream == b"o" else -1
        end = held.find(b"\n", at) if at >= 0 else -1
        if end < 0:
            return []
        self._begun = True
        return [(b"o", held[end + 1 :]), (b"e", self._without_prompt(self._held[b"e"]))]

    def _without_prompt(self, text: bytes) -> bytes:
        """What stderr had before the message was seen on stdout: it may be the command's already, behind a prompt."""
        prompt = str(self._become.prompt or "").encode()
        if prompt and prompt in text:
            return text.rpartition(prompt)[2]
        if not self._become.expect_prompt():
            return text
        return b"".join(one for one in text.splitlines(keepends=True) if not self._become.check_password_prompt(one))


class LiveCommand:
    """
    Takes what one command prints. An OutputListener: `write` and `end` are called by one thread at a time, and never block.
    """

    def __init__(self, command: str, timed: TimedOutput, secrets: list[bytes], become: BecomePlugin | None) -> None:
        self._command = os.fsencode(command)
        self._timed = timed
        self._maskers = {stream: Masker(secrets) for stream in (b"o", b"e")}
        self._become = None if become is None else AfterBecome(become)

    def is_run_by(self, args: object) -> bool:
        """Whether a program with these arguments is this command: a shell's command line, or the last argument of ssh."""
        last = args[-1] if isinstance(args, (list, tuple)) and args else args
        return isinstance(last, (str, bytes)) and os.fsencode(last) == self._command

    def write(self, stream: bytes, data: bytes) -> None:
        for which, part in [(stream, data)] if self._become is None else self._become.feed(stream, data):
            self._tell(which, part)

    def _tell(self, stream: bytes, data: bytes, *, end: bool = False) -> None:
        masked = self._maskers[stream].feed(data, end=end)
        if masked:
            self._timed.write(stream, masked)

    def end(self, stream: bytes) -> None:
        self._tell(stream, b"", end=True)
        self._timed.end(stream)


@contextlib.contextmanager
def told(action: AnsibleAction, arguments: Collection[str]) -> Iterator[None]:
    """
    What the connection's next command prints is told, if it is the command of a task and somebody listens.

    `arguments`: the names of those that `_low_level_execute_command` was called with. Only the command of the task has these; the
    commands around it, which look for files and make folders, have not.
    """
    wanted = ACTIONS.get(type(action).__module__)
    # Other connections may read their programs in ways that a tap does not know: as text, by lines, with a time limit.
    known = wanted in arguments and transports.is_known(action._connection)
    live = live_output_of(action) if known else None
    if live is None:
        yield
        return
    connection = action._connection
    execute = connection.exec_command

    @functools.wraps(execute)
    def exec_command(cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> CommandOutput:
        become = connection.become if sudoable else None
        if become is not None and not (become.success and str(become.success) in cmd):
            become = None
        command = LiveCommand(cmd, TimedOutput(live), _secrets(action), become)
        token = _current.set(command)
        connection.tell_output = command.write
        try:
            return execute(cmd, in_data=in_data, sudoable=sudoable)
        finally:
            _current.reset(token)
            connection.tell_output = None
            for stream in (b"o", b"e"):
                command.end(stream)

    with remote_temp_dirs.instead(connection, exec_command):
        yield


def _secrets(action: AnsibleAction) -> list[bytes]:
    """Of the run, and the passwords of the connection."""
    found = run_secrets()
    with contextlib.suppress(KeyError):
        found.append(action._connection.get_option("password"))
    if action._connection.become is not None:
        found.append(action._connection.become.get_option("become_pass"))
    return secret_forms([one for one in found if one])


def tap_if_live(process: subprocess.Popen[bytes]) -> bool:
    """Tap the pipes of a program that was started for the current command. Called by the thread that started it."""
    command = _current.get()
    if command is None or not command.is_run_by(process.args):
        return False
    tap(process, command, [])
    return True


def communicate(process: subprocess.Popen[bytes], data: bytes | None) -> tuple[bytes, bytes]:
    """`Popen.communicate`, which reads the descriptors and not the files, for a program whose files are tapped."""
    out, err = process.stdout, process.stderr
    if not isinstance(out, TappedFile) or not isinstance(err, TappedFile):
        raise TypeError("this program has no tapped stdout and stderr")
    tapped = {out.fileno(): out, err.fileno(): err}
    kept: dict[int, list[bytes]] = {number: [] for number in tapped}
    left = memoryview(data or b"")
    with selectors.DefaultSelector() as selector:
        for number in tapped:
            selector.register(number, selectors.EVENT_READ)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.flush()
            if left:
                selector.register(process.stdin, selectors.EVENT_WRITE)
            else:
                _close(process.stdin)
        while selector.get_map():
            for key, _ in selector.select():
                if key.fileobj is process.stdin:
                    try:
                        left = left[os.write(key.fd, left[:_PIPE]) :]
                    except BrokenPipeError:
                        left = left[:0]
                    if not left:
                        selector.unregister(key.fileobj)
                        _close(process.stdin)
                    continue
                file = tapped[key.fd]
                chunk = os.read(key.fd, 1 << 15)
                file.heard(chunk)
                kept[key.fd].append(chunk)
                if not chunk:
                    selector.unregister(key.fd)
                    file.close()
    process.wait()
    first, second = (b"".join(chunks) for chunks in kept.values())
    return first, second


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        file.close()
