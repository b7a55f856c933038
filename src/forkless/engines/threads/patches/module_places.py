# SPDX-License-Identifier: GPL-3.0-or-later
"""
Where a module keeps state: its names, the attributes of its classes and functions, default values and closures.

A place is found in two modules that were made of one file by the same route, so that what one holds can be given to the other.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
import copyreg
import datetime as dt
import decimal
import enum
import functools
import logging
import pathlib
import re
import sys
import types
import typing
import uuid
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from forkless.patching.module_view import ModuleView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = [
    "Holder",
    "Place",
    "Route",
    "fill",
    "has_parts",
    "holders",
    "is_code",
    "is_immutable",
    "is_of_plugin",
    "state_of",
]

Route: TypeAlias = "tuple[str, ...]"
"""The names that lead from a module to a holder of state; () is the module itself."""
Place: TypeAlias = "tuple[Route, str]"
PluginValue: TypeAlias = Any
"""What a plugin's file holds, of which nothing is known."""

_IMMUTABLE = frozenset(
    {
        *(str, int, float, bool, bytes, complex, type(None), type(...), type(NotImplemented), range, uuid.UUID),
        *(dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone, decimal.Decimal),
        *(pathlib.PosixPath, pathlib.PurePosixPath),
    }
)
# What belongs to the code of a file, not to its state.
_CODE = frozenset(
    {
        *(types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
        *(types.GetSetDescriptorType, types.MemberDescriptorType, types.ModuleType, types.GenericAlias, types.CodeType),
        *(property, staticmethod, classmethod, re.Pattern, typing.TypeVar, functools.cached_property),
        *(type(functools.lru_cache(lambda: None)), type(vars(abc.ABC)["_abc_impl"]), contextvars.ContextVar),
        *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet, weakref.ref),
    }
)
# What ansible-core's loader sets in the class of a plugin each time that it is asked for it.
_SET_BY_LOADER = frozenset({"_load_name", "_original_path", "_redirected_names", "ansible_aliases", "ansible_name"})
_CACHED = type(functools.lru_cache(lambda: None))
_SCALARS = (str, int, float, bytes)
_CONTAINERS = (dict, list, set, frozenset, tuple, deque, bytearray)


def is_immutable(value: object) -> bool:
    """Whether the value can be shared, because no code can change it. Text and numbers that ansible-core has tagged are immutable, too."""
    kind = type(value)
    if issubclass(kind, enum.Enum):  # a member of a plugin's enumeration has a counterpart in the worker's
        return not is_of_plugin(kind)
    return kind in _IMMUTABLE or (issubclass(kind, _SCALARS) and _is_core(kind))


def is_code(value: object) -> bool:
    """Whether the value is no state of a module, but code, or an object that ansible-core or this project keeps for all."""
    kind = type(value)
    return (
        kind in _CODE
        or issubclass(kind, type | types.ModuleType | logging.Logger | ModuleView)
        or kind.__module__ in ("typing", "__future__")
        or (_is_core(kind) and not issubclass(kind, _CONTAINERS))
    )


def _is_core(kind: type) -> bool:
    name = kind.__module__
    # A project's plugin is named as if it belonged to ansible-core.
    return isinstance(name, str) and name.startswith(("ansible.", "forkless.")) and not is_of_plugin(kind)


def is_of_plugin(kind: type) -> bool:
    """Whether a class was made by a file of a project or a collection: these have builtins of their own."""
    from forkless.engines.threads.patches import plugin_imports  # a circular import

    return getattr(sys.modules.get(kind.__module__), "__builtins__", None) is plugin_imports.BUILTINS


