# SPDX-License-Identifier: GPL-3.0-or-later
"""
Modules of collections, executed for each worker.

A forked worker had a private copy of the module-level state of its plugins and of everything they import. Here sys.modules holds one
`CollectionModule` for each file of a collection. It executes nothing; its attributes are looked up in the module that the calling
thread's worker has executed. So pickle, inspect, dataclasses and importlib, which look up modules by name, find the worker's objects.

Files that cannot hold state (see `stateless_files`) are executed once and shared. No lock is held while a file is executed: if two threads
execute a stateless file at the same time, the module of the first to finish is kept, and the other is discarded.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forkless.engines.threads import context
from forkless.engines.threads.patches import inherited_state, stateless_files
from forkless.engines.threads.patches.core_files import own_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.patches.module_places import PluginValue
    from forkless.engines.threads.workers.worker import Worker

__all__ = [
    "INSTALLED",
    "LIBRARIES",
    "CollectionModule",
    "PrivateModules",
    "code_of",
    "here",
    "import_varies",
    "load_plugin",
]

# What the names of a project's libraries in sys.modules begin with; see `project_libraries`.
LIBRARIES = "_forkless_libraries"
# Folders of packages that belong to the machine, not to a project.
INSTALLED = ("site-packages", "dist-packages")

# Attributes that importlib sets, with the same value in every worker.
_OWN = frozenset(
    {"__name__", "__loader__", "__package__", "__spec__", "__path__", "__file__", "__cached__", "__class__", "__reduce_ex__"}
)  # fmt: skip


class CollectionModule(types.ModuleType):
    """One file of a collection in sys.modules. Each worker sees the attributes of its private module."""

    def __getattribute__(self, name: str) -> object:
        if name in _OWN:
            return types.ModuleType.__getattribute__(self, name)
        try:
            return getattr(here().load(self), name)
        except AttributeError:
            # A submodule: importlib sets it on its package once, for all workers.
            child = sys.modules.get(f"{types.ModuleType.__getattribute__(self, '__name__')}.{name}")
            if type(child) is CollectionModule:
                return child
            raise

    def __setattr__(self, name: str, value: object) -> None:
        if name in _OWN:
            types.ModuleType.__setattr__(self, name, value)
        elif type(value) is not CollectionModule:
            setattr(here().load(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(here().load(self), name)

    def __dir__(self) -> list[str]:
        return dir(here().load(self))

    def __repr__(self) -> str:
        return f"<module {self.__name__!r} of a collection, from {self.__file__!r}>"


def is_package(module: types.ModuleType) -> bool:
    """Whether the module is a package; executes nothing."""
    return "__path__" in types.ModuleType.__getattribute__(module, "__dict__")


@dataclass(frozen=True)
class _Source:
    """A file, compiled and analyzed once for the process, and again when it changes."""

    stamp: tuple[int, int]
    code: types.CodeType
    findings: stateless_files.Findings


_sources: dict[str, _Source] = {}
_compiling = threading.Lock()  # nothing of a file is executed while it is held
# Analyzing a larger file takes longer than executing it a few hundred times.
_LARGE = 100_000


def _source(path: str, package: str) -> _Source:
    stat = os.stat(path)
    stamp = (stat.st_mtime_ns, stat.st_size)
    known = _sources.get(path)
    if known is not None and known.stamp == stamp:
        return known
    # Fifty hosts import the same files in their first task: each is compiled by one thread.
    with _compiling:
        known = _sources.get(path)
        if known is not None and known.stamp == stamp:
            return known
        with open(path, "rb") as file:
            text = file.read()
        code = compile(text, path, "exec", dont_inherit=True)
        if len(text) > _LARGE:
            findings = stateless_files.Findings(state=[(0, "large file")], varies=True)
        else:
            findings = stateless_files.examine(text, package)
        made = _sources[path] = _Source(stamp, code, findings)
        return made


def code_of(path: str) -> types.CodeType:
    """The code of a plugin's file, which many workers execute."""
    return _source(path, "").code


def import_varies(path: str) -> bool:
    """Whether two imports of the file may leave different values."""
    return _source(path, "").findings.varies


