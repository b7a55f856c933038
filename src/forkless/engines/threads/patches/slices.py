# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuses a task that means something else in a slice of a run: one in an include, which could not be read before the launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forkless.engines.threads import slicing

if TYPE_CHECKING:
    from ansible.playbook.task import Task

    from forkless.engines.threads.context import RunContext

__all__ = ["refuse"]

VARIABLE = "FORKLESS_SLICED"


def refuse(run_context: RunContext, task: Task) -> None:
    """Raise Ansible's error with file and line if the run is a slice and `task` must not be in one. Before any worker has it."""
    if run_context.getenv().get(VARIABLE) != "refuse":
        return
    # A play's own was seen before the launch, so this is of an include.
    reason = "any_errors_fatal would stop the slice only" if task.any_errors_fatal else slicing.why_not(task)
    if reason:
        from ansible.errors import AnsibleError

        raise AnsibleError(f"{task.get_path()}: {reason}; launch it without --slices, or with --slices-anyway")
