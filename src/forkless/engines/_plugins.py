# SPDX-License-Identifier: GPL-3.0-or-later
"""
Plugins: whose they are, and one thread at a time in the loader.

A project's plugins belong to its run, and what a worker loads of them belongs to that worker: module-level state of a plugin was
never seen by another host while workers were processes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from forkless.engines import _scene, _views

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator

__all__: list[str] = []


@functools.lru_cache(maxsize=4096)
def own_files(path: str) -> bool:
    """Whether a plugin's file comes with ansible-core, whose modules one process may share."""
    import ansible

    return os.path.realpath(path).startswith(os.path.dirname(os.path.realpath(ansible.__file__)) + os.sep)


def load_module_source(original: Any, _site: str) -> Any:
    """
    Upstream names plugin modules by file name alone and keeps them for ever, so that a second project's `same.py` would be the first
    project's. Here a project's own are executed for each run, or worker, and taken out of sys.modules with it.
    """

    @functools.wraps(original)
    def load(loader: Any, name: str | None = None, path: str = "", *, python_module_name: str | None = None) -> Any:
        scene = _scene.current()
        full = python_module_name
        if full is None:
            full = str(name) if str(name).startswith("ansible_collections.") else f"{loader.package}.{name}"
        if scene is not None and not full.startswith("ansible_collections.") and not own_files(path):
            return _private(full, path)
        if python_module_name is None:
            module = original(loader, name, path)
        else:
            module = original(loader, python_module_name=python_module_name, path=path)
        if scene is not None and not hasattr(module, "_forkless_dressed"):
            _dress_shared(module)
        return module

    return load


def _private(full: str, path: str) -> types.ModuleType:
    """A project's plugin, for the worker or else the run that asks."""
    home: Any = _scene.current_worker() or _scene.current()
    loaded: dict[str, types.ModuleType] = home.state.setdefault("plugins", {})
    if path in loaded:
        return loaded[path]
    name = full
    if full in sys.modules:
        # Another's file of that name, or one of Ansible's own: both stay what they are.
        name = f"{full}_{hashlib.sha256(f'{path} {id(home)}'.encode()).hexdigest()[:12]}"
    module = loaded[path] = _execute(name, path)
    home.at_end.append(functools.partial(_forget, name, module))
    _views.dress(module)
    return module


def private_filter(original: Any, _site: str) -> Any:
    """Filters and tests are wrapped once for the run; those of the project are made again for the worker that uses them."""

    @functools.wraps(original)
    def get(loader: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        found = original(loader, name, *args, **kwargs)
        worker: Any = _scene.current_worker()
        wrapper = found.object
        path = getattr(wrapper, "_original_path", None)
        if worker is None or not path or "ansible_collections" in path or own_files(path):
            return found
        twins: dict[Any, Any] = worker.state.setdefault("filters", {})
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


def _execute(name: str, path: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:  # a worker may be stopped in mid-import: half a module must not be found by the next
        sys.modules.pop(name, None)
        raise
    return module


def _forget(name: str, module: Any) -> None:
    if sys.modules.get(name) is module:
        del sys.modules[name]


_dressed: list[Callable[[], None]] = []


def _dress_shared(module: Any) -> None:
    """Ansible's own plugins are dressed for as long as the seams are in."""
    module._forkless_dressed = True
    undress = _views.dress(module)

    def undo() -> None:
        undress()
        with contextlib.suppress(AttributeError):
            del module._forkless_dressed

    _dressed.append(undo)


def undress_all() -> None:
    while _dressed:
        _dressed.pop()()


def locked(which: str) -> Callable[[Any, str], Any]:
    """The method, by one thread of the run at a time."""

    def stand_in(original: Any, _site: str) -> Any:
        real = original.__func__ if isinstance(original, staticmethod | classmethod) else original

        @functools.wraps(real)
        def method(*args: Any, **kwargs: Any) -> Any:
            scene = _scene.current()
            if scene is None:
                return real(*args, **kwargs)
            with getattr(scene, which):
                return real(*args, **kwargs)

        return type(original)(method) if isinstance(original, staticmethod | classmethod) else method

    return stand_in


def locked_generator(which: str) -> Callable[[Any, str], Any]:
    """The same for a generator: it is run to its end inside the lock."""

    def stand_in(original: Any, _site: str) -> Any:
        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            scene = _scene.current()
            if scene is None:
                yield from original(*args, **kwargs)
                return
            with getattr(scene, which):
                found = list(original(*args, **kwargs))
            yield from found

        return method

    return stand_in


def quiet_warnings(_original: Any, _site: str) -> Any:
    """
    `warnings` in the plugin loader.

    Upstream swaps the program's warning filters around each import of a plugin, which loses those of every other thread.
    """

    class Warnings(_views.View):
        @staticmethod
        @contextlib.contextmanager
        def catch_warnings(**_: Any) -> Iterator[None]:
            yield

        @staticmethod
        def simplefilter(*_: Any, **__: Any) -> None: ...

    return Warnings(warnings)


def collection_loader(original: Any, _site: str) -> Any:
    """The collection finder is the process's; a second run finds it there and says nothing."""

    @functools.wraps(original)
    def configure(*args: Any, **kwargs: Any) -> Any:
        from ansible.utils.collection_loader import AnsibleCollectionConfig

        if AnsibleCollectionConfig.collection_finder is None:
            original(*args, **kwargs)

    return configure


@functools.cache
def _program_of_ansible() -> str | None:
    """`ansible`, of the very ansible-core that is used here; also where it is not in PATH, and beside no program that is."""
    try:
        files = importlib.metadata.files("ansible-core") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [str(one.locate()) for one in files if one.name == "ansible" and one.parent.name in ("bin", "Scripts")]
    return found[0] if found and os.path.isfile(found[0]) else None


def asker(original: Any, _site: str) -> Any:
    """
    The ssh program asks another one for a password. Upstream names the `ansible` that lies beside the program that runs it, and
    hopes for PATH if there is none: in a service there is neither.
    """

    @functools.wraps(original)
    def stand_in(self: Any) -> Any:
        how = original(self)
        environ = how.get("env", {})
        if environ.get("SSH_ASKPASS") == "ansible" and _program_of_ansible():
            environ["SSH_ASKPASS"] = _program_of_ansible()
        return how

    return stand_in
