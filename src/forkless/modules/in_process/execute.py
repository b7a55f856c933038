# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs one module in this process; arguments and result have the form in which Ansible sends them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forkless.core import platform
from forkless.core.errors import UnsupportedError
from forkless.core.thread_stack import OwnThread, start_with_deep_stack
from forkless.modules.in_process import cwd_and_environ
from forkless.modules.in_process.invocation import EndedByThread, Invocation, entered
from forkless.patching import thread_environ

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forkless.modules.in_process.source import ModuleSource
    from forkless.modules.live_output import TimedOutput

__all__ = ["ModuleResult", "encode_arguments", "execute"]


@dataclass(frozen=True)
class ModuleResult:
    """Exit status and output of one module, as of a process."""

    rc: int
    stdout: str
    stderr: str


def encode_arguments(arguments: Mapping[str, object], profile: str = "legacy") -> bytes:
    """Encode the arguments as Ansible would for a host; a value that cannot be encoded raises the same error."""
    params = {"ANSIBLE_MODULE_ARGS": arguments}
    try:
        from ansible.module_utils.common.json import Direction, get_module_encoder
    except ImportError:  # up to 2.18
        from ansible.module_utils.common.json import AnsibleJSONEncoder

        return json.dumps(params, cls=AnsibleJSONEncoder, vault_to_text=True).encode()
    return json.dumps(params, cls=get_module_encoder(profile, Direction.CONTROLLER_TO_MODULE)).encode()


def execute(
    source: ModuleSource,
    arguments: bytes,
    *,
    profile: str = "legacy",
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
    programs: bool | None = None,
    output: TimedOutput | None = None,
) -> ModuleResult:
    """
    Run the module in this process and return when it has ended. Any thread may call this.

    The replacements must be installed (`forkless.modules.installed()`, or the engine's seams). A call from the main
    thread runs the module on a thread that is started for the call, because the main thread cannot have a current
    folder of its own.
    """
    invocation = Invocation(
        name=source.name,
        arguments=arguments,
        profile=profile,
        programs=platform.can_exec() if programs is None else programs,
        output=output,
    )
    variables = dict(os.environ if environ is None else environ)
    if threading.current_thread() is not threading.main_thread():
        return _run(source, invocation, variables, cwd)
    outcome: list[Any] = []

    def on_thread() -> None:
        try:
            outcome.append(_run(source, invocation, variables, cwd))
        except BaseException as err:  # noqa: BLE001  # raised again on the calling thread
            outcome.append(err)

    thread = OwnThread(target=on_thread, name=f"forkless-module-{source.name}", daemon=True)
    start_with_deep_stack(thread)
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    done: ModuleResult = outcome[0]
    return done


def _run(source: ModuleSource, invocation: Invocation, variables: dict[str, str], cwd: str | None) -> ModuleResult:
    with contextlib.ExitStack() as around:
        around.enter_context(cwd_and_environ.folder(cwd))
        around.enter_context(thread_environ.variables_of_this_thread(variables))
        around.enter_context(entered(invocation))
        rc = 1
        try:
            try:
                rc = _run_to_its_end(source, invocation)
            finally:
                invocation.finish()
        except EndedByThread:  # sent at most once
            invocation.finish()
        if invocation.ended_with is not None:
            rc = invocation.ended_with
    return ModuleResult(rc, invocation.stdout.getvalue(), invocation.stderr.getvalue())


def _run_to_its_end(source: ModuleSource, invocation: Invocation) -> int:
    invocation.begin()
    try:
        source.run()
    except SystemExit as leaving:
        return _exit_code(leaving, invocation)
    except KeyboardInterrupt:
        if not invocation.interrupted_itself:
            raise
        return -signal.SIGINT
    except Exception as err:  # noqa: BLE001  # a module's exception is reported as its result
        _tell(err, invocation)
        return 1
    return 0  # not reached: run() raises


def _exit_code(leaving: SystemExit, invocation: Invocation) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    invocation.stderr.write(f"{leaving.code}\n")
    return 1


def _tell(error: Exception, invocation: Invocation) -> None:
    """Write an exception that the module did not catch in the form that Ansible's wrapper would have used."""
    if isinstance(error, UnsupportedError):
        invocation.stdout.write(json.dumps({"failed": True, "msg": str(error)}) + "\n")
        return
    try:
        from ansible.module_utils._internal import _errors, _messages, _traceback
        from ansible.module_utils.common.json import Direction, get_module_encoder
    except ImportError:  # up to 2.18 the interpreter printed the traceback
        invocation.stderr.write("".join(traceback.format_exception(error)))
        return
    with_traceback = _traceback.is_traceback_enabled(_traceback.TracebackEvent.ERROR)
    summary = _messages.ErrorSummary(event=_errors.EventFactory.from_exception(error, with_traceback))
    encoder = get_module_encoder(invocation.profile, Direction.MODULE_TO_CONTROLLER)
    invocation.stdout.write(json.dumps({"failed": True, "exception": summary}, cls=encoder) + "\n")
