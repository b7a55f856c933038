# SPDX-License-Identifier: GPL-3.0-or-later
"""
Libraries of a project: Python files in folders that its plugins add to `sys.path`.

A forked worker changed its own `sys.path` and imported into its own `sys.modules`. Here two projects may each have a `helper.py`. So
`sys.path` of a plugin's code is a list of its worker. A module that is found in a folder which only this list names is imported as
`_forkless_libraries.<digest of the folder>.<name>`, and like a module of a collection it is executed for each worker. The program's
`sys.path` is unchanged, and it cannot import such a module by mistake.

A folder of installed packages (site-packages) belongs to the machine, not to a project: it is appended to the program's `sys.path` until
the runs that have asked for it end, and what is found there is imported once, because packages with compiled parts often cannot be
imported twice.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import types
from typing import TYPE_CHECKING

from forkless.engines.threads import context
from forkless.engines.threads.patches import collection_modules, stdlib_views
from forkless.engines.threads.patches.collection_modules import INSTALLED, LIBRARIES, CollectionModule

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["import_library", "library_name", "library_spec", "path", "relative_name", "set_path"]

_PATH = "sys.path"
# ansible-core finds these by itself, or has imported them before any plugin.
_NEVER = frozenset({"ansible", "ansible_collections", "forkless", *sys.stdlib_module_names})

# Folders of installed packages that were appended to `sys.path`, with the runs that have asked for them.
_askers: dict[str, set[str]] = {}
_appending = threading.Lock()
# Set when the first plugin of this process asks for its `sys.path`: until then there is no folder of its own to look for an import in.
_asked_for_path = threading.Event()


def path() -> list[str]:
    """
    The `sys.path` of a plugin's code: the worker's list, which begins as a copy of that of its run outside of workers, and this one as a
    copy of the program's.
    """
    home = context.current_worker() or context.current()
    if home is None:
        return sys.path
    _asked_for_path.set()
    own: list[str] | None = home.state.get(_PATH)
    if own is None:
        above = _own_path()
        own = home.state.setdefault(_PATH, list(sys.path if above is None else above))
    return own


def set_path(value: Sequence[str]) -> None:
    home = context.current_worker() or context.current()
    if home is None:
        sys.path = list(value)
    else:
        _asked_for_path.set()
        home.state[_PATH] = list(value)


def _own_path() -> list[str] | None:
    """The list of the worker, or of its run; None if no plugin has asked for either."""
    for home in (context.current_worker(), context.current()):
        if home is not None and _PATH in home.state:
            found: list[str] = home.state[_PATH]
            return found
    return None


def library_name(name: str) -> str:
    """The name in `sys.modules` of a module that is in one of the worker's own folders; "" for any other module."""
    if not _asked_for_path.is_set():
        return ""
    own = _own_path()
    top = name.partition(".")[0]
    if own is None or (own == sys.path and not _askers) or top in _NEVER:
        return ""
    entries = [entry for entry in own if isinstance(entry, str)]
    folders = {entry: os.path.normpath(stdlib_views.os_view.path.abspath(entry)) for entry in entries}
    added = [folder for entry, folder in folders.items() if entry not in sys.path]
    for entry, folder in folders.items():
        if os.path.basename(folder) in INSTALLED and (entry not in sys.path or folder in _askers):
            _append_until_end(folder)
    if _is_installed(sys.modules.get(top)):
        return ""
    spec = importlib.machinery.PathFinder.find_spec(top, list(folders.values())) if added else None
    if spec is None:
        return ""
    package = spec.submodule_search_locations is not None
    file = next(iter(spec.submodule_search_locations or ()), "") if package else spec.origin
    folder = os.path.dirname(file or "")
    if folder not in added or os.path.basename(folder) in INSTALLED:
        return ""
    return f"{_root(folder)}.{name}"


