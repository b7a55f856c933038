# SPDX-License-Identifier: GPL-3.0-or-later
"""
Caches the imports of each file that Ansible puts into a module's archive.

For every module that it wraps, Ansible parses each module_util of the archive to find its imports, and most
module_utils are part of every archive. The cache is keyed by a hash of the text, so it cannot become stale. For files of the
tested ansible-cores the answer is known beforehand (known_imports.py). FORKLESS_DISABLE=import-cache switches both off.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import sys
from typing import TYPE_CHECKING, Any

from forkless.core import switches
from forkless.modules.ansible_types import environ_of
from forkless.modules.warm import known_imports
from forkless.patching.seam import Seam

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STAND_INS"]

MOST = 4096  # entries in each cache
COMMON = "ansible.executor.module_common"

# Hashes of texts that were parsed without an error, and the imports of a text under a module name. A full cache is
# cleared.
_read: set[bytes] = set()
_found: dict[tuple[str, bytes, bool], tuple[frozenset[Any], frozenset[Any]]] = {}


class LazyTree:
    """Takes the place of a syntax tree whose text is known; the tree is parsed when one of its attributes is read."""

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
    return switches.disabled("import-cache", environ_of("ansible.plugins.action"))


def compile_when_looked_at(original: Any, _site: str) -> Any:
    real = original or builtins.compile

    @functools.wraps(real)
    def stand_in(source: Any, filename: Any, mode: str, flags: int = 0, *args: Any, **kwargs: Any) -> Any:
        make = functools.partial(real, source, filename, mode, flags, *args, **kwargs)
        if flags != ast.PyCF_ONLY_AST or args or kwargs or not isinstance(source, bytes | str) or _off():
            return make()
        key = _key(source)
        if key in _read or known_imports.has_text(key):
            return LazyTree(key, make)
        tree = make()
        if len(_read) >= MOST:
            _read.clear()
        _read.add(key)
        tree.key = key
        return tree

    return stand_in


def dependencies(original: Any, _site: str) -> Any:
    """Replaces ModuleDepFinder.__init__, which receives a syntax tree up to 2.20 and a text since 2.21."""

    @functools.wraps(original)
    def stand_in(self: Any, name: str, given: Any, is_pkg_init: bool = False, *args: Any, **kwargs: Any) -> None:
        is_text = isinstance(given, bytes | str)
        key = None if _off() else _key(given) if is_text else getattr(given, "key", None)
        known = None
        if key is not None:
            known = _found.get((name, key, is_pkg_init)) or known_imports.find(name, key, is_pkg_init)
        if known is not None:
            self.submodules, self.optional_imports, self.embeds = set(known[0]), set(known[1]), set()
            self.tree = (
                LazyTree(key or b"", lambda: sys.modules[COMMON]._compile_module_ast(name, given)) if is_text else given
            )
            return
        original(self, name, given.real if isinstance(given, LazyTree) else given, is_pkg_init, *args, **kwargs)
        if key is not None and not getattr(self, "embeds", None):  # an embed is tagged with the line that asks for it
            if len(_found) >= MOST:
                _found.clear()
            _found[name, key, is_pkg_init] = frozenset(self.submodules), frozenset(self.optional_imports)

    return stand_in


_WHY = "what a text imports was seen before"
STAND_INS = (
    Seam(f"{COMMON}:compile", _WHY, compile_when_looked_at, optional=True),
    Seam(f"{COMMON}:ModuleDepFinder.__init__", _WHY, dependencies),
)
