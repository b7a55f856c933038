# SPDX-License-Identifier: GPL-3.0-or-later
"""
What plugins import.

A plugin's code is executed with a private set of builtins. Its `__import__` returns the views of `stdlib_views` instead of the stdlib's
modules, and the worker's private copies of collection modules, wherever and however the code imports them.
"""

from __future__ import annotations

import _thread
import atexit
import builtins
import functools
import importlib
import importlib.util
import logging
import random
import re
import sys
import types
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from forkless.engines.threads.patches import (
    cached_functions,
    collection_modules,
    event_loops,
    exit_functions,
    plugin_logging,
    process_defaults,
    process_wide,
    project_libraries,
    stdlib_views,
    worker_descriptors,
    worker_signals,
    working_directory,
)
from forkless.engines.threads.patches.worker_view import WorkerView

__all__ = ["BUILTINS", "VIEWS"]

_GONE = object()


def import_(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> object:  # noqa: A002  # the builtin's names
    """The `__import__` of a plugin's code."""
    if level == 0:
        replaced = collection_modules.here().replaced
        if replaced and replaced.get(name, _GONE) is not _GONE:
            return replaced[name if fromlist else name.partition(".")[0]]
        if fromlist and name.startswith("ansible.plugins."):
            from forkless.engines.threads.patches import plugin_loader  # a circular import

            own = plugin_loader.private_by_name(name)
            if own is not None:
                return own
        library = project_libraries.library_name(name)
    else:
        library = project_libraries.relative_name(name, (globals or {}).get("__package__") or "", level)
    if library:
        return project_libraries.import_library(library, fromlist or ())
    found = builtins.__import__(name, globals, locals, fromlist, level)
    event_loops.watch()
    top = name.partition(".")[0]
    if top == "jmespath":
        _keep_small()
    if name == "os.path" and fromlist:
        return stdlib_views.os_view.path
    view = _view(top) if level == 0 else None
    if view is not None:
        return VIEWS.get(name, found) if fromlist else view
    if level or top in ("ansible_collections", "ansible"):
        return _loaded(name, found, fromlist)
    return found


class _WithoutRepetitions(dict[str, object]):
    """A table in which a tuple has each value once."""

    def __setitem__(self, key: str, value: object) -> None:
        super().__setitem__(key, tuple(dict.fromkeys(value)) if isinstance(value, tuple) else value)


def _keep_small() -> None:
    """
    The filter json_query of several collections adds the names of Ansible's types to a table of jmespath at every call. With forked workers
    that ended with the task. In one process the table would grow for good, and each call would copy it.
    """
    functions = sys.modules.get("jmespath.functions")
    table = getattr(functions, "REVERSE_TYPES_MAP", None)
    if type(table) is dict:
        vars(functions)["REVERSE_TYPES_MAP"] = _WithoutRepetitions(table)


def _loaded(name: str, found: Any, fromlist: Any) -> object:
    """Execute the imported collection modules for this worker; Python's import machinery does not execute them."""
    kind = collection_modules.CollectionModule
    load = collection_modules.here().load
    if not fromlist:
        entry = sys.modules.get(name)
        if type(entry) is kind:
            load(entry)
        return found
    if type(found) is kind:
        module = load(found)
        if not collection_modules.is_package(found):
            return module
    if collection_modules.is_package(found):
        above = types.ModuleType.__getattribute__(found, "__name__")
        for one in fromlist:
            entry = sys.modules.get(f"{above}.{one}")
            if type(entry) is kind:
                load(entry)
    return found


def import_module(name: str, package: str | None = None) -> object:
    """The `importlib.import_module` of a plugin's code."""
    if name.startswith("."):
        if not package:
            raise TypeError(f"the 'package' argument is required to perform a relative import for {name!r}")
        name = importlib.util.resolve_name(name, package)
    library = project_libraries.library_name(name)
    if library:
        return project_libraries.import_library(library)
    import_(name)
    return modules_view[name]


class _ImportlibUtil(WorkerView):
    @staticmethod
    def find_spec(name: str, package: str | None = None) -> object:
        library = "" if name.startswith(".") else project_libraries.library_name(name)
        return project_libraries.library_spec(library) if library else importlib.util.find_spec(name, package)


class _Importlib(WorkerView):
    util = _ImportlibUtil(importlib.util)
    import_module = staticmethod(import_module)
    __import__ = staticmethod(import_)

    @staticmethod
    def reload(module: Any) -> object:
        entry = sys.modules.get(getattr(module, "__name__", ""))
        if type(entry) is not collection_modules.CollectionModule:
            return importlib.reload(module)
        collection_modules.here().forget(entry.__name__)
        return collection_modules.here().load(entry)


class _Builtins(WorkerView):
    __import__ = staticmethod(import_)
    print = staticmethod(stdlib_views.print_to_run)


class _Modules(MutableMapping[str, object]):
    """The `sys.modules` of a plugin's code: views, the worker's collection modules, and what the worker's plugins put there."""

    def __getitem__(self, name: str) -> object:
        own = collection_modules.here()
        if name in own.replaced:
            if own.replaced[name] is _GONE:
                raise KeyError(name)
            return own.replaced[name]
        view = _view(name)
        if view is not None:
            return view
        found = sys.modules[name]
        if type(found) is collection_modules.CollectionModule and not collection_modules.is_package(found):
            return own.load(found)
        return found

    def __setitem__(self, name: str, module: object) -> None:
        if type(sys.modules.get(name)) is collection_modules.CollectionModule:
            collection_modules.here().replace(name, module)
        else:
            collection_modules.here().replaced[name] = module

    def __delitem__(self, name: str) -> None:
        self[name]  # raises KeyError if the name does not exist
        if type(sys.modules.get(name)) is collection_modules.CollectionModule:
            collection_modules.here().forget(name)
        else:
            collection_modules.here().replaced[name] = _GONE

    def __iter__(self) -> Iterator[str]:
        replaced = collection_modules.here().replaced
        names = {**dict.fromkeys(list(sys.modules)), **dict.fromkeys(replaced)}
        return iter([name for name in names if replaced.get(name) is not _GONE])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, object]:
        return {name: sys.modules.get(name) if name in sys.modules else self[name] for name in self}