class Holder:
    """Something that keeps values under names: a module, a class, or the attributes of a function."""

    def __init__(self, owner: PluginValue) -> None:
        self.owner = owner

    @property
    def space(self) -> Mapping[str, object] | None:
        """The names that can be assigned at any time, with their values; None if there are no such names."""
        found: Mapping[str, object] = vars(self.owner)
        return found

    def items(self) -> list[tuple[str, object]]:
        names = list(vars(self.owner).items())
        return [(name, value) for name, value in names if not name.startswith("__") and name not in _SET_BY_LOADER]

    def put(self, name: str, value: object) -> None:
        if isinstance(self.owner, type):
            type.__setattr__(self.owner, name, value)
        else:
            self.owner.__dict__[name] = value

    def delete(self, name: str) -> None:
        if isinstance(self.owner, type):
            type.__delattr__(self.owner, name)
        else:
            self.owner.__dict__.pop(name, None)

    def filled(self, name: str) -> None:
        """Called when the value of this name was given the state of another."""

    def values(self) -> Iterable[object]:
        """All that can be assigned, now and later."""
        return _Attributes(self.owner) if isinstance(self.owner, type) else vars(self.owner).values()


class _Attributes:
    """The values of a class's attributes, at the moment at which it is iterated over."""

    def __init__(self, owner: type) -> None:
        self._names = vars(owner)

    def __iter__(self) -> Iterator[object]:
        return iter([value for name, value in [*self._names.items()] if name not in _SET_BY_LOADER])


class _Defaults(Holder):
    """Default values of a function's parameters."""

    space = None

    def values(self) -> Iterable[object]:
        return ()

    def items(self) -> list[tuple[str, object]]:
        named = (self.owner.__kwdefaults__ or {}).items()
        return [*((str(place), value) for place, value in enumerate(self.owner.__defaults__ or ())), *named]

    def put(self, name: str, value: object) -> None:
        if name.isdigit():
            values = [*self.owner.__defaults__]
            values[int(name)] = value
            self.owner.__defaults__ = tuple(values)
        else:
            self.owner.__kwdefaults__[name] = value

    def delete(self, name: str) -> None:
        """Does nothing: they come with the code."""


class _Cells:
    """The contents of cells, at the moment at which it is iterated over."""

    def __init__(self, cells: Iterable[types.CellType]) -> None:
        self._cells = [*cells]

    def __iter__(self) -> Iterator[object]:
        for cell in self._cells:
            with contextlib.suppress(ValueError):  # not assigned yet
                yield cell.cell_contents


