# SPDX-License-Identifier: GPL-3.0-or-later
"""
Installing seams and undoing them, and the decision about each: whether the installed ansible-core is the one that it was made for.

A seam of kind *correctness* whose target is missing or has another shape makes `check` refuse the run, with the name of what moved. A
seam of kind *speed* whose target differs in any way is left out. Names outside of ansible-core must exist and are not compared: the
stdlib is tested on every supported Python, and other programs replace names in it as well.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import importlib.metadata
import json
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkless.core import versions
from forkless.core.errors import SeamError, UnsupportedError
from forkless.core.versions import KNOWN
from forkless.patching import after_import, fingerprints, place
from forkless.patching.fingerprints import ELSEWHERE, MISSING, look
from forkless.patching.seam import Kind, Seam, always, for_speed, made_by, static

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "KNOWN",
    "Kind",
    "Seam",
    "SeamState",
    "State",
    "always",
    "check",
    "for_speed",
    "install",
    "installed",
    "look",
    "made_by",
    "moved",
    "states",
    "static",
    "uses_only",
    "version",
]


def version() -> str:
    try:
        return importlib.metadata.version("ansible-core")
    except importlib.metadata.PackageNotFoundError:
        raise UnsupportedError("ansible-core is not installed; pip install ansible-core") from None


# By the folder of the ansible-core that is imported, and by who was asked: its files do not change while the process lives, and reading them takes long.
_versions: dict[tuple[object, str], str] = {}


def _imported_version() -> str:
    """The version of the ansible-core that is imported, or would be."""
    where = version, str(getattr(sys.modules.get("ansible"), "__file__", ""))
    if where not in _versions or not where[1]:
        _versions[where] = version()
    return _versions[where]


minor = versions.minor_of


def for_minor(seams: Sequence[Seam], which: str) -> list[Seam]:
    """The seams of a minor. An unknown minor gets those of the newest known one."""
    which = which if which in KNOWN else KNOWN[-1]
    return [seam for seam in seams if which in seam.minors]


def uses_only(function: Callable[..., object], names: set[str]) -> bool:
    """Whether a function of ansible-core uses no names but these. If it uses others, the release does more than the stand-in replicates."""
    return names.issuperset(function.__code__.co_names)


# -- the decision about each seam ---------------------------------------------------------------------------------


class State(enum.Enum):
    """What becomes of a seam in the installed ansible-core."""

    OK = "ok"
    BODY_CHANGED = "changed"
    """Correctness: the target's code differs from every tested release, but not its shape. The seam is installed."""
    LEFT_OUT = "left out"
    """Speed: the target differs from every tested release."""
    NOT_NEEDED = "absent"
    """Some tested release lacks the target too, or another package stands in its place."""
    MOVED = "moved"
    """Correctness: the target is missing, or has another shape. The run is refused."""


@dataclass(frozen=True)
class SeamState:
    """One seam, its state, and what differs from the tested releases."""

    seam: Seam
    state: State
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.seam.site}: {self.detail} ({self.seam.why})"


def _state(seam: Seam, which: str, *, quick: bool) -> SeamState:
    """With `quick`, the source of the target is not read if its files are those of a tested release."""
    unread = quick and seam.late and not is_imported(seam)
    # If its file is a tested one, a module is not imported to compare it. If not it is, so that the run is refused before it begins.
    if unread and (not seam.in_ansible or fingerprints.module_tested(which, seam)):
        return SeamState(seam, State.OK)
    if not seam.in_ansible:
        site = fingerprints.site_of(seam)
        why = "" if site is None or seam.optional else place.why_missing(site)
        return SeamState(seam, State.MOVED if why else State.OK, why)
    if quick and not place.why_missing(seam.site) and fingerprints.all_tested(which, seam):
        return SeamState(seam, State.OK)
    seen, known = look(seam), fingerprints.looks(which, seam.site)
    if seen == ELSEWHERE or (seen == MISSING and seen in known):
        return SeamState(seam, State.NOT_NEEDED)
    if seen in known:
        return SeamState(seam, State.OK)
    if seen == MISSING:
        detail = place.why_missing(seam.site)
        return SeamState(seam, State.LEFT_OUT if seam.kind is Kind.SPEED else State.MOVED, detail)
    shape = seen.partition(" #")[0]
    shapes = [one.partition(" #")[0] for one in known]
    if shape not in shapes:
        expected = " or ".join(sorted(set(shapes))) or "nothing"
        detail = f"has changed: it was {expected}, and is {shape}"
        return SeamState(seam, State.LEFT_OUT if seam.kind is Kind.SPEED else State.MOVED, detail)
    detail = "has changed: its code differs from the tested releases" if "#" in seen else "has no source to compare"
    return SeamState(seam, State.LEFT_OUT if seam.kind is Kind.SPEED else State.BODY_CHANGED, detail)


