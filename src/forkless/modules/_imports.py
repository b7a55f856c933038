# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a file of a payload imports, found out once.

For every module that it wraps, Ansible makes a syntax tree of each module_util that goes with it, only to see what that imports in turn; most of them
go with every module. What was seen is kept by the text that it was seen in, so nothing here can be stale: a changed file is another
text. Switched off by FORKLESS_DISABLE=import-cache.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import sys
from typing import TYPE_CHECKING, Any

from forkless import _disable
from forkless.modules._action import _environ

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STAND_INS"]

ALL = ("2.18", "2.19", "2.20", "2.21")
MOST = 4096  # texts; of each a hash and some names are kept
COMMON = "ansible.executor.module_common"

# Texts that were read without a complaint, and what they import under a name. Both are emptied when full: what is used is back at once.
_read: set[bytes] = set()
_found: dict[tuple[str, bytes, bool], tuple[frozenset[Any], frozenset[Any]]] = {}


class Tree:
    """Stands for the syntax tree of a text that is known: it is made when somebody looks at it."""

    def __init__(self, key: bytes, make: Callable[[], Any]) -> None:
        self.key, self._make = key, make

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    @functools.cached_property
    def real(self) -> Any:
        return self._make()


def _key(text: Any) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text).digest()


def _off() -> bool:
    return _disable.disabled("import-cache", _environ())


def compile_when_looked_at(original: Any, _site: str) -> Any:
    real = original or builtins.compile

    @functools.wraps(real)
    def stand_in(source: Any, filename: Any, mode: str, flags: int = 0, *args: Any, **kwargs: Any) -> Any:
        make = functools.partial(real, source, filename, mode, flags, *args, **kwargs)
        if flags != ast.PyCF_ONLY_AST or args or kwargs or not isinstance(source, bytes | str) or _off():
            return make()
        key = _key(source)
        if key in _read:
            return Tree(key, make)
        tree = make()
        if len(_read) >= MOST:
            _read.clear()
        _read.add(key)
        tree.key = key
        return tree

    return stand_in


def dependencies(original: Any, _site: str) -> Any:
    """ModuleDepFinder's making. Up to 2.20 it is given a tree, since 2.21 a text."""

    @functools.wraps(original)
    def stand_in(self: Any, name: str, given: Any, is_pkg_init: bool = False, *args: Any, **kwargs: Any) -> None:
        is_text = isinstance(given, bytes | str)
        key = None if _off() else _key(given) if is_text else getattr(given, "key", None)
        known = None if key is None else _found.get((name, key, is_pkg_init))
        if known is not None:
            self.submodules, self.optional_imports, self.embeds = set(known[0]), set(known[1]), set()
            self.tree = (
                Tree(key or b"", lambda: sys.modules[COMMON]._compile_module_ast(name, given)) if is_text else given
            )
            return
        original(self, name, given.real if isinstance(given, Tree) else given, is_pkg_init, *args, **kwargs)
        if key is not None and not getattr(self, "embeds", None):  # those remember where they were asked for
            if len(_found) >= MOST:
                _found.clear()
            _found[name, key, is_pkg_init] = frozenset(self.submodules), frozenset(self.optional_imports)

    return stand_in


_WHY = "what a text imports was seen before"
STAND_INS: tuple[tuple[str, str, Any, tuple[str, ...], bool], ...] = (
    (f"{COMMON}:compile", _WHY, compile_when_looked_at, ALL, True),
    (f"{COMMON}:ModuleDepFinder.__init__", _WHY, dependencies, ALL, False),
)
