# SPDX-License-Identifier: GPL-3.0-or-later
"""
What fork copied for free of a task's variables, copied by name: what can be changed in place is, what cannot be is shared.

It is done for every task on every host, so the way to copy a type is looked up once, and flat containers are copied without being walked.
"""

from __future__ import annotations

import copy
import functools
import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["forget_types", "is_plain_tree", "private_task_vars", "private_vars"]


def private_task_vars(found: dict[str, Any]) -> dict[str, Any]:
    """
    `private_vars` of all that get_vars found. In its `vars` everything is there a second time.

    What is one object in both stays one; what is a copy of the other there (with a tag, since 2.20) is a copy of the other's copy here.
    """
    if not isinstance(found, dict):
        return _around(found, private_task_vars)
    again = found.get("vars")
    twin = found.copy()
    for key, value in found.items():
        if type(value) not in _ATOMS and value is not again:
            twin[key] = private_vars(value)
    if again is not None:
        second = functools.partial(_second, found=found, twin=twin)
        twin["vars"] = second(again) if isinstance(again, dict) else _around(again, second)
    return twin


def _around(holder: Any, copied: Callable[[Any], Any]) -> Any:
    """Up to 2.18, with ANSIBLE_DEBUG: no dict, but an object around one that says where each variable is from."""
    if not isinstance(getattr(holder, "data", None), dict):
        return private_vars(holder)
    twin = holder.copy()
    twin.data = copied(holder.data)
    return twin


def _second(again: Any, found: Any, twin: Any) -> Any:
    """What `again`, a second holding of what is in `found`, is to the copy of `found`."""
    copier = _copiers.get(type(again)) or _copier(type(again))
    if copier is not _copy_dict and copier is not _copy_ansible_dict:
        return private_vars(again)
    made = copy.copy(again)
    for key, value in dict.items(again):
        if type(value) in _ATOMS or key == "vars":
            continue
        first = dict.get(found, key)
        if value is first:
            like = dict.get(twin, key)
        elif _is_copy(value, first):
            like = type(value)._instance_factory(dict.get(twin, key), value._ansible_tags_mapping)
        else:
            like = private_vars(value)
        dict.__setitem__(made, key, like)
    inner = dict.get(again, "vars")
    if inner is not None:  # since 2.20 there is a third
        dict.__setitem__(made, "vars", _second(inner, again, made))
    return made


def _is_copy(value: Any, first: Any) -> bool:
    """Whether a tagged list or dict has the very same things in it as another."""
    copier = _copiers.get(type(value)) or _copier(type(value))
    if not hasattr(type(value), "_ansible_tags_mapping"):
        return False
    if copier is _copy_ansible_list and isinstance(first, list):
        return len(value) == len(first) and all(map(operator.is_, list.__iter__(value), list.__iter__(first)))
    if copier is _copy_ansible_dict and isinstance(first, dict):
        mine, theirs = dict.items(value), dict.items(first)
        return len(value) == len(first) and all(
            name is other and one is two for (name, one), (other, two) in zip(mine, theirs, strict=True)
        )
    return False


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
