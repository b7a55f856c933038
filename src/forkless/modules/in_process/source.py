# SPDX-License-Identifier: GPL-3.0-or-later
"""A module's file, compiled once, and the builtins and imports that its code sees."""

from __future__ import annotations

import builtins
import importlib
import os
import subprocess
import threading
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forkless.core.errors import UnsupportedError
from forkless.modules.in_process.invocation import VIEWS, current
from forkless.modules.in_process.process_views import os_view, signal_view, sys_view

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ModuleSource", "load"]


@dataclass(frozen=True)
class ModuleSource:
    path: str
    name: str
    """The full name, such as `ansible.modules.copy`; relative imports start from it."""
    code: types.CodeType

    def run(self) -> None:
        """Execute the module as a script. This never returns: a module that ends without SystemExit raises RuntimeError."""
        world = {
            "__name__": "__main__",
            "__file__": self.path,
            "__package__": self.name.rpartition(".")[0],
            "__spec__": None,
            "__builtins__": _builtins(),
            "_module_fqn": self.name,
            "_modlib_path": "",
        }
        exec(self.code, world)  # noqa: S102  # running the user's module is what this is for
        raise RuntimeError("New-style module did not handle its own exit.")


_compiled: dict[str, tuple[tuple[int, int], ModuleSource]] = {}
_compiling = threading.Lock()


def as_new_style(text: bytes) -> bytes | None:
    """The text that Ansible would send for a new-style Python module; None for any other kind. Ansible's own test decides."""
    from ansible.executor import module_common

    if module_common._is_binary(text):
        return None
    if module_common.REPLACER in text:
        return text.replace(module_common.REPLACER, b"from ansible.module_utils.basic import *")
    return text if module_common.NEW_STYLE_PYTHON_MODULE_RE.search(text) else None


def load(path: str, name: str) -> ModuleSource | None:
    """
    Return the compiled module, or None if it is not a new-style Python module. Any thread may call this.

    A changed file is compiled again. Two threads may compile the same file at once; the later result is kept.
    """
    stat = os.stat(path)
    stamp = (stat.st_mtime_ns, stat.st_size)
    with _compiling:
        known = _compiled.get(path)
        if known and known[0] == stamp and known[1].name == name:
            return known[1]
    with open(path, "rb") as file:
        text = as_new_style(file.read())
    if text is None:
        return None
    source = ModuleSource(path, name, compile(text, path, "exec", dont_inherit=True))
    with _compiling:
        _compiled[path] = (stamp, source)
    return source


def needs_program(name: str, program: object) -> str:
    words = (
        program
        if isinstance(program, str)
        else program[0]
        if isinstance(program, (list, tuple)) and program
        else program
    )
    return (
        f"the module '{name.rpartition('.')[2]}' needs the program '{str(words).split(' ')[0]}', and this system does not let us start "
        "programs; run the task on another host (delegate_to), or use a module that needs none"
    )


class _SubprocessOfModule(types.ModuleType):
    """subprocess as a module's own code sees it: raises UnsupportedError if programs cannot be started."""

    def __getattr__(self, name: str) -> object:
        thing = getattr(VIEWS.get("subprocess", subprocess), name)
        invocation = current()
        if invocation is None or name not in _STARTERS:
            return thing
        if invocation.programs:
            # Without `env` the child would inherit the C library's environment, which lacks the task's variables.
            return lambda *args, **kwargs: thing(*args, **{"env": dict(os.environ), **kwargs})

        def refuse(args: object = None, *_: object, **__: object) -> object:
            raise UnsupportedError(needs_program(invocation.name, args))

        return refuse


_STARTERS = ("Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput")
_subprocess = _SubprocessOfModule("subprocess")
_OWN = {"sys": sys_view, "os": os_view, "signal": signal_view, "subprocess": _subprocess}


def _import(
    name: str,
    globals_: object = None,
    locals_: object = None,
    names: object = (),
    level: int = 0,
    *,
    real: Callable[..., object] = builtins.__import__,
) -> object:
    if level == 0:
        if name in _OWN:
            return _OWN[name]
        if name in VIEWS:
            return VIEWS[name]
        if name == "os.path":
            return os_view.path if names else os_view  # `import os.path` binds `os`
    try:
        return real(name, globals_, locals_, names, level)
    except ModuleNotFoundError as err:
        if level == 0 and err.name and err.name.startswith("ansible.module_utils."):
            found = _beside(name, names)
            if found is not None:
                return found
        raise


def _beside(name: str, names: Any) -> object:
    """
    Load `ansible.module_utils.mine` from the folders beside a playbook or in a role.

    Ansible would put the file into the module's archive. It is not added to sys.modules, because another project may
    have a module_util of the same name.
    """
    loader = importlib.import_module("ansible.plugins.loader").module_utils_loader
    inner = name.removeprefix("ansible.module_utils").strip(".")
    for folder in loader._get_paths(subdirs=False):
        base = os.path.join(folder, *filter(None, inner.split(".")))
        for path in (base + ".py", os.path.join(base, "__init__.py")):
            if inner and os.path.isfile(path):
                return _exec_file(path, name)
        members = {one: os.path.join(base, one + ".py") for one in names or ()}
        if members and all(map(os.path.isfile, members.values())):
            package = types.ModuleType(name)
            for one, path in members.items():
                setattr(package, one, _exec_file(path, f"{name}.{one}"))
            return package
    return None


def _exec_file(path: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = path
    module.__package__ = name.rpartition(".")[0]
    module.__dict__["__builtins__"] = _builtins()
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102  # it is part of the user's module
    return module


def _print(*values: object, file: Any = None, **more: Any) -> None:
    if file is None:
        file = sys_view.stdout
    builtins.print(*values, file=file, **more)


def _builtins() -> dict[str, object]:
    return {**vars(builtins), "__import__": _import, "print": _print, "open": VIEWS.get("open", open)}
