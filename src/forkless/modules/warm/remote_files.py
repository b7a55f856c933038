# SPDX-License-Identifier: GPL-3.0-or-later
"""
Execution of tasks whose modules run warm on an SSH host.

Replaces the shell commands that stock Ansible runs around a module with requests to the warm interpreter. `copy`,
`template` and similar actions expand a home, create a folder, upload a file, change its mode, run their module and
remove the folder: one SSH session each. Here the folder first only gets a name. The order that runs the module also
creates the folder and its files, and no folder is created if no file is put into it and no module needs it. Paths with
unusual characters and failures are left to stock Ansible, which reports the error.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from forkless.modules.warm import remote_temp_dir as remote_temp_dirs
from forkless.modules.warm.execution import WarmExecution
from forkless.modules.warm.interpreter import InterpreterLostError, NotStartedError
from forkless.modules.warm.local_files import HOME, PLAIN
from forkless.modules.warm.transports import place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forkless.core.run_context import Interruptible
    from forkless.modules.ansible_types import AnsibleAction, Upstream
    from forkless.modules.warm.interpreter import WarmInterpreter
    from forkless.modules.warm.pool import InterpreterPool

__all__ = ["WarmRemoteExecution"]

# Modules that never write to the temporary folder. `copy` and `template` run the first two before they know whether to
# send a file.
_WRITE_NOWHERE = ("stat", "file", "slurp")


class WarmRemoteExecution(WarmExecution):
    def __init__(self, action: AnsibleAction, pool: InterpreterPool, interrupt: Interruptible) -> None:
        super().__init__(action, pool, interrupt)
        self._homes: dict[str, str] = {}

    @property
    def _temp_dir(self) -> remote_temp_dirs.RemoteTempDir | None:
        return remote_temp_dirs.of_connection(self.connection)

    def remote_expand_user(
        self, upstream: Upstream, path: str, sudoable: bool = True, pathsep: str | None = None
    ) -> object:
        first, slash, rest = path.partition("/")
        named = self._named(first, sudoable)
        if HOME.fullmatch(named) and ".." not in rest:
            home = self._home(named)
            if home:
                return self.connection._shell.join_path(home, rest) if slash else home
        return upstream(path, sudoable, pathsep)

    def _named(self, first: str, sudoable: bool) -> str:
        """`~user` for a bare `~`: the become user if there is one, else the login user."""
        if first != "~":
            return first
        becomes = self.action.get_become_option("become_user") if sudoable and self.connection.become else None
        return f"~{becomes or self.action._get_remote_user() or ''}"

    def _home(self, named: str) -> str | None:
        """
        The home on the host, or None if no interpreter runs there. Kept only until the action's next command or module, which may change it: `copy`
        asks twice for the same home, for its `dest` and for its folder.
        """
        if named in self._homes:
            return self._homes[named]
        interpreter = self.pool.of_login(place_of(self.connection, self.action._play_context))
        try:
            home = (
                interpreter.request({"expand": named}, interrupt=self.interrupt).decode()
                if interpreter is not None
                else ""
            )
        except (NotStartedError, InterpreterLostError):
            return None
        if not PLAIN.fullmatch(home) or ".." in home:
            return None
        self._homes[named] = home
        return home

    def low_level_execute_command(
        self,
        upstream: Upstream,
        cmd: str,
        sudoable: bool = True,
        in_data: bytes | None = None,
        *args: object,
        **kwargs: object,
    ) -> object:
        self._homes.clear()
        return super().low_level_execute_command(upstream, cmd, sudoable, in_data, *args, **kwargs)

    def make_tmp_path(self, upstream: Upstream, remote_user: str | None = None) -> object:
        connection, shell = self.connection, self.connection._shell
        above = self._folder_for_all(self.action.get_shell_option("remote_tmp", default="~/.ansible/tmp"))
        if not PLAIN.fullmatch(above):
            return upstream(remote_user)
        before = self._temp_dir
        if before is not None:
            before.upload_now()
        shell.tmpdir = shell.join_path(above, shell._generate_temp_dir_name(), "")
        self.action._cleanup_remote_tmp = True
        remote_temp_dirs.RemoteTempDir(
            connection, shell.tmpdir, functools.partial(upstream, remote_user), self.action._fixup_perms2
        )
        return shell.tmpdir

    def _folder_for_all(self, path: str) -> str:
        """The expanded `remote_tmp`, cached for the login: its user's home does not change while the connection lasts."""
        key = (self.action._get_remote_user(), path)
        places = self.pool.notes(place_of(self.connection, self.action._play_context))
        if key not in places:
            places[key] = self._told_folder(path) or self.action._remote_expand_user(path, sudoable=False)
        return places[key]

    def _told_folder(self, path: str) -> str:
        """That folder as the host has told it when it made it for a module, or ""."""
        first, _, rest = path.partition("/")
        interpreter = self.pool.of_login(place_of(self.connection, self.action._play_context))
        folders = {} if interpreter is None else interpreter.folders
        place = folders.get(f"{self._named(first, False)}/{rest}", "")
        return place if PLAIN.fullmatch(place) and ".." not in place else ""

    def send_file(self, upstream: Upstream, local_path: str, remote_path: str) -> object:
        remote_temp_dir = self._temp_dir
        if (
            remote_temp_dir is not None
            and os.path.dirname(remote_path) + "/" == remote_temp_dir.folder
            and PLAIN.fullmatch(remote_path)
        ):
            try:
                fits = remote_temp_dir.has_room(os.stat(local_path).st_size)
                with open(local_path, "rb") as file:
                    data = file.read(remote_temp_dirs.MOST + 1) if fits else b""
            except OSError:
                fits = False
            if fits and remote_temp_dir.has_room(len(data)):
                remote_temp_dir.add_file(remote_path, data)
                return remote_path
        return upstream(local_path, remote_path)

    def fixup_perms2(
        self, upstream: Upstream, remote_paths: Sequence[str], remote_user: str | None = None, execute: bool = True
    ) -> object:
        remote_temp_dir = self._temp_dir
        if remote_temp_dir is not None and (not execute or remote_temp_dir.make_executable(list(remote_paths))):
            return remote_paths
        return upstream(remote_paths, remote_user, execute)

    def update_module_args(
        self, upstream: Upstream, module_name: str, module_args: dict[str, object], *args: object, **kwargs: object
    ) -> object:
        """A module expects `_ansible_tmpdir` to exist, so it is None if the folder is not created for this module."""
        result = upstream(module_name, module_args, *args, **kwargs)
        remote_temp_dir = self._temp_dir
        if remote_temp_dir is not None and not remote_temp_dir.made:
            named = any(remote_temp_dir.folder in str(value) for key, value in module_args.items() if key[:1] != "_")
            remote_temp_dir.needed = (
                self._async is not None or named or str(module_name).rpartition(".")[2] not in _WRITE_NOWHERE
            )
            if remote_temp_dir.order() is None:
                module_args["_ansible_tmpdir"] = None
        return result

    def remove_tmp_path(self, upstream: Upstream, tmp_path: str | None, force: bool = False) -> object:
        shell, remote_temp_dir = self.connection._shell, self._temp_dir
        path = shell.tmpdir if tmp_path is None else tmp_path
        if (
            remote_temp_dir is None
            or path is None
            or path != remote_temp_dir.folder
            or not (force or self.action._should_remove_tmp_path(path))
        ):
            return upstream(tmp_path, force)
        remote_temp_dir.drop()
        if remote_temp_dir.made and not self._removed(remote_temp_dir.interpreter, path):
            return upstream(tmp_path, force)
        shell.tmpdir = None
        return None

    def _removed(self, interpreter: WarmInterpreter | None, path: str) -> bool:
        if interpreter is None:
            return False
        try:
            if self.connection.become is None:
                interpreter.remove_folder(path, interrupt=self.interrupt)
            else:  # another user's files may be in it: Ansible reports what cannot be removed
                interpreter.request({"remove": path}, interrupt=self.interrupt)
        except (NotStartedError, InterpreterLostError):
            return False
        return True
