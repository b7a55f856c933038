# SPDX-License-Identifier: GPL-3.0-or-later
"""The runner engine: ansible-runner in a child process."""

from __future__ import annotations

import importlib
from typing import Any

_OFFERED = ("ENGINE", "RunnerEngine")


def __getattr__(name: str) -> Any:
    """Import the engine's module on first use, so that importing the package loads nothing."""
    if name in _OFFERED:
        return getattr(importlib.import_module("forkless.engines.runner.engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
