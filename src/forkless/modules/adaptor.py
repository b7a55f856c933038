# SPDX-License-Identifier: GPL-3.0-or-later
"""
Every override of Ansible's ActionBase, in one table.

Each override asks `dispatch` how the action's modules are run and calls the method of that execution: `ColdExecution`
(cold.py) has them all, and `InProcessExecution`, `WarmExecution`, `WarmLocalExecution` and `WarmRemoteExecution` redefine
those that they do differently.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from forkless.core.own_thread_locals import OwnThreadLocal
from forkless.modules.cold import ColdExecution
from forkless.modules.dispatch import execution_of
from forkless.modules.warm.late_temp_dir import forget_temp_dir
from forkless.patching.seam import Seam

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.modules.ansible_types import AnsibleAction, Upstream

__all__ = ["OVERRIDES", "STAND_INS"]

ACTION = "ansible.plugins.action:ActionBase"

# The method of ActionBase, and why it is overridden. The execution's method has the name without the underscore.
OVERRIDES: dict[str, str] = {
    "_execute_module": "the module may run warm, or else again as Ansible runs it",
    "_configure_module": "tells whose module modify_module builds",
    "_update_module_args": "a temporary folder that is only named cannot be given to a module",
    "_is_pipelining_enabled": "no module file is copied",
    "_low_level_execute_command": "the module runs in this process or in a warm interpreter",
    "_remote_expand_user": "needs no shell in this process, on this machine, or with a warm interpreter",
    "_remote_file_exists": "needs no shell in this process",
    "_make_tmp_path": "needs no shell in this process and on this machine; travels with the order elsewhere",
    "_transfer_file": "travels with the order that needs it",
    "_fixup_perms2": "needs no shell in this process and on this machine; travels with the order elsewhere",
    "_remove_tmp_path": "needs no shell in this process, on this machine, or with a warm interpreter",
}


class _Building(OwnThreadLocal):
    """The execution whose `_configure_module` is running on this thread: modify_module is a function and has no self."""

    execution: ColdExecution | None = None


_building = _Building()


def _override(name: str) -> Callable[[Upstream, str], Upstream]:
    method = getattr(ColdExecution, name[1:]).__name__  # a misspelt name fails here, when this file is imported

    def stand_in_for(original: Upstream, _site: str) -> Upstream:
        @functools.wraps(original)
        def stand_in(self: AnsibleAction, *args: object, **kwargs: object) -> object:
            return getattr(execution_of(self), method)(functools.partial(original, self), *args, **kwargs)

        return stand_in

    return stand_in_for


def _configure_module(original: Upstream, _site: str) -> Upstream:
    @functools.wraps(original)
    def stand_in(self: AnsibleAction, *args: object, **kwargs: object) -> object:
        execution = execution_of(self)
        outer, _building.execution = _building.execution, execution
        try:
            return execution.configure_module(functools.partial(original, self), *args, **kwargs)
        finally:
            _building.execution = outer

    return stand_in


def _remove_tmp_path(original: Upstream, _site: str) -> Upstream:
    @functools.wraps(original)
    def stand_in(self: AnsibleAction, tmp_path: str | None, force: bool = False) -> object:
        forget_temp_dir(self._connection._shell)
        if tmp_path is None and not force and self._connection._shell.tmpdir is None:
            return original(self, tmp_path, force)  # nothing to remove: an action that ran no module needs no execution
        return execution_of(self).remove_tmp_path(functools.partial(original, self), tmp_path, force)

    return stand_in


def _modify_module(original: Upstream, _site: str) -> Upstream:
    @functools.wraps(original)
    def stand_in(*args: object, **kwargs: object) -> object:
        execution = _building.execution
        return original(*args, **kwargs) if execution is None else execution.build(original, *args, **kwargs)

    return stand_in


_MADE_BY_HAND = {"_configure_module": _configure_module, "_remove_tmp_path": _remove_tmp_path}

STAND_INS = (
    *(Seam(f"{ACTION}.{name}", why, _MADE_BY_HAND.get(name) or _override(name)) for name, why in OVERRIDES.items()),
    Seam(
        "ansible.plugins.action:modify_module",
        "the module is run where it is, or taken apart for a warm interpreter",
        _modify_module,
    ),
)
