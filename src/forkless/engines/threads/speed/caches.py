# SPDX-License-Identifier: GPL-3.0-or-later
"""
Caches for what forked workers determined again for every task.

| name           | what is cached                                         | invalidated by                                            | at most |
| -------------- | ------------------------------------------------------ | --------------------------------------------------------- | ------- |
| template-cache | compiled templates and expressions, by their text      | a longer search path of filters or tests; the next run    | 4096    |
| plugin-cache   | where a plugin was found; which filters are Jinja's    | a longer search path, a removed file; the next run        | 4096    |
| folder-cache   | the plugin files in the search path                    | a changed folder, a longer path; the next run*            | 256     |
| vars-cache     | variables of a host or group from group_vars, host_vars | another vars plugin; the next run                         | 16384   |
| user-cache     | the name of the current user                           | another uid, another LOGNAME, USER, ...                   | 16      |
| option-cache   | the options that a plugin of ansible-core documents    | another documentation, doc fragments of the project       | 512     |

Each cache belongs to one run. Only the last one, and (*) listings of ansible-core's own folders, belong to the process: ansible-core's
files do not change while it runs. `FORKLESS_DISABLE=template-cache,vars-cache` switches caches off by name, to find out which one causes
a problem. A full cache is cleared: entries in use are soon stored again, and unused ones had filled it.
"""

from __future__ import annotations

import copy
import functools
import getpass
import glob
import inspect
import os
import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from forkless.core.versions import since
from forkless.engines.threads import context
from forkless.engines.threads.patches import plugin_loader
from forkless.engines.threads.patches.worker_view import WorkerView
from forkless.engines.threads.workers import copy_variables
from forkless.patching.seams import always, for_speed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from forkless.engines.threads.ansible_types import FoundPlugin, LoadContext, PluginFinder
    from forkless.engines.threads.context import RunContext

__all__ = ["BOUNDS", "SEAMS", "BoundedCache", "cache_of", "only_own_vars_plugin"]

BOUNDS = {
    "template-cache": 4096,
    "plugin-cache": 4096,
    "folder-cache": 256,
    "vars-cache": 16384,
    "user-cache": 16,
    "option-cache": 512,
}


class BoundedCache(dict[Hashable, Any]):
    """One cache of one run. Any thread may use it without a lock: dict operations are atomic, and the worst race computes a value twice."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self._bound = bound
        self.hits = 0

    def store(self, key: Hashable, value: object) -> None:
        if len(self) >= self._bound:
            self.clear()
        self[key] = value


# Caches that are valid for every run of this process.
PROCESS_CACHES = {"option-cache": BoundedCache(BOUNDS["option-cache"])}


def cache_of(run_context: RunContext | None, name: str) -> BoundedCache | None:
    """The run's cache of this name; None if it is switched off or the thread belongs to no run."""
    if run_context is None or name in run_context.off:
        return None
    if name in PROCESS_CACHES:
        return PROCESS_CACHES[name]
    found: BoundedCache | None = run_context.state.get(name)
    if found is None:
        found = run_context.state.setdefault(name, BoundedCache(BOUNDS[name]))
    return found


# -- plugins ------------------------------------------------------------------------------------------------------


def plugin(original: Callable[..., LoadContext], _site: str) -> Callable[..., LoadContext]:
    """PluginLoader.find_plugin_with_context: a result is valid as long as the file exists. A plugin that was not found is searched again."""

    @functools.wraps(original)
    def find(
        loader: PluginFinder,
        name: str,
        mod_type: str = "",
        ignore_deprecated: bool = False,
        check_aliases: bool = False,
        collection_list: Sequence[str] | None = None,
    ) -> LoadContext:
        cache = cache_of(context.current(), "plugin-cache")
        if cache is None:
            return original(loader, name, mod_type, ignore_deprecated, check_aliases, collection_list)
        listed = tuple(collection_list) if collection_list else None
        key = (id(loader), name, mod_type, ignore_deprecated, check_aliases, listed, len(loader._extra_dirs))
        found = cache.get(key)
        if found is None:
            found = original(loader, name, mod_type, ignore_deprecated, check_aliases, collection_list)
            # A deprecation, an error or (with -vv) a redirection must be reported every time, so such a result is not cached.
            if (
                found.resolved
                and not (found.deprecated or found.error_list or found.import_error_list)
                and not (len(found.redirect_list) > 1 and _verbosity() >= 2)
            ):
                cache.store(key, _own(found))
            return found
        # Files of ansible-core do not disappear while it runs; checking some ten plugins for each task would be slow.
        if not (plugin_loader.own_files(found.plugin_resolved_path) or os.path.exists(found.plugin_resolved_path)):
            cache.pop(key, None)
            return original(loader, name, mod_type, ignore_deprecated, check_aliases, collection_list)
        cache.hits += 1
        return _own(found)

    return find


