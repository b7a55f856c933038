# SPDX-License-Identifier: GPL-3.0-or-later
"""
Lets async_wrapper run in a fork of the warm interpreter, and start its module in a fork of its own.

async_wrapper leaves the interpreter's session by itself, so the job outlives the interpreter. Others look for a job by
its command line and by ANSIBLE_ASYNC_DIR in its environment, in /proc; a fork would show those of the interpreter, so
they are overwritten. Sent before the first order of such a task; needs only the stdlib of 3.8.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from forkless.modules.warm.remote.child import exit_now  # on the host, its text comes first

if TYPE_CHECKING:
    import types
    from collections.abc import Callable


class CommandLine:
    """The memory of this process from which the kernel reads /proc/self/cmdline and /proc/self/environ."""

    def __init__(self, words: tuple[int, int], variables: tuple[int, int], ctypes: types.ModuleType) -> None:
        self._words, self._variables, self._ctypes = words, variables, ctypes

    def has_room(self, words: list[str]) -> bool:
        """Whether a command line with these words at its beginning can be shown."""
        return sum(len(os.fsencode(word)) + 1 for word in words) < self._words[1] - self._words[0]

    def show(self, words: list[str]) -> None:
        """
        Show this command line, and this process's environment with ANSIBLE_ASYNC_DIR first. What has no room is left out.

        The C library may still use the old strings of the environment: putenv gives it copies of all of them first.
        """
        variables = sorted(os.environb.items(), key=lambda pair: pair[0] != b"ANSIBLE_ASYNC_DIR")
        for name, value in variables:
            os.putenv(name, value)
        self._write(self._words, [os.fsencode(word) for word in words])
        self._write(self._variables, [name + b"=" + value for name, value in variables])

    def _write(self, place: tuple[int, int], words: list[bytes]) -> None:
        size = place[1] - place[0]
        text = b"".join(word + b"\0" for word in words)[: size - 1].ljust(size, b"\0")
        self._ctypes.memmove(place[0], text, size)


def command_line() -> CommandLine | None:
    """None if this system has no such memory: then a job cannot be told from the interpreter."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        arg_start, arg_end, env_start, env_end = (int(field) for field in fields[45:49])
        with open("/proc/self/cmdline", "rb") as file:
            size = len(file.read())
        ctypes = importlib.import_module("ctypes")
    except (OSError, ValueError, ImportError):
        return None
    # Somebody has overwritten the end of the arguments, or the kernel does not say where they are.
    if not 0 < arg_start < arg_end <= env_start < env_end or size != arg_end - arg_start:
        return None
    return CommandLine((arg_start, arg_end), (env_start, env_end), ctypes)


def fork_in_place_of(command: list[str], shows: CommandLine, start_module: Callable[[], int]) -> None:
    """
    In async_wrapper's process, before it starts: where it would start the module's file, it forks and calls `start_module`,
    which returns the exit status. As with stock, the module's process is its child, and it reads the output.
    """
    popen = subprocess.Popen

    class ForkedModule(popen):  # type: ignore[misc, valid-type]
        def _execute_child(self, args: list[bytes], *more: object) -> None:
            if args[-1] != os.fsencode(command[-1]):
                super()._execute_child(args, *more)
                return
            # The group that async_wrapper's supervisor kills when the time is over. The supervisor makes it too, but may be late: the
            # module, and what it has started by then, would stay in the old group and outlive the time limit.
            os.setpgid(0, 0)
            names = popen._execute_child.__code__.co_varnames[2:]  # type: ignore[attr-defined]
            given = dict(zip(names, more))  # noqa: B905  # the names of local variables follow
            ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
            self.pid = os.fork()
            if self.pid == 0:
                subprocess.Popen = popen  # type: ignore[misc]
                for pipe in (self.stdin, self.stdout, self.stderr):
                    pipe.close()
                become_module(ends, command, shows, start_module)
            self._child_created = self._closed_child_pipe_fds = True
            for end in ends:
                os.close(end)

    subprocess.Popen = ForkedModule  # type: ignore[misc]


def become_module(ends: list[int], command: list[str], shows: CommandLine, start_module: Callable[[], int]) -> None:
    """The module's process, from the fork to its end."""
    code = 1
    try:
        for fd, end in enumerate(ends):
            os.dup2(end, fd)
            os.close(end)
        shows.show(command)
        tempfile.tempdir = None
        with contextlib.suppress(ImportError):
            importlib.import_module("syslog").closelog()  # it has async_wrapper's name
        code = start_module()
    except BaseException:  # noqa: BLE001  # this process must never return into async_wrapper
        sys.excepthook(*sys.exc_info())
    exit_now(code)
