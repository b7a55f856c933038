# SPDX-License-Identifier: GPL-3.0-or-later
"""
What fork copied for free of a task's variables, copied by name: what can be changed in place is, what cannot be is shared.

It is done for every task on every host, so the way to copy a type is looked up once, and flat containers are copied without being walked.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["forget_types", "is_plain_tree", "private_vars"]


def private_vars(value: Any) -> Any:
    """
    A copy of everything in there that a worker could change in place.

    fork copied it for free. Strings, numbers and objects of Ansible's own (hostvars, undefined, vaulted) are shared: nobody
    writes to them.
    """
    copier = _copiers.get(type(value)) or _copier(type(value))
    return value if copier is _shared else copier(value)


def is_plain_tree(value: Any) -> bool:
    """Whether `private_vars` of it is what a deep copy is: dicts and lists, none of them twice, of text, numbers and the like."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind in _SCALARS:
            continue
        copier = _copiers.get(kind) or _copier(kind)
        if copier is _copy_dict or copier is _copy_ansible_dict:
            waiting.extend(dict.values(one))
        elif copier is _copy_list or copier is _copy_ansible_list:
            waiting.extend(list.__iter__(one))
        elif is_scalar(one):
            continue
        else:
            return False
        if id(one) in seen:
            return False
        seen.add(id(one))
    return True


def is_scalar(value: Any) -> bool:
    """Text or a number, plain or with tags: nobody can change it."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind not in _copiers:
        _copier(kind)
    return kind in _ATOMS and issubclass(kind, str | int | float | bytes)


def _shared(value: Any) -> Any:
    return value


def _copy_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    # Most are flat, and their copy need not be walked in Python.
    return _deepen(value.copy(), value) if not _ATOMS.issuperset(map(type, value.values())) else value.copy()


def _deepen(twin: Any, value: Any) -> Any:
    for key, one in dict.items(value):
        if type(one) not in _ATOMS:
            dict.__setitem__(twin, key, private_vars(one))
    return twin


def _copy_list(value: list[Any]) -> list[Any]:
    return [private_vars(one) for one in value] if not _ATOMS.issuperset(map(type, value)) else value.copy()


def _copy_ansible_dict(value: Any) -> Any:
    return _deepen(copy.copy(value), value)


def _copy_ansible_list(value: Any) -> Any:
    twin = copy.copy(value)
    if not _ATOMS.issuperset(map(type, list.__iter__(value))):
        for place, one in enumerate(list.__iter__(value)):
            if type(one) not in _ATOMS:
                list.__setitem__(twin, place, private_vars(one))
    return twin


def _copier(kind: type) -> Callable[[Any], Any]:
    """How values of this type are copied; looked at once for a type."""
    found: Callable[[Any], Any] = _shared
    if issubclass(kind, dict) and _is_ansible(kind):
        found = _copy_ansible_dict
    elif issubclass(kind, list) and _is_ansible(kind):
        found = _copy_ansible_list
    elif not issubclass(kind, dict | list | set) and _is_ansible(kind):
        _ATOMS.add(kind)  # tagged strings and the like
    _copiers[kind] = found
    return found


def _is_ansible(kind: type) -> bool:
    # Lazy containers of the template engine copy themselves on access; only what came from YAML and JSON is ours to copy.
    return kind.__module__.startswith("ansible.") and "Lazy" not in kind.__name__


_SCALARS = frozenset((str, int, float, bool, bytes, type(None)))
_PLAIN = (str, int, float, bool, bytes, type(None), tuple)
_ATOMS: set[type] = set(_PLAIN)
_copiers: dict[type, Callable[[Any], Any]] = {}


def forget_types() -> None:
    """Types are looked at anew when the stage is set again: those of a run's plugins, or of an ansible-core that was put aside, go."""
    _ATOMS.intersection_update(_PLAIN)
    _copiers.clear()
    _copiers.update({dict: _copy_dict, list: _copy_list, set: set.copy, **dict.fromkeys(_PLAIN, _shared)})


forget_types()