def _verbosity() -> int:
    from ansible.utils.display import Display

    verbosity: int = Display().verbosity
    return verbosity


def _own(found: LoadContext) -> LoadContext:
    """A copy of a load context, which the caller may modify."""
    twin: LoadContext = object.__new__(type(found))
    fields = twin.__dict__
    fields.update(found.__dict__)
    for name, value in fields.items():
        if type(value) is list:
            fields[name] = value.copy()
    return twin


def options(original: Callable[..., object], _site: str) -> object:
    """
    PluginLoader._load_config_defs: the options in a plugin's documentation, which is YAML and slow to parse at the start of every run.

    Only for plugins of ansible-core, and only if no project provides doc fragments.
    """

    @functools.wraps(original)
    def load(loader: PluginFinder, name: str, module: object, path: str) -> object:
        run_context = context.current()
        cache = cache_of(run_context, "option-cache")
        if cache is None or not (loader.class_name and plugin_loader.own_files(path)):
            return original(loader, name, module, path)
        from ansible.plugins.loader import fragment_loader, get_plugin_class

        # The module is part of the key because the definitions hold its classes: a re-imported ansible-core must not get them.
        constants: Any = sys.modules["ansible.constants"]
        kind = get_plugin_class(loader.class_name)
        if kind not in constants.CONFIGURABLE_PLUGINS or constants.config.has_configuration_definition(kind, name):
            return None
        if any(not plugin_loader.own_files(folder) and os.path.exists(folder) for folder in _folders(fragment_loader)):
            return original(loader, name, module, path)
        key = (constants, kind, name, path, getattr(module, "DOCUMENTATION", ""))
        if key in cache:
            cache.hits += 1
            made = cache.get(key)
            if made is not None:
                constants.config.initialize_plugin_configuration_definitions(
                    kind, name, copy_variables.private_vars(made)
                )
            return None
        original(loader, name, module, path)
        # None if the plugin has no options. ansible-core records nothing in that case, and would parse the documentation every time.
        made = constants.config._plugins.get(kind, {}).get(name)
        # A run at a terminal is the only one of its process: no later one could use the copy.
        if made is None or run_context is None or run_context.terminal is None:
            cache.store(key, copy_variables.private_vars(made))
        return None

    return load


class _Inspect(WorkerView):
    """`inspect` in the module that creates command-line options: upstream inspects the same signatures for every option."""

    @staticmethod
    def signature(function: Callable[..., object]) -> inspect.Signature:
        return (
            inspect.signature(function) if cache_of(context.current(), "option-cache") is None else _signature(function)
        )


_signature = functools.lru_cache(maxsize=64)(inspect.signature)
inspect_view = _Inspect(inspect)


def builtin_filter(original: Callable[..., FoundPlugin], _site: str) -> Callable[..., FoundPlugin]:
    """
    Jinja2Loader.get_with_context: caches that a name such as `upper` is a filter of Jinja, not of Ansible.

    Ansible finds that out by loading all files of ansible.builtin, for every template that uses the filter. They do not change during a
    run, and a project's filters are on the search path.
    """

    @functools.wraps(original)
    def get(loader: PluginFinder, name: str, *args: object, **kwargs: object) -> FoundPlugin:
        cache = cache_of(context.current(), "plugin-cache")
        if cache is None or "." in name:
            return original(loader, name, *args, **kwargs)
        key = (id(loader), "not ours", name, len(loader._extra_dirs))
        missing: FoundPlugin | None = cache.get(key)
        if missing is not None:
            cache.hits += 1
            return type(missing)(None, _own(missing.plugin_load_context))
        found = original(loader, name, *args, **kwargs)
        if found.object is None:
            cache.store(key, type(found)(None, _own(found.plugin_load_context)))
        return found

    return get


