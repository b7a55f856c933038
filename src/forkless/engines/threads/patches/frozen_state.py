# SPDX-License-Identifier: GPL-3.0-or-later
"""
Copies of objects as fork would have made them, kept as bytes until a worker asks for them.

Containers and objects are copied. Classes, functions and objects of a plugin's file that a worker has its own of are named, and found by that name. Locks
are new. What cannot be copied (sockets, generators, objects that refuse it) is shared. So is a library's object that has such a part, as a whole: its
methods rely on being the only ones that use that part.
"""

from __future__ import annotations

import ast
import io
import itertools
import pickle
import threading
import types
import weakref
from collections import deque
from typing import TYPE_CHECKING

from forkless.engines.threads.patches.module_places import PluginValue, is_code, is_immutable, is_of_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Frozen", "freeze"]

_LOCK, _RLOCK = type(threading.Lock()), type(threading.RLock())
# Pickle copies these in C.
_PLAIN = frozenset({dict, list, set, frozenset, tuple, bytearray, str, int, float, bool, bytes, type(None)})


class Frozen:
    """A copy as bytes, and the objects that are shared by all that is made of it."""

    def __init__(self, data: bytes, shared: list[object]) -> None:
        self.data = data
        self.shared = shared

    def thaw(self, counterpart: Callable[[PluginValue], object]) -> PluginValue:
        """A new copy. `counterpart` returns the worker's own object for a name that was given to `freeze`."""
        return _Thaw(self.data, self.shared, counterpart).load()


def freeze(thing: object, known: Mapping[int, object]) -> Frozen:
    """Copy an object. `known` has the names of objects that are not copied, by their id. Raises what an object's own code raises."""
    file = io.BytesIO()
    freezer = _Freezer(file, known)
    freezer.dump(thing)
    return Frozen(file.getvalue(), freezer.shared)


class _CannotBeCopied(Exception):
    """An object, or a part of a library's object, is to be shared."""


def _refuse_threads(thing: object) -> None:
    if isinstance(thing, threading.Thread | weakref.ref):
        raise _CannotBeCopied


# A library's object with more parts than these is shared: a copy for each worker would take longer than its task.
_MANY = 2000


class _Freezer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, known: Mapping[int, object], *, whole: bool = False) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._known = known
        self._whole = whole
        """Whether to raise _CannotBeCopied instead of sharing a part."""
        self.shared: list[object] = []
        self._numbers: dict[int, int] = {}
        self._reduced: dict[int, tuple[object, PluginValue]] = {}

    def persistent_id(self, thing: PluginValue) -> object:
        """The name of an object with a counterpart, the number of one that is shared, or None for one that is copied."""
        if id(thing) in self._known:
            return (self._known[id(thing)],)
        kind = type(thing)
        if kind in _PLAIN or id(thing) in self._reduced:
            return None
        reduced: PluginValue = None
        if kind is types.FunctionType and id(thing.__globals__) in self._known:
            parts = (thing.__code__, thing.__globals__, thing.__name__, thing.__defaults__, thing.__closure__)
            reduced = (types.FunctionType, parts, (vars(thing), thing.__kwdefaults__), None, None, _set_function)
        elif isinstance(thing, _LOCK):
            reduced = (threading.Lock, ())
        elif isinstance(thing, _RLOCK):
            reduced = (threading.RLock, ())
        elif kind is types.CellType:
            reduced = (types.CellType, (), _content(thing), None, None, _set_cell)
        elif kind is itertools.count:  # which cannot be pickled since Python 3.14
            reduced = (itertools.count, tuple(ast.literal_eval(repr(thing)[len("count(") : -1] + ",")))
        elif isinstance(thing, threading.local):
            # The thread that forked was the worker's only one, and its values were the worker's.
            reduced = (kind.__new__, (kind,), vars(thing).copy())
        elif not is_immutable(thing) and not is_code(thing):
            reduced = self._reduce(thing)
        if not isinstance(reduced, tuple):
            number = self._numbers.setdefault(id(thing), len(self.shared))
            if number == len(self.shared):
                self.shared.append(thing)
            return number
        self._reduced[id(thing)] = (thing, reduced)
        if self._whole and len(self._reduced) > _MANY:
            raise _CannotBeCopied
        return None

    def _reduce(self, thing: PluginValue) -> PluginValue:
        """How to copy an object: what pickle asks it for; None if it is to be shared."""
        whole = self._whole or is_of_plugin(type(thing)) or isinstance(thing, dict | list | set | deque)
        try:
            _refuse_threads(thing)
            if not whole:
                _Freezer(io.BytesIO(), self._known, whole=True).dump(thing)
            return thing.__reduce_ex__(4)
        except Exception:  # any object may refuse to be copied, in its own way
            if self._whole:
                raise
            return None

    def reducer_override(self, thing: object) -> PluginValue:
        return self._reduced[id(thing)][1] if id(thing) in self._reduced else NotImplemented


class _Thaw(pickle.Unpickler):
    def __init__(self, data: bytes, shared: list[object], counterpart: Callable[[PluginValue], object]) -> None:
        super().__init__(io.BytesIO(data))
        self._shared, self._counterpart = shared, counterpart

    def persistent_load(self, name: PluginValue) -> object:
        return self._shared[name] if isinstance(name, int) else self._counterpart(name[0])


def _content(cell: types.CellType) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # the variable is not assigned yet
        return ()


def _set_cell(cell: types.CellType, content: tuple[object, ...]) -> None:
    if content:
        cell.cell_contents = content[0]


def _set_function(function: PluginValue, state: tuple[dict[str, object], dict[str, object] | None]) -> None:
    function.__dict__.update(state[0])
    function.__kwdefaults__ = state[1]
