# SPDX-License-Identifier: GPL-3.0-or-later
"""Chooses for a task, once, how its modules are run: cold, in a warm interpreter, or in this process."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from forkless.core import platform, switches
from forkless.core.run_context import SCOPE
from forkless.modules.ansible_types import AnsibleAction, AnsibleConnection, environ_of
from forkless.modules.cold import ColdExecution, is_local
from forkless.modules.in_process.execution import InProcessExecution
from forkless.modules.warm.execution import WarmExecution
from forkless.modules.warm.interpreter import NEVER_INTERRUPTED
from forkless.modules.warm.local_files import WarmLocalExecution
from forkless.modules.warm.pool import current_pool
from forkless.modules.warm.remote_files import WarmRemoteExecution
from forkless.modules.warm.transports import LOCAL, OUR_SSH, SSH, has_password, is_known

if TYPE_CHECKING:
    from forkless.core.run_context import Interruptible
    from forkless.modules.ansible_types import BecomePlugin

__all__ = ["MODES", "execution_of"]

MODES = ("auto", "warm", "cold", "in-process")


def _mode() -> str:
    scope = SCOPE.get()
    return "auto" if scope is None else scope.module_mode


def _interrupt() -> Interruptible:
    scope = SCOPE.get()
    return NEVER_INTERRUPTED if scope is None or scope.interrupt is None else scope.interrupt


class _Choice:
    """A choice and what it was made for: an action may change its connection (synchronize) or async (gather_facts)."""

    __slots__ = ("async_val", "become", "connection", "execution")

    def __init__(self, action: AnsibleAction) -> None:
        self.connection: AnsibleConnection = action._connection
        self.become: BecomePlugin | None = action._connection.become
        self.async_val: int = action._task.async_val
        self.execution = _choose(action)

    def holds(self, action: AnsibleAction) -> bool:
        connection = action._connection
        return (
            connection is self.connection
            and connection.become is self.become
            and action._task.async_val == self.async_val
        )


def execution_of(action: AnsibleAction) -> ColdExecution:
    """How this action's modules are run. The action's own thread calls this; the answer stays the same for the task."""
    choice: _Choice | None = action.__dict__.get("_forkless_choice")
    if choice is None or not choice.holds(action):
        choice = action.__dict__["_forkless_choice"] = _Choice(action)
    return choice.execution


def _choose(action: AnsibleAction) -> ColdExecution:
    pool = current_pool()
    if _in_process(action):
        return InProcessExecution(action, pool)
    if pool is None or not _may_be_warm(action):
        return ColdExecution(action, pool)
    interrupt, connection = _interrupt(), action._connection
    kind = type(connection).__module__
    if kind == LOCAL and connection.become is None:
        return WarmLocalExecution(action, pool, interrupt)
    if (
        kind != LOCAL
        and not action._is_become_unprivileged()
        and not (kind == SSH and has_password(connection, action._play_context))
        and not switches.disabled("remote-files", environ_of(kind))
    ):
        return WarmRemoteExecution(action, pool, interrupt)
    return WarmExecution(action, pool, interrupt)


def _in_process(action: AnsibleAction) -> bool:
    mode = _mode()
    if mode == "cold" or not is_local(action):
        return False
    if not platform.can_exec():
        return True
    # Programs can be started, so a task that cannot run in this process (become, async) is left to stock Ansible.
    return mode == "in-process" and not action._connection.become and not action._task.async_val


def _may_be_warm(action: AnsibleAction) -> bool:
    if _mode() not in ("auto", "warm") or not platform.can_exec():
        return False
    connection = action._connection
    kind = type(connection).__module__
    if not is_known(connection) or sys.modules["ansible.constants"].DEFAULT_KEEP_REMOTE_FILES:
        return False
    if getattr(connection._shell, "SHELL_FAMILY", "") != "sh" or getattr(connection, "_remote_is_local", False):
        return False
    if kind != OUR_SSH and not _interrupt().own_session:
        return False  # ssh and sudo may prompt on the program's terminal, and a shared interpreter has no terminal
    if not _may_stay_away(connection):
        return False
    become = connection.become
    if become is not None and not getattr(become, "pipelining", become.name != "su"):
        return False
    environ = environ_of(kind)
    if kind == LOCAL and not _has_shell(action._play_context.executable, environ.get("PATH")):
        return False
    return not switches.disabled("warm-modules", environ) and not environ.get("_ANSIBLE_COVERAGE_CONFIG")


def _has_shell(executable: str | None, path: str | None) -> bool:
    """Whether a task's shell exists here. Stock's commands around a module find out; nothing in place of them would."""
    words = (executable or "/bin/sh").split()
    return bool(words) and shutil.which(words[0], path=path) is not None


def _may_stay_away(connection: AnsibleConnection) -> bool:
    """
    Whether the module's file need not exist on the host.

    If pipelining was left at its default, the file need not exist. A user who disables pipelining expects to find it
    there.
    """
    try:
        pipelined, origin = connection.get_option_and_origin("pipelining")
    except KeyError:
        return True
    return bool(pipelined) or origin == "default"
