# SPDX-License-Identifier: GPL-3.0-or-later
"""
What is needed to start an `async` task through a warm interpreter, collected while Ansible prepares it.

Stock Ansible sends two files, the module and async_wrapper, and starts the second with the first as an argument. Here the
interpreter holds the content of both in memory: async_wrapper's own code runs in a fork, and where it would start the
module's file it forks again. The files on the host are stubs, because async_wrapper reads the module's first line and
removes the folder at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import shlex
from typing import TYPE_CHECKING

from forkless.modules.live_output import at_end_of_task

if TYPE_CHECKING:
    from forkless.core.run_context import Interruptible
    from forkless.modules.ansible_types import AnsibleConnection, TellOutput
    from forkless.modules.warm import payload
    from forkless.modules.warm.interpreter import WarmInterpreter

__all__ = ["AsyncTask", "UnknownWrapperError", "end_followed_job", "follow_job"]

# Words in which the shell changes nothing.
_PLAIN_WORDS = re.compile(r"[\w./+@%:,=-]+( [\w./+@%:,=-]+)*", re.ASCII)
# How the arguments of async_wrapper begin: with the first part of the job's id, and its time limit.
_JOB = re.compile(r"j\d+ \d+ ")
# Never run: the interpreter has the module's text in memory.
_STUB = b'raise SystemExit("the text of this module is in the memory of a warm interpreter")\n'


class UnknownWrapperError(Exception):
    """The task cannot be started through a warm interpreter. Nothing was started."""


class AsyncTask:
    """One task with `wrap_async`, used by its worker's thread. Every method may raise UnknownWrapperError."""

    def __init__(self) -> None:
        self._module: payload.Wrapped | None = None  # None: the module must be a file
        self._wrapper: payload.Wrapped | None = None
        self._shebang: str | None = None
        self._environ: dict[str, str] = {}
        self._paths: dict[bytes, str] = {}  # of the stubs on the host, by the data in whose place they are

    def add(self, wrapped: payload.Wrapped | None, shebang: str, environ: dict[str, str]) -> None:
        """Take what Ansible has built: first the module (None if it must be a file), then async_wrapper."""
        if self._shebang is None:
            self._module, self._shebang, self._environ = wrapped, shebang, environ
            return
        if wrapped is None or not wrapped.manifest.is_core_async_wrapper:
            raise UnknownWrapperError("async_wrapper has an unknown form")
        if self._module is not None and self._shebang != shebang:
            raise UnknownWrapperError("the module has an interpreter of its own")
        self._wrapper, self._shebang = wrapped, shebang

    def stub(self, data: bytes, remote_path: str) -> bytes | None:
        """What is sent in place of a file with this content; None if the file itself must be sent."""
        if data not in [one.data for one in (self._module, self._wrapper) if one is not None]:
            return None
        if not _PLAIN_WORDS.fullmatch(remote_path) or " " in remote_path:
            raise UnknownWrapperError("the path of the module has unusual characters")
        self._paths[data] = remote_path
        return f"{self._shebang}\n".encode() + _STUB

    def order(self, command: str) -> tuple[payload.Wrapped, str] | None:
        """async_wrapper with its arguments and its module, and the command before it; None for any other command."""
        path = self._paths.get(self._wrapper.data) if self._wrapper is not None else None
        if self._wrapper is None or path is None:
            return None
        before, found, arguments = command.rpartition(f" {path} ")
        if not found or not _JOB.match(arguments):
            return None
        interpreter = (self._shebang or "").replace("#!", "").strip()
        if before.endswith(interpreter) and _PLAIN_WORDS.fullmatch(interpreter):
            start = tuple(interpreter.split())
        elif before.endswith(shlex.quote(interpreter)):  # since 2.21 it is one word, whatever is in it
            start = (interpreter,)
        else:  # with the stubs on the host this command must not be executed
            raise UnknownWrapperError("async_wrapper is started in an unknown way")
        words = _words(arguments)
        job = None
        if self._module is not None:
            job = dataclasses.replace(self._module, interpreter=start, argv=(self._paths[self._module.data],))
        wrapper = dataclasses.replace(
            self._wrapper, interpreter=start, argv=(path, *words), job=job, environ=self._environ
        )
        return wrapper, before


def _words(arguments: str) -> list[str]:
    """The words of a command line in which the shell changes nothing but the quotes of whole words."""
    with contextlib.suppress(ValueError):  # an open quote
        words = shlex.split(arguments)
        if shlex.join(words) == arguments:
            return words
    raise UnknownWrapperError("the command has unusual characters")


def follow_job(connection: AnsibleConnection, number: str, interpreter: WarmInterpreter, tell: TellOutput) -> None:
    """
    A job was started whose output is told: until async_status says that it has finished, or until the task is over.

    `number` is what async_wrapper was given as the first part of the job's id. Called by the task's worker.
    """
    followed: dict[str, tuple[WarmInterpreter, TellOutput]] = connection.__dict__.setdefault(
        "_forkless_followed_jobs", {}
    )
    followed[number] = interpreter, tell
    at_end_of_task(functools.partial(interpreter.end_tell, tell, interrupt=None))


def end_followed_job(connection: AnsibleConnection, result: object, interrupt: Interruptible) -> None:
    """If `result` is async_status's of a followed job that has finished: tell the last that it printed."""
    followed: dict[str, tuple[WarmInterpreter, TellOutput]] = connection.__dict__.get("_forkless_followed_jobs", {})
    if followed and isinstance(result, dict) and result.get("finished"):
        found = followed.pop(str(result.get("ansible_job_id")).rpartition(".")[0], None)
        if found is not None:
            found[0].end_tell(found[1], interrupt=interrupt)
