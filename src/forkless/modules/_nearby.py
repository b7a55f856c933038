# SPDX-License-Identifier: GPL-3.0-or-later
"""
The shell's errands around a module on this machine, run without a shell where it is the same user's: to find a home, to make a
folder for temporary files, to remove it. Whatever is not plain is left to Ansible's own way, which also has the words for failures.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from typing import Any

from forkless.modules._warm import LOCAL, wanted

__all__ = ["HOME", "PLAIN", "STAND_INS"]

ACTION = "ansible.plugins.action:ActionBase"
ALL = ("2.18", "2.19", "2.20", "2.21")
HOME = re.compile(r"~[A-Za-z0-9_][A-Za-z0-9._-]*")
PLAIN = re.compile(r"/[A-Za-z0-9._/+@%:,=-]*")


def _ours(action: Any) -> bool:
    connection = action._connection
    return type(connection).__module__ == LOCAL and connection.become is None and wanted(action)


def remote_expand_user(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, path: str, sudoable: bool = True, pathsep: Any = None) -> Any:
        if path.startswith("~") and _ours(self):
            first, slash, rest = path.partition("/")
            named = f"~{self._get_remote_user() or ''}" if first == "~" else first
            home = os.path.expanduser(named) if HOME.fullmatch(named) else named
            if home != named and ".." not in home:
                return self._connection._shell.join_path(home, rest) if slash else home
        return original(self, path, sudoable, pathsep)

    return stand_in


def make_tmp_path(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, remote_user: Any = None) -> Any:
        if not _ours(self):
            return original(self, remote_user)
        shell = self._connection._shell
        above = self._remote_expand_user(self.get_shell_option("remote_tmp", default="~/.ansible/tmp"), sudoable=False)
        if not PLAIN.fullmatch(above):
            return original(self, remote_user)
        path = shell.join_path(above, shell._generate_temp_dir_name())
        try:
            _make(above)
            os.mkdir(path, 0o700)
        except OSError:
            return original(self, remote_user)
        self._cleanup_remote_tmp = True
        shell.tmpdir = shell.join_path(path, "")
        return shell.tmpdir

    return stand_in


def _make(path: str) -> None:
    """Like mkdir -p, for nobody but us, and so are the folders above that it makes."""
    if not os.path.isdir(path):
        _make(os.path.dirname(path))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise


def remove_tmp_path(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, tmp_path: Any, force: bool = False) -> Any:
        shell = self._connection._shell
        path = shell.tmpdir if tmp_path is None else tmp_path
        if path and _ours(self) and PLAIN.fullmatch(path) and (force or self._should_remove_tmp_path(path)):
            try:
                if os.path.isdir(path):
                    shutil.rmtree(path)
            except OSError:
                pass
            else:
                shell.tmpdir = None
                return None
        return original(self, tmp_path, force)

    return stand_in


def fixup_perms2(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, remote_paths: Any, remote_user: Any = None, execute: bool = True) -> Any:
        paths = list(remote_paths)
        if _ours(self) and all(PLAIN.fullmatch(path) for path in paths):
            try:
                for path in paths if execute else ():
                    os.chmod(path, os.stat(path).st_mode & 0o7777 | 0o700)
            except OSError:
                pass
            else:
                return remote_paths
        return original(self, remote_paths, remote_user, execute)

    return stand_in


_WHY = "the same user on the same machine needs no shell for it"
STAND_INS: tuple[tuple[str, str, Any, tuple[str, ...], bool], ...] = (
    (f"{ACTION}._remote_expand_user", _WHY, remote_expand_user, ALL, False),
    (f"{ACTION}._make_tmp_path", _WHY, make_tmp_path, ALL, False),
    (f"{ACTION}._remove_tmp_path", _WHY, remove_tmp_path, ALL, False),
    (f"{ACTION}._fixup_perms2", _WHY, fixup_perms2, ALL, False),
)
