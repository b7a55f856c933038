# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a run finds out once, and forked workers found out again for every task.

| name           | what is kept                                        | seen anew                                               | at most |
| -------------- | --------------------------------------------------- | ------------------------------------------------------- | ------- |
| template-cache | compiled templates and expressions, by their text   | a search path of filters or tests grew; the next run    | 4096    |
| plugin-cache   | where a plugin was found; which filters are Jinja's  | a search path grew, the file is gone; the next run      | 4096    |
| folder-cache   | which plugin files lie in the search path           | a folder in it changed, the path grew; the next run*    | 256     |
| vars-cache     | what group_vars/ and host_vars/ say of a host/group | another vars plugin appeared; the next run              | 16384   |
| user-cache     | the name of the user we run as                      | another uid, another LOGNAME, USER, ...                 | 16      |
| option-cache   | the options that a plugin of ansible-core documents | another documentation, a project's own doc fragments    | 512     |

Each lives with the run, never longer. The last one, and (*) what lies in the folders of ansible-core itself, live with the process: its own
plugins do not change in it. `FORKLESS_DISABLE=template-cache,vars-cache` switches off by name, to find a culprit. A full cache is emptied:
what is used will be back at once, and what is not was the reason that it was full.
"""

from __future__ import annotations

import copy
import functools
import getpass
import glob
import inspect
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from forkless.engines import _copies, _plugins, _scene
from forkless.engines._views import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines._scene import Scene

__all__ = ["BOUNDS", "touches"]

BOUNDS = {
    "template-cache": 4096,
    "plugin-cache": 4096,
    "folder-cache": 256,
    "vars-cache": 16384,
    "user-cache": 16,
    "option-cache": 512,
}


class Kept(dict[Any, Any]):
    """One cache of one run. Reading takes no lock: a dict's own are enough, and the worst race finds the same thing twice."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self._bound = bound
        self.hits = 0

    def keep(self, key: Any, value: Any) -> None:
        if len(self) >= self._bound:
            self.clear()
        self[key] = value


# Those that are good for every run of this process.
LASTING = {"option-cache": Kept(BOUNDS["option-cache"])}


def kept(scene: Scene | None, name: str) -> Kept | None:
    """The run's cache of this name; None where it is switched off or there is no run."""
    if scene is None or name in scene.off:
        return None
    if name in LASTING:
        return LASTING[name]
    found: Kept | None = scene.state.get(name)
    if found is None:
        found = scene.state.setdefault(name, Kept(BOUNDS[name]))
    return found


# -- templates ----------------------------------------------------------------------------------------------------


class _Last(threading.local):
    code: Any = None


_last = _Last()


def _template_key(env: Any, kind: str, source: str) -> Any:
    """
    All that the compiled code follows from: the text, the syntax, and which filters and tests there are.

    Jinja asks while compiling whether a filter exists and what it wants to be given. Search paths only grow within a run, so their
    lengths say whether another file may have come first.
    """
    from ansible.plugins.loader import filter_loader, test_loader

    return (
        kind,
        str.__str__(source),
        type(env),
        env.block_start_string, env.block_end_string, env.variable_start_string, env.variable_end_string,
        env.comment_start_string, env.comment_end_string, env.line_statement_prefix, env.line_comment_prefix,
        env.trim_blocks, env.lstrip_blocks, env.newline_sequence, env.keep_trailing_newline,
        env.optimized, env.finalize, env.autoescape, tuple(env.extensions),
        len(filter_loader._extra_dirs), len(test_loader._extra_dirs),
    )  # fmt: skip


