# SPDX-License-Identifier: GPL-3.0-or-later
"""
What the files of the tested ansible-cores import, as ansible-core itself found it out: imports/MINOR.json.

Parsing the sixty files of the first module takes a run some 200 ms. Entries are found by the module's name and a hash of its text, so another text is
never answered for. They are used only with the very file of ansible-core that found them. `nox -s fingerprints` writes the files.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import json
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Protocol, TypedDict

from forkless.core import versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["find", "has_text", "write"]

COMMON = "ansible.executor.module_common"
_Names = frozenset[tuple[str, ...]]


class _Table(TypedDict):
    finders: list[str]
    """Hashes of the files of ansible-core that found the imports."""
    imports: dict[str, str]
    """"NAME HASH", a package's with a slash after the name: the names of what it imports, with a question mark before an optional one."""


class _Found(Protocol):
    """What is used of a ModuleDepFinder."""

    submodules: set[tuple[str, ...]]
    optional_imports: set[tuple[str, ...]]


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def find(name: str, digest: bytes, is_package: bool) -> tuple[_Names, _Names] | None:
    """The imports, and which of them are optional, of the module `name` whose text has this SHA-256 digest; None if that is not known."""
    found = _known()["imports"].get(f"{name}{'/' * is_package} {digest.hex()[:32]}")
    if found is None:
        return None
    names = found.split()
    optional = [one[1:] for one in names if one[0] == "?"]
    return _parts(one.lstrip("?") for one in names), _parts(optional)


def has_text(digest: bytes) -> bool:
    """Whether a text with this SHA-256 digest is known, and so is known to be valid Python."""
    return digest.hex()[:32] in _texts()


def _parts(names: Iterable[str]) -> _Names:
    return frozenset(tuple(one.split(".")) for one in names)


def _known() -> _Table:
    common = sys.modules[COMMON]
    return _read(str(common.__file__), str(sys.modules["ansible.release"].__version__))


@functools.lru_cache(maxsize=8)
def _read(finder: str, release: str) -> _Table:
    file = importlib.resources.files(__package__).joinpath("imports", f"{versions.minor_of(release)}.json")
    try:
        table: _Table = json.loads(file.read_text())
        with open(finder, "rb") as stream:
            if _hash(stream.read()) in table["finders"]:
                return table
    except OSError:  # an unknown minor, or an installation without sources
        pass
    return {"finders": [], "imports": {}}


@functools.lru_cache(maxsize=8)
def _texts_of(finder: str, release: str) -> frozenset[str]:
    return frozenset(one.partition(" ")[2] for one in _read(finder, release)["imports"])


def _texts() -> frozenset[str]:
    return _texts_of(str(sys.modules[COMMON].__file__), str(sys.modules["ansible.release"].__version__))


def write(folder: str, *, anew: bool) -> None:
    """Record what the installed ansible-core finds in its own files. Those of other releases of its minor are kept, unless `anew` is set."""
    import ansible.executor.module_common as common
    from ansible.release import __version__

    path = pathlib.Path(folder) / f"{versions.minor_of(__version__)}.json"
    table: _Table = {"finders": [], "imports": {}}
    if path.exists() and not anew:
        table = json.loads(path.read_text())
    place = str(common.__file__)
    table["finders"] = sorted({*table["finders"], _hash(pathlib.Path(place).read_bytes())})
    root = pathlib.Path(os.path.dirname(os.path.dirname(place)))
    for file in sorted([*root.glob("module_utils/**/*.py"), *root.glob("modules/*.py")]):
        parts = ("ansible", *file.relative_to(root).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name, text = ".".join(parts[:-1] if is_package else parts), file.read_bytes()
        found = _found_by(common.ModuleDepFinder, name, text, is_package)
        if not getattr(found, "embeds", None):  # an embed is tagged with the line that asks for it
            names = sorted("?" * (one in found.optional_imports) + ".".join(one) for one in found.submodules)
            table["imports"][f"{name}{'/' * is_package} {_hash(text)}"] = " ".join(names)
    path.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n")


def _found_by(finder: Callable[..., _Found], name: str, text: bytes, is_package: bool) -> _Found:
    """A ModuleDepFinder receives a syntax tree up to 2.20 and a text since 2.21."""
    import ast
    import inspect

    given = text if "module_data" in inspect.signature(finder).parameters else ast.parse(text)
    return finder(name, given, is_pkg_init=is_package)
