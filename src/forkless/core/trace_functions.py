# SPDX-License-Identifier: GPL-3.0-or-later
"""`sys.settrace` and `sys.setprofile` for threads that call them at the same time as others."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BY_ONE_THREAD_AT_A_TIME", "set_profile", "set_trace"]

BY_ONE_THREAD_AT_A_TIME = sys.version_info < (3, 12)
"""
Whether CPython refuses to set such a function while another thread is just setting one.

It executes audit hooks, and what the end of the function before executes, in the midst of it, and another thread may have its turn then. Each forked
worker had an interpreter of its own.
"""
_REFUSED = ("trace function is being installed", "profile function is being installed")
# Seconds. Each refusal is the last one until a thread begins anew, so this is not reached.
_LONGEST = 5.0


def set_trace(function: Callable[..., object] | None) -> None:
    """`sys.settrace(function)` for the calling thread."""
    _set(sys.settrace, function)


def set_profile(function: Callable[..., object] | None) -> None:
    """`sys.setprofile(function)` for the calling thread."""
    _set(sys.setprofile, function)


def _set(setter: Callable[..., object], function: Callable[..., object] | None) -> None:
    deadline = time.monotonic() + _LONGEST
    while True:
        try:
            setter(function)
        except RuntimeError as err:
            if not BY_ONE_THREAD_AT_A_TIME or not str(err).endswith(_REFUSED) or time.monotonic() > deadline:
                raise
            time.sleep(0.001)  # with a lock in place of that, foreign code would be executed while it is held
        else:
            return
