# SPDX-License-Identifier: GPL-3.0-or-later
"""The threads engine: ansible-core in this process, its workers as threads."""

from __future__ import annotations

import importlib
from typing import Any

_OFFERED = ("ENGINE", "ThreadsEngine", "call_cli")


def __getattr__(name: str) -> Any:
    """Import the engine's module on first use, so that importing the package loads nothing."""
    if name in _OFFERED:
        return getattr(importlib.import_module("forkless.engines.threads.engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
