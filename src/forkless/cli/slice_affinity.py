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
from typing import TYPE_CHECKING

from forkless.core import switches
from forkless.core.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from forkless.patching.seam import Seam

__all__ = ["NAME", "choose", "free", "keep_to"]

NAME = "slice-cores"


def choose(cores: list[int], many: int) -> list[int | None]:
    """
    The core of each of so many slices; None: any. With fewer slices than cores the kernel chooses: two commands of a machine would take the
    same cores, and leave others idle.
    """
    if not 1 < len(cores) <= many or switches.disabled(NAME):
        return [None] * many
    return [cores[number % len(cores)] for number in range(many)]


def _set_for_threads(pid: int, cores: Collection[int]) -> None:
    """For all threads of a process. One that is started meanwhile has the cores of the thread that starts it."""
    with contextlib.suppress(OSError):  # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # the thread has ended, or a sandbox forbids it
                os.sched_setaffinity(int(thread), cores)


def free(pid: int, cores: list[int]) -> None:
    """Let a slice use all cores again: another one has ended, and its core would be idle."""
    _set_for_threads(pid, cores)


def keep_to(core: int) -> None:
    """
    Keep all threads of this process on one core, but not the programs that they start. It is not undone: the process is a slice. On a Python
    without one of the names that start programs, nothing is done.
    """
    # Not at the top: the parent does not need it, and the slices start when that has imported all.
    from forkless.patching import seams

    everything = os.sched_getaffinity(0)
    try:
        seams.install(_seams(everything))
    except UnsupportedError:
        return
    os.register_at_fork(after_in_child=lambda: _set_for_threads(os.getpid(), everything))
    _set_for_threads(os.getpid(), {core})


def _seams(everything: set[int]) -> list[Seam]:
    from forkless.patching.seam import Seam, made_by

    ask = os.sched_getaffinity

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
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(0, before)

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
