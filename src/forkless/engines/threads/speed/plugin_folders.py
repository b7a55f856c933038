# SPDX-License-Identifier: GPL-3.0-or-later
"""
plugin-cache, for later runs of a process: which plugins are in a folder of ansible-core.

A loader looks for a plugin by its short name in one folder after another, and notes every file of a folder that it has looked through. With ansible-core's
own folders this takes a fifth of the time of a small run, and comes out the same in every run: its files do not change while the process lives.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Protocol, TypeAlias

from forkless.engines.threads import context
from forkless.engines.threads.patches.core_files import own_files
from forkless.patching.seam import for_speed

if TYPE_CHECKING:
    import types

__all__ = ["SEAMS"]

NAME = "plugin-cache"
# What a loader has noted of a folder: by the suffix of files and the name of a plugin.
_Noted: TypeAlias = "dict[object, dict[str, object]]"


class _PluginFolder(Protocol):
    """ansible-core's PluginPathContext."""

    path: str
    internal: bool


class _FolderLoader(Protocol):
    """What is used of PluginLoader."""

    _plugin_path_cache: _Noted
    _searched_paths: set[str]

    def _get_paths_with_context(self) -> list[_PluginFolder]: ...


class _Asked(Protocol):
    """What is used of PluginLoadContext."""

    load_attempts: list[str]


def _known() -> dict[tuple[str, bool], _Noted]:
    """Folders by path, and whether they count as internal. Kept in the ansible-core that made the values: they have its classes."""
    found: dict[tuple[str, bool], _Noted] = vars(sys.modules["ansible.plugins.loader"]).setdefault(
        "_forkless_folders", {}
    )
    return found


def _note_known(loader: _FolderLoader, wanted: str, noted: dict[str, object], attempts: list[str]) -> None:
    """Note in `loader` what is known of the folders that it would look through now, up to the one with the wanted plugin."""
    known = _known()
    for place in loader._get_paths_with_context():
        path = place.path
        if path in loader._searched_paths:
            continue
        folder = known.get((path, place.internal))
        if folder is None:
            if os.path.isdir(path):  # it has to be looked through first
                return
            continue
        cache = loader._plugin_path_cache
        for suffix, names in folder.items():
            mine = cache[suffix]
            for name in names.keys() - mine.keys():
                mine[name] = names[name]
        loader._searched_paths.add(path)
        attempts.append(path)
        if wanted in noted:
            return


def _aliases(loader: _FolderLoader) -> dict[str, str]:
    found: dict[str, str] = getattr(loader, "_aliases" if hasattr(loader, "_aliases") else "aliases")  # by version
    return found


def find_in_folders(original: types.FunctionType, _site: str) -> object:
    """PluginLoader._find_plugin_legacy. The loader's lock is held."""
    code = original.__code__
    more = code.co_varnames[3 : code.co_argcount]  # up to 2.20 there is `ignore_deprecated`, too

    @functools.wraps(original)
    def find(loader: _FolderLoader, name: str, plugin_load_context: _Asked, *args: object, **kwargs: object) -> object:
        run_context = context.current()
        if run_context is None or NAME in run_context.off:
            return original(loader, name, plugin_load_context, *args, **kwargs)
        given = {**dict(zip(more, args, strict=False)), **kwargs}
        wanted = _aliases(loader).get(name, name) if given.get("check_aliases") else name
        cache = loader._plugin_path_cache
        noted = cache[given.get("suffix")]
        if wanted not in noted:
            _note_known(loader, wanted, noted, plugin_load_context.load_attempts)
        is_first = not loader._searched_paths and not any(cache.values())
        found = original(loader, name, plugin_load_context, *args, **kwargs)
        if is_first and len(loader._searched_paths) == 1:
            _learn(loader)
        return found

    return find


def _learn(loader: _FolderLoader) -> None:
    """Keep what the loader has noted of the one folder that it has looked through, if that is ansible-core's."""
    (path,) = loader._searched_paths
    if own_files(os.path.join(path, "")):
        internal = {place.internal for place in loader._get_paths_with_context() if place.path == path}
        if len(internal) == 1:
            folder = {key: dict(names) for key, names in loader._plugin_path_cache.items() if names}
            _known()[path, internal.pop()] = folder


SEAMS = (
    for_speed(
        "ansible.plugins.loader:PluginLoader._find_plugin_legacy",
        "every run of a process would look through the same folders of ansible-core",
        find_in_folders,
    ),
)
