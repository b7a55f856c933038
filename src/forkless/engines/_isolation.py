# SPDX-License-Identifier: GPL-3.0-or-later
"""
What one run must not leave to the next, nor share with one beside it.

Ansible keeps it in singletons, class variables, function attributes and module globals, as a program may that runs one play and ends.
Each stand-in here looks up the run of the calling thread first, and falls back to Ansible's own place outside of runs.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import shutil
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from forkless.engines import _scene, _views

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_MISSING = object()


class PerRun:
    """
    An attribute of a singleton that every run has for itself. Outside of runs it is the instance's own.

    With `by_worker` every worker has its own as well.
    """

    def __init__(self, name: str, fresh: Callable[[Any], Any], *, by_worker: bool = False) -> None:
        self._name = name
        self._fresh = fresh
        self._by_worker = by_worker

    def _home(self) -> Any:
        return (self._by_worker and _scene.current_worker()) or _scene.current()

    def _key(self, thing: Any) -> tuple[int, str]:
        return id(thing), self._name

    def __get__(self, thing: Any, kind: type | None = None) -> Any:
        if thing is None:
            return self
        # Asked for some hundred times by every task, so all is done in this one place.
        home: Any = (self._by_worker and _scene.current_worker()) or _scene.current()
        if home is None:
            try:
                return thing.__dict__[self._name]
            except KeyError:
                raise AttributeError(self._name) from None
        key = (id(thing), self._name)
        value = home.state.get(key, _MISSING)
        if value is _MISSING:
            value = home.state[key] = self._fresh(thing)
        return value

    def __set__(self, thing: Any, value: Any) -> None:
        home = self._home()
        if home is not None:
            home.state[self._key(thing)] = value
        elif isinstance(thing, type):
            raise AttributeError(f"{self._name} was set outside of a run")
        else:
            thing.__dict__[self._name] = value


def fresh_like_outside(name: str) -> Callable[[Any], Any]:
    """Start with an empty one of the kind that Ansible has there, which differs from minor to minor."""

    def fresh(thing: Any) -> Any:
        outside = thing.__dict__.get(name)
        return type(outside)() if isinstance(outside, set | dict | list) else set()

    return fresh


def per_run(fresh: Callable[[Any], Any], *, by_worker: bool = False) -> Callable[[Any, str], Any]:
    """A stand-in that puts a PerRun in the place of a class's attribute."""

    def stand_in(_original: Any, site: str) -> Any:
        return PerRun(site.rpartition(".")[2], fresh, by_worker=by_worker)

    return stand_in


# -- command line -------------------------------------------------------------------------------------------------


class _CliArgs(Mapping[str, Any]):
    """ansible.context.CLIARGS: each run's own arguments."""

    def __init__(self, outside: Any) -> None:
        self._outside = outside

    def _args(self) -> Any:
        scene = _scene.current()
        return self._outside if scene is None else scene.state.get("cliargs", self._outside)

    def __getitem__(self, key: str) -> Any:
        return self._args()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._args())

    def __len__(self) -> int:
        return len(self._args())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args(), name)

    def __reduce__(self) -> Any:
        return type(self), (self._args(),)


def cli_args(original: Any, _site: str) -> Any:
    return _CliArgs(original)


def init_cli_args(_original: Any, _site: str) -> Any:
    from ansible.utils.context_objects import CLIArgs

    def init(options: Any) -> None:
        scene = _scene.current()
        if scene is None:
            raise RuntimeError("the command line was read outside of a run")
        scene.state["cliargs"] = CLIArgs.from_options(options)

    return init


def not_cached(attribute: str) -> Callable[[Any, str], Any]:
    """load_extra_vars and load_options_vars remember the first run's answer on themselves; here each run has its own."""

    def stand_in(original: Any, _site: str) -> Any:
        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            scene = _scene.current()
            if scene is None:
                return original(*args, **kwargs)
            with scene.vars_lock:
                if attribute not in scene.state:
                    # A twin of the function, so that what it remembers on itself is remembered on the twin.
                    space = dict(original.__globals__)
                    twin = types.FunctionType(original.__code__, space, original.__name__, original.__defaults__)
                    space[original.__name__] = twin
                    scene.state[attribute] = twin(*args, **kwargs)
                return scene.state[attribute]

        return load

    return stand_in


