# SPDX-License-Identifier: GPL-3.0-or-later
"""FORKLESS_DISABLE=a,b: optimizations that are switched off by name, to find out which one causes a problem."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forkless.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NAMES", "asked", "disabled"]

# Every optimization that can be switched off, in any package. Any other name is a mistake and is reported.
NAMES = (
    "template-cache",
    "plugin-cache",
    "folder-cache",
    "vars-cache",
    "user-cache",
    "option-cache",
    "unset-attributes",
    "unset-options",
    "unused-plugins",
    "fast-copies",
    "plain-text",
    "lazy-values",
    "plain-inventory",
    "plain-routing",
    "gc-tuning",
    "quick-exit",
    "warm-modules",
    "remote-files",
    "import-cache",
    "archive-cache",
    "host-bytecode",
    "quick-login",
    "network-connections",
    "network-asyncssh",
    "live-output",
    "loop-workers",
    "slice-cores",
)


# Names used up to 0.1, still accepted.
FORMER_NAMES = {"carried-files": "remote-files", "quick-copies": "fast-copies", "rare-collection": "gc-tuning"}


def _named(environ: Mapping[str, str] | None) -> set[str]:
    text = (os.environ if environ is None else environ).get("FORKLESS_DISABLE", "")
    names = {one.strip() for one in text.split(",")} - {""}
    return {FORMER_NAMES.get(one, one) for one in names}


def asked(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """All names in FORKLESS_DISABLE; raises SpecError for an unknown name."""
    names = _named(environ)
    unknown = sorted(names - set(NAMES))
    if unknown:
        raise SpecError(
            f"FORKLESS_DISABLE names {', '.join(unknown)}, and there is no such part; there are {', '.join(NAMES)}."
        )
    return frozenset(names)


def disabled(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the optimization of this name is switched off."""
    return name in _named(environ)
