# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-playbook and ansible, with workers as threads: their own parser, output and exit codes, and a few more flags."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import uuid
from typing import TYPE_CHECKING, NoReturn

from forkless import engines
from forkless.cli import terminal_text
from forkless.cli.command_flags import EXAMPLES, NAMES, add_flags
from forkless.cli.command_signals import signals_for
from forkless.cli.command_view import CommandView
from forkless.core import switches
from forkless.core.errors import ForklessError
from forkless.core.spec import RunSpec
from forkless.runs.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["EXAMPLES", "NAMES", "add_flags", "run_command"]

INTERRUPTED = 99
UNEXPECTED = 250


def run_command(
    command: str,
    argv: list[str],
    *,
    unable: Callable[[str], NoReturn] | None = None,
    view: CommandView | None = None,
) -> int:
    """
    Does what `ansible-playbook ARGV` would do, in this process; returns the exit code. Main thread only: it sets signal
    handlers and uses the process's own streams.

    The shim gives `unable`, which is called with the reason if the run cannot be set up, and then nothing of it has begun.
    `view` shows the run in place of a CommandView.
    """
    if view is None:
        view = CommandView(command, drop_in=unable is not None)
    try:
        engine = engines.choose("threads")  # before any thread is started: refuses green threads
        spec = RunSpec.from_argv(command, argv, ident=uuid.uuid4().hex, cwd=_working_directory())
        run = Run(spec, engine, listener=view)
        with _rarely_collecting(), signals_for(run, view, stay=command == "ansible-console"):
            result = run.carry_out_at_terminal(view)
    except KeyboardInterrupt:  # Ctrl-C again, while the run was ending
        view.drop()
        return INTERRUPTED
    except ForklessError as error:
        view.drop()
        if unable is not None and not view.begun:
            unable(str(error))
        sys.stderr.write(f"forkless: {terminal_text.escaped(str(error))}\n")
        return 2 if isinstance(error, ValueError) else UNEXPECTED
    view.close(result)
    if result.sentence:
        sys.stderr.write(f"forkless: {terminal_text.escaped(result.sentence)}\n")
    return result.rc


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed. Ansible's command notices that itself, and has an exit code for it.
        return os.sep


@contextlib.contextmanager
def _rarely_collecting() -> Iterator[None]:
    """
    Make the garbage collector run less often. By default it runs after every 700 new objects; a task makes tens of
    thousands of objects, and hardly any cycles.

    Only for the command, which owns its process. In other programs the thresholds are not changed.
    """
    if switches.disabled("gc-tuning"):
        yield
        return
    before = gc.get_threshold()
    gc.set_threshold(20_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