def print_message(original: Any, _site: str) -> Any:
    """What argparse prints, help and errors, goes to the run's output."""

    @functools.wraps(original)
    def say(parser: Any, message: str, file: Any = None) -> None:
        if file is None or file is sys.stderr:
            file = _views.sys_view.stderr
        elif file is sys.stdout:
            file = _views.sys_view.stdout
        original(parser, message, file)

    return say


def ask_passwords(original: Any, _site: str) -> Any:
    """-k and -K of a run that was given its passwords."""
    real = original.__func__ if isinstance(original, staticmethod) else original

    @functools.wraps(real)
    def ask() -> tuple[Any, Any]:
        scene = _scene.current()
        conn, become = real()
        if scene is None or not scene.passwords:
            return conn, become
        return scene.passwords.get("conn_pass", conn), scene.passwords.get("become_pass", become)

    return staticmethod(ask)


def vault_secrets(original: Any, _site: str) -> Any:
    """The run's own vault password beside those that its arguments name."""
    real = original.__func__ if isinstance(original, staticmethod) else original

    @functools.wraps(real)
    def setup(*args: Any, **kwargs: Any) -> Any:
        from ansible.parsing.vault import VaultSecret

        secrets = real(*args, **kwargs)
        scene = _scene.current()
        if scene is not None and scene.vault_password is not None:
            secret = VaultSecret(scene.vault_password.encode())
            secret.load()
            secrets.append(("default", secret))
            loader = args[0] if args else kwargs["loader"]
            loader.set_vault_secrets(secrets)
        return secrets

    return staticmethod(setup)


# -- display ------------------------------------------------------------------------------------------------------


class ByThread:
    """Display._final_q: set in a worker, and in no other thread."""

    def __get__(self, thing: Any, kind: type | None = None) -> Any:
        if thing is None:
            return self
        worker = _scene.current_worker()
        return None if worker is None else worker._final_q  # type: ignore[attr-defined]

    def __set__(self, thing: Any, value: Any) -> None:
        """Display's own __init__ sets None; a worker's queue is the worker's."""


def final_queue(_original: Any, _site: str) -> Any:
    return ByThread()


def set_queue(_original: Any, _site: str) -> Any:
    def set_queue(_display: Any, queue: Any) -> None:
        """Nothing to set: which queue a thread speaks through follows from whose thread it is."""

    return set_queue


# -- files --------------------------------------------------------------------------------------------------------


def path_dwim_relative(original: Any, _site: str) -> Any:
    """Upstream sets the loader's base folder aside while it looks; on a copy nobody else sees that."""

    @functools.wraps(original)
    def look(loader: Any, *args: Any, **kwargs: Any) -> Any:
        return original(copy.copy(loader), *args, **kwargs)

    return look


def constants_class(original: Any, _site: str) -> Any:
    """DEFAULT_LOCAL_TMP: a folder for each run, gone with it. Upstream has one for the process, with a cache of modules by name in it."""

    class Constants(original):  # type: ignore[misc]
        @property
        def DEFAULT_LOCAL_TMP(self) -> str:  # noqa: N802  # Ansible's name
            scene = _scene.current()
            parent: str = self.__dict__["DEFAULT_LOCAL_TMP"]
            if scene is None:
                return parent
            with scene.loader_lock:
                folder: str | None = scene.state.get("local_tmp")
                if folder is None:
                    if not os.path.isdir(parent):
                        parent = os.path.dirname(parent)
                        os.makedirs(parent, mode=0o700, exist_ok=True)
                    folder = scene.state["local_tmp"] = tempfile.mkdtemp(prefix="run-", dir=parent)
                    scene.at_end.append(functools.partial(shutil.rmtree, folder, ignore_errors=True))
            return folder

        @DEFAULT_LOCAL_TMP.setter
        def DEFAULT_LOCAL_TMP(self, value: str) -> None:  # noqa: N802  # Ansible's name
            self.__dict__["DEFAULT_LOCAL_TMP"] = value

    return Constants


