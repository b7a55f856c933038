# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells which files belong to ansible-core."""

from __future__ import annotations

import functools
import os

__all__ = ["own_files"]


@functools.lru_cache(maxsize=4096)
def own_files(path: str) -> bool:
    """Whether a file belongs to ansible-core, whose modules are shared by all workers."""
    import ansible

    return os.path.realpath(path).startswith(os.path.dirname(os.path.realpath(ansible.__file__)) + os.sep)
