# SPDX-License-Identifier: GPL-3.0-or-later
"""
Lets async_wrapper run in a fork of the warm interpreter, and start its module in a fork of its own.

async_wrapper leaves the interpreter's session by itself, so the job outlives the interpreter. Others look for a job by
its command line and by ANSIBLE_ASYNC_DIR in its environment, in /proc; a fork would show those of the interpreter, so
they are overwritten. Sent between child.py and main.py; needs only the stdlib of 3.8.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
from typing import Any

from forkless.modules.warm.remote.child import call, exit_now  # on the host, its text comes first


class CommandLine:
    """The memory of this process from which the kernel reads /proc/self/cmdline and /proc/self/environ."""

    def __init__(self, words: tuple[int, int], variables: tuple[int, int], ctypes: Any) -> None:
        self._words, self._variables, self._ctypes = words, variables, ctypes

    def has_room(self, order: dict[str, Any]) -> bool:
        """Whether async_wrapper's command line can be shown as far as the job's id, by which a job is found."""
        words = [*order["interpreter"], *order["argv"][:2]]
        return sum(len(os.fsencode(word)) + 1 for word in words) < self._words[1] - self._words[0]

    def show(self, argv: list[str]) -> None:
        """
        Show this command line, and this process's environment with ANSIBLE_ASYNC_DIR first. What has no room is left out.

        The C library may still use the old strings of the environment: putenv gives it copies of all of them first.
        """
        variables = sorted(os.environb.items(), key=lambda pair: pair[0] != b"ANSIBLE_ASYNC_DIR")
        for name, value in variables:
            os.putenv(name, value)
        self._write(self._words, [os.fsencode(word) for word in argv])
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


def become_wrapper(order: dict[str, Any], shows: CommandLine, start_module: Any) -> None:
    """
    In the forked process that will be async_wrapper, before it starts.

    `start_module` is called in the module's process, which is a child of async_wrapper's as stock's is, and returns the
    exit status.
    """
    shows.show([*order["interpreter"], *order["argv"]])
    job = order["job"]
    if job is None:
        return  # no Python module: async_wrapper starts its file
    popen = subprocess.Popen

    class ForkedModule(popen):  # type: ignore[misc, valid-type]
        """async_wrapper's Popen for its module: a fork in place of fork and exec."""

        def _execute_child(self, args: Any, *more: Any) -> None:
            if [os.fsencode(word) for word in args][-1:] != [os.fsencode(job["argv"][0])]:
                super()._execute_child(args, *more)
                return
            names = popen._execute_child.__code__.co_varnames[2:]  # type: ignore[attr-defined]
            given = dict(zip(names, more))
            ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
            self.pid = os.fork()
            if self.pid == 0:
                subprocess.Popen = popen  # type: ignore[misc]
                run_module(self, ends, job, shows, start_module)
            self._child_created = self._closed_child_pipe_fds = True
            for fd in ends:
                os.close(fd)

    subprocess.Popen = ForkedModule  # type: ignore[misc]


def run_module(pipes: Any, ends: list[int], job: dict[str, Any], shows: CommandLine, start_module: Any) -> None:
    """The module's process, from the fork to its end."""
    code = 1
    try:
        for pipe in (pipes.stdin, pipes.stdout, pipes.stderr):
            pipe.close()
        for fd, end in enumerate(ends):
            os.dup2(end, fd)
        for end in ends:
            os.close(end)
        shows.show([*job["interpreter"], *job["argv"]])
        atexit._clear()
        tempfile.tempdir = None
        with contextlib.suppress(ImportError):
            importlib.import_module("syslog").closelog()  # it has async_wrapper's name
        code = start_module(job)
    except BaseException:  # noqa: BLE001  # this process must never return into async_wrapper
        sys.excepthook(*sys.exc_info())
    exit_now(code)


def start_as_module(server: Any, before: set[str], job: dict[str, Any]) -> int:
    """Run the module; `before` names what was imported when async_wrapper started."""
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("ansible", "ansible_collections"):
            server.forget(name)
    files = server.payloads[job["digest"]]
    archive = server.finder.serve(files, job["module"])
    try:
        return call(job, files, server.finder)
    finally:
        archive.remove()
