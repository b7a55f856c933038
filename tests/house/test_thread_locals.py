# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless's own thread-local values are known: any other one ends the thread of a worker after its task, from Python 3.13 on."""

from __future__ import annotations

import pathlib
import re

import forkless

SOURCE = pathlib.Path(forkless.__file__).parent
# The base class of forkless's own; and what tells whether a library has left a value.
MAY = {"core/own_thread_locals.py", "engines/threads/workers/thread_locals.py"}


def test_thread_local_values_are_own_thread_locals():
    used = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"\(threading\.local\)|= threading\.local\(\)|from threading import .*\blocal\b", path.read_text())
    }
    assert used == MAY
