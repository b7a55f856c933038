# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's own command at a terminal: its class with more flags, and what the owner of the process's signals asks about the run."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

from forkless.core.errors import ForklessError
from forkless.core.terminal import BusyTask
from forkless.engines.threads.patches import command_line
from forkless.engines.threads.workers import interrupt

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from forkless.core.terminal import Terminal, TerminalChoices
    from forkless.engines.threads.context import RunContext

__all__ = ["ThreadsControl", "ansible_class", "extended_class"]


class ThreadsControl:
    """The RunControl of a run on threads."""

    def __init__(self, run_context: RunContext) -> None:
        self._run_context = run_context

    def busy(self) -> list[BusyTask]:
        now = time.monotonic()
        workers = list(self._run_context.workers)  # a copy: other threads change the set
        workers.sort(key=lambda worker: worker.since)
        return [BusyTask(*worker.describe(), now - worker.since) for worker in workers]

    def wait_for_children(self) -> None:
        interrupt.wait_for_children()


_CLASSES = {
    "ansible-playbook": ("playbook", "PlaybookCLI"),
    "ansible": ("adhoc", "AdHocCLI"),
    "ansible-console": ("console", "ConsoleCLI"),
}


def ansible_class(command: str) -> Any:
    """Ansible's class for the command. Looked up for each run: it is in the run's ansible-core."""
    module, name = _CLASSES[command]
    return getattr(importlib.import_module(f"ansible.cli.{module}"), name)


def extended_class(
    command: str, run_context: RunContext, terminal: Terminal, begin: Callable[[TerminalChoices], None]
) -> object:
    """Ansible's class with the terminal's flags in its parser. `begin` is called once the command line is parsed."""

    class ForklessCommand(ansible_class(command)):  # type: ignore[misc]
        _limit: Callable[..., str] | None = None

        def init_parser(self) -> None:
            super().init_parser()
            terminal.add_flags(self.parser)

        def post_process_args(self, options: argparse.Namespace) -> argparse.Namespace:
            parsed: argparse.Namespace = super().post_process_args(options)
            try:
                choices = terminal.begin(parsed)
            except ForklessError as error:  # exit through the parser: Ansible reports other exceptions as unexpected
                self.parser.exit(2, f"forkless: {error}\n")
            run_context.modules = choices.modules
            run_context.answers = choices.answers
            run_context.stderr = choices.screen
            run_context.stdout = choices.screen if choices.stdout is None else choices.stdout
            run_context.callbacks += choices.callbacks
            self._limit = choices.limit
            begin(choices)
            return parsed

        def _play_prereqs(self) -> tuple[object, object, object]:
            made: tuple[object, object, object] = super()._play_prereqs()
            if self._limit is not None:
                command_line.use_limit(run_context, self._limit(*made))
            return made

    return ForklessCommand