class _Shared:
    """Modules of stateless files; replaced when the configuration of ansible-core changes or a library is installed."""

    def __init__(self) -> None:
        self.modules: dict[str, tuple[_Source, types.ModuleType]] = {}
        self._verdicts: dict[str, bool] = {}
        self._patched: set[str] = set()

    def holds_none(self, entry: CollectionModule, source: _Source, asking: frozenset[str] = frozenset()) -> bool:
        """Whether neither the file nor any file that it imports can hold state. Files that import each other count as stateful."""
        name = entry.__name__
        known = self._verdicts.get(name)
        if known is None:
            known = (
                not source.findings.state
                and name not in asking
                # A module that runs in this process gets another AnsibleModule set for each task.
                and ".plugins.modules." not in name
                # What else a library's files import is not followed.
                and not name.startswith(LIBRARIES)
                and all(self._import_holds_none(entry, one, asking | {name}) for one in source.findings.imports)
            )
            self._verdicts[name] = known
        return known and name not in self._patched

    def patched(self, names: set[str]) -> None:
        """Treat modules whose attributes another file sets as stateful: the change belongs to the worker that executes that file."""
        self._patched |= {name for name in names if name.startswith("ansible_collections.")}

    def _import_holds_none(
        self, entry: CollectionModule, what: tuple[str, tuple[str, ...], int], asking: frozenset[str]
    ) -> bool:
        name, names, level = what
        if level:
            try:
                name = importlib.util.resolve_name("." * level + name, entry.__package__)
            except ImportError:
                return False
        top = name.partition(".")[0]
        if top not in ("ansible_collections", "ansible"):
            return _is_of_the_machine(top)
        try:
            module = importlib.import_module(name)
        except ImportError:
            return not name.startswith("ansible_collections")
        modules = [module]
        if is_package(module):
            for one in names:
                child = f"{name}.{one}"
                if type(module) is not CollectionModule and child not in sys.modules and _may_define(module, one):
                    continue  # a class or function of ansible-core
                try:
                    modules.append(importlib.import_module(child))
                except ModuleNotFoundError as error:
                    if type(module) is not CollectionModule or error.name != child:
                        return False  # otherwise it is a name that the package's code defines
                except ImportError:
                    return False
        return all(self._module_holds_none(one, asking) for one in modules)

    def _module_holds_none(self, module: types.ModuleType, asking: frozenset[str]) -> bool:
        if type(module) is not CollectionModule:
            return True  # a module of ansible-core, or a package without code
        try:
            source = _source(module.__file__ or "", module.__package__ or "")
        except (OSError, SyntaxError, ValueError):
            return False
        return self.holds_none(module, source, asking)


_shared = _Shared()


def _may_define(module: types.ModuleType, name: str) -> bool:
    """Whether a module has this name, without executing its __getattr__: ansible-core's warn of names that are deprecated."""
    return name in vars(module) or "__getattr__" in vars(module)


@functools.cache
def _is_of_the_machine(top: str) -> bool:
    """Whether every project imports the same module by that name. Any other may be a file of a project, and its own for each worker."""
    if top in sys.stdlib_module_names:
        return True
    spec = importlib.machinery.PathFinder.find_spec(top)
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    return any(f"{os.sep}{one}{os.sep}" in place for place in places if place for one in INSTALLED)


def forget_shared() -> None:
    """Execute stateless files again from now on, because a library was installed or the configuration changes."""
    global _shared  # noqa: PLW0603  # workers that are running keep the previous object
    _shared = _Shared()


