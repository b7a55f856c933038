# SPDX-License-Identifier: GPL-3.0-or-later
"""
Child processes that a library starts for a run get the run's environment and working directory.

Ansible and its plugins start children with `WorkerPopen`. A library imports the stdlib's `subprocess`, and its child would inherit the C
library's environment, which is the program's. So `subprocess.Popen` fills in `env` and `cwd` if the calling thread belongs to a run and
the caller gave none. On any other thread it behaves as before.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from forkless.engines.threads.patches import working_directory
from forkless.patching import thread_environ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["started_for_runs"]

_CWD, _ENV = 9, 10  # positions in Popen's signature, since both may be positional arguments

_lock = threading.Lock()
_users = 0


def _filled_in(original: Callable[..., object]) -> object:
    @functools.wraps(original)
    def __init__(self: object, *args: object, **kwargs: Any) -> None:  # noqa: N807  # becomes the class's __init__
        variables = thread_environ.own_variables()
        if variables is not None and _given(args, kwargs, _ENV, "env") is None:
            args = _give(args, kwargs, _ENV, "env", dict(variables))
        folder = working_directory.of_this_thread()
        if folder is not None:
            asked = _given(args, kwargs, _CWD, "cwd")
            where = folder if asked is None else working_directory.join(folder, asked)
            args = _give(args, kwargs, _CWD, "cwd", where)
            mask = working_directory.own_umask()
            if mask is not None and kwargs.get("umask", -1) < 0:
                kwargs["umask"] = mask
        original(self, *args, **kwargs)

    return __init__


def _given(args: tuple[object, ...], kwargs: dict[str, object], place: int, name: str) -> object:
    return args[place] if len(args) > place else kwargs.get(name)


def _give(
    args: tuple[object, ...], kwargs: dict[str, object], place: int, name: str, value: object
) -> tuple[object, ...]:
    if len(args) > place:
        return (*args[:place], value, *args[place + 1 :])
    kwargs[name] = value
    return args


_original: Any = subprocess.Popen.__init__
_ours: Any = None


@contextlib.contextmanager
def started_for_runs() -> Iterator[None]:
    """For the length of the block `subprocess.Popen` fills in the run's values. Blocks may overlap; after the last the original is restored."""
    global _users, _original, _ours  # noqa: PLW0603  # there is one subprocess.Popen
    Popen: Any = subprocess.Popen  # noqa: N806  # a class
    with _lock:
        _users += 1
        if _users == 1:
            _original = Popen.__init__
            Popen.__init__ = _ours = _filled_in(_original)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            # If another package has wrapped this function, it stays in the chain, where it finds no run and changes nothing.
            if _users == 0 and Popen.__init__ is _ours:
                Popen.__init__ = _original
