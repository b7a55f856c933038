# SPDX-License-Identifier: GPL-3.0-or-later
"""
The shell's errands around a module on a host behind SSH, done by the interpreter that is kept warm there.

`copy`, `template` and their like ask for a home, make a folder, put a file into it, change its mode, run their module and remove the folder: a session
each. Here the folder only gets a name. It is made, with its files, by the order that runs the module they are for, and never
if nothing is put into it. Whatever is not plain is left to Ansible's own way, which also has the words for failures.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from forkless import _disable
from forkless.modules import _luggage
from forkless.modules._hearth import LostError, NotStartedError
from forkless.modules._keep import KEEP
from forkless.modules._nearby import HOME, PLAIN
from forkless.modules._warm import OUR_SSH, REACH, SSH, environ_of, has_password, place_of, wanted

__all__ = ["STAND_INS"]

ACTION = "ansible.plugins.action:ActionBase"
ALL = ("2.18", "2.19", "2.20", "2.21")
# These never write to a folder for temporary files. `copy` and `template` ask the first two before they know of anything to send.
_WRITE_NOWHERE = ("stat", "file", "slurp")


def _ours(action: Any) -> bool:
    kind = type(action._connection).__module__
    if kind not in (SSH, OUR_SSH) or action._is_become_unprivileged():
        return False
    if kind == SSH and has_password(action._connection, action._play_context):
        return False
    return wanted(action) and not _disable.disabled("carried-files", environ_of(kind))


def remote_expand_user(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, path: str, sudoable: bool = True, pathsep: Any = None) -> Any:
        first, slash, rest = path.partition("/")
        named = _named(self, first, sudoable)
        if HOME.fullmatch(named) and ".." not in rest and _ours(self):
            home = _home(self, named)
            if home:
                return self._connection._shell.join_path(home, rest) if slash else home
        return original(self, path, sudoable, pathsep)

    return stand_in


def _named(action: Any, first: str, sudoable: bool) -> str:
    """Whose home is meant."""
    if first != "~":
        return first
    becomes = action.get_become_option("become_user") if sudoable and action._connection.become else None
    return f"~{becomes or action._get_remote_user() or ''}"


def _home(action: Any, named: str) -> str | None:
    """Asked there each time: a task may have given that user another one."""
    keep = KEEP.get()
    hearth = keep.of_login(place_of(action._connection, action._play_context)) if keep is not None else None
    try:
        home = hearth.carry({"expand": named}, reach=REACH.get()).decode() if hearth is not None else ""
    except (NotStartedError, LostError):
        return None
    return home if PLAIN.fullmatch(home) and ".." not in home else None


def make_tmp_path(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, remote_user: Any = None) -> Any:
        if not _ours(self):
            return original(self, remote_user)
        connection, shell = self._connection, self._connection._shell
        above = _folder_for_all(self, self.get_shell_option("remote_tmp", default="~/.ansible/tmp"))
        if not PLAIN.fullmatch(above):
            return original(self, remote_user)
        before = _luggage.of(connection)
        if before is not None:
            before.unpack()
        shell.tmpdir = shell.join_path(above, shell._generate_temp_dir_name(), "")
        self._cleanup_remote_tmp = True
        _luggage.Luggage(connection, shell.tmpdir, lambda: original(self, remote_user), self._fixup_perms2)
        return shell.tmpdir

    return stand_in


def _folder_for_all(action: Any, path: str) -> str:
    """Where the folders for temporary files are made. It is the home of who is logged in: that stays while the connection does."""
    keep, key = KEEP.get(), (action._get_remote_user(), path)
    places = keep.notes(place_of(action._connection, action._play_context)) if keep is not None else {}
    if key not in places:
        places[key] = action._remote_expand_user(path, sudoable=False)
    found: str = places[key]
    return found


def transfer_file(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, local_path: Any, remote_path: Any) -> Any:
        luggage = _luggage.of(self._connection)
        if (
            luggage is not None
            and os.path.dirname(remote_path) + "/" == luggage.folder
            and PLAIN.fullmatch(remote_path)
            and _ours(self)
        ):
            try:
                fits = luggage.has_room(os.stat(local_path).st_size)
                with open(local_path, "rb") as file:
                    data = file.read(_luggage.MOST + 1) if fits else b""
            except OSError:
                fits = False
            if fits and luggage.has_room(len(data)):
                luggage.pack(remote_path, data)
                return remote_path
        return original(self, local_path, remote_path)

    return stand_in


def fixup_perms2(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, remote_paths: Any, remote_user: Any = None, execute: bool = True) -> Any:
        luggage = _luggage.of(self._connection)
        if luggage is not None and (not execute or luggage.make_executable(list(remote_paths))) and _ours(self):
            return remote_paths
        return original(self, remote_paths, remote_user, execute)

    return stand_in


def update_module_args(original: Any, _site: str) -> Any:
    """A module that is told of a folder expects it to be there. To those that never look at it nothing is told of one that is not."""

    @functools.wraps(original)
    def stand_in(self: Any, module_name: Any, module_args: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, module_name, module_args, *args, **kwargs)
        luggage = _luggage.of(self._connection)
        if luggage is not None and not luggage.made:
            named = any(luggage.folder in str(value) for key, value in module_args.items() if key[:1] != "_")
            luggage.needed = named or str(module_name).rpartition(".")[2] not in _WRITE_NOWHERE
            if luggage.order() is None:
                module_args["_ansible_tmpdir"] = None
        return result

    return stand_in


def remove_tmp_path(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, tmp_path: Any, force: bool = False) -> Any:
        shell, luggage = self._connection._shell, _luggage.of(self._connection)
        path = shell.tmpdir if tmp_path is None else tmp_path
        if luggage is None or path != luggage.folder or not (force or self._should_remove_tmp_path(path)):
            return original(self, tmp_path, force)
        luggage.drop()
        if luggage.made:
            try:
                if luggage.hearth is None:
                    return original(self, tmp_path, force)
                luggage.hearth.carry({"remove": path}, reach=REACH.get())
            except (NotStartedError, LostError):
                return original(self, tmp_path, force)
        shell.tmpdir = None
        return None

    return stand_in


_WHY = "what an action lays down travels with the order that needs it"
STAND_INS: tuple[tuple[str, str, Any, tuple[str, ...], bool], ...] = (
    (f"{ACTION}._remote_expand_user", "a hearth on the host knows", remote_expand_user, ALL, False),
    (f"{ACTION}._make_tmp_path", _WHY, make_tmp_path, ALL, False),
    (f"{ACTION}._transfer_file", _WHY, transfer_file, ALL, False),
    (f"{ACTION}._fixup_perms2", _WHY, fixup_perms2, ALL, False),
    (f"{ACTION}._update_module_args", _WHY, update_module_args, ALL, False),
    (f"{ACTION}._remove_tmp_path", _WHY, remove_tmp_path, ALL, False),
)
