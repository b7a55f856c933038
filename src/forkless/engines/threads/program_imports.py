# SPDX-License-Identifier: GPL-3.0-or-later
"""
The ansible-core that the program itself imported, while runs use another one in `sys.modules`.

Functions of the program's ansible-core import at call time (`from ansible.errors import ...` inside a function is frequent), and so does
the program. If they got a run's module, two classes of the same name would exist, and an exception of one would not be caught as the
other. `builtins.__import__` is replaced while runs are active, and only if the program has imported ansible-core.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import sys
import threading
from typing import TYPE_CHECKING, Any

from forkless.engines.threads import context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ProgramModules"]

_TOP = "ansible"


class ProgramModules:
    """Modules that the program imported, by name. While they are not in `sys.modules`, the program's imports are served from here."""

    def __init__(self, modules: dict[str, object]) -> None:
        self.modules = modules
        self._serving = False
        # Held while a module is executed, as Python holds the module's import lock.
        self._lock = threading.RLock()

    def serve(self) -> Callable[[], None]:
        """Start to serve the program's imports. Returns a function that stops it."""
        original = builtins.__import__
        self._serving = True

        def import_(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:  # noqa: A002
            if self._serving and (level or name.partition(".")[0] == _TOP):
                full = name
                if level:
                    package = (globals or {}).get("__package__") or ""
                    if package.partition(".")[0] != _TOP:
                        return original(name, globals, locals, fromlist, level)
                    full = importlib.util.resolve_name("." * level + name, package)
                if self._is_for_program(globals or {}):
                    return self._import(full, fromlist or (), whole=bool(level))
            return original(name, globals, locals, fromlist, level)

        builtins.__import__ = import_

        def end() -> None:
            self._serving = False
            # If another package has wrapped this function in the meantime, it stays in the chain and only passes calls on.
            if builtins.__import__ is import_:
                builtins.__import__ = original

        return end

    def _is_for_program(self, space: dict[str, object]) -> bool:
        """Whether these globals belong to the program: to its ansible-core, or, outside of runs, to anything but Ansible and forkless."""
        name = str(space.get("__name__", ""))
        mine = self.modules.get(name)
        if mine is not None and vars(mine) is space:
            return True
        return context.current() is None and name.partition(".")[0] not in (_TOP, "ansible_collections", "forkless")

    def _import(self, full: str, fromlist: Any, *, whole: bool) -> Any:
        module = self._module(full)
        if not fromlist and not whole:
            return self._module(_TOP)
        for item in fromlist:
            if item != "*" and not hasattr(module, item) and hasattr(module, "__path__"):
                with contextlib.suppress(ModuleNotFoundError):
                    self._module(f"{full}.{item}")
        return module

    def _module(self, full: str) -> object:
        found = self.modules.get(full)
        if found is not None:
            return found
        with self._lock:
            parent, _, leaf = full.rpartition(".")
            package = self._module(parent) if parent else None
            if full in self.modules:  # importing the package, or another thread, has imported it
                return self.modules[full]
            spec = next(_specs(full, getattr(package, "__path__", None)), None)
            if spec is None:
                raise ModuleNotFoundError(f"No module named {full!r}", name=full)
            module = self.modules[full] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:  # a partly executed module must not be found by the next import
                self.modules.pop(full, None)
                raise
            if package is not None:
                setattr(package, leaf, module)
            return module


def _specs(full: str, path: object) -> Iterator[Any]:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec = None if find is None else find(full, path)
        if spec is not None and spec.loader is not None:
            yield spec
