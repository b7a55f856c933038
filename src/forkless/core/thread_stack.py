# SPDX-License-Identifier: GPL-3.0-or-later
"""Threads with a stack that is deep enough for Ansible, in programs that made the stacks of their threads small."""

from __future__ import annotations

import threading

__all__ = ["start_with_deep_stack"]

# A template that refers to itself recurses through C until Python's recursion limit; with 128 KiB the process ends by SIGSEGV before that.
_DEEP_ENOUGH = 1024 * 1024
# `threading.stack_size` is one setting for the process: two threads that raise it and put it back must not interleave.
_raised = threading.Lock()


def start_with_deep_stack(thread: threading.Thread) -> None:
    """
    `thread.start()`, with a stack of at least 1 MiB if the program has set `threading.stack_size` to less. The setting is put back.

    May be called by any thread. Where the program left the size to the platform, so does this. A thread that the program starts at the
    same moment may get the deeper stack too.
    """
    with _raised:
        size = threading.stack_size()
        if 0 < size < _DEEP_ENOUGH:
            threading.stack_size(_DEEP_ENOUGH)
            try:
                thread.start()
            finally:
                threading.stack_size(size)
            return
    thread.start()
