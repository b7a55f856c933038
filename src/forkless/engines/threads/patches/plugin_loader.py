# SPDX-License-Identifier: GPL-3.0-or-later
"""
Plugins: which run or worker a loaded plugin belongs to, and which methods of the loader need a lock.

A project's plugins belong to its run, and the modules that a worker loads belong to that worker: with forked workers, module-level
state of a plugin was never visible to another host's task.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import threading
import time
import types
import warnings
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from forkless.core.own_thread_locals import OwnThreadLocal
from forkless.engines.threads import context
from forkless.engines.threads.patches import (
    collection_modules,
    inherited_state,
    plugin_imports,
    run_state,
    stdlib_views,
)
from forkless.engines.threads.patches.core_files import own_files
from forkless.engines.threads.patches.worker_view import WorkerView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, MutableMapping

    from forkless.engines.threads.ansible_types import FoundPlugin, JinjaPluginLoader, PluginFinder
    from forkless.engines.threads.context import RunContext

__all__ = ["own_files"]

P = ParamSpec("P")
R = TypeVar("R")

# Plugins of ansible-core with state on module level. paramiko_ssh (with an underscore in a release that deprecates it) keeps connections under the
# address and the user without the port: of two hosts behind one address, one would be answered by the other. tree imports the folder of a
# run's --tree by value. Names with state in other plugins are seams: see `table`.
_STATEFUL = frozenset(
    {
        "ansible.plugins.callback.tree",
        "ansible.plugins.connection._paramiko_ssh",
        "ansible.plugins.connection.paramiko_ssh",
    }
)
# What the full name of a plugin of ansible-core begins with, as a module.
_BUILTIN = "ansible_collections.ansible.builtin.plugins."


def load_module_source(original: Callable[..., object], _site: str) -> object:
    """
    Upstream names plugin modules by file name alone and keeps them forever, so that a second project would get the first project's
    `same.py`. Here plugins of projects and collections are executed for each worker, or for the run outside of workers.
    """

    @functools.wraps(original)
    def load(
        loader: PluginFinder, name: str | None = None, path: str = "", *, python_module_name: str | None = None
    ) -> object:
        full = python_module_name
        if full is None:
            full = str(name) if str(name).startswith("ansible_collections.") else f"{loader.package}.{name}"
        if context.current() is None:
            if python_module_name is None:
                return original(loader, name, path)
            return original(loader, python_module_name=python_module_name, path=path)
        if own_files(path):
            full = _short(full, path)
        if full in _STATEFUL:
            return _private(full, path)
        if not own_files(path):
            return (
                collection_modules.load_plugin(full, path)
                if full.startswith("ansible_collections.")
                else _private(full, path)
            )
        module = _of_ansible(full, path)
        if not hasattr(module, "_forkless_dressed"):
            _dress_shared(module)
        return module

    return load


def _short(full: str, path: str) -> str:
    """
    The name of a plugin of ansible-core's that has the seams, also if a play names it `ansible.builtin.ssh`.

    Upstream executes the file once more under that name. Which of both is used depends on the name that a process has seen first.
    """
    if not full.startswith(_BUILTIN):
        return full
    kind, _, leaf = full.removeprefix(_BUILTIN).rpartition(".")
    where = os.path.join("ansible", "plugins", *kind.split("."), f"{leaf}.py")
    return f"ansible.plugins.{kind}.{leaf}" if path.endswith(os.sep + where) else full


def _of_ansible(full: str, path: str) -> types.ModuleType:
    """A plugin of ansible-core, shared by the process. If two threads import it, Python's import lock makes only the second one wait."""
    found = sys.modules.get(full)
    if found is not None and not getattr(found.__spec__, "_initializing", False):
        return found  # asked for by every task: as `import_module` would find it
    leaf = full.rpartition(".")[2]
    # An import would bind the plugin in its package: `ansible.plugins.lookup.list` would replace the builtin in LookupBase's own module.
    if not hasattr(builtins, leaf) and full.startswith("ansible.plugins.") and path.endswith(f"{os.sep}{leaf}.py"):
        return importlib.import_module(full)
    if found is None:
        # Or an alias of the file, which the import system cannot find by name. Plugins of ansible-core create no state on import.
        # Collections leave sys.modules when a run ends, and `ansible.builtin` with them. The module is kept with this ansible-core: filter/core.py
        # registers a type of its own at each import, for good, and one more copy of the file would stay in memory after each run.
        kept: dict[str, types.ModuleType] = vars(sys.modules["ansible.plugins"]).setdefault("_forkless_aliases", {})
        made = kept.get(full)
        if made is None:
            made = _empty(full, path)
            _execute(made)
            made = kept.setdefault(full, made)
        found = sys.modules.setdefault(full, made)
    return found