def states(seams: Sequence[Seam], full: str | None = None, *, quick: bool = False) -> list[SeamState]:
    """The state of every seam of the installed minor; if that is unknown, against the newest known one. No seam may be installed."""
    which = versions.nearest(full or version())
    return [_state(seam, which, quick=quick) for seam in for_minor(seams, which)]


def moved(seams: Sequence[Seam], full: str) -> list[str]:
    """One line for each seam whose target differs from the tested releases of its minor, or of the newest known one if that is unknown."""
    return [str(one) for one in states(seams, full) if one.detail]


def _go_on_anyway() -> bool:
    return os.environ.get("FORKLESS_ALLOW_UNKNOWN") == "1"


def check(seams: Sequence[Seam]) -> None:
    """
    Raise SeamError for an ansible-core that is unknown, or that differs where it must not, and UnsupportedError for one that is too old, or
    that does not support this Python, unless FORKLESS_ALLOW_UNKNOWN is set. Must be called while no seam is installed.
    """
    full, anyway = version(), _go_on_anyway()
    sentence = versions.unsupported(sys.version_info[:2], full)
    if sentence is not None and not anyway:
        raise UnsupportedError(f"{sentence}, or set FORKLESS_ALLOW_UNKNOWN=1 to go on anyway")
    if minor(full) not in KNOWN and not anyway:
        raise SeamError(full, moved(seams, full))
    found = states(seams, full, quick=True)
    refused = [str(one) for one in found if one.state is State.MOVED]
    if refused and not anyway:
        raise SeamError(full, refused, known=True)
    _left_out[_of_this_ansible_core(seams, full)] = _not_installed(found)


# The seams that are not installed in an ansible-core, by seams, version and folder. Found once: its files do not change while the process lives.
_left_out: dict[tuple[tuple[Seam, ...], str, str], frozenset[Seam]] = {}


def _of_this_ansible_core(seams: Sequence[Seam], full: str) -> tuple[tuple[Seam, ...], str, str]:
    return tuple(seams), full, str(getattr(sys.modules.get("ansible"), "__file__", ""))


def _not_installed(found: Sequence[SeamState]) -> frozenset[Seam]:
    return frozenset(one.seam for one in found if one.state in (State.LEFT_OUT, State.NOT_NEEDED))


def _skipped(seams: Sequence[Seam], full: str) -> frozenset[Seam]:
    """The seams that are not installed in this ansible-core, as `check` has found them, or as they are now if it was not called."""
    key = _of_this_ansible_core(seams, full)
    if key not in _left_out:
        if len(_left_out) >= 8:
            _left_out.clear()
        _left_out[key] = _not_installed(states(seams, full, quick=True))
    return _left_out[key]


# -- installing and undoing ---------------------------------------------------------------------------------------


def install(seams: Sequence[Seam]) -> Callable[[], None]:
    """
    Install all of the seams, or none: if one fails, those before it are undone and the error is raised.

    Returns the function that undoes them, newest first; it may be called once. Callers see to it that no other thread installs or
    undoes seams at the same sites meanwhile.
    """
    undo: list[Callable[[], None]] = []

    def take_out() -> None:
        while undo:
            undo.pop()()

    try:
        for seam in seams:
            undo.append(_put(seam))  # noqa: PERF401  # one by one: if a later one fails, the earlier ones are undone
    except BaseException:  # KeyboardInterrupt too: a partly patched package is worse than an unpatched one
        take_out()
        raise
    return take_out


