# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a seam is, how one is put in and taken out again, and how we know that ansible-core has not moved under it.

For each minor that we know, fingerprints.json holds the look of what stands at every site: made by `write_fingerprints`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.resources
import inspect
import json
import os
import sys
import threading
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forkless._errors import SeamError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["KNOWN", "Seam", "check", "installed", "look", "moved", "uses_only", "version"]

KNOWN = ("2.18", "2.19", "2.20", "2.21")


@dataclass(frozen=True)
class Seam:
    """One name in ansible-core, why it cannot stay what it is, and what takes its place."""

    site: str
    why: str
    stand_in: Callable[[Any, str], Any]
    minors: tuple[str, ...] = KNOWN
    optional: bool = False
    """The attribute is set on instances only, so there is nothing to find on the class before."""
    late: bool = False
    """Not needed by every run, and its module takes its time to import: it is put in when it is asked for."""


def version() -> str:
    try:
        return importlib.metadata.version("ansible-core")
    except importlib.metadata.PackageNotFoundError:
        raise UnsupportedError("ansible-core is not installed; pip install ansible-core") from None


def minor(full: str) -> str:
    return ".".join(full.split(".")[:2])


def for_minor(seams: Sequence[Seam], which: str) -> list[Seam]:
    """An unknown minor is taken for the newest that we know."""
    which = which if which in KNOWN else KNOWN[-1]
    return [seam for seam in seams if which in seam.minors]


def _find(site: str) -> tuple[Any, str]:
    """The owner and the name of a site; raises when a step of the way is missing."""
    module, _, path = site.partition(":")
    owner: Any = sys.modules.get(module) or importlib.import_module(module)
    *steps, name = path.split(".")
    for step in steps:
        owner = getattr(owner, step)
    return owner, name


def look(seam: Seam) -> str:
    """A short word for what stands at the site now: a hash of its source, or what kind of thing it is."""
    try:
        owner, name = _find(seam.site)
        thing = inspect.getattr_static(owner, name)
    except (ImportError, AttributeError):
        if seam.optional and _exists(seam.site):
            return "instance attribute"
        return "missing"
    if isinstance(thing, types.ModuleType):
        return f"module {thing.__name__}"
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    if not callable(thing) or name == "__class__":
        return type(thing).__name__
    if str(getattr(thing, "__module__", "")).partition(".")[0] in sys.stdlib_module_names:
        # Its source is another one in each Python; that it is taken from there is what counts.
        return f"stdlib {thing.__module__}.{thing.__qualname__}"
    try:
        source = inspect.getsource(thing)
    except (OSError, TypeError):
        return type(thing).__name__
    # Lines without their indents, blanks and comments: the same in every Python, which its tokens are not.
    lines = [line.strip() for line in source.splitlines()]
    text = "\n".join(line for line in lines if line and not line.startswith("#"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _there(seam: Seam) -> bool:
    """Whether there is anything at the site: what `look` would say, without reading the source, which takes its time at every start."""
    try:
        owner, name = _find(seam.site)
        inspect.getattr_static(owner, name)
    except (ImportError, AttributeError):
        return seam.optional and _exists(seam.site)
    return True


def _exists(site: str) -> bool:
    try:
        _find(site)
    except (ImportError, AttributeError):
        return False
    return True


def uses_only(function: Any, names: set[str]) -> bool:
    """Whether a function of ansible-core uses no other names than these: one that does, does more than we know of."""
    return names.issuperset(function.__code__.co_names)


def fingerprints() -> dict[str, dict[str, str]]:
    text = importlib.resources.files("forkless.engines").joinpath("fingerprints.json").read_text()
    loaded: dict[str, dict[str, str]] = json.loads(text)
    return loaded


def moved(seams: Sequence[Seam], full: str) -> list[str]:
    """The seams that are not what they were in the minor (or, for an unknown one, in the newest) that we know."""
    which = minor(full) if minor(full) in KNOWN else KNOWN[-1]
    known = fingerprints().get(which, {})
    now = [(seam, look(seam)) for seam in for_minor(seams, which)]
    return [
        f"{seam.site}: {'is gone' if seen == 'missing' else 'has changed'} ({seam.why})"
        for seam, seen in now
        if seen != known.get(seam.site)
    ]


def check(seams: Sequence[Seam]) -> None:
    """Refuse an ansible-core that we do not know. Called with nothing installed."""
    full = version()
    if minor(full) in KNOWN:
        gone = [seam.site + ": is gone" for seam in for_minor(seams, minor(full)) if not (seam.late or _there(seam))]
        if gone:
            raise SeamError(full, gone)
        return
    if os.environ.get("FORKLESS_ALLOW_UNKNOWN") == "1":
        return
    raise SeamError(full, moved(seams, full))


# -- in and out ---------------------------------------------------------------------------------------------------

_GONE = object()


@contextlib.contextmanager
def installed(seams: Sequence[Seam]) -> Iterator[Callable[[], None]]:
    """All seams in; and out again, newest first, whatever happened. Yields what puts the late ones in."""
    undo: list[Callable[[], None]] = []
    late: list[Seam] = []
    lock = threading.Lock()

    def put_late() -> None:
        with lock:
            while late:
                undo.append(_put(late[0]))
                del late[0]

    try:
        for seam in for_minor(seams, minor(version())):
            if seam.late and seam.site.partition(":")[0] not in sys.modules:
                late.append(seam)
            else:
                undo.append(_put(seam))  # one by one: those before a failing one must come out again
        yield put_late
    finally:
        with lock:
            late.clear()
        while undo:
            undo.pop()()


def _put(seam: Seam) -> Callable[[], None]:
    try:
        owner, name = _find(seam.site)
        own = vars(owner)
        original = own[name] if name in own else inspect.getattr_static(owner, name)
    except (ImportError, AttributeError):
        if not (seam.optional and _exists(seam.site)):
            if minor(version()) not in KNOWN:
                return lambda: None  # the user insisted; the rest may do
            raise SeamError(version(), [f"{seam.site}: is gone ({seam.why})"]) from None
        owner, name = _find(seam.site)
        original = _GONE
    if name == "__class__":
        original = type(owner)
    stand_in = seam.stand_in(None if original is _GONE else original, seam.site)
    inherited = original is not _GONE and name != "__class__" and name not in vars(owner)
    setattr(owner, name, stand_in)

    def take_out() -> None:
        if original is _GONE or inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return take_out


def write_fingerprints(path: str) -> None:
    """Note down how every site looks in the ansible-core that is installed. Nothing may be installed in it."""
    from forkless.engines import _seams

    with open(path, encoding="utf-8") as file:
        known = json.load(file)
    which = minor(version())
    known[which] = {seam.site: look(seam) for seam in for_minor(_seams.SEAMS, which)}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(known, file, indent=1, sort_keys=True)
        file.write("\n")
