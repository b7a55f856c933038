# SPDX-License-Identifier: GPL-3.0-or-later
"""FORKLESS_DISABLE=a,b: parts that make runs faster, switched off by name to find a culprit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["disabled"]


def disabled(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the part of this name was switched off."""
    text = (os.environ if environ is None else environ).get("FORKLESS_DISABLE", "")
    return name in {one.strip() for one in text.split(",")}
