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

    return _real_path(path).startswith(_folder_of(ansible.__file__))


@functools.lru_cache(maxsize=8)
def _folder_of(init: str) -> str:
    return os.path.dirname(os.path.realpath(init)) + os.sep


def _real_path(path: str) -> str:
    """As os.path.realpath, which asks the system about every folder above a file: most files have theirs in common with others."""
    folder, name = os.path.split(path)
    if not os.path.isabs(folder) or name in ("", os.curdir, os.pardir) or os.path.islink(path):
        return os.path.realpath(path)
    return os.path.join(_real_folder(folder), name)


@functools.lru_cache(maxsize=512)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)
