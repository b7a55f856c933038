# SPDX-License-Identifier: GPL-3.0-or-later
"""
What is to be done to a module as soon as it has been imported, for modules that few runs import.

One finder in `sys.meta_path` serves all callers: two finders that each ask the others for a module would ask one another forever.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator
    from importlib.machinery import ModuleSpec

__all__ = ["acting"]


class _Watcher:
    def __init__(self, is_wanted: Callable[[str], bool], act: Callable[[types.ModuleType], None]) -> None:
        self.is_wanted, self.act = is_wanted, act


_lock = threading.Lock()
_watchers: list[_Watcher] = []  # changed under the lock; readers take a copy


class _WatchedLoader:
    """A module's own loader, except that the watchers act on the module when it has been executed."""

    def __init__(self, real: Any, spec: ModuleSpec) -> None:
        self._real, self._spec = real, spec

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def exec_module(self, module: types.ModuleType) -> None:
        # The module keeps its own loader: code that asks for its class must find what it knows.
        self._spec.loader = module.__loader__ = self._real
        self._real.exec_module(module)
        # A program's own ansible-core, which it goes on to import while a run is active, is not in sys.modules.
        if sys.modules.get(module.__name__) is module:
            for watcher in tuple(_watchers):
                if watcher.is_wanted(module.__name__):
                    watcher.act(module)


class _WatchingFinder:
    """The first in sys.meta_path while something is watched. It finds what the others find."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not any(watcher.is_wanted(name) for watcher in tuple(_watchers)):
            return None
        for finder in tuple(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _WatchedLoader(spec.loader, spec)  # type: ignore[assignment]  # has what importlib calls
                return spec
        return None


_finder: Any = _WatchingFinder()


@contextlib.contextmanager
def acting(is_wanted: Callable[[str], bool], act: Callable[[types.ModuleType], None]) -> Iterator[None]:
    """
    For the length of the block, call `act` with each module whose name is wanted, right after it was executed.

    `act` is called by the importing thread, before any other thread gets the module; if it raises, the import fails with this error. Of
    several callers, those that came first act first. Any thread may call this.
    """
    watcher = _Watcher(is_wanted, act)
    with _lock:
        if not _watchers:
            sys.meta_path.insert(0, _finder)
        _watchers.append(watcher)
    try:
        yield
    finally:
        with _lock:
            _watchers.remove(watcher)
            if not _watchers:
                with contextlib.suppress(ValueError):  # a plugin may have replaced sys.meta_path's content
                    sys.meta_path.remove(_finder)
