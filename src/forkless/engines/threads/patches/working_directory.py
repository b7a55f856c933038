# SPDX-License-Identifier: GPL-3.0-or-later
"""
A run's folder on systems where a thread cannot have a private working directory.

On Linux a thread can leave the process's working directory with `unshare(CLONE_FS)`, and relative paths work without this module. macOS
has no such call, and the default profiles of Docker and Kubernetes forbid it. There a run's folder is only recorded, and:

- Ansible's modules, its plugins and in-process modules get an `os`, an `os.path` and an `open` that resolve relative paths against the
  run's folder, and whose `chdir` and `umask` affect only the worker. `child_processes` starts children in that folder.
- Other code on the run's threads, such as a library, would use the program's file of that name. `path_guard` refuses relative paths there.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import os
import stat
import sys
import threading
from typing import TYPE_CHECKING, Any

from forkless.engines.threads import context
from forkless.engines.threads.patches import worker_descriptors
from forkless.patching import after_import
from forkless.patching.module_view import ModuleView, put_views

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.workers.worker import Worker

__all__ = ["active", "entered", "join", "of_this_thread", "used", "views_installed"]

_lock = threading.Lock()
_users = 0
_FOLDER, _UMASK = "forkless folder", "forkless umask"


def active() -> bool:
    """Whether there is a run without a private working directory."""
    return _users > 0


@contextlib.contextmanager
def used() -> Iterator[None]:
    """Count a run without a private working directory for the length of the block; its folder is `RunContext.folder`."""
    global _users  # noqa: PLW0603  # the number of such runs
    with _lock:
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1


def of_this_thread() -> str | None:
    """The folder of the calling thread's run or worker; None if relative paths need not be resolved on this thread."""
    return _folder_of(context.current_worker(), context.current()) if _users else None


def _folder_of(worker: Worker | None, run_context: RunContext | None) -> str | None:
    if run_context is None or run_context.folder is None:
        return None
    folder: str | None = (None if worker is None else worker.state.get(_FOLDER)) or run_context.state.get(_FOLDER)
    return folder or run_context.folder


def _state() -> dict[Hashable, Any]:
    """What the calling worker keeps, or its run outside of workers."""
    home = context.current_worker() or context.current()
    if home is None:
        raise RuntimeError("a folder was set on a thread that works for no run")
    return home.state


def join(folder: str, path: object) -> Any:
    """The path joined to the folder if it is relative; any other value unchanged."""
    if not isinstance(path, str | bytes | os.PathLike):
        return path
    given = os.fspath(path)
    if not given or os.path.isabs(given):
        return path
    return os.path.join(os.fsencode(folder), given) if isinstance(given, bytes) else os.path.join(folder, given)


@contextlib.contextmanager
def entered(folder: str | None) -> Iterator[None]:
    """The calling worker is in that folder for the length of the block; afterwards its folder and umask are restored."""
    state, here = _state(), of_this_thread()
    before = {name: state[name] for name in (_FOLDER, _UMASK) if name in state}
    if folder and here is not None:
        state[_FOLDER] = join(here, folder)
    try:
        yield
    finally:
        for name in (_FOLDER, _UMASK):
            state.pop(name, None)
        state.update(before)


# -- os -----------------------------------------------------------------------------------------------------------


