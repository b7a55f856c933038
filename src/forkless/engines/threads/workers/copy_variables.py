# SPDX-License-Identifier: GPL-3.0-or-later
"""
Copies a task's variables as fork would have: mutable containers are copied, immutable values are shared.

This runs for every task on every host, so the function that copies a type is looked up once, and flat containers are copied in C.
"""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import operator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

__all__ = ["are_flat_dicts", "forget_types", "is_plain_tree", "private_task_vars", "private_vars"]

_Value = TypeVar("_Value")


def private_task_vars(found: dict[str, object]) -> dict[str, object]:
    """
    `private_vars` for the result of get_vars, whose key `vars` holds every variable a second time.

    If a value is the same object in both, it stays so in the copy. If one is a tagged copy of the other (since 2.20), the copy's one is
    a tagged copy of the copy's other.
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


def _around(holder: Any, copied: Callable[..., object]) -> Any:
    """Up to 2.18 with ANSIBLE_DEBUG: not a dict but an object around one that records the origin of each variable."""
    if not isinstance(getattr(holder, "data", None), dict):
        return private_vars(holder)
    twin = holder.copy()
    twin.data = copied(holder.data)
    return twin


def _second(again: dict[str, Any], found: dict[str, object], twin: dict[str, object]) -> dict[str, Any]:
    """The copy of `again`, a second mapping with the values of `found`; `twin` is the copy of `found`."""
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
    if inner is not None:  # since 2.20 the nested `vars` holds them a third time
        dict.__setitem__(made, "vars", _second(inner, again, made))
    return made


def _is_copy(value: Any, first: object) -> bool:
    """Whether a tagged list or dict holds the same objects as another."""
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


def private_vars(value: _Value) -> _Value:
    """
    A copy of `value` in which every container that a worker could change is copied, as fork would have done.

    Strings, numbers and Ansible's objects (hostvars, undefined, vaulted) are shared, because no code modifies them.
    """
    copier = _copiers.get(type(value)) or _copier(type(value))
    return value if copier is _shared else copier(value)


def is_plain_tree(value: object) -> bool:
    """Whether `private_vars` equals a deep copy: only dicts, lists and scalars, and no container that occurs twice."""
    seen: set[int] = set()
    waiting: list[Any] = [value]
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


def is_scalar(value: object) -> bool:
    """Whether it is text or a number, plain or tagged, and therefore immutable."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind not in _copiers:
        _copier(kind)
    return kind in _ATOMS and issubclass(kind, str | int | float | bytes)


def _shared(value: _Value) -> _Value:
    return value


def _copy_dict(value: dict[object, object]) -> dict[object, object]:
    # Most dicts are flat and need no loop in Python.
    return _deepen(value.copy(), value) if not _ATOMS.issuperset(map(type, value.values())) else value.copy()


def _deepen(twin: dict[object, object], value: dict[object, object]) -> dict[object, object]:
    for key, one in dict.items(value):
        if type(one) not in _ATOMS:
            dict.__setitem__(twin, key, private_vars(one))
    return twin


def _copy_list(value: list[object]) -> list[object]:
    if _ATOMS.issuperset(map(type, value)):
        return value.copy()
    return list(map(_DICT_COPY, value)) if are_flat_dicts(value, _ATOMS) else [private_vars(one) for one in value]


def are_flat_dicts(values: list[object], atoms: AbstractSet[type]) -> bool:
    """
    Whether a list has many elements, all of them dicts with values of these types only: then it is copied without a loop in Python.

    Tables in facts are such lists: the packages of a host, its mounts, its users.
    """
    if len(values) < _MANY or not _DICTS.issuperset(map(type, list.__iter__(values))):
        return False
    # Up to Python 3.13 the collector leaves out dicts without containers, so it knows the answer.
    if not any(map(gc.is_tracked, list.__iter__(values))):
        return True
    return atoms >= set(map(type, itertools.chain.from_iterable(map(_DICT_VALUES, list.__iter__(values)))))


def _copy_ansible_dict(value: dict[object, object]) -> dict[object, object]:
    return _deepen(copy.copy(value), value)


def _copy_ansible_list(value: list[object]) -> list[object]:
    twin = copy.copy(value)
    if are_flat_dicts(value, _ATOMS):
        list.__setitem__(twin, slice(None), list(map(_DICT_COPY, list.__iter__(value))))
    elif not _ATOMS.issuperset(map(type, list.__iter__(value))):
        for place, one in enumerate(list.__iter__(value)):
            if type(one) not in _ATOMS:
                list.__setitem__(twin, place, private_vars(one))
    return twin


def _copier(kind: type) -> Callable[[Any], Any]:
    """The function that copies values of this type; determined once for each type."""
    found: Callable[[Any], Any] = _shared
    if issubclass(kind, dict) and _is_ansible(kind):
        found = _copy_ansible_dict
    elif issubclass(kind, list) and _is_ansible(kind):
        found = _copy_ansible_list
    elif not issubclass(kind, dict | list | set) and _is_ansible(kind):
        _ATOMS.add(kind)  # tagged strings and other immutable values
    _copiers[kind] = found
    return found


def _is_ansible(kind: type) -> bool:
    # The template engine's lazy containers copy themselves on access; only containers from YAML and JSON need a copy.
    return kind.__module__.startswith("ansible.") and "Lazy" not in kind.__name__


_MANY = 8  # elements, from which looking at all of them at once is cheaper than a call for each
_DICTS = frozenset((dict,))
_DICT_COPY: Callable[..., dict[object, object]] = dict.copy
_DICT_VALUES: Callable[..., Iterable[object]] = dict.values
_SCALARS = frozenset((str, int, float, bool, bytes, type(None)))
_PLAIN = (str, int, float, bool, bytes, type(None), tuple)
_ATOMS: set[type] = set(_PLAIN)
_copiers: dict[type, Callable[[Any], Any]] = {}


def forget_types() -> None:
    """Clear the table of types, so that types of a run's plugins, or of a discarded ansible-core, are not kept alive."""
    _ATOMS.intersection_update(_PLAIN)
    _copiers.clear()
    _copiers.update({dict: _copy_dict, list: _copy_list, set: set.copy, **dict.fromkeys(_PLAIN, _shared)})


forget_types()
