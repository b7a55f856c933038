# SPDX-License-Identifier: GPL-3.0-or-later
"""FORKLESS_DISABLE=a,b: parts that make runs faster, switched off by name to find a culprit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forkless._errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NAMES", "asked", "disabled"]

# Everything that can be switched off, wherever it lives: a name that is none of these is a mistake, and is told.
NAMES = (
    "template-cache",
    "plugin-cache",
    "folder-cache",
    "vars-cache",
    "user-cache",
    "option-cache",
    "unset-attributes",
    "quick-copies",
    "plain-text",
    "rare-collection",
    "warm-modules",
    "carried-files",
    "import-cache",
)


def _named(environ: Mapping[str, str] | None) -> set[str]:
    text = (os.environ if environ is None else environ).get("FORKLESS_DISABLE", "")
    return {one.strip() for one in text.split(",")} - {""}


def asked(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """All that was switched off; raises where a name is not known."""
    names = _named(environ)
    unknown = sorted(names - set(NAMES))
    if unknown:
        raise SpecError(
            f"FORKLESS_DISABLE names {', '.join(unknown)}, and there is no such part; there are {', '.join(NAMES)}."
        )
    return frozenset(names)


def disabled(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the part of this name was switched off."""
    return name in _named(environ)
