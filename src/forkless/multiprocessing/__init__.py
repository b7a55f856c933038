# SPDX-License-Identifier: GPL-3.0-or-later
"""
The stdlib's multiprocessing, on threads.

    import forkless.multiprocessing

    forkless.multiprocessing.install()

    import multiprocessing

    with multiprocessing.Pool(4) as pool:
        print(pool.map(abs, [-1, -2, -3]))

It adds a start method: queues, pipes, pools and managers remain the stdlib's code. Replaced are only the code that
starts a process, and the state that an interpreter keeps once per process. Importing this package changes nothing;
install() does.

    "thread"      a thread that gets the parent's own objects
    "fork"        the same as "thread", for programs that ask for "fork"
    "spawn"       a thread that gets pickled copies and duplicated descriptors
    "forkserver"  the same as "spawn"
"""

from __future__ import annotations

from forkless.multiprocessing.context import ThreadContext, ThreadProcess
from forkless.multiprocessing.patches import install, installed, is_installed, uninstall
from forkless.multiprocessing.stopping import Abandoned, abandoned

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