def _append_until_end(folder: str) -> None:
    """Append a folder to the program's `sys.path`, until the last of the runs that have asked for it ends."""
    run_context = context.current()
    if run_context is None:
        return
    with _appending:
        if folder not in sys.path:
            sys.path.append(folder)
            _askers[folder] = set()
        askers = _askers.get(folder)
        if askers is None or run_context.ident in askers:  # the program's own entry, or asked for before
            return
        askers.add(run_context.ident)
    run_context.at_end.append(functools.partial(_remove_if_last, folder, run_context.ident))


def _remove_if_last(folder: str, ident: str) -> None:
    with _appending:
        askers = _askers[folder]
        askers.discard(ident)
        if not askers:
            del _askers[folder]
            if folder in sys.path:
                sys.path.remove(folder)


def relative_name(name: str, package: str, level: int) -> str:
    """The absolute name of a relative import in a library; "" in any other file."""
    if not package.startswith(f"{LIBRARIES}."):
        return ""
    return importlib.util.resolve_name("." * level + name, package)


def import_library(name: str, fromlist: Sequence[str] = ("",)) -> object:
    """Import `name`, which one of the functions above has returned, for the calling worker; returns what `__import__` returns."""
    parts = name.split(".")
    for last in range(3, len(parts) + 1):
        module = _loaded(".".join(parts[:last]))
    if not fromlist:
        return _entry(".".join(parts[:3]))
    entry = _entry(name)
    if not collection_modules.is_package(entry):
        return module
    names = getattr(module, "__all__", ()) if "*" in fromlist else fromlist
    for one in names:
        if one and not hasattr(module, one):
            try:
                _loaded(f"{name}.{one}")
            except ModuleNotFoundError as error:
                if error.name != _plain(f"{name}.{one}"):
                    raise
    return entry


def library_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """What `importlib.util.find_spec` returns for a library."""
    try:
        return _entry(name).__spec__
    except ModuleNotFoundError:
        return None


def _loaded(name: str) -> object:
    entry = _entry(name)
    return collection_modules.here().load(entry) if type(entry) is CollectionModule else entry


def _entry(name: str) -> types.ModuleType:
    """The module in `sys.modules`; nothing of it is executed, unless it is not a Python file."""
    found = sys.modules.get(name)
    if found is not None:
        return found
    above, _, last = name.rpartition(".")
    parent = _entry(above)
    within = getattr(parent, "__path__", None)
    spec = importlib.machinery.PathFinder.find_spec(name, within) if within is not None else None
    if spec is None:
        why = "" if within is not None else f"; {_plain(above)!r} is not a package"
        raise ModuleNotFoundError(f"No module named {_plain(name)!r}{why}", name=_plain(name))
    if isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        made: types.ModuleType = CollectionModule(name)
        made.__spec__, made.__loader__, made.__file__ = spec, spec.loader, spec.origin
        made.__package__ = spec.parent
        if spec.submodule_search_locations is not None:
            made.__path__ = spec.submodule_search_locations
        return sys.modules.setdefault(name, made)
    made = importlib.util.module_from_spec(spec)
    if spec.loader is not None:
        spec.loader.exec_module(made)
    found = sys.modules.setdefault(name, made)
    if type(parent) is not CollectionModule:
        setattr(parent, last, found)
    return found


def _root(folder: str) -> str:
    """The package of all modules in that folder."""
    sys.modules.setdefault(LIBRARIES, types.ModuleType(LIBRARIES))
    name = f"{LIBRARIES}.{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
    if name not in sys.modules:
        made = types.ModuleType(name)
        made.__path__ = [folder]
        sys.modules.setdefault(name, made)
    return name


def _plain(name: str) -> str:
    """The name as the library's own code writes it."""
    return name.split(".", 2)[2]


def _is_installed(module: types.ModuleType | None) -> bool:
    """Whether the module is one that every worker of stock would have, too: an installed package that is imported already."""
    file = getattr(module, "__file__", None)
    return module is not None and (file is None or any(f"{os.sep}{one}{os.sep}" in file for one in INSTALLED))
