# SPDX-License-Identifier: GPL-3.0-or-later
"""
How a task's modules are run as stock Ansible runs them, and the list of everything that another way may do differently.

`adaptor.py` routes each overridden method of ActionBase to the method of the same name here. `upstream` is Ansible's own
method, bound to the action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn

from forkless.core import platform
from forkless.modules import live_command
from forkless.modules.warm import transports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forkless.modules.ansible_types import AnsibleAction, Upstream
    from forkless.modules.warm.pool import InterpreterPool

__all__ = ["ColdExecution", "is_local", "refuse"]


class ColdExecution:
    """How the modules of one action and connection are run. The object is made by `dispatch`, and used by the action's thread only."""

    name: ClassVar[str] = "cold"

    def __init__(self, action: AnsibleAction, pool: InterpreterPool | None) -> None:
        self.action, self.pool = action, pool

    @property
    def connection(self) -> transports.AnsibleConnection:
        return self.action._connection

    # -- the module

    def execute_module(self, upstream: Upstream, *args: object, **kwargs: object) -> object:
        return upstream(*args, **kwargs)

    def configure_module(self, upstream: Upstream, *args: object, **kwargs: object) -> object:
        """Find the module, build it (`build`, by way of modify_module) and return what was built."""
        return upstream(*args, **kwargs)

    def build(self, upstream: Upstream, *args: object, **kwargs: object) -> object:
        """Stands for the function `modify_module`, which wraps the module's file for its host."""
        return upstream(*args, **kwargs)

    def update_module_args(
        self, upstream: Upstream, module_name: str, module_args: dict[str, object], *args: object, **kwargs: object
    ) -> object:
        return upstream(module_name, module_args, *args, **kwargs)

    def is_pipelining_enabled(self, upstream: Upstream, module_style: str, wrap_async: bool = False) -> object:
        return upstream(module_style, wrap_async)

    def low_level_execute_command(
        self,
        upstream: Upstream,
        cmd: str,
        sudoable: bool = True,
        in_data: bytes | None = None,
        *args: object,
        **kwargs: object,
    ) -> object:
        if not platform.can_exec() and is_local(self.action):
            refuse(self.action, "a shell")
        pool = self.pool
        if pool is not None and pool.has_become_user_interpreters and transports.is_known(self.connection):
            pool.close_idle_of_other_users(transports.machine_of(self.connection, self.action._play_context))
        with live_command.told(self.action, kwargs):
            return upstream(cmd, sudoable, in_data, *args, **kwargs)

    # -- the files around it

    def remote_expand_user(
        self, upstream: Upstream, path: str, sudoable: bool = True, pathsep: str | None = None
    ) -> object:
        return upstream(path, sudoable, pathsep)

    def remote_file_exists(self, upstream: Upstream, path: str) -> object:
        return upstream(path)

    def make_tmp_path(self, upstream: Upstream, remote_user: str | None = None) -> object:
        return upstream(remote_user)

    def transfer_file(self, upstream: Upstream, local_path: str, remote_path: str) -> object:
        return upstream(local_path, remote_path)

    def fixup_perms2(
        self, upstream: Upstream, remote_paths: Sequence[str], remote_user: str | None = None, execute: bool = True
    ) -> object:
        return upstream(remote_paths, remote_user, execute)

    def remove_tmp_path(self, upstream: Upstream, tmp_path: str | None, force: bool = False) -> object:
        return upstream(tmp_path, force)


def is_local(action: AnsibleAction) -> bool:
    return str(getattr(action._connection, "transport", "")).rpartition(".")[2] == "local"


def refuse(action: AnsibleAction, what: str) -> NoReturn:
    from ansible.errors import AnsibleError

    raise AnsibleError(
        f"'{action._task.action}' on the controller needs {what}, and this system does not let us start programs; "
        "run it on another host (delegate_to)"
    )