def _resolving(
    real: Callable[..., object], names: tuple[str, ...], places: tuple[int, ...] = (0,)
) -> Callable[..., Any]:
    """Wrap a function so that the path arguments at these positions, or with these names, are resolved against the run's folder."""

    @functools.wraps(real)
    def function(*args: object, **kwargs: object) -> object:
        folder = of_this_thread()
        if folder is None:
            return real(*args, **kwargs)
        if any(kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            return real(*args, **kwargs)
        args = tuple(join(folder, one) if place in places else one for place, one in enumerate(args))
        for name in names:
            if name in kwargs:
                kwargs[name] = join(folder, kwargs[name])
        return real(*args, **kwargs)

    return function


_ONE_PATH = (
    "access", "chflags", "chmod", "chown", "getxattr", "lchmod", "lchown", "lchflags", "listxattr", "lstat", "mkfifo", "mknod", "pathconf",
    "readlink", "remove", "removedirs", "removexattr", "rmdir", "setxattr", "stat", "statvfs", "truncate", "unlink", "utime",
)  # fmt: skip
_TWO_PATHS = {"link": ("src", "dst"), "rename": ("src", "dst"), "renames": ("old", "new"), "replace": ("src", "dst")}


def _listing(real: Callable[..., object]) -> Callable[..., object]:
    """Wrap listdir or scandir, whose default is the working directory."""

    @functools.wraps(real)
    def function(path: object = ".") -> object:
        folder = of_this_thread()
        return real(path if folder is None else folder if path is None else join(folder, path))

    return function


def _walk(top: Any, *args: Any, **kwargs: Any) -> Iterator[object]:
    folder = of_this_thread()
    if folder is None or join(folder, top) is top:
        yield from os.walk(top, *args, **kwargs)
        return
    whole, given = join(folder, top), os.fspath(top)
    for root, folders, files in os.walk(whole, *args, **kwargs):
        yield given + root[len(whole) :], folders, files


def _getcwd() -> str:
    return of_this_thread() or os.getcwd()


def _getcwdb() -> bytes:
    return os.fsencode(_getcwd())


def _chdir(path: int | str | bytes | os.PathLike[str]) -> None:
    folder = of_this_thread()
    if folder is None:
        os.chdir(path)
        return
    wanted = os.fsdecode(os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else join(folder, path))
    if not stat.S_ISDIR(os.stat(wanted).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if not os.access(wanted, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    _state()[_FOLDER] = os.path.realpath(wanted)


def _umask(mask: int) -> int:
    if of_this_thread() is None:
        return os.umask(mask)
    state = _state()
    before: int | None = state.get(_UMASK)
    state[_UMASK] = mask & 0o777
    return _program_umask() if before is None else before


def _program_umask() -> int:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))
    except (OSError, StopIteration):
        # Without /proc the umask can be read only by setting it. 0o077: files that other threads create now stay private.
        mask = os.umask(0o077)
        os.umask(mask)
        return mask


def own_umask() -> int | None:
    """The umask that this worker has set; None if it has set none or has a private umask in the kernel."""
    mask: int | None = None if of_this_thread() is None else _state().get(_UMASK)
    return mask


def _masked(mode: int) -> int:
    mask = own_umask()
    return mode if mask is None else mode & ~mask


_real_open, _real_mkdir, _real_makedirs = (
    _resolving(one, ("path", "name")) for one in (os.open, os.mkdir, os.makedirs)
)


def _os_open(path: object, flags: int, mode: int = 0o777, **kwargs: object) -> int:
    fd: int = _real_open(path, flags, _masked(mode), **kwargs)
    return fd


def _mkdir(path: object, mode: int = 0o777, **kwargs: object) -> None:
    _real_mkdir(path, _masked(mode), **kwargs)


def _makedirs(name: object, mode: int = 0o777, exist_ok: bool = False) -> None:
    _real_makedirs(name, _masked(mode), exist_ok)


def open_file(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> object:
    """The builtin `open`, with the run's folder and the worker's umask."""
    if isinstance(file, int):
        worker_descriptors.forget(file)
    folder = of_this_thread()
    if folder is not None:
        file = join(folder, file)
        mask = own_umask()
        if mask is not None and len(args) < 5 and kwargs.get("opener") is None:
            kwargs["opener"] = lambda path, flags: os.open(path, flags, 0o666 & ~mask)
    return builtins.open(file, mode, buffering, *args, **kwargs)


OS_FUNCTIONS: dict[str, Callable[..., object]] = {
    **{name: _resolving(getattr(os, name), ("path",)) for name in _ONE_PATH if hasattr(os, name)},
    **{name: _resolving(getattr(os, name), names, (0, 1)) for name, names in _TWO_PATHS.items() if hasattr(os, name)},
    "symlink": _resolving(os.symlink, ("dst",), (1,)),
    "listdir": _listing(os.listdir),
    "scandir": _listing(os.scandir),
    "walk": _walk,
    "getcwd": _getcwd,
    "getcwdb": _getcwdb,
    "chdir": _chdir,
    "fchdir": _chdir,
    "umask": _umask,
    "open": _os_open,
    "mkdir": _mkdir,
    "makedirs": _makedirs,
}
"""The functions of `stdlib_views.os_view`. On a thread with a private working directory they call the real ones unchanged."""


# -- os.path ------------------------------------------------------------------------------------------------------


def _abspath(path: Any) -> Any:
    folder = of_this_thread()
    if folder is None:
        return os.path.abspath(path)
    given = os.fspath(path)
    if not given:
        return os.fsencode(folder) if isinstance(given, bytes) else folder
    return os.path.abspath(join(folder, given))


def _realpath(path: Any, **kwargs: Any) -> object:
    return os.path.realpath(path if of_this_thread() is None else _abspath_unnormalized(path), **kwargs)


def _abspath_unnormalized(path: Any) -> Any:
    """As `_abspath`, but without normalizing `link/..`, which only `realpath` can resolve."""
    given = os.fspath(path)
    return join(_getcwd(), given) if given else _abspath(given)


def _relpath(path: Any, start: Any = None) -> object:
    if of_this_thread() is None:
        return os.path.relpath(path, start)
    here = os.curdir if isinstance(os.fspath(path), str) else os.fsencode(os.curdir)
    return os.path.relpath(_abspath(path) if path else path, _abspath(here if start is None else start))


_PATH_NAMES = (
    "exists", "lexists", "isfile", "isdir", "islink", "ismount", "isjunction", "getsize", "getmtime", "getatime", "getctime",
)  # fmt: skip
_PATH_FUNCTIONS: dict[str, Callable[..., object]] = {
    **{
        name: _resolving(getattr(os.path, name), ("path", "filename", "s"))
        for name in _PATH_NAMES
        if hasattr(os.path, name)
    },
    "samefile": _resolving(os.path.samefile, ("f1", "f2"), (0, 1)),
    "abspath": _abspath,
    "realpath": _realpath,
    "relpath": _relpath,
}


path_view = ModuleView(os.path, **_PATH_FUNCTIONS)

# Replacements by the id of the original, for names that a module has imported itself (`from os.path import exists`).
_BY_ID: dict[int, object] = {
    id(os.path): path_view,
    **{id(getattr(os, name)): function for name, function in OS_FUNCTIONS.items() if hasattr(os, name)},
    **{id(getattr(os.path, name)): function for name, function in _PATH_FUNCTIONS.items()},
}


def install_views(space: dict[str, object], views: dict[int, object]) -> Callable[[], None]:
    """Replace a module's references to os and path functions by the resolving ones. Returns a function that restores them."""
    return put_views(space, {**views, **_BY_ID}, open=open_file)


# Plugins of collections and projects get the views from their `__import__`: see `plugin_imports`.
_OURS = ("ansible",)


@contextlib.contextmanager
def views_installed(views: dict[int, object]) -> Iterator[None]:
    """For the length of the block Ansible's modules resolve paths in the run's folder: those already imported and those imported later."""
    if not active():
        yield
        return
    undo: list[Callable[[], None]] = []
    loaded = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in _OURS and module]
    undo += [install_views(vars(module), views) for module in loaded]
    try:
        with after_import.acting(
            lambda name: name.partition(".")[0] in _OURS,
            lambda module: undo.append(install_views(vars(module), views)),
        ):
            yield
    finally:
        while undo:
            undo.pop()()