@contextlib.contextmanager
def installed(seams: Sequence[Seam], in_use: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """
    Install the seams of this ansible-core for the length of the block and undo them afterwards, newest first, whether or not the block
    raised. Seams for speed whose target has changed are left out. Late seams are installed when their module is imported.

    If `in_use()` is true at the end, because a thread still executes this ansible-core, the seams inside the `ansible` package stay
    installed and only the others are undone.
    """
    undo: list[tuple[Seam, Callable[[], None]]] = []
    late: dict[str, list[Seam]] = {}
    over = False
    lock = threading.Lock()
    full = _imported_version()
    skipped = _skipped(seams, full)

    def put_late(module: types.ModuleType) -> None:
        with lock:  # not held below: another thread may import what a stand-in imports, and wait for the lock in the middle of that
            mine = late.pop(module.__name__, ())
        for seam in mine:
            if not _is_put_late(seam, full):
                continue
            take_out = _put(seam)
            with lock:
                if not over:
                    undo.append((seam, take_out))
                    continue
            take_out()

    try:
        for seam in for_minor(seams, minor(full)):
            if seam in skipped:
                continue
            if seam.late and not is_imported(seam):
                late.setdefault(seam.module, []).append(seam)
            else:
                undo.append((seam, _put(seam)))  # one by one: if a later one fails, the earlier ones are undone
        with after_import.acting(late.__contains__, put_late):
            # What was imported by another thread in the meantime.
            for name in [name for name in tuple(late) if name in sys.modules]:
                put_late(importlib.import_module(name))  # waits for that thread
            yield
    finally:
        with lock:
            over = True
            late.clear()
        left_in = in_use()
        while undo:
            seam, take_out = undo.pop()
            if not (left_in and seam.in_ansible):
                take_out()


def is_imported(seam: Seam) -> bool:
    return seam.module in sys.modules


def _is_put_late(seam: Seam, full: str) -> bool:
    """Whether to install a late seam in its module, which has just been imported. Raises SeamError if it is not the one that was tested."""
    if _go_on_anyway() or not seam.in_ansible:
        return True
    found = _state(seam, versions.nearest(full), quick=True)
    if found.state is State.MOVED:
        raise SeamError(full, [str(found)], known=minor(full) in KNOWN)
    return found.state in (State.OK, State.BODY_CHANGED)


def _put(seam: Seam) -> Callable[[], None]:
    site = fingerprints.site_of(seam)
    if site is None:
        return _nothing
    try:
        where = place.find(site)
        original, _ = where.read()
    except (ImportError, AttributeError):
        return _put_nothing(seam, site)
    if original is place.ABSENT and not seam.optional:
        return _put_nothing(seam, site)
    return where.replace(seam.stand_in(None if original is place.ABSENT else original, seam.site))


def _put_nothing(seam: Seam, site: str) -> Callable[[], None]:
    """Installs nothing where that is allowed: by FORKLESS_ALLOW_UNKNOWN, or as the target is missing in some tested releases too."""
    why = place.why_missing(site)
    if not seam.in_ansible:
        python = "{}.{}".format(*sys.version_info[:2])
        raise UnsupportedError(
            f"Python {python} lacks what forkless replaces: {site} {why} ({seam.why}). Use Python {versions.PYTHONS[0]} to {versions.PYTHONS[-1]}"
        )
    full = version()
    if _go_on_anyway() or MISSING in fingerprints.looks(versions.nearest(full), seam.site):
        return _nothing
    raise SeamError(full, [f"{seam.site}: {why} ({seam.why})"], known=minor(full) in KNOWN)


def _nothing() -> None:
    """Undoes a seam that was not installed."""


def write_fingerprints(path: str, seams: Sequence[Seam], *, anew: bool = False) -> None:
    """
    Record the look of every site in the installed ansible-core, and the digests of its files. No seam may be installed.

    Those of other releases of the same minor are kept, unless `anew` is set.
    """
    with open(path, encoding="utf-8") as file:
        known = json.load(file)
    which = minor(version())
    mine = [seam for seam in for_minor(seams, which) if seam.in_ansible]
    before = {"sites": {}, "files": {}} if anew else known.get(which, {"sites": {}, "files": {}})
    files = {one for seam in mine for one in fingerprints.files_of(seam)}
    known[which] = {
        "sites": {seam.site: sorted({*before["sites"].get(seam.site, ()), look(seam)}) for seam in mine},
        "files": {
            name: sorted({*before["files"].get(name, ()), digest})
            for name, digest in sorted((fingerprints.relative(one), fingerprints.digest(one)) for one in files)
        },
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(known, file, indent=1, sort_keys=True)
        file.write("\n")
