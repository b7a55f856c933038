# SPDX-License-Identifier: GPL-3.0-or-later
"""
A core for each slice of `forkless playbook --slices`, while there are at least as many slices as cores.

The threads of one interpreter take turns. The kernel wakes the next one on another core if it can: each turn moves caches and interrupts between
cores, and a thread waits behind another slice although its own core is idle. On a core of its own a slice of debug and set_fact tasks takes a
fifth less of the processor. Programs that a slice starts may use all cores, and code in it that asks for them is told all.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from typing import TYPE_CHECKING

from forkless.core import switches
from forkless.core.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from forkless.patching.seam import Seam

__all__ = ["NAME", "Kept", "choose", "keep_to"]

NAME = "slice-cores"


def choose(cores: list[int], many: int) -> list[int | None]:
    """
    The core of each of so many slices; None: any. With fewer slices than cores the kernel chooses: two commands of a machine would take the
    same cores, and leave others idle.
    """
    if not 1 < len(cores) <= many or switches.disabled(NAME):
        return [None] * many
    return [cores[number % len(cores)] for number in range(many)]


def _set_for_threads(cores: Collection[int]) -> None:
    """
    For all threads of this process, also those that are started meanwhile. A new one has the cores of the thread that starts it, which may
    be one that this has not come to yet; so it ends when no thread is new.
    """
    done: set[str] = set()
    while new := set(os.listdir("/proc/self/task")) - done:
        done |= new
        for thread in new:
            with contextlib.suppress(OSError):  # the thread has ended, or a sandbox forbids it
                os.sched_setaffinity(int(thread), cores)


class Kept:
    """The threads of this process are kept on one core, but not the programs that it starts, until `free` is called."""

    def __init__(self, everything: set[int]) -> None:
        self.everything = everything
        self._freed = False
        self._lock = threading.Lock()  # guards the field, and is held for one system call

    def free(self) -> None:
        """Let this process use all cores from now on. Any thread may call this, at any time."""
        with self._lock:
            self._freed = True  # from here on nobody goes back to one core
        _set_for_threads(self.everything)

    def back(self, cores: Collection[int]) -> None:
        """The calling thread has started a program: let it have its cores again."""
        with self._lock, contextlib.suppress(OSError):
            if not self._freed:
                os.sched_setaffinity(0, cores)


def keep_to(core: int) -> Kept | None:
    """
    Keep all threads of this process, which is a slice, on one core, but not the programs that they start. None: on a Python without one of the
    names that start programs, nothing is done.
    """
    # Not at the top: the parent does not need it, and the slices start when that has imported all.
    from forkless.patching import seams

    kept = Kept(os.sched_getaffinity(0))
    try:
        seams.install(_seams(kept))
    except UnsupportedError:
        return None
    os.register_at_fork(after_in_child=lambda: _set_for_threads(kept.everything))
    _set_for_threads({core})
    return kept


def _seams(kept: Kept) -> list[Seam]:
    from forkless.patching.seam import Seam, made_by

    ask, everything = os.sched_getaffinity, kept.everything

    def on_all_cores(start: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(start)
        def started(*args: object, **kwargs: object) -> object:
            before = ask(0)
            # OSError: the cores that this process may use were changed from outside. The program then has this thread's.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, everything)
            try:
                return start(*args, **kwargs)
            finally:
                kept.back(before)

        return started

    def asked(original: Callable[[int], set[int]]) -> Callable[[int], set[int]]:
        @functools.wraps(original)
        def answer(pid: int, /) -> set[int]:
            return set(everything) if pid in (0, os.getpid()) else original(pid)

        return answer

    inherits = "a program has the cores of the thread that starts it"
    return [
        *(
            Seam(site, inherits, made_by(on_all_cores))
            for site in ("subprocess:_fork_exec", "os:posix_spawn", "os:posix_spawnp", "os:system")
        ),
        Seam("os:sched_getaffinity", "facts and pools of workers count cores with it", made_by(asked)),
    ]
