# SPDX-License-Identifier: GPL-3.0-or-later
"""
ast.parse and compile, called by one thread at a time.

Up to 3.12 CPython counts the recursion depth of the AST constructor in one variable for the whole interpreter. If another thread builds
a tree at the same time (a finalizer run by the garbage collector is enough to switch threads), the count is wrong and CPython raises
`SystemError: AST constructor recursion depth mismatch`. Ansible parses every module that it sends and every literal in an inventory.
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
# The program's own threads may parse too and do not take the lock, so a mismatch is retried.
_TRIES = 20


def one_at_a_time(function: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
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
