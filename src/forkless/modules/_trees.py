# SPDX-License-Identifier: GPL-3.0-or-later
"""
Syntax trees, one at a time.

Up to 3.12 CPython counts the depth of the tree that it makes in one place for the whole interpreter. A thread that is switched to while another
is at it (a finalizer of the garbage collector is enough) makes the count come out wrong: `SystemError: AST constructor recursion
depth mismatch`. Ansible makes trees of every module it sends and of every literal in an inventory, and we of what it wrapped.
"""

from __future__ import annotations

import ast
import functools
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["literal_eval", "one_at_a_time"]

_lock = threading.RLock()
# Threads that are not ours may be at it as well, and do not know of the lock.
_TRIES = 20


def one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for left in reversed(range(_TRIES)):
            try:
                with _lock:
                    return function(*args, **kwargs)
            except SystemError as error:
                if "recursion depth mismatch" not in str(error) or not left:
                    raise
        raise AssertionError("unreachable")

    return call


literal_eval = one_at_a_time(ast.literal_eval)
