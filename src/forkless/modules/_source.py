# SPDX-License-Identifier: GPL-3.0-or-later
"""A module's file, compiled once, and the small world that its own code sees."""

from __future__ import annotations

import builtins
import importlib
import os
import subprocess
import sys
import threading
import types
from dataclasses import dataclass
from typing import Any

from forkless._errors import UnsupportedError
from forkless.modules._invocation import current

__all__ = ["VIEWS", "Source", "load"]

# Stand-ins for what a module imports by name, put here by the engine: `time` with a sleep that can be ended, and the like.
VIEWS: dict[str, Any] = {}


@dataclass(frozen=True)
class Source:
    path: str
    name: str
    """Its full name, as `ansible.modules.copy`; what relative imports in it are relative to."""
    code: types.CodeType

    def run(self) -> None:
        """Execute it as a script. It ends by SystemExit, unless it ends badly."""
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


_compiled: dict[str, tuple[tuple[int, int], Source]] = {}
_compiling = threading.Lock()


def as_new_style(text: bytes) -> bytes | None:
    """What Ansible would send out for a new-style Python module; None for any other kind. The test is Ansible's own."""
    from ansible.executor import module_common

    if module_common._is_binary(text):
        return None
    if module_common.REPLACER in text:
        return text.replace(module_common.REPLACER, b"from ansible.module_utils.basic import *")
    return text if module_common.NEW_STYLE_PYTHON_MODULE_RE.search(text) else None


def load(path: str, name: str) -> Source | None:
    """The compiled module, or None if it is not a new-style Python module. Compiled again when the file changes."""
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
    source = Source(path, name, compile(text, path, "exec", dont_inherit=True))
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


class _Sys(types.ModuleType):
    """sys for a module's own code: its streams and arguments are its own, the rest is the real one."""

    def __getattr__(self, name: str) -> Any:
        invocation = current()
        if invocation is not None:
            if name in ("stdout", "stderr"):
                return getattr(invocation, name)
            if name == "argv":
                return [invocation.name]
        return getattr(sys, name)


class _Subprocess(types.ModuleType):
    """subprocess for a module's own code: refuses before it tries, where programs cannot be started."""

    def __getattr__(self, name: str) -> Any:
        thing = getattr(VIEWS.get("subprocess", subprocess), name)
        invocation = current()
        if invocation is None or name not in _STARTERS:
            return thing
        if invocation.programs:
            # A child would get the C library's environment, which is the program's and knows nothing of the task's.
            return lambda *args, **kwargs: thing(*args, **{"env": dict(os.environ), **kwargs})

        def refuse(args: Any = None, *_: Any, **__: Any) -> Any:
            raise UnsupportedError(needs_program(invocation.name, args))

        return refuse


_STARTERS = ("Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput")
_sys, _subprocess = _Sys("sys"), _Subprocess("subprocess")


def _import(
    name: str,
    globals_: Any = None,
    locals_: Any = None,
    names: Any = (),
    level: int = 0,
    *,
    real: Any = builtins.__import__,
) -> Any:
    if level == 0:
        if name == "sys":
            return _sys
        if name == "subprocess":
            return _subprocess
        if name in VIEWS:
            return VIEWS[name]
    try:
        return real(name, globals_, locals_, names, level)
    except ModuleNotFoundError as err:
        if level == 0 and err.name and err.name.startswith("ansible.module_utils."):
            found = _beside(name, names)
            if found is not None:
                return found
        raise


def _beside(name: str, names: Any) -> Any:
    """
    `ansible.module_utils.mine`, from the folders beside a playbook or in a role.

    It travels with a module that is sent out; here it is found where it lies. It is not put into sys.modules: the next project's
    may have the same name.
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
        exec(compile(file.read(), path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102  # as above
    return module


def _print(*values: object, file: Any = None, **more: Any) -> None:
    invocation = current()
    if file is None and invocation is not None:
        file = invocation.stdout
    builtins.print(*values, file=file, **more)


def _builtins() -> dict[str, Any]:
    return {**vars(builtins), "__import__": _import, "print": _print}