def _private(full: str, path: str) -> types.ModuleType:
    """A project's plugin, or one with state, executed for the calling worker, or for the run if the thread is no worker."""
    home = context.current_worker() or context.current()
    assert home is not None  # noqa: S101  # for the type checker: the callers have checked it
    loaded: dict[str, types.ModuleType] = home.state.setdefault("plugins", {})
    if path in loaded:
        return loaded[path]
    module = _empty(full, path)
    if sys.modules.setdefault(full, module) is not module:
        # The name belongs to another project's file or to ansible-core; that module is not replaced.
        module = _empty(f"{full}_{hashlib.sha256(f'{path} {id(home)}'.encode()).hexdigest()[:12]}", path)
        sys.modules[module.__name__] = module
    forget = functools.partial(_forget, module.__name__, module)
    try:
        vars(module)["__builtins__"] = plugin_imports.BUILTINS
        exec(collection_modules.code_of(path), vars(module))  # noqa: S102  # what an import does
    except BaseException:  # a stop during the import: a partly executed module must not be found later
        forget()
        raise
    loaded[path] = module
    home.at_end.append(forget)
    # Of ansible-core's own, only paramiko_ssh has state: connections, which a forked worker could not use, because the threads that serve them were not copied.
    if not own_files(path):
        varies = collection_modules.import_varies(path)
        inherited_state.executed(path, module, functools.partial(_private, full, path), varies=varies)
    return module


def private_by_name(name: str) -> types.ModuleType | None:
    """The worker's own module of a plugin of ansible-core with state, for a plugin that imports it by this name; None of any other name."""
    if name not in _STATEFUL or context.current() is None:
        return None
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else _private(name, spec.origin)


class _Pinned(OwnThreadLocal):
    """The table of filters or tests that this thread uses, by loader: other threads do not see a table while it is being filled."""

    tables: Mapping[int, MutableMapping[str, object]] = types.MappingProxyType({})


_pinned = _Pinned()


class JinjaTable(run_state.PerRun):
    """`_cached_non_collection_wrappers`: one for each run, or the one that the calling thread has pinned."""

    def __get__(self, thing: object, kind: type | None = None) -> object:
        found = _pinned.tables.get(id(thing)) if thing is not None else None
        return super().__get__(thing, kind) if found is None else found


def jinja_table(_original: object, site: str) -> object:
    return JinjaTable(site.rpartition(".")[2], lambda _: {})


@contextlib.contextmanager
def _pin(loader: JinjaPluginLoader, table: MutableMapping[str, object]) -> Iterator[None]:
    outer, _pinned.tables = _pinned.tables, {**_pinned.tables, id(loader): table}
    try:
        yield
    finally:
        _pinned.tables = outer


# Seconds that a thread waits for another one to fill a table. A project's file that blocks holds up its own thread only.
_FILLED_WITHIN = 2.0