modules_view = _Modules()


class _PluginSys(stdlib_views._SysView):
    @property
    def modules(self) -> object:
        return modules_view

    setrecursionlimit = staticmethod(process_wide.set_recursion_limit)
    getrecursionlimit = staticmethod(process_wide.recursion_limit)

    @property
    def argv(self) -> list[str]:
        return process_wide.argv()

    @argv.setter
    def argv(self, value: list[str]) -> None:
        process_wide.set_argv(value)

    @property
    def path(self) -> list[str]:
        return project_libraries.path()

    @path.setter
    def path(self, value: Sequence[str]) -> None:
        project_libraries.set_path(value)


class _Re(WorkerView):
    """Caches compiled patterns, which are immutable, for the process: the stdlib caches only 512, and network collections have thousands."""

    compile = staticmethod(functools.lru_cache(maxsize=16384, typed=True)(re.compile))
    # Constants that the files of one resource module read a thousand times for each task: found on the class, not by `__getattr__`.
    DOTALL = S = re.DOTALL
    IGNORECASE = I = re.IGNORECASE  # noqa: E741  # names of the stdlib
    MULTILINE = M = re.MULTILINE
    VERBOSE = X = re.VERBOSE


class _ThreadView(WorkerView):
    interrupt_main = staticmethod(worker_signals.interrupt_main)


VIEWS: dict[str, object] = {
    "_thread": _ThreadView(_thread),
    "atexit": exit_functions.PluginAtexit(atexit),
    "builtins": _Builtins(builtins),
    "functools": cached_functions.FunctoolsView(functools),
    "importlib": _Importlib(importlib),
    "importlib.util": _Importlib.util,
    "logging": plugin_logging.PluginLogging(logging),
    "logging.config": plugin_logging.plugin_logging_config,
    "os": stdlib_views.os_view,
    "random": process_wide.RandomView(random),
    "re": _Re(re),
    "signal": stdlib_views.signal_view,
    "subprocess": stdlib_views.subprocess_view,
    "sys": _PluginSys(sys),
    "time": stdlib_views.time_view,
}


def _view(name: str) -> object | None:
    if name == "ssl" and name not in VIEWS and name in sys.modules:
        # Made when a plugin has imported it: few runs need OpenSSL.
        VIEWS.setdefault(name, process_defaults.SslView(sys.modules[name]))
    if name == "pty" and name not in VIEWS and name in sys.modules:
        VIEWS.setdefault(name, worker_descriptors.PtyView(sys.modules[name]))
    return VIEWS.get(name)


BUILTINS: dict[str, object] = {
    **vars(builtins),
    "__import__": import_,
    "open": working_directory.open_file,
    "print": stdlib_views.print_to_run,
}
