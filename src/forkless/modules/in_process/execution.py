# SPDX-License-Identifier: GPL-3.0-or-later
"""
Execution of tasks whose modules run in this process.

Ansible wraps a module, writes it to a temporary folder through a shell, starts an interpreter and reads its output.
Here the module's own file is executed, and Python calls replace the shell commands around it. Everything else of
`_execute_module` (arguments, parsing, warnings, facts) is Ansible's code.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from forkless.core import platform
from forkless.modules.ansible_types import environ_of
from forkless.modules.cold import ColdExecution, refuse
from forkless.modules.in_process import execute as execution
from forkless.modules.in_process import source as module_source
from forkless.modules.live_output import TimedOutput, live_output_of
from forkless.modules.warm import payload as payloads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forkless.modules.ansible_types import AnsibleAction, Upstream

__all__ = ["InProcessExecution", "full_name"]

PLUGINS = "ansible.plugins.action"


@dataclass(frozen=True)
class _BuiltModule:
    """A module that is ready to run in this process. Ansible carries `data` in place of the wrapped module."""

    source: module_source.ModuleSource
    arguments: bytes = field(repr=False)
    environ: dict[str, str] = field(repr=False)
    profile: str = "legacy"
    data: bytes = b"run in this process"


class InProcessExecution(ColdExecution):
    name: ClassVar[str] = "in-process"
    _module: _BuiltModule | None = None

    def configure_module(self, upstream: Upstream, *args: object, **kwargs: object) -> object:
        if self.action._task.async_val:
            refuse(self.action, "a process that outlives the task (async)")
        become = self.connection.become
        if become is not None and self._becomes():
            refuse(self.action, f"to become another user ({become.name})")
        return upstream(*args, **kwargs)

    def _becomes(self) -> bool:
        """Whether become would change the user. Becoming the current user needs no program."""
        wanted = self.action.get_become_option("become_user")
        return bool(wanted) and wanted != (self.action._get_remote_user() or self.connection.default_user)

    def build(self, upstream: Upstream, *args: Any, **kwargs: object) -> object:
        given = dict(zip(("module_name", "module_path", "module_args", "templar"), args, strict=False)) | kwargs
        source = module_source.load(given["module_path"], full_name(given["module_name"], given["module_path"]))
        if source is None:
            if not platform.can_exec():
                refuse(self.action, "a program: it is not a Python module of the new style")
            return upstream(*args, **kwargs)
        if platform.can_exec() and _may_respawn(source, lambda: upstream(*args, **kwargs)):
            return upstream(*args, **kwargs)
        self._module = _BuiltModule(
            source,
            execution.encode_arguments(given["module_args"]),
            {**environ_of(PLUGINS), **{name: str(value) for name, value in (given.get("environment") or {}).items()}},
        )
        data, shebang = self._module.data, f"#!{sys.executable or 'python'}"
        module_common = sys.modules["ansible.executor.module_common"]
        if not hasattr(module_common, "_BuiltModule"):
            return data, "new", shebang
        return module_common._BuiltModule(
            b_module_data=data, module_style="new", shebang=shebang, serialization_profile=self._module.profile
        )

    def is_pipelining_enabled(self, upstream: Upstream, module_style: str, wrap_async: bool = False) -> object:
        """With pipelining, Ansible copies no module file to the host first."""
        return upstream(module_style, wrap_async) if wrap_async else module_style == "new"

    def low_level_execute_command(
        self,
        upstream: Upstream,
        cmd: str,
        sudoable: bool = True,
        in_data: bytes | None = None,
        *args: object,
        **kwargs: object,
    ) -> object:
        module = self._module
        if module is None or in_data is not module.data:
            return super().low_level_execute_command(upstream, cmd, sudoable, in_data, *args, **kwargs)
        self._module = None
        live = live_output_of(self.action)
        done = execution.execute(
            module.source,
            module.arguments,
            profile=module.profile,
            environ=module.environ,
            cwd=self.action._loader.get_basedir(),
            output=None if live is None else TimedOutput(live),
        )
        return {
            "rc": done.rc,
            "stdout": done.stdout,
            "stdout_lines": done.stdout.splitlines(),
            "stderr": done.stderr,
            "stderr_lines": done.stderr.splitlines(),
        }

    # -- files

    def remote_expand_user(
        self, upstream: Upstream, path: str, sudoable: bool = True, pathsep: str | None = None
    ) -> object:
        return _expand_for(self.action, path)

    def remote_file_exists(self, upstream: Upstream, path: str) -> object:
        return os.path.exists(_expand(path))

    def make_tmp_path(self, upstream: Upstream, remote_user: str | None = None) -> object:
        shell = self.connection._shell
        above = _expand_for(self.action, self.action.get_shell_option("remote_tmp", default="~/.ansible/tmp"))
        path = os.path.join(above, shell._generate_temp_dir_name())
        os.makedirs(above, mode=0o700, exist_ok=True)
        os.mkdir(path, 0o700)
        self.action._cleanup_remote_tmp = True
        shell.tmpdir = os.path.join(path, "")
        return shell.tmpdir

    def fixup_perms2(
        self, upstream: Upstream, remote_paths: Sequence[str], remote_user: str | None = None, execute: bool = True
    ) -> object:
        """The module runs as the user who owns the files, so only the execute permission has to be added."""
        for path in remote_paths if execute else ():
            os.chmod(path, os.stat(path).st_mode | 0o700)
        return remote_paths

    def remove_tmp_path(self, upstream: Upstream, tmp_path: str | None, force: bool = False) -> object:
        shell = self.connection._shell
        path = tmp_path or shell.tmpdir
        if path and (force or self.action._should_remove_tmp_path(path)):
            shutil.rmtree(path, ignore_errors=True)
            shell.tmpdir = None
        return None


def _may_respawn(source: module_source.ModuleSource, build: Callable[[], Any]) -> bool:
    """
    Whether the module can respawn under another interpreter, which needs the archive that Ansible would send.

    The module's transitive imports are known only after Ansible has wrapped it, so each file is wrapped once to find
    out.
    """
    known = _respawning.get(source)
    if known is None:
        built = build()
        wrapped = payloads.take_apart(built[0] if isinstance(built, tuple) else built.b_module_data)
        known = wrapped is not None and any(name == _RESPAWN for name, _, _ in wrapped.manifest.files)
        _respawning[source] = known
    return known


_RESPAWN = "ansible.module_utils.common.respawn"
_respawning: weakref.WeakKeyDictionary[module_source.ModuleSource, bool] = weakref.WeakKeyDictionary()


def full_name(name: str, path: str) -> str:
    from ansible.executor import module_common

    try:
        full: str = module_common._get_ansible_module_fqn(path)
    except ValueError:  # a module beside a playbook or in a role; Ansible gives it this name
        full = f"ansible.legacy.{name.rpartition('.')[2]}"
    return full


def _expand(path: str) -> str:
    """Expand ~ to HOME of the run's environment, or to the temporary folder if the user has no home."""
    if path != "~" and not path.startswith("~/"):
        return os.path.expanduser(path)
    home = environ_of(PLUGINS).get("HOME") or os.path.expanduser("~")
    return (tempfile.gettempdir() if home == "~" else home) + path[1:]


def _expand_for(action: AnsibleAction, path: str) -> str:
    """
    Expand ~ as Ansible's actions do: they ask a shell for ~user, which is the home of the passwd entry even if HOME
    is different.

    If that home is not writable (a mobile app, a cloud function), HOME is used. Modules themselves always use HOME, as
    they do in a process of their own.
    """
    user = action._get_remote_user() if path == "~" or path.startswith("~/") else None
    home = os.path.expanduser(f"~{user}") if user else "~"
    return home + path[1:] if not home.startswith("~") and os.access(home, os.W_OK) else _expand(path)
