# SPDX-License-Identifier: GPL-3.0-or-later
"""Seam: one name in another package that forkless replaces. Used alike for ansible-core, for modules and for the stdlib."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forkless.core.versions import KNOWN

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Kind", "Seam", "always", "for_speed", "made_by", "static"]


class Kind(enum.Enum):
    """What a seam is for, which decides what happens if its target is not the one that forkless was tested with."""

    CORRECTNESS = "correctness"
    """A run would do the wrong thing without the seam: if the target's shape has changed, the run is refused."""
    SPEED = "speed"
    """A run does the same without the seam, only slower: if the target has changed at all, the seam is left out."""


@dataclass(frozen=True, eq=False)  # compared as objects: there is one table, and every run looks all of them up
class Seam:
    """
    One name (`site`), the reason to replace it (`why`), and the factory of its replacement (`stand_in`).

    A site is `module:path.to.name`, or `module:path.to.mapping[key]`. The factory gets the original (None if there is none) and
    the site.
    """

    site: str
    why: str
    stand_in: Callable[[Any, str], object]
    minors: tuple[str, ...] = KNOWN
    """The minors of ansible-core that need the seam; ignored for seams in the stdlib."""
    optional: bool = False
    """The name may be absent before the seam is installed: ansible-core sets it on instances only, or forkless adds it."""
    late: bool = False
    """Few runs need its module: it is not imported for the seam, which is installed when something else imports it."""
    elsewhere: tuple[str, ...] = ()
    """
    Sites to try if another package replaces the site's module: ansible-core prefers an installed `distro` to its bundled copy.
    If the name exists at none of these sites either, there is nothing to replace.
    """
    kind: Kind = Kind.CORRECTNESS

    @property
    def module(self) -> str:
        return self.site.partition(":")[0]

    @property
    def in_ansible(self) -> bool:
        return self.module.partition(".")[0] == "ansible"


def always(thing: object) -> Callable[[object, str], object]:
    """The factory of a seam whose replacement does not depend on the original."""
    return lambda _original, _site: thing


def for_speed(site: str, why: str, stand_in: Callable[[Any, str], object], minors: tuple[str, ...] = KNOWN) -> Seam:
    """A seam without which a run does the same, only slower."""
    return Seam(site, why, stand_in, minors, kind=Kind.SPEED)


def made_by(make: Callable[[Any], object]) -> Callable[[object, str], object]:
    """The factory of a seam whose replacement is made from the original alone."""
    return lambda original, _site: make(original)


def static(make: Callable[[Any], Callable[..., object]]) -> Callable[[Any, str], object]:
    """As `made_by`, for a static method."""
    return lambda original, _site: staticmethod(make(original.__func__))
