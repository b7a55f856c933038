# SPDX-License-Identifier: GPL-3.0-or-later
"""
What ansible-core looks like at the sites of the seams, and whether that is what forkless was tested with.

fingerprints.json has for each known minor, from its oldest and its newest tested release: `sites`, the looks of the object at each
site, and `files`, the digests of the files that these objects come from. A look is the object's shape (what kind of thing it is, and
the parameters it takes), and after `#` a hash of its source, where there is one. Equal digests spare reading the source: an installed
ansible-core that is one of the tested releases costs a few milliseconds. Any other is compared object by object.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import pkgutil
import sys
import types
from typing import TYPE_CHECKING, TypedDict

from forkless.patching import place
from forkless.patching.place import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless.patching.seam import Seam

__all__ = ["ELSEWHERE", "MISSING", "Fingerprints", "files_of", "fingerprints", "look", "looks", "shape_of", "site_of"]

MISSING = "missing"
ELSEWHERE = "elsewhere"
_KINDS: dict[object, str] = {
    inspect.Parameter.POSITIONAL_ONLY: "/",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.KEYWORD_ONLY: "=",
    inspect.Parameter.VAR_KEYWORD: "**",
}


class Fingerprints(TypedDict):
    """One minor of ansible-core."""

    sites: dict[str, list[str]]
    files: dict[str, list[str]]


@functools.cache
def fingerprints() -> dict[str, Fingerprints]:
    # Not importlib.resources, whose readers take longer to import than this takes.
    loaded: dict[str, Fingerprints] = json.loads(pkgutil.get_data("forkless.patching", "fingerprints.json") or b"{}")
    return loaded


def looks(minor: str, site: str) -> list[str]:
    """What was seen at a site in the tested releases of a minor."""
    known = fingerprints().get(minor)
    return [] if known is None else known["sites"].get(site, [])


def site_of(seam: Seam) -> str | None:
    """The site that exists in this environment; None if another package replaces the site's module and lacks the name."""
    if not seam.elsewhere:
        return seam.site
    return next((site for site in (seam.site, *seam.elsewhere) if not place.why_missing(site)), None)


def _thing(seam: Seam, site: str) -> object:
    """The object at a site of the seam, or one of the two words for its absence."""
    try:
        thing, _ = place.find(site).read()
    except (ImportError, AttributeError):
        return MISSING
    if thing is ABSENT:
        return "instance attribute" if seam.optional else MISSING
    return thing


def look(seam: Seam) -> str:
    """The look of the object at the seam's site, or MISSING, or ELSEWHERE. Must be called while no seam is installed."""
    site = site_of(seam)
    if site is None:
        return ELSEWHERE
    thing = _thing(seam, site)
    shape = shape_of(thing)
    source = _source(thing)
    return shape if source is None else f"{shape} #{_hash(source)}"


def shape_of(thing: object) -> str:
    """What kind of thing it is, and the parameters that it or its methods take. Equal on every Python."""
    if isinstance(thing, str):
        return thing if thing in (MISSING, ELSEWHERE, "instance attribute") else "str"
    if isinstance(thing, types.ModuleType):
        return f"module {thing.__name__}"
    if isinstance(thing, staticmethod | classmethod):
        return f"{type(thing).__name__} {_parameters(thing.__func__)}"
    if isinstance(thing, property):
        return "property"
    if _from_stdlib(thing):
        # The stdlib's differ between Pythons; only the origin is compared.
        return f"stdlib {thing.__module__}.{getattr(thing, '__qualname__', '')}"
    if isinstance(thing, type):
        methods = [f"{name}{_parameters(function)}" for name, function in sorted(_methods(thing))]
        return f"class {thing.__name__}({', '.join(base.__name__ for base in thing.__bases__)}): {' '.join(methods)}"
    if callable(thing) and inspect.isroutine(inspect.unwrap(thing)):
        kind = "generator" if inspect.isgeneratorfunction(thing) else "function"
        return f"{kind} {_parameters(thing)}"
    return type(thing).__name__


def _from_stdlib(thing: object) -> bool:
    return callable(thing) and str(getattr(thing, "__module__", "")).partition(".")[0] in sys.stdlib_module_names


def _methods(thing: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """The functions of a class, without those that `dataclass` and others make, which differ between Pythons."""
    for name, value in vars(thing).items():
        if isinstance(value, types.FunctionType) and (name == "__init__" or not name.startswith("__")):
            yield name, value


def _parameters(function: Callable[..., object]) -> str:
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return "(?)"
    optional = {True: "", False: "?"}
    return "({})".format(
        ", ".join(f"{_KINDS.get(one.kind, '')}{one.name}{optional[one.default is one.empty]}" for one in found)
    )


def _source(thing: object) -> str | None:
    """The source of a function or class, without comments; None if there is none to compare."""
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    elif isinstance(thing, property):
        thing = thing.fget
    if isinstance(thing, types.ModuleType) or not callable(thing) or _from_stdlib(thing):
        return None
    try:
        source = inspect.getsource(thing)
    except (OSError, TypeError):
        return None
    # Stripped lines without blank lines and comments are equal on every Python; tokens are not.
    lines = [line.strip() for line in source.splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# -- the files that the objects come from -------------------------------------------------------------------------


def files_of(seam: Seam) -> set[str]:
    """The files of ansible-core that decide what is at the seam's site: the site's module, and the one that the object comes from."""
    site = site_of(seam)
    if site is None:
        return set()
    thing = _thing(seam, site)
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    elif isinstance(thing, property):
        thing = thing.fget
    modules = {site.partition(":")[0], str(getattr(thing, "__module__", "")), *_bases(thing)}
    named = (
        getattr(sys.modules.get(name), "__file__", None) for name in modules if name.partition(".")[0] == "ansible"
    )
    return {file for file in named if file}


def _bases(thing: object) -> set[str]:
    return {base.__module__ for base in thing.__mro__} if isinstance(thing, type) else set()


def relative(file: str) -> str:
    """A file's name below the folder that holds ansible-core."""
    return _relative(file, str(sys.modules["ansible"].__file__))


@functools.lru_cache(maxsize=1024)
def _relative(file: str, ansible: str) -> str:
    return os.path.relpath(file, os.path.dirname(os.path.dirname(ansible))).replace(os.sep, "/")


@functools.lru_cache(maxsize=1024)
def _digest_at(file: str, _changed: int, _size: int) -> str:
    with open(file, "rb") as stream:
        return hashlib.blake2b(stream.read(), digest_size=8).hexdigest()


def digest(file: str) -> str:
    """The digest of a file's content; "" if it cannot be read, as in an installation without sources."""
    try:
        stat = os.stat(file)
        return _digest_at(file, stat.st_mtime_ns, stat.st_size)
    except OSError:
        return ""


def all_tested(minor: str, seam: Seam) -> bool:
    """Whether the seam's files are, byte by byte, those of a tested release of the minor."""
    known = fingerprints().get(minor)
    files = files_of(seam)
    return bool(known and files) and all(digest(file) in known["files"].get(relative(file), ()) for file in files)  # type: ignore[index]


def module_tested(minor: str, seam: Seam) -> bool:
    """
    Whether the file of the seam's module, which is not imported for that, is that of a tested release of the minor, byte by byte.

    For late seams: what is at their sites comes from this file alone.
    """
    known = fingerprints().get(minor)
    name = f"{seam.module.replace('.', '/')}.py"
    folder = os.path.dirname(os.path.dirname(str(sys.modules["ansible"].__file__)))
    return known is not None and digest(os.path.join(folder, *name.split("/"))) in known["files"].get(name, ())