def template(original: Any, _site: str) -> Any:
    """Environment.from_string: the text is parsed and compiled once for the run; what is made of the code is the caller's own."""

    @functools.wraps(original)
    def from_string(env: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        cache = kept(_scene.current(), "template-cache")
        if cache is None or args or kwargs or getattr(env, "_debuggable_template_source", False):
            return original(env, source, *args, **kwargs)
        if not isinstance(source, str):  # a tree, from compile_expression below, which keeps the code
            code = _last.code = env.compile(source)
        else:
            key = _template_key(env, "template", source)
            code = cache.get(key)
            if code is None:
                code = env.compile(source)  # what it raises is not kept
                cache.keep(key, code)
            else:
                cache.hits += 1
        return env.template_class.from_code(env, code, env.make_globals(None), None)

    return from_string


def expression(original: Any, _site: str) -> Any:
    """Environment.compile_expression, likewise."""

    @functools.wraps(original)
    def compile_expression(env: Any, source: str, undefined_to_none: bool = True) -> Any:
        cache = kept(_scene.current(), "template-cache")
        if cache is None or getattr(env, "_debuggable_template_source", False):
            return original(env, source, undefined_to_none)
        key = _template_key(env, "expression", source)
        code = cache.get(key)
        if code is None:
            _last.code = None
            made = original(env, source, undefined_to_none)
            code, _last.code = _last.code, None
            if code is not None:
                cache.keep(key, code)
            return made
        cache.hits += 1
        from jinja2.environment import TemplateExpression

        return TemplateExpression(
            env.template_class.from_code(env, code, env.make_globals(None), None), undefined_to_none
        )

    return compile_expression


# -- plugins ------------------------------------------------------------------------------------------------------


def plugin(original: Any, _site: str) -> Any:
    """PluginLoader.find_plugin_with_context: found once, and there as long as the file is. What was not found is looked for again."""

    @functools.wraps(original)
    def find(
        loader: Any,
        name: str,
        mod_type: str = "",
        ignore_deprecated: bool = False,
        check_aliases: bool = False,
        collection_list: Any = None,
    ) -> Any:
        cache = kept(_scene.current(), "plugin-cache")
        if cache is None:
            return original(loader, name, mod_type, ignore_deprecated, check_aliases, collection_list)
        listed = tuple(collection_list) if collection_list else None
        key = (id(loader), name, mod_type, ignore_deprecated, check_aliases, listed, len(loader._extra_dirs))
        found = cache.get(key)
        if found is None:
            found = original(loader, name, mod_type, ignore_deprecated, check_aliases, collection_list)
            # One with something to say, a deprecation or an error, says it every time.
            if found.resolved and not (found.deprecated or found.error_list or found.import_error_list):
                cache.keep(key, _own(found))
            return found
        # Those that came with ansible-core do not go while it runs; asking for each of some ten plugins of every task takes its time.
        if not (_plugins.own_files(found.plugin_resolved_path) or os.path.exists(found.plugin_resolved_path)):
            cache.pop(key, None)
            return original(loader, name, mod_type, ignore_deprecated, check_aliases, collection_list)
        cache.hits += 1
        return _own(found)

    return find


def _own(found: Any) -> Any:
    """A load context that the caller may write to."""
    twin = object.__new__(type(found))
    fields = twin.__dict__
    fields.update(found.__dict__)
    for name, value in fields.items():
        if type(value) is list:
            fields[name] = value.copy()
    return twin


def options(original: Any, _site: str) -> Any:
    """
    PluginLoader._load_config_defs: what a plugin's documentation says of its options, which is YAML and takes its time at the beginning of every run.

    Only of ansible-core's own plugins, and only where no project brings parts of documentation of its own.
    """

    @functools.wraps(original)
    def load(loader: Any, name: str, module: Any, path: str) -> Any:
        cache = kept(_scene.current(), "option-cache")
        if cache is None or not (loader.class_name and _plugins.own_files(path)):
            return original(loader, name, module, path)
        from ansible.plugins.loader import fragment_loader, get_plugin_class

        # Its own classes are in what it says: an ansible-core that was loaded anew starts anew.
        constants: Any = sys.modules["ansible.constants"]
        kind = get_plugin_class(loader.class_name)
        if kind not in constants.CONFIGURABLE_PLUGINS or constants.config.has_configuration_definition(kind, name):
            return None
        if any(not _plugins.own_files(folder) and os.path.exists(folder) for folder in _folders(fragment_loader)):
            return original(loader, name, module, path)
        key = (constants, kind, name, path, getattr(module, "DOCUMENTATION", ""))
        if key in cache:
            cache.hits += 1
            made = cache.get(key)
            if made is not None:
                constants.config.initialize_plugin_configuration_definitions(kind, name, _copies.private_vars(made))
            return None
        original(loader, name, module, path)
        # None where it has no options: that is found out again and again otherwise, for nothing is noted down.
        cache.keep(key, _copies.private_vars(constants.config._plugins.get(kind, {}).get(name)))
        return None

    return load


class _Inspect(View):
    """`inspect` where the command line's options are made: each asks anew what arguments its kind of option takes."""

    @staticmethod
    def signature(function: Any) -> inspect.Signature:
        return inspect.signature(function) if kept(_scene.current(), "option-cache") is None else _signature(function)


_signature = functools.lru_cache(maxsize=64)(inspect.signature)
inspect_view = _Inspect(inspect)


def builtin_filter(original: Any, _site: str) -> Any:
    """
    Jinja2Loader.get_with_context: that a name like `upper` is not Ansible's but Jinja's own.

    Ansible finds that out, for every template that uses it, by going through all files of ansible.builtin. They do not change in a run, and a
    project's are on the search path.
    """

    @functools.wraps(original)
    def get(loader: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        cache = kept(_scene.current(), "plugin-cache")
        if cache is None or "." in name:
            return original(loader, name, *args, **kwargs)
        key = (id(loader), "not ours", name, len(loader._extra_dirs))
        missing = cache.get(key)
        if missing is not None:
            cache.hits += 1
            return type(missing)(None, _own(missing.plugin_load_context))
        found = original(loader, name, *args, **kwargs)
        if found.object is None:
            cache.keep(key, type(found)(None, _own(found.plugin_load_context)))
        return found

    return get


def folder(original: Any, _site: str) -> Any:
    """PluginLoader.all(path_only=True): which files there are. Ansible asks for all connections' whenever it reads a host's facts."""

    @functools.wraps(original)
    def list_all(loader: Any, *args: Any, **kwargs: Any) -> Any:
        cache = kept(_scene.current(), "folder-cache")
        if cache is None or args or kwargs != {"path_only": True}:
            return original(loader, *args, **kwargs)
        key = (id(loader), tuple((path, _changed(path)) for path in _folders(loader)))
        found = cache.get(key)
        if found is None:
            found = tuple(original(loader, path_only=True))
            cache.keep(key, found)
        else:
            cache.hits += 1
        return iter(found)

    return list_all


class _Glob(View):
    """`glob` where plugins are listed: the folders of ansible-core itself are read once for the process, or when they change."""

    @staticmethod
    def glob(pattern: str) -> list[str]:
        folder = os.path.dirname(pattern)
        if kept(_scene.current(), "folder-cache") is None or not _plugins.own_files(folder):
            return glob.glob(pattern)
        return list(_listed(pattern, _changed(folder)))


@functools.lru_cache(maxsize=BOUNDS["folder-cache"])
def _listed(pattern: str, _changed_at: int) -> tuple[str, ...]:
    return tuple(glob.glob(pattern))


glob_view = _Glob(glob)


def _folders(loader: Any) -> list[str]:
    return [getattr(entry, "path", entry) for entry in loader._get_paths_with_context()]


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


# -- variables ----------------------------------------------------------------------------------------------------

_GROUP_VARS = "ansible.plugins.vars.host_group_vars"


def variables(original: Any, site: str) -> Any:
    """
    What the files beside the inventory and the play say of some hosts and groups.

    Only where Ansible's own plugin is the only one to ask: it remembers which files it found and what was in them for the whole run, so that it
    says the same again; of another's plugin nobody knows that.
    """

    @functools.wraps(original)
    def get(loader: Any, path: Any, entities: Any, stage: str) -> Any:
        scene = _scene.current()
        cache = kept(scene, "vars-cache")
        if cache is None or type(entities) is not list or not _only_own():
            return original(loader, path, entities, stage)
        where = tuple(path) if isinstance(path, list) else path
        key = (site, where, stage, tuple((type(one), one.name) for one in entities))
        found = cache.get(key)
        if found is None:
            found = original(loader, path, entities, stage)
            cache.keep(key, found)
        else:
            cache.hits += 1
        # Hash merging hands its argument on when there is nothing to merge, and the caller adds to that.
        return copy.copy(found)

    return get


def _only_own() -> bool:
    from ansible.plugins.loader import vars_loader

    instances = vars_loader._plugin_instance_cache
    if vars_loader._paths is None or not instances:
        return False  # not loaded yet, or a folder was added since
    return all(
        one is not None and type(one).__module__ == _GROUP_VARS for one in [pair[0] for pair in instances.values()]
    )


# -- the user -----------------------------------------------------------------------------------------------------


class _Getpass(View):
    @staticmethod
    def getuser() -> str:
        scene = _scene.current()
        cache = kept(scene, "user-cache")
        if cache is None:
            return getpass.getuser()
        environ = os.environ
        key = (os.getuid(), *(environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")))
        name: str | None = cache.get(key)
        if name is None:
            name = getpass.getuser()
            cache.keep(key, name)
        else:
            cache.hits += 1
        return name


getpass_view = _Getpass(getpass)


def _touch(site: str, why: str, stand_in: Callable[[Any, str], Any], minors: Any = None) -> tuple[Any, ...]:
    return (site, why, stand_in) if minors is None else (site, why, stand_in, minors)


def touches(known: tuple[str, ...]) -> tuple[tuple[Any, ...], ...]:
    """The seams of this room, for the table."""
    since_2_19 = known[1:]
    bits = "ansible._internal._templating._jinja_bits:AnsibleEnvironment"
    loader = "ansible.plugins.loader:PluginLoader"
    manager = "ansible.vars.manager"
    again = "every host would find it out again"
    return (
        _touch(f"{bits}.from_string", "every host would compile it again", template, since_2_19),
        _touch(f"{bits}.compile_expression", "every host would compile it again", expression, since_2_19),
        _touch(
            "ansible.template:AnsibleEnvironment.from_string", "every host would compile it again", template, known[:1]
        ),
        _touch(f"{loader}.find_plugin_with_context", again, plugin),
        _touch(f"{loader}.all", again, folder),
        _touch(f"{loader}._load_config_defs", "every run would read it again", options),
        _touch("ansible.plugins.loader:Jinja2Loader.get_with_context", again, builtin_filter),
        _touch("ansible.plugins.loader:glob", "every run would read it again", lambda _original, _site: glob_view),
        _touch(
            "ansible.cli.arguments.option_helpers:inspect",
            "every run would find it out again",
            lambda _original, _site: inspect_view,
            since_2_19,
        ),
        _touch(f"{manager}:get_vars_from_path", again, variables),
        _touch(f"{manager}:get_vars_from_inventory_sources", again, variables),
        _touch("ansible.plugins.connection.local:getpass", again, lambda _original, _site: getpass_view),
    )
