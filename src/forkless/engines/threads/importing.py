# SPDX-License-Identifier: GPL-3.0-or-later
"""
Imports ansible-core without side effects on the program.

On import, modules of ansible-core set the process's locale, wrap the program's stdout, configure the root logger, and read ANSIBLE_*
from the program's environment. Those modules are executed here with another `__import__` in their builtins, which gives them
views of the stdlib modules. Nothing is patched for other code, not even temporarily.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import io
import locale
import logging
import os
import secrets
import sys
import threading
import uuid
import warnings
from typing import TYPE_CHECKING, Any

from forkless.core import versions
from forkless.core.errors import SpecError, UnsupportedError
from forkless.engines.threads import program_imports
from forkless.engines.threads.patches import collection_modules, stdlib_views
from forkless.engines.threads.patches.worker_view import WorkerView
from forkless.patching import seams

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["close_log", "forget_files", "import_ansible", "purge", "set_aside"]

_lock = threading.Lock()


class _Locale(WorkerView):
    """Leaves the program's locale unchanged. Ansible needs to know only whether text is UTF-8."""

    @staticmethod
    def setlocale(category: int, _value: object = None) -> str:
        return locale.setlocale(category)

    @staticmethod
    def getlocale(category: int = locale.LC_CTYPE) -> tuple[str | None, str | None]:
        # Right for sys.flags.utf8_mode, C locale coercion, and a program that never called setlocale.
        return locale.getlocale(category)[0], sys.getfilesystemencoding()


class _Logging(WorkerView):
    """
    Writes the file that `log_path` names from a logger of this ansible-core, not from the root logger.

    The logger is not registered with `logging.getLogger`: otherwise the ansible-cores of all configurations would share it, and each
    log file would get the lines of all.
    """

    def __init__(self) -> None:
        super().__init__(logging)
        self.__dict__["root"] = logging.Logger("ansible")  # noqa: LOG001  # unregistered, so no other code gets it

    def basicConfig(self, *, filename: str, level: int, format: str) -> None:  # noqa: A002, N802  # the stdlib's names
        target = logging.FileHandler(filename, delay=True)
        target.setFormatter(logging.Formatter(format))
        self.root.addHandler(target)
        self.root.setLevel(level)

    def getLogger(self, name: str | None = None) -> object:  # noqa: N802  # the stdlib's name
        return self.root if name == "ansible" else logging.getLogger(name)


class _FirstSys(stdlib_views._SysView):
    """sys while ansible-core is imported: its streams may be wrapped and reconfigured; what stderr got is kept."""

    def __init__(self) -> None:
        super().__init__(sys)
        scratch = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        self.__dict__["_scratch"] = scratch
        self.__dict__["_errors"] = io.BytesIO()
        self.__dict__["_stderr"] = io.TextIOWrapper(
            self.__dict__["_errors"], encoding="utf-8", errors="replace", write_through=True
        )

    @property  # type: ignore[misc]  # never set
    def stdout(self) -> Any:
        return self.__dict__["_scratch"]

    @property  # type: ignore[misc]
    def stderr(self) -> Any:
        return self.__dict__["_stderr"]

    @property  # type: ignore[misc]
    def stdin(self) -> Any:
        return self.__dict__["_scratch"]

    def said(self) -> str:
        """What was written to stderr, such as "the log cannot be written"."""
        text: str = self.__dict__["_errors"].getvalue().decode()
        return text


class _Warnings(WorkerView):
    """ansible-core 2.18 patches sys.intern on import, and emits a warning if it was patched before."""

    @staticmethod
    def warn(*_: object, **__: object) -> None: ...


class _Uuid(WorkerView):
    """`ansible.utils.vars` calls uuid.getnode(), for which Python may start a program (`ip link`)."""

    @staticmethod
    def getnode() -> int:
        return secrets.randbits(48) | 1 << 40  # as uuid.getnode() does if it finds no hardware address


class _ForkHooks(WorkerView):
    """A lock of ansible-core registers fork hooks, which cannot be removed, at each import. The program's forks must not run them."""

    @staticmethod
    def register_at_fork(**_: object) -> None: ...


class _BlockingStreams(WorkerView):
    """
    `ansible.cli` refuses to be imported if the process's stdin, stdout or stderr does not block, or is closed. Those are the program's, and a
    run in it has streams of its own.
    """

    @staticmethod
    def get_blocking(_fd: int) -> bool:
        return True


