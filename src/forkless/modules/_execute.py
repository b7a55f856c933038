# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs one module on the calling thread: arguments in and result out as on the wire."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forkless import _platform
from forkless._errors import UnsupportedError
from forkless.modules import _place
from forkless.modules._invocation import Invocation, entered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forkless.modules._source import Source

__all__ = ["Done", "execute", "wire_arguments"]


@dataclass(frozen=True)
class Done:
    """What a process would have left behind."""

    rc: int
    stdout: str
    stderr: str


def wire_arguments(arguments: Mapping[str, Any], profile: str = "legacy") -> bytes:
    """Arguments as the text that would be sent to a host; whatever cannot be sent is refused here as it is there."""
    params = {"ANSIBLE_MODULE_ARGS": arguments}
    try:
        from ansible.module_utils.common.json import Direction, get_module_encoder
    except ImportError:  # up to 2.18
        from ansible.module_utils.common.json import AnsibleJSONEncoder

        return json.dumps(params, cls=AnsibleJSONEncoder, vault_to_text=True).encode()
    return json.dumps(params, cls=get_module_encoder(profile, Direction.CONTROLLER_TO_MODULE)).encode()


# What an engine puts in place only when a module is about to run here.
BEFORE: list[Callable[[], None]] = []


def execute(
    source: Source,
    arguments: bytes,
    *,
    profile: str = "legacy",
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
    programs: bool | None = None,
) -> Done:
    """
    Run the module here and now.

    The stand-ins must be in place (`forkless.modules.installed()`, or the engine's seams). On the main thread it is handed to a thread
    that lives as long as the call: only such a one can have a folder of its own.
    """
    for step in tuple(BEFORE):
        step()
    invocation = Invocation(
        name=source.name,
        arguments=arguments,
        profile=profile,
        programs=_platform.can_exec() if programs is None else programs,
    )
    variables = dict(os.environ if environ is None else environ)
    if threading.current_thread() is not threading.main_thread():
        return _run(source, invocation, variables, cwd)
    outcome: list[Any] = []

    def on_thread() -> None:
        try:
            outcome.append(_run(source, invocation, variables, cwd))
        except BaseException as err:  # noqa: BLE001  # raised again on the thread that asked
            outcome.append(err)

    thread = threading.Thread(target=on_thread, name=f"forkless-module-{source.name}", daemon=True)
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    done: Done = outcome[0]
    return done


def _run(source: Source, invocation: Invocation, variables: dict[str, str], cwd: str | None) -> Done:
    with contextlib.ExitStack() as around:
        around.enter_context(_place.folder(cwd))
        around.enter_context(_place.environ(variables))
        around.enter_context(entered(invocation))
        try:
            source.run()
            rc = 0  # not reached: run() raises
        except SystemExit as leaving:
            rc = _exit_code(leaving, invocation)
        except Exception as err:  # noqa: BLE001  # what a module throws is its result
            _tell(err, invocation)
            rc = 1
    return Done(rc, invocation.stdout.getvalue(), invocation.stderr.getvalue())


def _exit_code(leaving: SystemExit, invocation: Invocation) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    invocation.stderr.write(f"{leaving.code}\n")
    return 1


def _tell(error: Exception, invocation: Invocation) -> None:
    """An error that the module let through, in the words of the wrapper that it would have run in."""
    if isinstance(error, UnsupportedError):
        invocation.stdout.write(json.dumps({"failed": True, "msg": str(error)}) + "\n")
        return
    try:
        from ansible.module_utils._internal import _errors, _messages, _traceback
        from ansible.module_utils.common.json import Direction, get_module_encoder
    except ImportError:  # up to 2.18 the interpreter printed it
        invocation.stderr.write("".join(traceback.format_exception(error)))
        return
    with_traceback = _traceback.is_traceback_enabled(_traceback.TracebackEvent.ERROR)
    summary = _messages.ErrorSummary(event=_errors.EventFactory.from_exception(error, with_traceback))
    encoder = get_module_encoder(invocation.profile, Direction.MODULE_TO_CONTROLLER)
    invocation.stdout.write(json.dumps({"failed": True, "exception": summary}, cls=encoder) + "\n")
