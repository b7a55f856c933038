# SPDX-License-Identifier: GPL-3.0-or-later
"""
ActionBase, for tasks whose host is this very process.

Ansible wraps a module, writes it to a temporary folder through a shell, starts an interpreter and reads what it prints. Here the
module is run where it lies, and the few shell commands around it are done by hand. Everything else of `_execute_module`
(arguments, parsing, warnings, facts) stays Ansible's.
"""

from __future__ import annotations

import contextvars
import functools
import os
import shutil
import sys
import tempfile
import threading
from typing import Any

from forkless import _platform
from forkless.modules import _execute, _source

__all__ = ["MODE", "STAND_INS", "Payload"]

# How modules are run, by the run that the thread works for: "auto" is warm, and in this process where no program can be started;
# "warm" the same; "in-process" is here wherever it is possible, "cold" is Ansible's own way.
MODE: contextvars.ContextVar[str] = contextvars.ContextVar("forkless.modules.mode", default="auto")

ACTION = "ansible.plugins.action:ActionBase"
ALL = ("2.18", "2.19", "2.20", "2.21")


class Payload(bytes):
    """Stands where the wrapped module would: goes through Ansible as bytes, and is recognised where it would be sent."""

    source: _source.Source
    arguments: bytes
    environ: dict[str, str]
    profile: str


class _Building(threading.local):
    action: Any = None


_building = _Building()


def _is_local(action: Any) -> bool:
    return str(getattr(action._connection, "transport", "")).rpartition(".")[2] == "local"


def here(action: Any) -> bool:
    """Whether this action's modules are run in this process."""
    mode = MODE.get()
    if mode == "cold" or not _is_local(action):
        return False
    if not _platform.can_exec():
        return True
    # On request: what cannot be done here is done Ansible's way, since it can be.
    return mode == "in-process" and not action._connection.become and not action._task.async_val


def _refuse(action: Any, what: str) -> None:
    from ansible.errors import AnsibleError

    name = action._task.action
    raise AnsibleError(
        f"'{name}' on the controller needs {what}, and this system does not let us start programs; "
        "run it on another host (delegate_to)"
    )


def _becomes(action: Any) -> bool:
    """Whether become would change anything: to be who one already is needs no program."""
    become = action._connection.become
    if not become:
        return False
    wanted = action.get_become_option("become_user")
    return bool(wanted) and wanted != (action._get_remote_user() or action._connection.default_user)


def configure_module(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, module_name: str, module_args: Any, task_vars: Any) -> Any:
        if not here(self):
            return original(self, module_name, module_args, task_vars)
        if self._task.async_val:
            _refuse(self, "a process that outlives the task (async)")
        if _becomes(self):
            _refuse(self, f"to become another user ({self._connection.become.name})")
        outer, _building.action = _building.action, self
        try:
            return original(self, module_name, module_args, task_vars)
        finally:
            _building.action = outer

    return stand_in


def modify_module(original: Any, _site: str) -> Any:
    """Called by `_configure_module` with the module's path, its arguments and the task's environment."""

    @functools.wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        action = _building.action
        if action is None:
            return original(*args, **kwargs)
        given = dict(zip(("module_name", "module_path", "module_args", "templar"), args, strict=False)) | kwargs
        source = _source.load(given["module_path"], _full_name(given["module_name"], given["module_path"]))
        if source is None:
            if not _platform.can_exec():
                _refuse(action, "a program: it is not a Python module of the new style")
            return original(*args, **kwargs)
        payload = Payload(b"run in this process")
        payload.source = source
        payload.profile = "legacy"
        payload.arguments = _execute.wire_arguments(given["module_args"], payload.profile)
        payload.environ = dict(_environ(), **{k: str(v) for k, v in (given.get("environment") or {}).items()})
        shebang = f"#!{sys.executable or 'python'}"
        module_common = sys.modules["ansible.executor.module_common"]
        if not hasattr(module_common, "_BuiltModule"):
            return payload, "new", shebang
        return module_common._BuiltModule(
            b_module_data=payload, module_style="new", shebang=shebang, serialization_profile=payload.profile
        )

    return stand_in


def _environ() -> Any:
    """The environment that the action itself sees: the run's, if the engine gave it one."""
    return getattr(sys.modules["ansible.plugins.action"], "os", os).environ


def _full_name(name: str, path: str) -> str:
    from ansible.executor import module_common

    try:
        full: str = module_common._get_ansible_module_fqn(path)
    except ValueError:  # beside a playbook or in a role: a name of its own, as Ansible does
        full = f"ansible.legacy.{name.rpartition('.')[2]}"
    return full