# In this order: each module before any module that imports it.
_CAREFULLY: dict[str, dict[str, object]] = {
    "ansible.module_utils._internal._concurrent._fork_safe_lock": {"os": _ForkHooks(os)},
    "ansible.utils.path": {"os": stdlib_views.os_view},  # paths in the configuration are relative to the run's folder
    "ansible.config.manager": {"os": stdlib_views.os_view},
    "ansible.utils.unsafe_proxy": {"warnings": _Warnings(warnings)},
    "ansible.constants": {},  # tells of the configuration, by way of ansible.utils.display
    "ansible.utils.color": {"sys": stdlib_views.sys_view},
    "ansible.utils.display": {"logging": _Logging},
    "ansible.utils.vars": {"uuid": _Uuid(uuid)},
    "ansible.cli": {"locale": _Locale(locale), "os": _BlockingStreams(os)},
}
# What a module has after its import in place of a view that is for its import only.
_AFTERWARDS: dict[str, dict[str, object]] = {"ansible.cli": {"os": os}}


# Modules that write to stderr when they are imported.
_TELLING = frozenset({"ansible.constants", "ansible.utils.display"})
# The minors in which a module is executed here. In others it does not exist, or does not import what is replaced.
_ONLY_IN = {
    "ansible.utils.unsafe_proxy": ("2.18",),
    "ansible.constants": ("2.18",),
    "ansible.module_utils._internal._concurrent._fork_safe_lock": versions.since("2.22"),
}


def import_ansible(*, ours: bool) -> None:
    """
    Import everything of ansible-core that a play needs. One thread at a time; the others wait.

    With `ours` the process belongs to Ansible: locale, log and terminal are set as ansible-playbook sets them, and a failed check of
    ansible-core ends in SystemExit. Without `ours` such a failure raises UnsupportedError or SpecError, and no module is left in
    sys.modules.
    """
    with _lock:
        try:
            if "ansible.cli" not in sys.modules:
                _import_cli(ours=ours)
            for name in ("playbook", "adhoc"):
                importlib.import_module(f"ansible.cli.{name}")
        except BaseException as error:
            refusal = _python_too_new(error) or _not_ansible_core(error) or (None if ours else _refusal(error))
            purge()
            if refusal is None:
                raise
            raise refusal from None


def _import_cli(*, ours: bool) -> None:
    if ours:
        importlib.import_module("ansible.cli")
        return
    first = _FirstSys()
    try:
        for name in _CAREFULLY:
            _import_carefully(name, first)
    except BaseException:
        _tell(first.said())
        raise
    display = importlib.import_module("ansible.utils.display")  # not there if another package hides ansible-core
    vars(display).update(sys=sys, _forkless_said=first.said())


def tell_again() -> None:
    """
    Write what ansible-core said when it was imported into the output of the calling thread's run: a warning about its configuration, or that
    the log cannot be written. Ansible's own command says it in every run, and runs with one configuration share an import.
    """
    _tell(getattr(sys.modules.get("ansible.utils.display"), "_forkless_said", ""))


def _tell(said: str) -> None:
    target = stdlib_views.sys_view.stderr  # None in a program without a console
    if said and target is not None:
        target.write(said)


def _python_too_new(error: BaseException) -> UnsupportedError | None:
    """A Python that ansible-core does not support fails with an unrelated error: replace it by one that says so."""
    sentence = versions.unsupported(sys.version_info[:2], seams.version())
    if sentence is None or not isinstance(error, Exception):
        return None
    return UnsupportedError(f"{sentence} ({type(error).__name__}: {error})")


def _not_ansible_core(error: BaseException) -> UnsupportedError | None:
    """A program's own ansible.py, found first, hides ansible-core."""
    if not isinstance(error, ModuleNotFoundError) or not str(error.name).startswith("ansible."):
        return None
    found = getattr(sys.modules.get("ansible"), "__file__", None)
    return UnsupportedError(
        f"'import ansible' finds {found}, which is not a whole ansible-core (there is no {error.name}): rename or remove it, or reinstall ansible-core"
    )


def _refusal(error: BaseException) -> Exception | None:
    """The error for the program if ansible-core refused to start; None for any other exception."""
    if isinstance(error, SystemExit):  # ansible-core's checks of the platform
        return UnsupportedError(str(error.code).removeprefix("ERROR: "))
    errors: Any = sys.modules.get("ansible.errors")
    # OSError: an ansible.cfg that is a folder or cannot be read, no room for temporary files.
    if isinstance(error, OSError) or (errors is not None and isinstance(error, errors.AnsibleError)):
        return SpecError(f"ansible-core does not start with this configuration: {error}")
    return None