class _Closure(Holder):
    """Variables of the function in which a function was made."""

    space = None

    def values(self) -> Iterable[object]:
        cells = zip(self.owner.__code__.co_freevars, self.owner.__closure__, strict=True)
        return _Cells(cell for name, cell in cells if name != "__class__")

    def items(self) -> list[tuple[str, object]]:
        found = []
        for name, cell in zip(self.owner.__code__.co_freevars, self.owner.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # not assigned yet
                found.append((name, cell.cell_contents))
        return found

    def put(self, name: str, value: object) -> None:
        self.owner.__closure__[self.owner.__code__.co_freevars.index(name)].cell_contents = value

    def delete(self, name: str) -> None:
        """Does nothing: they come with the code."""


class _Variable(Holder):
    """A context variable: its value for the calling thread."""

    space = None

    def values(self) -> Iterable[object]:
        return self

    def __iter__(self) -> Iterator[object]:
        return iter([value for _, value in self.items()])

    def items(self) -> list[tuple[str, object]]:
        try:
            return [("value", self.owner.get())]
        except LookupError:
            return []

    def put(self, name: str, value: object) -> None:  # noqa: ARG002  # there is one name
        self.owner.set(value)

    def delete(self, name: str) -> None:
        """Does nothing: a value is taken back with a token, which only its owner has."""


class _Cache(Holder):
    """The results that `cached_functions.lru_cache` keeps of a function."""

    space = None

    def values(self) -> Iterable[object]:
        return ()

    def items(self) -> list[tuple[str, object]]:
        return [("results", self.owner.forkless_results)]

    def put(self, name: str, value: object) -> None:
        """Does nothing: the list is always the same."""

    def delete(self, name: str) -> None:
        """Does nothing, likewise."""

    def filled(self, name: str) -> None:  # noqa: ARG002  # there is one name
        self.owner.forkless_keep()


def holders(module: types.ModuleType) -> dict[Route, Holder]:
    """All that keeps state in a module, by its route."""
    found: dict[Route, Holder] = {(): Holder(module)}
    seen: set[int] = set()
    waiting: list[tuple[Route, Mapping[str, object]]] = [((), vars(module))]
    while waiting:
        above, names = waiting.pop()
        for name, value in list(names.items()):
            if name.startswith("__") and name != "__wrapped__" and not isinstance(value, types.FunctionType):
                continue
            one: PluginValue = value
            if type(one) is contextvars.ContextVar:
                found[*above, name] = _Variable(one)
                continue
            if issubclass(type(one), property):
                one = one.fget
            while issubclass(type(one), staticmethod | classmethod):
                one = one.__func__
            if not issubclass(type(one), type | types.FunctionType | _CACHED):
                continue  # asked first: a proxy's own code may raise anything
            if getattr(one, "__module__", None) != module.__name__ or id(one) in seen:
                continue
            route = (*above, name)
            if isinstance(one, type):
                found[route] = Holder(one)
            elif isinstance(one, types.FunctionType):
                found[route] = Holder(one)
                if one.__defaults__ or one.__kwdefaults__:
                    found[*route, "()"] = _Defaults(one)
                if one.__closure__ and one.__code__.co_freevars != ("__class__",):
                    found[*route, "{}"] = _Closure(one)
            elif isinstance(one, _CACHED) and hasattr(one, "forkless_results"):
                found[route] = _Cache(one)
            else:
                continue
            seen.add(id(one))
            waiting.append((route, vars(one)))
    return found


_slots: Callable[[type], list[str]] = vars(copyreg)["_slotnames"]  # which pickle uses; it is in no stub


def _attributes(value: PluginValue) -> dict[str, object] | None:
    try:
        found: dict[str, object] = value.__dict__
    except Exception:  # noqa: BLE001  # none; or a proxy, whose own code may raise anything
        return None
    return found


def state_of(value: PluginValue) -> tuple[object, dict[str, object]]:
    """What `fill` gives to another object: the items of a container, and the attributes."""
    items: object = None
    kind = type(value)  # not isinstance: a proxy answers for another object
    if issubclass(kind, dict):
        items = dict(value)
    elif issubclass(kind, list | deque | bytearray):
        items = [*value]
    elif issubclass(kind, set):
        items = {*value}
    attributes = dict(_attributes(value) or {})
    for name in _slots(type(value)):
        with contextlib.suppress(Exception):  # not assigned, or an object's own code
            attributes[name] = getattr(value, name)
    return items, attributes


def has_parts(value: PluginValue) -> bool:
    """Whether another object can be filled with its state; not so of a tuple, nor of one of C without attributes, such as an iterator."""
    return (
        issubclass(type(value), dict | list | set | deque | bytearray)
        or _attributes(value) is not None
        or bool(_slots(type(value)))
    )


def is_plain_object(value: PluginValue) -> bool:
    """Whether all that an object has is in its `__dict__`."""
    kind: PluginValue = type(value)
    return (
        kind.__reduce_ex__ is object.__reduce_ex__
        and not _slots(kind)
        and _attributes(value) is not None
        and kind.__basicsize__ <= 32
    )


def fill(thing: PluginValue, state: tuple[PluginValue, dict[str, object]]) -> None:
    """Give an object the state of another one of its kind; it stays the same object."""
    items, attributes = state
    if isinstance(thing, dict):
        dict.clear(thing)
        dict.update(thing, items)
    elif isinstance(thing, list | bytearray):
        thing[:] = items
    elif isinstance(thing, set | deque):
        thing.clear()
        (thing.update if isinstance(thing, set) else thing.extend)(items)
    own = _attributes(thing)
    if own is not None:
        own.clear()
    for name, value in attributes.items():
        if own is not None and name not in _slots(type(thing)):
            own[name] = value
        else:
            object.__setattr__(thing, name, value)
