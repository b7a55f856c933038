# SPDX-License-Identifier: GPL-3.0-or-later
"""
State that belongs to one run, and must not be shared with another.

Ansible keeps it in singletons, class variables, function attributes and module globals, because its process ends after one play.
Each replacement here uses the run of the calling thread, and Ansible's original place on threads of no run.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import shutil
import tempfile
import threading
import types
from typing import TYPE_CHECKING, Any

from forkless.engines.threads import context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__: list[str] = []

_MISSING = object()


class PerRun:
    """
    An attribute of a singleton with a separate value for each run. On threads of no run it is the instance's attribute.

    With `by_worker` each worker has a separate value too.
    """

    def __init__(self, name: str, fresh: Callable[[object], object], *, by_worker: bool = False) -> None:
        self._name = name
        self._fresh = fresh
        self._by_worker = by_worker

    def _home(self) -> Any:
        return (self._by_worker and context.current_worker()) or context.current()

    def _key(self, thing: object) -> tuple[int, str]:
        return id(thing), self._name

    def __get__(self, thing: object, kind: type | None = None) -> object:
        if thing is None:
            return self
        # Called some hundred times for every task, so _home() and _key() are inlined.
        home: Any = (self._by_worker and context.current_worker()) or context.current()
        if home is None:
            try:
                return thing.__dict__[self._name]
            except KeyError:
                raise AttributeError(self._name) from None
        try:
            return home.state[id(thing), self._name]
        except KeyError:
            pass
        return home.state.setdefault(self._key(thing), self._fresh(thing))  # atomic: two threads may get here at once

    def __set__(self, thing: object, value: object) -> None:
        home = self._home()
        if home is not None:
            home.state[self._key(thing)] = value
        elif isinstance(thing, type):
            raise AttributeError(f"{self._name} was set outside of a run")
        else:
            thing.__dict__[self._name] = value


class Verbosity(PerRun):
    """Display.verbosity: a plugin that changes it does so for its worker. Workers are asked for theirs only once one has done so: it is read often."""

    def __init__(self, name: str) -> None:
        super().__init__(name, self._of_run)

    def _of_run(self, thing: object) -> object:
        run_context = context.current()
        return 0 if run_context is None else run_context.state.get(self._key(thing), 0)

    def __set__(self, thing: object, value: object) -> None:
        if context.current_worker() is not None:
            self._by_worker = True
        super().__set__(thing, value)


def verbosity(_original: object, site: str) -> object:
    return Verbosity(site.rpartition(".")[2])


class CopyOfWorker:
    """A container in which ansible-core collects, as class or instance attribute: each worker has a copy of its own, as a fork had."""

    def __init__(self, name: str, original: object) -> None:
        self._name = name
        self._original = original

    def __get__(self, thing: object, kind: type | None = None) -> object:
        if thing is None:
            return self._original
        shared = thing.__dict__.get(self._name, self._original)
        worker = context.current_worker()
        if worker is None:
            return shared
        return worker.state.setdefault((id(thing), self._name), copy.copy(shared))

    def __set__(self, thing: object, value: object) -> None:
        thing.__dict__[self._name] = value


def copy_of_worker(original: object, site: str) -> object:
    return CopyOfWorker(site.rpartition(".")[2], original)


def fresh_like_outside(name: str) -> Callable[[object], object]:
    """Start with an empty container of Ansible's type, which differs between minors."""

    def fresh(thing: object) -> object:
        outside = thing.__dict__.get(name)
        return type(outside)() if isinstance(outside, set | dict | list) else set()

    return fresh


def copy_of_outside(name: str) -> Callable[[object], object]:
    """
    Start with what ansible-core has said of its configuration while it was imported: each run repeats that, and must not say it again when a plugin
    reads the setting.
    """

    def fresh(thing: object) -> object:
        outside = thing.__dict__.get(name)
        return copy.copy(outside) if isinstance(outside, set | dict | list) else set()

    return fresh


def per_run(fresh: Callable[[object], object], *, by_worker: bool = False) -> Callable[[object, str], object]:
    """A stand-in that replaces a class's attribute by a PerRun."""

    def stand_in(_original: object, site: str) -> object:
        return PerRun(site.rpartition(".")[2], fresh, by_worker=by_worker)

    return stand_in


# -- display ------------------------------------------------------------------------------------------------------