def _import_carefully(name: str, first: _FirstSys) -> None:
    """Import a module of _CAREFULLY, unless this ansible-core does not have it or it was imported."""
    if name in sys.modules or versions.nearest(seams.version()) not in _ONLY_IN.get(name, versions.KNOWN):
        return
    parent, _, leaf = name.rpartition(".")
    try:
        package = importlib.import_module(parent)
    except ModuleNotFoundError as error:
        if error.name and f"{parent}.".startswith(f"{error.name}."):
            return  # this ansible-core has no such module
        raise
    if name in sys.modules:  # imported by the parent package
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    views = {top: view() if isinstance(view, type) else view for top, view in _CAREFULLY[name].items()}
    if name in _TELLING:
        views["sys"] = first

    def import_(asked: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> object:  # noqa: A002
        top = asked.partition(".")[0]  # `import os.path` binds `os`
        if level == 0 and not fromlist and top in views:
            return views[top]
        if level == 0 and asked in _CAREFULLY:
            _import_carefully(asked, first)
        return builtins.__import__(asked, globals, locals, fromlist, level)

    space = module.__dict__
    space["__builtins__"] = {**vars(builtins), "__import__": import_}
    sys.modules[name] = module
    try:
        exec(spec.loader.get_code(name), space)  # type: ignore[attr-defined]  # noqa: S102  # what import does
    except BaseException:  # a stop during the import: a partly executed module must not be found later
        sys.modules.pop(name, None)
        raise
    if name == "ansible.utils.display":
        space["Display"]()  # the singleton: its constructor changes the encoding errors of the streams that it sees
    space.update(_AFTERWARDS.get(name, {}))
    setattr(package, leaf, module)


def purge() -> dict[str, object]:
    """Remove ansible-core and all collections from sys.modules, so that the next import reads the configuration. Returns the modules."""
    forget_collections()
    return _take(("ansible",))


def set_aside() -> Callable[[], None]:
    """
    Remove the program's ansible-core, collections and collection finder from the import system.

    Returns a function that restores them. The module objects are the same, so the program's instances match their classes again.
    """
    modules = _take(("ansible", "ansible_collections"))
    end = program_imports.ProgramModules(modules).serve() if "ansible" in modules else None
    loader = modules.get("ansible.utils.collection_loader._collection_finder")
    kind = getattr(loader, "_AnsibleCollectionFinder", ())
    finders: list[Any] = [one for one in sys.meta_path if isinstance(one, kind)]
    hooks: list[Any] = [one for one in sys.path_hooks if isinstance(getattr(one, "__self__", None), kind)]
    for one in finders:
        sys.meta_path.remove(one)
    for one in hooks:
        sys.path_hooks.remove(one)
    if hooks:
        sys.path_importer_cache.clear()

    def give_back() -> None:
        if end is not None:
            end()
        sys.modules.update(modules)
        sys.meta_path[:0] = finders
        sys.path_hooks[:0] = hooks
        if hooks:
            sys.path_importer_cache.clear()

    return give_back


def _take(tops: tuple[str, ...]) -> dict[str, Any]:
    names = [name for name in sys.modules if name.partition(".")[0] in tops]
    return {name: sys.modules.pop(name) for name in names}


def close_log() -> None:
    """Close the log file of the current ansible-core. A later run reopens it by name: the file may have been rotated by then."""
    logger = getattr(sys.modules.get("ansible.utils.display"), "logger", None)
    for handler in getattr(logger, "handlers", ()):
        handler.close()


def forget_files() -> None:
    """
    Remove collections from the cache of `inspect`.

    `inspect.getmodule` caches the file of each module by name. When a run's collection package is replaced by the program's, which has
    no file, every later walk of a stack would raise TypeError.
    """
    noted: dict[str, object] = getattr(inspect, "_filesbymodname", {})
    for name in [name for name in list(noted) if name.partition(".")[0] == "ansible_collections"]:
        noted.pop(name, None)


def forget_collections() -> None:
    """Remove the collection finder and the collections that it loaded, so that the next run sets up its own."""
    finder = sys.modules.get("ansible.utils.collection_loader._collection_finder")
    if finder is None:
        return
    config = sys.modules["ansible.utils.collection_loader"].AnsibleCollectionConfig
    if config.collection_finder is not None:
        finder._AnsibleCollectionFinder._remove()
        config._collection_finder = None
        type.__setattr__(config, "_on_collection_load", type(config._on_collection_load)())
    _take(("ansible_collections", collection_modules.LIBRARIES))