def _complete_table(fill: Callable[[], object], loader: JinjaPluginLoader) -> MutableMapping[str, object]:
    """
    All filters or tests of ansible-core and the project. One thread of a run fills a table, and others wait for it a while. A thread that
    has waited long enough fills one of its own; the first complete one becomes the run's.

    Upstream treats a non-empty table as complete, and fills it by executing the project's files. So it is filled in a private table, and
    no lock is held while files are executed.
    """
    table = loader._cached_non_collection_wrappers
    if table:
        return table
    run_context = context.current()
    assert run_context is not None  # noqa: S101  # for the type checker: the callers have checked it
    being_filled: dict[int, threading.Event] = run_context.state.setdefault("tables being filled", {})
    filled = threading.Event()
    try:
        other = being_filled.setdefault(id(loader), filled)
        deadline = time.monotonic() + _FILLED_WITHIN
        while other is not filled and not other.wait(0.1) and time.monotonic() < deadline:
            pass  # in short waits: a stop of the worker is noticed between two of them
        return _table_of_this_thread(fill, loader, run_context)
    finally:
        filled.set()
        if being_filled.get(id(loader)) is filled:
            del being_filled[id(loader)]


def _table_of_this_thread(
    fill: Callable[[], object], loader: JinjaPluginLoader, run_context: RunContext
) -> MutableMapping[str, object]:
    while True:
        table = loader._cached_non_collection_wrappers
        if table:
            return table
        folders, table = len(loader._extra_dirs), {}
        with _pin(loader, table):
            fill()
        with run_context.loader_lock:
            # A folder that was added in the meantime may contain filters too; then the table is filled again.
            if folders == len(loader._extra_dirs):
                known = loader._cached_non_collection_wrappers
                if not known:
                    loader._cached_non_collection_wrappers = known = table
                return known


def fill_table(original: Callable[..., object], _site: str) -> object:
    """Jinja2Loader._ensure_non_collection_wrappers."""

    @functools.wraps(original)
    def ensure(loader: JinjaPluginLoader, *args: object, **kwargs: object) -> None:
        if context.current() is None or id(loader) in _pinned.tables:
            original(loader, *args, **kwargs)
        else:
            _complete_table(functools.partial(original, loader, *args, **kwargs), loader)

    return ensure


def private_filter(original: Callable[..., FoundPlugin], _site: str) -> Callable[..., FoundPlugin]:
    """Filters and tests are wrapped once for the run; a project's filter is created again for each worker that uses it."""

    @functools.wraps(original)
    def get(loader: JinjaPluginLoader, name: str, *args: object, **kwargs: object) -> FoundPlugin:
        home = context.current_worker() or context.current()
        if home is None:
            return original(loader, name, *args, **kwargs)
        if not loader._cached_non_collection_wrappers:
            loader._ensure_non_collection_wrappers()
        # Pinned from here on: another thread may add a folder, which empties the table, between upstream's check that it is filled and
        # its lookup. If it was emptied just before this line, upstream fills a new table for this thread.
        table = loader._cached_non_collection_wrappers or {}
        with _pin(loader, table):
            found = original(loader, name, *args, **kwargs)
        wrapper = found.object
        path = getattr(wrapper, "_original_path", None)
        if not path or own_files(path) or table.get(name.removeprefix("ansible.legacy.")) is not wrapper:
            return found
        twins: dict[tuple[str, str], object] = home.state.setdefault("filters", {})
        key = (path, name)
        if key not in twins:
            module = _private(f"{loader.package}.{os.path.splitext(os.path.basename(path))[0]}", path)
            offered = getattr(getattr(module, loader.class_name)(), loader.method_map_name)()
            short = name.rpartition(".")[2]
            twin = loader._plugin_wrapper_type(offered[short]) if short in offered else wrapper
            for key_, value in vars(wrapper).items():
                if key_ not in vars(twin) or key_.startswith(("_original", "_load", "_redirected", "ansible_")):
                    setattr(twin, key_, copy.copy(value))
            twins[key] = twin
        return type(found)(twins[key], found.plugin_load_context)

    return get