class ByThread:
    """Display._final_q: the worker's queue on a worker's thread, None on any other."""

    def __get__(self, thing: object, kind: type | None = None) -> object:
        if thing is None:
            return self
        worker = context.current_worker()
        return None if worker is None else worker._final_q  # type: ignore[attr-defined]

    def __set__(self, thing: object, value: object) -> None:
        """Ignored: Display.__init__ sets None, and a worker's queue follows from the thread."""


def final_queue(_original: object, _site: str) -> object:
    return ByThread()


def set_queue(_original: object, _site: str) -> object:
    def set_queue(_display: object, queue: object) -> None:
        """Does nothing: the queue follows from the calling thread."""

    return set_queue


# -- files --------------------------------------------------------------------------------------------------------


def path_dwim_relative(original: Callable[..., object], _site: str) -> object:
    """Upstream changes the loader's base folder while it searches; on a copy other threads do not see the change."""

    @functools.wraps(original)
    def look(loader: object, *args: object, **kwargs: object) -> object:
        return original(copy.copy(loader), *args, **kwargs)

    return look


class _Constant:
    """
    A setting that a command changes for its process, here for its run, or a plugin for its worker. Without one, the value of the configuration is used.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, thing: types.ModuleType, kind: type | None = None) -> object:
        key = ("constant", self._name)
        worker, run_context = context.current_worker(), context.current()
        for home in (worker, run_context):
            value = _MISSING if home is None else home.state.get(key, _MISSING)
            if value is not _MISSING:
                return value
        try:
            value = thing.__dict__[self._name]
        except KeyError:
            raise AttributeError(f"module {thing.__name__!r} has no attribute {self._name!r}") from None
        if run_context is None or not isinstance(value, list):
            return value
        # The command may append to it.
        return run_context.state.setdefault(key, copy.copy(value))

    def __set__(self, thing: types.ModuleType, value: object) -> None:
        home = context.current_worker() or context.current()
        if home is None:
            thing.__dict__[self._name] = value
        else:
            home.state["constant", self._name] = value

    def __delete__(self, thing: types.ModuleType) -> None:
        home = context.current_worker() or context.current()
        if home is None:
            found = thing.__dict__.pop(self._name, _MISSING)
        else:
            found = home.state.pop(("constant", self._name), _MISSING)
        if found is _MISSING:
            raise AttributeError(f"module {thing.__name__!r} has no attribute {self._name!r}")


def constants_class(original: Any, _site: str) -> object:
    """
    DEFAULT_LOCAL_TMP: a folder for each run, removed with it. Upstream has one for the process, with a cache of modules by name in it.

    The others are changed by `ansible --tree`, and up to 2.19 by the first play of a process, if the transport is `smart`. Whatever else a plugin
    assigns is its worker's, and ansible-core sees it there as well.
    """

    class Constants(original):  # type: ignore[misc]
        CALLBACKS_ENABLED = _Constant("CALLBACKS_ENABLED")
        DEFAULT_TRANSPORT = _Constant("DEFAULT_TRANSPORT")
        TREE_DIR = _Constant("TREE_DIR")

        @property
        def DEFAULT_LOCAL_TMP(self) -> str:  # noqa: N802  # Ansible's name
            run_context = context.current()
            of_process: str = self.__dict__["DEFAULT_LOCAL_TMP"]
            if run_context is None:
                return of_process
            with run_context.loader_lock:
                folder: str | None = run_context.state.get("local_tmp")
                if folder is None:
                    # In the same parent folder and with the same prefix, because Ansible displays paths in it, for example in --diff.
                    above = os.path.dirname(of_process)
                    os.makedirs(above, mode=0o700, exist_ok=True)
                    folder = tempfile.mkdtemp(prefix=f"ansible-local-{os.getpid()}", dir=above)
                    run_context.state["local_tmp"] = folder
                    run_context.at_end.append(functools.partial(shutil.rmtree, folder, ignore_errors=True))
            return folder

        @DEFAULT_LOCAL_TMP.setter
        def DEFAULT_LOCAL_TMP(self, value: str) -> None:  # noqa: N802  # Ansible's name
            self.__dict__["DEFAULT_LOCAL_TMP"] = value

        def __setattr__(self, name: str, value: object) -> None:
            known = any(name in vars(kind) for kind in Constants.__mro__)
            if not known and context.current() is not None:
                setattr(Constants, name, _Constant(name))
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> object:
            # Python 3.14 and 3.15 read a module's dict before a property of its class (gh-156399), unless the class has this method.
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    return Constants


def per_run_container(kind: Callable[[], object]) -> Callable[[object, str], object]:
    """A module-level dict or set, one for each run, discarded with it."""

    def stand_in(original: object, site: str) -> object:
        return _Container(site, original, kind)

    return stand_in


class _Container:
    """Behaves like the dict or set that it replaces."""

    def __init__(self, site: str, outside: object, kind: Callable[[], object]) -> None:
        self._site, self._outside, self._kind = site, outside, kind

    def _it(self) -> Any:
        run_context = context.current()
        return self._outside if run_context is None else run_context.state.setdefault(self._site, self._kind())

    def __getattr__(self, name: str) -> object:
        return getattr(self._it(), name)

    def __getitem__(self, key: object) -> object:
        return self._it()[key]

    def __setitem__(self, key: object, value: object) -> None:
        self._it()[key] = value

    def __delitem__(self, key: object) -> None:
        del self._it()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._it()

    def __iter__(self) -> object:
        return iter(self._it())

    def __len__(self) -> int:
        return len(self._it())


def test_for_each_run(name: str) -> Callable[[staticmethod[[], object], str], object]:
    """
    A test whose answer upstream keeps in a global of this name for the process. The next run may have another PATH.

    The stand-in is a copy of the function with globals of the run's own, where that name is None.
    """

    def stand_in(original: staticmethod[[], object], site: str) -> object:
        real: Callable[[], object] = original.__func__

        @functools.wraps(real)
        def test() -> object:
            run_context = context.current()
            if run_context is None:
                return real()
            if site not in run_context.state:
                twin = types.FunctionType(real.__code__, {**real.__globals__, name: None}, name)
                run_context.state[site] = twin()
            return run_context.state[site]

        return staticmethod(test)

    return stand_in


def no_direct_execution(original: Callable[..., object], _site: str) -> object:
    """
    ActionBase.get_connection_option: up to 2.18 a network module that runs inside the worker prints its result and collects warnings in
    a list of the process. It gets a separate process instead, as with ANSIBLE_NETWORK_IMPORT_MODULES=false.
    """

    @functools.wraps(original)
    def option(action: object, name: str, *args: object, **kwargs: object) -> object:
        return False if name == "import_modules" else original(action, name, *args, **kwargs)

    return option


# -- ids, strategy ---------------------------------------------------------------------------------------


def unique_id(original: Callable[..., object], _site: str) -> object:
    """Upstream counts with `+= 1`, which is not atomic: two threads can get the same number."""
    space = original.__globals__
    numbers: Iterator[int] = space.setdefault("_forkless_numbers", itertools.count(space["cur_id"] + 1))

    @functools.wraps(original)
    def get_unique_id() -> str:
        mac, random = space["node_mac"], space["random_int"]
        return "-".join([mac[0:8], mac[8:12], random[0:4], random[4:8], f"{next(numbers):012x}"[:12]])

    return get_unique_id


def strategy_activate(_original: object, _site: str) -> object:
    @contextlib.contextmanager
    def activate(strategy_context: object) -> Iterator[None]:
        run_context = context.current()
        if run_context is None:
            raise RuntimeError("a strategy was started outside of a run")
        outer = run_context.state.get("strategy")
        run_context.state["strategy"] = strategy_context
        try:
            yield
        finally:
            run_context.state["strategy"] = outer

    return activate


def strategy_current(_original: object, _site: str) -> object:
    def current(kind: type) -> object:
        run_context = context.current()
        found = None if run_context is None else run_context.state.get("strategy")
        if found is None:
            raise ReferenceError(f"A required {kind.__name__} context is not active.")
        return found

    return classmethod(current)


def no_rpc_server(_original: object, _site: str) -> object:
    """The RPC server that forked workers call. Threads call directly."""
    return classmethod(lambda _kind: None)


def rpc_direct(_original: object, _site: str) -> object:
    return classmethod(lambda kind: kind)


_no_run_lock = threading.Lock()


def connection_lock(_original: object, _site: str) -> object:
    """Lockf locks belong to the process, so they never block another thread. One threading.Lock for the run replaces the lock file."""

    def lock(_connection: object) -> None:
        while not _play_lock().acquire(timeout=0.25):
            pass  # with a timeout: an exception that is sent to the thread is raised only between two waits in C

    return lock


def connection_unlock(_original: object, _site: str) -> object:
    def unlock(_connection: object) -> None:
        with contextlib.suppress(RuntimeError):  # upstream may unlock twice
            _play_lock().release()

    return unlock


def _play_lock() -> threading.Lock:
    run_context = context.current()
    if run_context is None:
        return _no_run_lock
    found: threading.Lock = run_context.state.setdefault("connection_lock", threading.Lock())
    return found
