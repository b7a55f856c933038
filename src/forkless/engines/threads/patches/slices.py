# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuses a task that means something else in a slice of a run: one in an include, which could not be read before the launch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from forkless.engines.threads import across_hosts, context

if TYPE_CHECKING:
    from collections.abc import Callable

    from ansible.executor.play_iterator import PlayIterator
    from ansible.inventory.host import Host
    from ansible.playbook.play import Play
    from ansible.playbook.play_context import PlayContext
    from ansible.playbook.task import Task
    from ansible.plugins.strategy import StrategyBase

    from forkless.engines.threads.context import RunContext

__all__ = ["refuse", "refuses_meta"]

VARIABLE = "FORKLESS_SLICED"


class _Checked:
    """What a slice has checked: each task once, not once for each host."""

    def __init__(self, run_context: RunContext) -> None:
        self.refuses = run_context.getenv().get(VARIABLE) == "refuse"
        self.values = across_hosts.Values()
        self.tasks: set[str] = set()
        self.roles: set[str] = set()


def refuse(run_context: RunContext, task: Task, play: Play | None = None) -> None:
    """Raise Ansible's error with file and line if the run is a slice and `task` must not be in one. Before any worker has it."""
    checked = run_context.state.get(_Checked)
    if checked is None:
        checked = run_context.state[_Checked] = _Checked(run_context)
    if not checked.refuses or task._uuid in checked.tasks:
        return
    checked.tasks.add(task._uuid)
    checked.values.add(task)
    if reason := across_hosts.why_not(task, play, checked.values):
        _raise(task.get_path(), reason)
    if task._role is not None and (path := str(task._role._role_path)) not in checked.roles:
        checked.roles.add(path)
        for where, why in across_hosts.of_role(task._role, checked.values):
            _raise(where, why)


def _raise(where: str, reason: str) -> None:
    from ansible.errors import AnsibleError

    raise AnsibleError(f"{where}: {reason}; launch it without --slices, or with --slices-anyway")


def refuses_meta(original: Callable[..., object], _site: str) -> Callable[..., object]:
    """A meta task that acts on every host of the play, in an include of a slice: no worker ever has it."""

    @functools.wraps(original)
    def execute_meta(
        strategy: StrategyBase, task: Task, play_context: PlayContext, iterator: PlayIterator, target_host: Host
    ) -> object:
        run_context = context.current()
        if run_context is not None:
            refuse(run_context, task, iterator._play)
        return original(strategy, task, play_context, iterator, target_host)

    return execute_meta