def low_level_execute_command(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, cmd: Any, sudoable: bool = True, in_data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(in_data, Payload):
            if not _platform.can_exec() and _is_local(self):
                _refuse(self, "a shell")
            return original(self, cmd, sudoable, in_data, *args, **kwargs)
        done = _execute.execute(
            in_data.source,
            in_data.arguments,
            profile=in_data.profile,
            environ=in_data.environ,
            cwd=self._loader.get_basedir(),
        )
        return {
            "rc": done.rc,
            "stdout": done.stdout,
            "stdout_lines": done.stdout.splitlines(),
            "stderr": done.stderr,
            "stderr_lines": done.stderr.splitlines(),
        }

    return stand_in


def is_pipelining_enabled(original: Any, _site: str) -> Any:
    """Pipelined means: nothing is copied to the host first."""

    @functools.wraps(original)
    def stand_in(self: Any, module_style: str, wrap_async: bool = False) -> Any:
        if here(self) and not wrap_async:
            return module_style == "new"
        return original(self, module_style, wrap_async)

    return stand_in


def make_tmp_path(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, remote_user: Any = None) -> Any:
        if not here(self):
            return original(self, remote_user)
        shell = self._connection._shell
        above = _expand_for(self, self.get_shell_option("remote_tmp", default="~/.ansible/tmp"))
        path = os.path.join(above, shell._generate_temp_dir_name())
        os.makedirs(above, mode=0o700, exist_ok=True)
        os.mkdir(path, 0o700)
        self._cleanup_remote_tmp = True
        shell.tmpdir = os.path.join(path, "")
        return shell.tmpdir

    return stand_in


def remove_tmp_path(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, tmp_path: Any, force: bool = False) -> Any:
        if not here(self):
            return original(self, tmp_path, force)
        shell = self._connection._shell
        path = tmp_path or shell.tmpdir
        if path and (force or self._should_remove_tmp_path(path)):
            shutil.rmtree(path, ignore_errors=True)
            shell.tmpdir = None
        return None

    return stand_in


def _expand(path: str) -> str:
    """~ with the home of the run's environment; the folder for temporary files where nobody has a home."""
    if path != "~" and not path.startswith("~/"):
        return os.path.expanduser(path)
    home = _environ().get("HOME") or os.path.expanduser("~")
    return (tempfile.gettempdir() if home == "~" else home) + path[1:]


def _expand_for(action: Any, path: str) -> str:
    """
    ~ as Ansible's actions have it: they ask a shell for ~user, which is the passwd entry's home, whatever HOME says.

    Where the entry names a folder that is not there for us (an app, a function in a cloud), HOME has to do. Modules
    themselves go by HOME in any case, as they do in a process of their own.
    """
    user = action._get_remote_user() if path == "~" or path.startswith("~/") else None
    home = os.path.expanduser(f"~{user}") if user else "~"
    return home + path[1:] if not home.startswith("~") and os.access(home, os.W_OK) else _expand(path)


def remote_expand_user(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, path: str, sudoable: bool = True, pathsep: Any = None) -> Any:
        if not here(self):
            return original(self, path, sudoable, pathsep)
        return _expand_for(self, path)

    return stand_in


def fixup_perms2(original: Any, _site: str) -> Any:
    """The files are ours and stay ours: there is nobody else to make them readable for."""

    @functools.wraps(original)
    def stand_in(self: Any, remote_paths: Any, remote_user: Any = None, execute: bool = True) -> Any:
        if not here(self):
            return original(self, remote_paths, remote_user, execute)
        for path in remote_paths if execute else ():
            os.chmod(path, os.stat(path).st_mode | 0o700)
        return remote_paths

    return stand_in


def remote_file_exists(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, path: str) -> Any:
        return os.path.exists(_expand(path)) if here(self) else original(self, path)

    return stand_in


_WHY = "a shell would do it; there is none to start"
STAND_INS: tuple[tuple[str, str, Any, tuple[str, ...], bool], ...] = (
    (f"{ACTION}._configure_module", "tells whose module is being built", configure_module, ALL, False),
    ("ansible.plugins.action:modify_module", "the module is run where it lies", modify_module, ALL, False),
    (f"{ACTION}._low_level_execute_command", "the module is run here", low_level_execute_command, ALL, False),
    (f"{ACTION}._is_pipelining_enabled", "nothing is copied", is_pipelining_enabled, ALL, False),
    (f"{ACTION}._make_tmp_path", _WHY, make_tmp_path, ALL, False),
    (f"{ACTION}._remove_tmp_path", _WHY, remove_tmp_path, ALL, False),
    (f"{ACTION}._remote_expand_user", _WHY, remote_expand_user, ALL, False),
    (f"{ACTION}._fixup_perms2", _WHY, fixup_perms2, ALL, False),
    (f"{ACTION}._remote_file_exists", _WHY, remote_file_exists, ALL, False),
)
