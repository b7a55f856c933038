# SPDX-License-Identifier: GPL-3.0-or-later
"""
Execution of tasks whose modules run warm on this machine without become.

Replaces the shell commands that stock Ansible runs around a module: expanding a home, creating and removing the
temporary folder, changing modes. Paths with unusual characters and failures are left to stock Ansible, which reports
the error.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING

from forkless.modules.warm.execution import WarmExecution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forkless.modules.ansible_types import Upstream

__all__ = ["HOME", "PLAIN", "WarmLocalExecution"]

HOME = re.compile(r"~[A-Za-z0-9_][A-Za-z0-9._-]*")
PLAIN = re.compile(r"/[A-Za-z0-9._/+@%:,=-]*")


class WarmLocalExecution(WarmExecution):
    def remote_expand_user(
        self, upstream: Upstream, path: str, sudoable: bool = True, pathsep: str | None = None
    ) -> object:
        if path.startswith("~"):
            first, slash, rest = path.partition("/")
            named = f"~{self.action._get_remote_user() or ''}" if first == "~" else first
            home = os.path.expanduser(named) if HOME.fullmatch(named) else named
            if home != named and ".." not in home:
                return self.connection._shell.join_path(home, rest) if slash else home
        return upstream(path, sudoable, pathsep)

    def make_tmp_path(self, upstream: Upstream, remote_user: str | None = None) -> object:
        shell = self.connection._shell
        wanted = self.action.get_shell_option("remote_tmp", default="~/.ansible/tmp")
        above = self.action._remote_expand_user(wanted, sudoable=False)
        if not PLAIN.fullmatch(above):
            return upstream(remote_user)
        path = shell.join_path(above, shell._generate_temp_dir_name())
        try:
            _make(above)
            os.mkdir(path, 0o700)
        except OSError:
            pass
        else:
            self.action._cleanup_remote_tmp = True
            shell.tmpdir = shell.join_path(path, "")
            return shell.tmpdir
        # Outside of the handler: ansible-core would show the OSError as the cause of the error that it raises.
        return upstream(remote_user)

    def fixup_perms2(
        self, upstream: Upstream, remote_paths: Sequence[str], remote_user: str | None = None, execute: bool = True
    ) -> object:
        paths = list(remote_paths)
        if all(PLAIN.fullmatch(path) for path in paths):
            try:
                for path in paths if execute else ():
                    os.chmod(path, os.stat(path).st_mode & 0o7777 | 0o700)
            except OSError:
                pass
            else:
                return remote_paths
        return upstream(remote_paths, remote_user, execute)

    def remove_tmp_path(self, upstream: Upstream, tmp_path: str | None, force: bool = False) -> object:
        shell = self.connection._shell
        path = shell.tmpdir if tmp_path is None else tmp_path
        if path and PLAIN.fullmatch(path) and (force or self.action._should_remove_tmp_path(path)):
            try:
                if os.path.isdir(path):
                    shutil.rmtree(path)
            except OSError:
                pass
            else:
                shell.tmpdir = None
                return None
        return upstream(tmp_path, force)


def _make(path: str) -> None:
    """Like mkdir -p, but every folder that is created has mode 0700, the parents included."""
    if not os.path.isdir(path):
        _make(os.path.dirname(path))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