def folder(original: Callable[..., Iterable[str]], _site: str) -> object:
    """PluginLoader.all(path_only=True): the list of files. Ansible lists all connection plugins whenever it reads a host's facts."""

    @functools.wraps(original)
    def list_all(loader: PluginFinder, *args: object, **kwargs: object) -> Iterable[str]:
        cache = cache_of(context.current(), "folder-cache")
        if cache is None or args or kwargs != {"path_only": True}:
            return original(loader, *args, **kwargs)
        key = (id(loader), tuple((path, _changed(path)) for path in _folders(loader)))
        found = cache.get(key)
        if found is None:
            found = tuple(original(loader, path_only=True))
            cache.store(key, found)
        else:
            cache.hits += 1
        return iter(found)

    return list_all


class _Glob(WorkerView):
    """`glob` in the module that lists plugins: folders of ansible-core are read once for the process, and again when they change."""

    @staticmethod
    def glob(pattern: str) -> list[str]:
        folder = os.path.dirname(pattern)
        if cache_of(context.current(), "folder-cache") is None or not plugin_loader.own_files(folder):
            return glob.glob(pattern)
        return list(_listed(pattern, _changed(folder)))


@functools.lru_cache(maxsize=BOUNDS["folder-cache"])
def _listed(pattern: str, _changed_at: int) -> tuple[str, ...]:
    return tuple(glob.glob(pattern))


glob_view = _Glob(glob)


def _folders(loader: PluginFinder) -> list[str]:
    return [str(getattr(entry, "path", entry)) for entry in loader._get_paths_with_context()]


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


# -- variables ----------------------------------------------------------------------------------------------------

_GROUP_VARS = "ansible.plugins.vars.host_group_vars"


def variables(original: Callable[..., object], site: str) -> object:
    """
    The variables of some hosts and groups, from the files beside the inventory and the play.

    Only if Ansible's own vars plugin is the only one: it caches its files for the whole run, so it returns the same result again. For
    another plugin that is unknown.
    """

    @functools.wraps(original)
    def get(loader: object, path: object, entities: object, stage: str) -> object:
        run_context = context.current()
        cache = cache_of(run_context, "vars-cache")
        if cache is None or type(entities) is not list or not only_own_vars_plugin():
            return original(loader, path, entities, stage)
        where = tuple(path) if isinstance(path, list) else path
        key = (site, where, stage, tuple((type(one), one.name) for one in entities))
        found = cache.get(key)
        if found is None:
            found = original(loader, path, entities, stage)
            cache.store(key, found)
        else:
            cache.hits += 1
        # combine_vars returns its argument if there is nothing to merge, and the caller modifies it.
        return copy.copy(found)

    return get


def only_own_vars_plugin() -> bool:
    """Whether no vars plugin but Ansible's own is known to the run."""
    from ansible.plugins.loader import vars_loader

    instances = vars_loader._plugin_instance_cache
    if vars_loader._paths is None or not instances:
        return False  # not loaded yet, or a folder was added since
    return all(
        one is not None and type(one).__module__ == _GROUP_VARS for one in [pair[0] for pair in instances.values()]
    )


# -- the user -----------------------------------------------------------------------------------------------------


class _Getpass(WorkerView):
    @staticmethod
    def getuser() -> str:
        run_context = context.current()
        cache = cache_of(run_context, "user-cache")
        if cache is None:
            return getpass.getuser()
        environ = os.environ
        key = (os.getuid(), *(environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")))
        name: str | None = cache.get(key)
        if name is None:
            name = getpass.getuser()
            cache.store(key, name)
        else:
            cache.hits += 1
        return name


getpass_view = _Getpass(getpass)


_LOADER = "ansible.plugins.loader:PluginLoader"
_FOUND = "every host would find it out again"
SEAMS = (
    for_speed(f"{_LOADER}.find_plugin_with_context", _FOUND, plugin),
    for_speed(f"{_LOADER}.all", _FOUND, folder),
    for_speed(f"{_LOADER}._load_config_defs", "every run would read it again", options),
    for_speed("ansible.plugins.loader:Jinja2Loader.get_with_context", _FOUND, builtin_filter),
    for_speed("ansible.plugins.loader:glob", "every run would read it again", always(glob_view)),
    for_speed(
        "ansible.cli.arguments.option_helpers:inspect",
        "every run would find it out again",
        always(inspect_view),
        since("2.19"),
    ),
    for_speed("ansible.vars.manager:get_vars_from_path", _FOUND, variables),
    for_speed("ansible.vars.manager:get_vars_from_inventory_sources", _FOUND, variables),
    for_speed("ansible.plugins.connection.local:getpass", _FOUND, always(getpass_view)),
)
