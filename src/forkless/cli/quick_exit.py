# SPDX-License-Identifier: GPL-3.0-or-later
"""
The end of a command's process, without taking its objects apart one by one.

Python destroys every module and object before a process ends, which takes a tenth of the CPU time of a small play, although the kernel is about
to free all of it. Here the parts of that end that can be noticed are carried out as Python does: threads are waited for, exit functions of Python and
of C libraries are called, and files are flushed. If any object is left whose own end could be noticed, Python ends the process as always.
FORKLESS_DISABLE=quick-exit switches this off.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import io
import itertools
import operator
import sys
import threading
import types
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from forkless.core import switches

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["end_process"]

T = TypeVar("T")

# Packages with classes in C whose objects do nothing when they are destroyed, besides freeing memory and closing descriptors.
_PLAIN = ("_cffi_backend", "_cython_", "_yaml", "bcrypt", "cryptography", "jinja2", "markupsafe", "yaml")
# Modules of the stdlib whose objects may write when they are destroyed, by code in C.
_WRITING = {"_dbm", "_gdbm", "_sqlite3", "dbm", "sqlite3", "shelve", "readline", "_curses"}
# Classes of these modules only warn in `__del__`, or release what the kernel releases as well.
_HARMLESS = ("asyncio.", "forkless.", "subprocess")
_UNBUFFERED = (io.FileIO, io.BufferedReader, io.StringIO, io.BytesIO)
# In this order: the text of a file goes into its buffer first.
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)
_SUSPENDED = {types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame", types.AsyncGeneratorType: "ag_frame"}


def end_process(code: int) -> NoReturn:
    """End this process with this exit code, as sys.exit does in the main thread. Only for a command that owns its process."""
    if switches.disabled("quick-exit") or sys.flags.inspect or sys.flags.dev_mode:
        sys.exit(code)
    try:
        leave = ctypes.PyDLL(None).exit
    except (OSError, TypeError, AttributeError):  # not a system of this kind
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if len(sys._current_frames()) > 1:  # another thread may hold what a flush waits for
        sys.exit(code)
    gc.unfreeze()  # frozen objects are not among the following; some Pythons freeze those of their start
    found = gc.get_objects()
    kinds = set(map(type, found))
    if not all(map(_ends_unnoticed, kinds)) or _any_suspended(found, kinds):
        sys.exit(code)
    try:
        for kind in _BUFFERED:
            for file in _of(found, kind) if kind in kinds else ():
                if not file.closed:
                    file.flush()
    except (OSError, ValueError):  # Python tells of it, and has an exit code for it
        sys.exit(code)
    # C libraries' own exit functions, with the GIL held, as no thread may execute Python code any more.
    leave(code & 0xFF)
    raise AssertionError  # not reached


def _ends_unnoticed(kind: type) -> bool:
    """Whether destroying an object of this class, apart from what it refers to, does nothing that anybody could notice."""
    if issubclass(kind, type):
        return True
    if issubclass(kind, io.IOBase):
        return kind in _UNBUFFERED or kind in _BUFFERED
    end = getattr(kind, "__del__", None)
    if isinstance(end, types.FunctionType) and not str(end.__module__).startswith(_HARMLESS):
        return False
    return all(map(_is_plain, kind.__mro__))


def _is_plain(kind: type) -> bool:
    """Whether this class is written in Python, or in C without an end of its own."""
    name = str(kind.__module__)
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return top not in _WRITING
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    # A plugin's module is not always in sys.modules; its classes are of Python.
    return name.startswith(("ansible", "forkless", *_PLAIN)) or file.endswith(".py")


def _any_suspended(found: list[object], kinds: set[type]) -> bool:
    """Whether functions are left that would be continued once more, for their `finally`."""
    return any(
        getattr(one, frame) is not None
        for kind, frame in _SUSPENDED.items()
        if kind in kinds
        for one in _of(found, kind)
    )


def _of(found: list[object], kind: type[T]) -> Iterable[T]:
    return cast("Iterable[T]", itertools.compress(found, map(functools.partial(operator.is_, kind), map(type, found))))
