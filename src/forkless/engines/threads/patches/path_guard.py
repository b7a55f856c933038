# SPDX-License-Identifier: GPL-3.0-or-later
"""
Refuses relative paths on a thread that has no private working directory (see `working_directory`).

Code that `working_directory` does not cover, such as a library, would open, list or change a file in the program's working directory.
Python calls audit hooks before such an operation. It is refused, unless the program's working directory is the run's folder.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from forkless.core.errors import UnsupportedError
from forkless.engines.threads.patches import working_directory

__all__ = ["watch"]

# Audit events, the positions of paths in their arguments, and the positions of the directory descriptors that the paths are relative to.
_EVENTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "open": ((0,), ()), "os.listdir": ((0,), ()), "os.scandir": ((0,), ()), "os.chdir": ((0,), ()), "os.truncate": ((0,), ()),
    "os.mkdir": ((0,), (2,)), "os.rmdir": ((0,), (1,)), "os.remove": ((0,), (1,)), "os.chmod": ((0,), (2,)), "os.chown": ((0,), (3,)),
    "os.utime": ((0,), (3,)), "os.symlink": ((1,), (2,)), "os.rename": ((0, 1), (2, 3)), "os.link": ((0, 1), (2, 3)),
    "os.setxattr": ((0,), ()), "os.getxattr": ((0,), ()), "sqlite3.connect": ((0,), ()), "socket.bind": ((1,), ()),
    "socket.connect": ((1,), ()),
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_watching = False


def watch() -> None:
    """Install the audit hook, once for the process: Python cannot remove one. On other threads the hook returns immediately."""
    global _watching  # noqa: PLW0603  # one hook for the process
    if not _watching:
        _watching = True
        sys.addaudithook(_refuse_relative_paths)


def _refuse_relative_paths(event: str, args: tuple[Any, ...]) -> None:
    if event not in _EVENTS:
        return
    folder = working_directory.of_this_thread()
    if folder is None:
        return
    places, descriptors = _EVENTS[event]
    if any(len(args) > place and isinstance(args[place], int) and args[place] >= 0 for place in descriptors):
        return
    if event == "open" and args[1] is None and not args[2] & _WRITING:
        return  # os.open, whose event lacks dir_fd; shutil.rmtree opens names relative to a descriptor
    for place in places:
        path = args[place]
        if event == "os.chdir" and not isinstance(path, int):
            raise UnsupportedError(_sentence(f"os.chdir({path!r}) would move the whole program", folder))
        if path is None or (isinstance(path, str | bytes) and path and not os.path.isabs(path)):
            _refuse(path, event, folder)


def _refuse(path: Any, event: str, folder: str) -> None:
    if event == "sqlite3.connect" and (path == ":memory:" or str(path).startswith("file:")):
        return
    if event.startswith("socket.") and (isinstance(path, bytes) or path.startswith("\0")):
        return  # an abstract address
    if sys._getframe(2).f_globals.get("__name__") in ("tokenize", "linecache"):
        return  # reading a source line for a traceback
    with contextlib.suppress(OSError):
        if os.path.samefile(os.curdir, folder):
            return
    raise UnsupportedError(_sentence(f"{'.' if path is None else os.fsdecode(path)!r} is a relative path", folder))


def _sentence(what: str, folder: str) -> str:
    return (
        f"{what}, and the current folder is the program's, not the run's ({folder}): this machine gives threads no folder of their own "
        "(unshare(2) is denied, or not there). Use an absolute path, start the program in the run's folder, or use engine='runner'."
    )
