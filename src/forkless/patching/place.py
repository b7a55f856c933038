# SPDX-License-Identifier: GPL-3.0-or-later
"""Place: where a site leads to, what is there, and how it is replaced and restored. Every seam is installed by it."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

__all__ = ["ABSENT", "Place", "find", "why_missing"]


class _Absent:
    """What stands at a place where there is nothing."""

    def __repr__(self) -> str:
        return "<nothing>"


ABSENT = _Absent()


@dataclass(slots=True)
class Place:
    """An attribute of a module, class, function or instance, or a key of a mapping."""

    owner: object
    name: str
    in_mapping: bool = False

    def read(self) -> tuple[object, bool]:
        """What is there, descriptors unbound, and whether it belongs to the owner itself: what is inherited is not restored but deleted."""
        if self.in_mapping:
            found = self._mapping().get(self.name, ABSENT)
            return found, found is not ABSENT
        own: Mapping[str, object] = vars(self.owner)
        if self.name in own:
            return own[self.name], True
        if not isinstance(self.owner, type):
            slot = inspect.getattr_static(type(self.owner), self.name, ABSENT)
            if hasattr(slot, "__set__"):  # `__class__` of a module, `__code__` of a function
                return getattr(self.owner, self.name), True
        return inspect.getattr_static(self.owner, self.name, ABSENT), False

    def replace(self, thing: object) -> Callable[[], None]:
        """Put `thing` there. Returns the function that restores what was there before."""
        was, own = self.read()
        if self.in_mapping:
            self._mapping()[self.name] = thing
        else:
            setattr(self.owner, self.name, thing)
            if own:
                return functools.partial(setattr, self.owner, self.name, was)
        return functools.partial(self._restore, was if own else ABSENT)

    def _restore(self, was: object) -> None:
        if self.in_mapping:
            if was is ABSENT:
                self._mapping().pop(self.name, None)
            else:
                self._mapping()[self.name] = was
        elif was is not ABSENT:
            setattr(self.owner, self.name, was)
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)

    def _mapping(self) -> MutableMapping[str, object]:
        if not isinstance(self.owner, MutableMapping):
            raise TypeError(f"{type(self.owner).__name__} is no mapping: it has no key {self.name}")
        return self.owner


def find(site: str) -> Place:
    """The place of a site; raises ImportError or AttributeError if a step of the path is missing. The name itself may be."""
    module, _, path = site.partition(":")
    owner: object = sys.modules.get(module)
    # Another thread may be executing the module, and would define the name later: then this waits for it.
    if owner is None or getattr(getattr(owner, "__spec__", None), "_initializing", False):
        owner = importlib.import_module(module)
    path, bracket, key = path.partition("[")
    *steps, name = path.split(".")
    for step in [*steps, name] if bracket else steps:
        owner = getattr(owner, step)
    return Place(owner, key.removesuffix("]"), in_mapping=True) if bracket else Place(owner, name)


def why_missing(site: str) -> str:
    """Why there is no object at a site, or ""."""
    try:
        thing, _ = find(site).read()
    except ImportError as error:
        return f"cannot be imported ({error})"
    except AttributeError:
        return "is missing"
    return "is missing" if thing is ABSENT else ""