def _empty(name: str, path: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    return importlib.util.module_from_spec(spec)


def _execute(module: types.ModuleType) -> None:
    loader: Any = module.__loader__
    exec(loader.get_code(module.__name__), vars(module))  # noqa: S102  # what an import does


def _forget(name: str, module: types.ModuleType) -> None:
    if sys.modules.get(name) is module:
        del sys.modules[name]


_dressed: list[Callable[[], None]] = []


def _dress_shared(module: Any) -> None:
    """Install the views in a plugin module of ansible-core, until the seams are undone."""
    module._forkless_dressed = True
    remove_views = stdlib_views.install_views(module)

    def undo() -> None:
        remove_views()
        with contextlib.suppress(AttributeError):
            del module._forkless_dressed

    _dressed.append(undo)


def remove_all_views() -> None:
    while _dressed:
        _dressed.pop()()


def forget_dressed() -> None:
    """Leave the views installed: an abandoned thread may still use these modules, and no other run will."""
    _dressed.clear()


def locked(which: str) -> Callable[[Callable[P, R], str], object]:
    """Wrap a method so that one thread of a run calls it at a time. Not for methods that execute a plugin: a plugin that blocks would block every thread of the run."""

    def stand_in(original: Callable[P, R], _site: str) -> object:
        real: Callable[P, R] = original.__func__ if isinstance(original, staticmethod | classmethod) else original

        @functools.wraps(real)
        def method(*args: P.args, **kwargs: P.kwargs) -> R:
            run_context = context.current()
            if run_context is None:
                return real(*args, **kwargs)
            with getattr(run_context, which):
                return real(*args, **kwargs)

        return type(original)(method) if isinstance(original, staticmethod | classmethod) else method

    return stand_in


def config_warnings(original: Callable[..., object], _site: str) -> object:
    """Upstream empties process-wide lists with `while warnings: warnings.pop()`; another thread may take the last item in between."""

    @functools.wraps(original)
    def report(*args: object, **kwargs: object) -> object:
        while True:
            try:
                return original(*args, **kwargs)
            except (KeyError, IndexError) as error:
                if "pop from" not in str(error):
                    raise

    return report


def quiet_warnings(_original: object, _site: str) -> object:
    """
    `warnings` in the plugin loader.

    Upstream replaces the process's warning filters around each import of a plugin, which discards changes by other threads.
    """

    class Warnings(WorkerView):
        @staticmethod
        @contextlib.contextmanager
        def catch_warnings(**_: object) -> Iterator[None]:
            yield

        @staticmethod
        def simplefilter(*_: object, **__: object) -> None: ...

    return Warnings(warnings)


def collection_loader(original: Callable[..., object], _site: str) -> object:
    """The collection finder is installed once for the process; upstream would warn when a second run installs it."""

    @functools.wraps(original)
    def configure(*args: object, **kwargs: object) -> None:
        from ansible.utils.collection_loader import AnsibleCollectionConfig

        if AnsibleCollectionConfig.collection_finder is None:
            original(*args, **kwargs)

    return configure


@functools.cache
def _program_of_ansible() -> str | None:
    """The path of the `ansible` program of this ansible-core, which may be neither in PATH nor beside the running program."""
    try:
        files = importlib.metadata.files("ansible-core") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [str(one.locate()) for one in files if one.name == "ansible" and one.parent.name in ("bin", "Scripts")]
    return found[0] if found and os.path.isfile(found[0]) else None


def asker(
    original: Callable[[object], dict[str, dict[str, str]]], _site: str
) -> Callable[[object], dict[str, dict[str, str]]]:
    """
    The ssh program runs SSH_ASKPASS to get a password. Upstream uses the `ansible` beside the running program, or else the one in PATH:
    a service may have neither.
    """

    @functools.wraps(original)
    def stand_in(self: object) -> dict[str, dict[str, str]]:
        how = original(self)
        environ = how.get("env", {})
        program = _program_of_ansible()
        if environ.get("SSH_ASKPASS") == "ansible" and program:
            environ["SSH_ASKPASS"] = program
        return how

    return stand_in
