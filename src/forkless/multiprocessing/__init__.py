# SPDX-License-Identifier: GPL-3.0-or-later
"""
The stdlib's multiprocessing, on threads.

    import forkless.multiprocessing

    forkless.multiprocessing.install()

    import multiprocessing

    with multiprocessing.Pool(4) as pool:
        print(pool.map(abs, [-1, -2, -3]))

It is a start method, not a rewrite: queues, pipes, pools and managers stay the stdlib's own code, and only what starts a
process, and what the interpreter keeps once per process, is ours. Importing this changes nothing; install() does.

    "thread"      a thread, given the parent's own objects
    "fork"        the same, under the name that programs ask for
    "spawn"       a thread, given pickled copies and duplicated descriptors
    "forkserver"  likewise
"""

from __future__ import annotations

from forkless.multiprocessing._abandoned import Abandoned, abandoned
from forkless.multiprocessing._install import install, installed, is_installed, uninstall
from forkless.multiprocessing.context import ThreadContext, ThreadProcess

__all__ = [
    "Abandoned",
    "ThreadContext",
    "ThreadProcess",
    "abandoned",
    "install",
    "installed",
    "is_installed",
    "uninstall",
]