class _Loading:
    """A file that a thread is executing now."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self.thread = threading.get_ident()
        self.done = threading.Event()


class PrivateModules:
    """The collection modules that one worker, or a run outside of its workers, has executed. Used by all threads of that worker."""

    def __init__(self, replaced: dict[str, object] | None = None) -> None:
        self.replaced: dict[str, object] = replaced or {}
        """Entries that plugins put into sys.modules."""
        self._shared = _shared
        self._modules: dict[str, object] = {}
        self._loading: dict[str, _Loading] = {}
        self._waiting: dict[int, _Loading] = {}

    def load(self, entry: CollectionModule) -> object:
        """The module, executed if it was not yet. Threads of one worker wait for each other, as with Python's import locks."""
        name = entry.__name__
        loading = self._loading.get(name)
        if loading is not None:
            return loading.module if self._in_circle(loading) else self._wait(entry, loading)
        module = self._modules.get(name)
        return self._execute(entry) if module is None else module

    def forget(self, name: str) -> None:
        """Make the next import execute the file again."""
        self._modules.pop(name, None)

    def replace(self, name: str, module: object) -> None:
        self._modules[name] = module

    def _in_circle(self, loading: _Loading | None) -> bool:
        """Whether waiting for this file would be a deadlock: its thread waits, directly or indirectly, for the calling thread."""
        me = threading.get_ident()
        while loading is not None:
            if loading.thread == me:
                return True
            loading = self._waiting.get(loading.thread)
        return False

    def _wait(self, entry: CollectionModule, loading: _Loading) -> object:
        me = threading.get_ident()
        self._waiting[me] = loading
        try:
            # With a timeout: an exception that is sent to the thread is raised only between two waits in C.
            while not loading.done.wait(0.25):
                if self._in_circle(loading):
                    return loading.module
        finally:
            self._waiting.pop(me, None)
        return self.load(entry)

    def _execute(self, entry: CollectionModule) -> object:
        name = entry.__name__
        source = _source(entry.__file__ or "", entry.__package__ or "")
        self._shared.patched(source.findings.patches)
        shared = self._shared.modules if self._shared.holds_none(entry, source) else None
        known = shared.get(name) if shared is not None else None
        if shared is not None and known is not None:
            if known[0] is source:
                self._modules[name] = known[1]
                return known[1]
            shared.pop(name, None)  # the file has changed
        module = _empty(entry)
        # A shared file is entered here too while it is executed: ansible-core looks at the stack for each deprecation, asks for the module of
        # this file, and must find this one.
        loading = _Loading(module)
        if self._loading.setdefault(name, loading) is not loading:
            return self.load(entry)
        self._modules[name] = module
        try:
            exec(source.code, vars(module))  # noqa: S102  # what an import does
            if shared is not None:
                self._modules[name] = shared.setdefault(name, (source, module))[1]  # another worker may have been first
            elif self is not _outside:
                inherited_state.executed(
                    name, module, functools.partial(_own_module, entry), varies=source.findings.varies
                )
        except BaseException:  # a stop during the import: a partly executed module must not be found later
            self._modules.pop(name, None)
            raise
        finally:
            self._loading.pop(name, None)
            loading.done.set()
        return self._modules.get(name, module)


def _empty(entry: CollectionModule) -> types.ModuleType:
    from forkless.engines.threads.patches import plugin_imports  # a circular import

    module = types.ModuleType(entry.__name__)
    for name in ("__loader__", "__package__", "__spec__", "__path__", "__file__"):
        if name in types.ModuleType.__getattribute__(entry, "__dict__"):
            setattr(module, name, getattr(entry, name))
    vars(module)["__builtins__"] = plugin_imports.BUILTINS
    return module


_outside = PrivateModules()


def here() -> PrivateModules:
    """The private modules of the calling thread's worker, or of its run."""
    home = context.current_worker() or context.current()
    if home is None:
        return _outside
    found: PrivateModules | None = home.state.get("modules")
    return found if found is not None else home.state.setdefault("modules", PrivateModules(_inherited(home)))


def _inherited(home: Worker | RunContext) -> dict[str, object]:
    """Entries that plugins on the run's own thread have put into sys.modules. Modules that they have made are copied, as they were by fork."""
    above = None if home.worker is None else home.run_context.state.get("modules")
    found = {} if above is None else dict(above.replaced)
    for name, module in found.items():
        if type(module) is types.ModuleType and module.__spec__ is None:
            found[name] = types.ModuleType(name, module.__doc__)
            vars(found[name]).update(vars(module))
    return found


def _own_module(entry: CollectionModule) -> PluginValue:
    """The private module of the calling thread's worker."""
    return here().load(entry)


def load_plugin(name: str, path: str) -> object:
    """The private module of a collection's plugin, by its file."""
    entry = sys.modules.get(name)
    if type(entry) is not CollectionModule or entry.__file__ != path:
        made = CollectionModule(name)
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None:
            raise ImportError(f"{path} is not a Python file", name=name)
        made.__spec__, made.__loader__, made.__file__ = spec, spec.loader, path
        made.__package__ = name.rpartition(".")[0]
        entry = sys.modules.setdefault(name, made) if entry is None else made
        if type(entry) is not CollectionModule or entry.__file__ != path:
            entry = made
    return here().load(entry)


def create_module(original: Callable[..., object], _site: str) -> object:
    """_AnsibleCollectionLoader.create_module: returns a CollectionModule for a file with code."""

    @functools.wraps(original)
    def create(loader: Any, spec: Any) -> object:
        if loader._redirect_module or not loader._source_code_path or own_files(loader._source_code_path):
            return original(loader, spec)
        return CollectionModule(spec.name)

    return create


def exec_module(original: Callable[..., object], _site: str) -> object:
    """_AnsibleCollectionLoader.exec_module: executes nothing, because Python holds an import lock here. `PrivateModules.load` does it later."""

    @functools.wraps(original)
    def execute(loader: object, module: object) -> object:
        if type(module) is CollectionModule:
            here().forget(module.__name__)  # importlib.reload calls this too
            return None
        return original(loader, module)

    return execute
