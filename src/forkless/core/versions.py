# SPDX-License-Identifier: GPL-3.0-or-later
"""
The supported versions of Python and ansible-core: the only list of them.

The seams, `forkless doctor`, the test matrix (noxfile.py), the README's table and the classifiers are generated from it or checked
against it. `python -m forkless.porting` helps to add a minor.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CORES", "KNOWN", "PAIRS", "PYTHONS", "SHORT_MATRIX", "Core", "minor_of", "nearest", "since", "unsupported"]


@dataclass(frozen=True)
class Core:
    """One minor of ansible-core: the oldest and newest patch release that are tested, and its supported controller Pythons."""

    minor: str
    oldest: str
    newest: str
    pythons: tuple[str, ...]


CORES = (
    Core("2.18", "2.18.0", "2.18.19", ("3.11", "3.12", "3.13")),
    Core("2.19", "2.19.0", "2.19.14", ("3.11", "3.12", "3.13")),
    Core("2.20", "2.20.0", "2.20.10", ("3.12", "3.13", "3.14")),
    Core("2.21", "2.21.0", "2.21.5", ("3.12", "3.13", "3.14")),
    Core("2.22", "2.22.0rc1", "2.22.0rc1", ("3.13", "3.14", "3.15")),
)
KNOWN = tuple(core.minor for core in CORES)
PYTHONS = tuple(sorted({python for core in CORES for python in core.pythons}, key=lambda name: int(name.split(".")[1])))
# Every pair that ansible-core itself supports.
PAIRS = tuple((python, core.minor) for python in PYTHONS for core in CORES if python in core.pythons)
# The pairs that `make test` runs besides the main pair: every ansible-core once, and the newest Python.
SHORT_MATRIX = (("3.11", "2.18"), ("3.12", "2.20"), ("3.13", "2.21"), ("3.13", "2.22"), ("3.15", "2.22"))


def minor_of(full: str) -> str:
    return ".".join(full.split(".")[:2])


def since(minor: str) -> tuple[str, ...]:
    """The known minors, from this one to the newest."""
    return KNOWN[KNOWN.index(minor) :]


def nearest(full: str) -> str:
    """The minor whose seams are used for this release: its own if it is known, otherwise the newest known minor."""
    return minor_of(full) if minor_of(full) in KNOWN else KNOWN[-1]


def unsupported(python: tuple[int, int], full: str) -> str | None:
    """A sentence that says so if this ansible-core is older than CORES, or does not support this Python according to them; otherwise None."""
    name = "{}.{}".format(*python)
    fits = " or ".join(core.minor for core in CORES if name in core.pythons)
    if _number(minor_of(full)) < _number(KNOWN[0]):
        instead = f"install ansible-core {fits}" if fits else f"use Python {PYTHONS[0]} to {PYTHONS[-1]}"
        return f"forkless does not support ansible-core {full}: it begins at ansible-core {KNOWN[0]}; {instead}"
    core = next((one for one in CORES if one.minor == minor_of(full)), None)
    if core is None or name in core.pythons:
        return None
    end, verb = (-1, "end") if _number(name) > _number(core.pythons[-1]) else (0, "begin")
    same = [one.minor for one in CORES if one.pythons[end] == core.pythons[end]]
    what = f"ansible-core {' and '.join(same)} {verb}{'' if len(same) > 1 else 's'} at Python {core.pythons[end]}"
    instead = f"install ansible-core {fits}" if fits else f"use Python {' or '.join(core.pythons)}"
    return f"ansible-core {full} does not support Python {name}: {what}; {instead}"


def _number(name: str) -> list[int]:
    return [int(part) for part in name.split(".")]
