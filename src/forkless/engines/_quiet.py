# SPDX-License-Identifier: GPL-3.0-or-later
"""
Importing ansible-core without touching the program that imports it.

Its own modules, as they are imported, set the process's locale, wrap the program's stdout, configure the root logger, and read ANSIBLE_*
from the program's environment. A few of them are executed here with an `__import__` of their own, which hands them
views where they ask for the real thing. Nothing is patched for anyone else, not even for a moment.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import io
import locale
import logging
import sys
import threading
import warnings
from typing import Any

from forkless._errors import UnsupportedError
from forkless.engines import _stitch, _views

__all__ = ["forget_collections", "forget_files", "import_ansible", "purge", "take_collections"]

_lock = threading.Lock()


class _Locale(_views.View):
    """The program's locale is the program's. What Ansible wants to know of it is whether text is UTF-8."""

    @staticmethod
    def setlocale(category: int, _value: Any = None) -> str:
        return locale.setlocale(category)

    @staticmethod
    def getlocale(category: int = locale.LC_CTYPE) -> tuple[str | None, str | None]:
        # sys.flags.utf8_mode, the C locale's coercion and a program that never called setlocale all end here.
        return locale.getlocale(category)[0], sys.getfilesystemencoding()


class _Logging(_views.View):
    """`log_path` gets a file for Ansible's own logger, not for everyone's."""

    @staticmethod
    def basicConfig(*, filename: str, level: int, format: str) -> None:  # noqa: A002, N802  # the stdlib's names
        logger = logging.getLogger("ansible")
        target = logging.FileHandler(filename)
        target.setFormatter(logging.Formatter(format))
        logger.addHandler(target)
        logger.setLevel(level)

    @property
    def root(self) -> Any:
        return logging.getLogger("ansible")


class _FirstSys(_views._Sys):
    """sys while a module is imported: streams that may be wrapped and reconfigured, and that nobody reads."""

    def __init__(self) -> None:
        super().__init__(sys)
        scratch = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        self.__dict__["_scratch"] = scratch

    @property  # type: ignore[misc]  # nobody sets it
    def stdout(self) -> Any:
        return self.__dict__["_scratch"]

    @property  # type: ignore[misc]
    def stderr(self) -> Any:
        return sys.stderr

    @property  # type: ignore[misc]
    def stdin(self) -> Any:
        return self.__dict__["_scratch"]


class _Warnings(_views.View):
    """2.18 patches sys.intern as it is imported, and warns the program when it finds that done already."""

    @staticmethod
    def warn(*_: Any, **__: Any) -> None: ...


# In the order in which they must come: each before anything that imports it.
_CAREFULLY: dict[str, dict[str, Any]] = {
    "ansible.config.manager": {"os": _views.os_view},
    "ansible.utils.unsafe_proxy": {"warnings": _Warnings(warnings)},
    "ansible.utils.color": {"sys": _views.sys_view},
    "ansible.utils.display": {"logging": _Logging(logging)},
    "ansible.cli": {"locale": _Locale(locale)},
}


# Later minors import others from there, which have their own turn.
_ONLY_IN = {"ansible.utils.unsafe_proxy": "2.18."}


def import_ansible(*, ours: bool) -> None:
    """
    Import all of ansible-core that a play needs.

    With `ours` the process is: locale, log and terminal are set as ansible-playbook would set them.
    """
    with _lock:
        if "ansible.cli" not in sys.modules:
            try:
                if ours:
                    importlib.import_module("ansible.cli")
                else:
                    for name, views in _CAREFULLY.items():
                        if name not in _ONLY_IN or _stitch.version().startswith(_ONLY_IN[name]):
                            _import_with(name, views)
            except SystemExit as refusal:
                # Its checks of the machine end the process with a sentence; here the sentence is enough.
                purge()
                raise UnsupportedError(str(refusal.code).removeprefix("ERROR: ")) from None
        for name in ("playbook", "adhoc"):
            importlib.import_module(f"ansible.cli.{name}")


def _import_with(name: str, views: dict[str, Any]) -> None:
    if name in sys.modules:
        return
    parent, _, leaf = name.rpartition(".")
    package = importlib.import_module(parent)
    if name in sys.modules:  # the parent imported it
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is not there", name=name)
    module = importlib.util.module_from_spec(spec)
    first = _FirstSys() if name == "ansible.utils.display" else None

    def import_(asked: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:  # noqa: A002
        top = asked.partition(".")[0]  # `import os.path` binds `os`
        if level == 0 and not fromlist:
            if top == "sys" and first is not None:
                return first
            if top in views:
                return views[top]
        return builtins.__import__(asked, globals, locals, fromlist, level)

    space = module.__dict__
    space["__builtins__"] = {**vars(builtins), "__import__": import_}
    sys.modules[name] = module
    try:
        exec(spec.loader.get_code(name), space)  # type: ignore[attr-defined]  # noqa: S102  # what import does
    except BaseException:  # a worker may be stopped in mid-import: half a module must not be found by the next
        sys.modules.pop(name, None)
        raise
    if first is not None:
        space["Display"]()  # the one of this process: as it is made, it sets how the streams that it sees treat text
        space["sys"] = sys
    setattr(package, leaf, module)


def purge() -> dict[str, Any]:
    """Forget ansible-core and every collection, so that the next import reads its configuration anew. Returns what was forgotten."""
    forget_collections()
    names = [name for name in sys.modules if name.split(".")[0] == "ansible"]
    gone = {name: sys.modules.pop(name) for name in names}
    importlib.invalidate_caches()
    return gone


def forget_files() -> None:
    """
    What the stdlib's `inspect` noted of where collections lie was noted of Ansible's.

    It raises TypeError for whoever walks a stack when a package that had a file has none any more, and the program's own of that name has none.
    """
    noted: dict[str, Any] = getattr(inspect, "_filesbymodname", {})
    for name in [name for name in list(noted) if name.partition(".")[0] == "ansible_collections"]:
        noted.pop(name, None)


def forget_collections() -> None:
    """Take the collection finder out of the import system, and what it loaded out of sys.modules: a run finds its own."""
    finder = sys.modules.get("ansible.utils.collection_loader._collection_finder")
    if finder is None:
        return
    config = sys.modules["ansible.utils.collection_loader"].AnsibleCollectionConfig
    if config.collection_finder is not None:
        finder._AnsibleCollectionFinder._remove()
        config._collection_finder = None
        type.__setattr__(config, "_on_collection_load", type(config._on_collection_load)())
    take_collections()


def take_collections() -> dict[str, Any]:
    """Take every collection out of sys.modules; returns what was there."""
    names = [name for name in sys.modules if name.split(".")[0] == "ansible_collections"]
    return {name: sys.modules.pop(name) for name in names}