def per_run_container(kind: Callable[[], Any]) -> Callable[[Any, str], Any]:
    """A module-level dict or set, one for each run, emptied with it."""

    def stand_in(original: Any, site: str) -> Any:
        return _Container(site, original, kind)

    return stand_in


class _Container:
    """Looks like the dict or set that it stands for."""

    def __init__(self, site: str, outside: Any, kind: Callable[[], Any]) -> None:
        self._site, self._outside, self._kind = site, outside, kind

    def _it(self) -> Any:
        scene = _scene.current()
        return self._outside if scene is None else scene.state.setdefault(self._site, self._kind())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._it(), name)

    def __getitem__(self, key: Any) -> Any:
        return self._it()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._it()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._it()[key]

    def __contains__(self, key: Any) -> bool:
        return key in self._it()

    def __iter__(self) -> Any:
        return iter(self._it())

    def __len__(self) -> int:
        return len(self._it())


# -- secrets, ids, strategy ---------------------------------------------------------------------------------------


def vault_initialize(_original: Any, _site: str) -> Any:
    def initialize(_kind: type, value: Any) -> None:
        scene = _scene.current()
        if scene is None:
            raise RuntimeError("vault secrets were set outside of a run")
        scene.state["vault"] = value

    return classmethod(initialize)


def vault_current(original: Any, _site: str) -> Any:
    def current(kind: type, optional: bool = False) -> Any:
        scene = _scene.current()
        if scene is None:
            return original.__func__(kind, optional)
        value = scene.state.get("vault")
        if value is None and not optional:
            raise ReferenceError(f"A required {kind.__name__} context is not active.")
        return value

    return classmethod(current)


def unique_id(original: Any, _site: str) -> Any:
    """Upstream counts with `+= 1`, which two threads can do to the same number."""
    space = original.__globals__
    numbers: Iterator[int] = space.setdefault("_forkless_numbers", itertools.count(space["cur_id"] + 1))

    @functools.wraps(original)
    def get_unique_id() -> str:
        mac, random = space["node_mac"], space["random_int"]
        return "-".join([mac[0:8], mac[8:12], random[0:4], random[4:8], f"{next(numbers):012x}"[:12]])

    return get_unique_id


def strategy_activate(_original: Any, _site: str) -> Any:
    @contextlib.contextmanager
    def activate(strategy_context: Any) -> Iterator[None]:
        scene = _scene.current()
        if scene is None:
            raise RuntimeError("a strategy was started outside of a run")
        outer = scene.state.get("strategy")
        scene.state["strategy"] = strategy_context
        try:
            yield
        finally:
            scene.state["strategy"] = outer

    return activate


def strategy_current(_original: Any, _site: str) -> Any:
    def current(kind: type) -> Any:
        scene = _scene.current()
        found = None if scene is None else scene.state.get("strategy")
        if found is None:
            raise ReferenceError(f"A required {kind.__name__} context is not active.")
        return found

    return classmethod(current)


def no_rpc_server(_original: Any, _site: str) -> Any:
    """The server that forked workers called back to. Threads call directly."""
    return classmethod(lambda _kind: None)


def rpc_direct(_original: Any, _site: str) -> Any:
    return classmethod(lambda kind: kind)


_no_run_lock = threading.Lock()


def connection_lock(_original: Any, _site: str) -> Any:
    """Lockf is the process's: between threads it never waits. The lock file is the play's, so its descriptor is the key."""

    def lock(_connection: Any) -> None:
        _play_lock().acquire()

    return lock


def connection_unlock(_original: Any, _site: str) -> Any:
    def unlock(_connection: Any) -> None:
        with contextlib.suppress(RuntimeError):  # upstream's may be called twice
            _play_lock().release()

    return unlock


def _play_lock() -> threading.Lock:
    scene = _scene.current()
    if scene is None:
        return _no_run_lock
    found: threading.Lock = scene.state.setdefault("connection_lock", threading.Lock())
    return found
