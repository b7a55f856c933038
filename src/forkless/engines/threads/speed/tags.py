# SPDX-License-Identifier: GPL-3.0-or-later
"""
fast-copies, for tags: each key and value of an inventory or a play is tagged with the place that it comes from.

ansible-core makes a mapping of tags for each value. Values of one line have the same tags, so they share one: mappings are never changed, each change of
tags makes a new one. With 10,000 hosts this saves time and memory.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

from forkless.core.own_thread_locals import OwnThreadLocal
from forkless.core.versions import since
from forkless.engines.threads import context
from forkless.patching.seams import for_speed, uses_only

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import EllipsisType

__all__ = ["SEAMS"]


class _Taggable(Protocol):
    """A tagged text. Other values have no such attribute."""

    _ansible_tags_mapping: dict[type, object]


class _LastMappings(OwnThreadLocal):
    """The mappings that a thread made last: of one tag alone, and of one tag beside those of another mapping."""

    tag: object = None
    mapping: object = None
    before: dict[type, object] | None = None
    second_tag: object = None
    second: object = None


_last = _LastMappings()


def _is_on() -> bool:
    run_context = context.current()
    return run_context is not None and "fast-copies" not in run_context.off


def tagged(original: staticmethod[..., object], _site: str) -> object:
    """AnsibleTagHelper.tag of a value of a native type, or of a tagged text, with one tag."""
    from ansible.module_utils._internal import _datatag as upstream

    function = original.__func__
    if not uses_only(function, _TAG):
        return original
    mapping_type, known_tags = upstream._AnsibleTagsMapping, upstream._known_tag_types
    tagged_types = upstream.AnsibleTaggedObject._tagged_type_map
    native: dict[type, Callable[..., object]] = {
        kind: tagged_types[kind]._instance_factory for kind in (str, int, float, list, dict)
    }
    tagged_text = tagged_types[str]

    @functools.wraps(function)
    def tag(value: _Taggable, tags: object, *, value_type: type | None = None) -> object:
        if value_type is not None or type(tags) not in known_tags or not _is_on():
            return function(value, tags, value_type=value_type)
        kind: type = type(value)
        made, last = native.get(kind), _last
        if made is not None:
            if last.tag is not tags:
                last.tag, last.mapping = tags, mapping_type(((type(tags), tags),))
            return made(value, last.mapping)
        if kind is not tagged_text or type(value._ansible_tags_mapping) is not mapping_type:
            return function(value, tags)
        if last.before is not value._ansible_tags_mapping or last.second_tag is not tags:
            before = value._ansible_tags_mapping
            last.before, last.second_tag = before, tags
            last.second = mapping_type((*before.items(), (type(tags), tags)))
        return native[str](value, last.second)

    return staticmethod(tag)


def replaced(original: Callable[..., object], _site: str) -> object:
    """Origin.replace of a line or column: the other fields were checked when the origin was made."""
    from ansible._internal._datatag._tags import Origin

    if not uses_only(original, {"dataclasses", "replace", "dict", "items"}) or Origin.__slots__ != _FIELDS:
        return original
    setters = [(name, getattr(Origin, name).__set__) for name in _FIELDS]

    @functools.wraps(original)
    def replace(
        origin: object,
        path: str | EllipsisType = ...,
        description: str | EllipsisType = ...,
        line_num: int | EllipsisType | None = ...,
        col_num: int | EllipsisType | None = ...,
    ) -> object:
        if (
            type(origin) is not Origin
            or path is not ...
            or description is not ...
            or type(line_num) not in _NUMBERS
            or type(col_num) not in _NUMBERS
            or not _is_on()
        ):
            return original(origin, path=path, description=description, line_num=line_num, col_num=col_num)
        made = object.__new__(Origin)
        new = {"line_num": line_num, "col_num": col_num}
        for name, put in setters:
            value = new.get(name, ...)
            put(made, getattr(origin, name) if value is ... else value)
        return made

    return replace


def trust_removed(original: Callable[..., object], _site: str) -> object:
    """remove_trust: for the name of a host, a group or a variable that has no trust to remove, the name itself."""
    from ansible._internal._datatag._tags import TrustedAsTemplate
    from ansible.module_utils._internal import _datatag as upstream

    if not uses_only(original, {"TrustedAsTemplate", "untag"}):
        return original
    tagged_text = upstream.AnsibleTaggedObject._tagged_type_map[str]

    @functools.wraps(original)
    def remove(value: _Taggable) -> object:
        kind: type = type(value)
        is_plain = kind is str or (kind is tagged_text and TrustedAsTemplate not in value._ansible_tags_mapping)
        return value if is_plain and _is_on() else original(value)

    return remove


_FIELDS = ("path", "description", "line_num", "col_num")
_NUMBERS = (int, type(...), type(None))
# All names that ansible-core's function uses in the minors for which it is replaced. If it uses another name, it does more.
_TAG = {
    "type", "_untaggable_types", "_known_tag_types", "list", "enumerate", "TypeError", "_try_get_internal_tags_mapping",
    "_EMPTY_INTERNAL_TAGS_MAPPING", "chain", "values", "_AnsibleTagsMapping", "AnsibleTaggedObject", "_get_tagged_type", "t", "cast", "_T",
    "_instance_factory",
}  # fmt: skip
_WHY = "every key and value of 10,000 hosts would be tagged step by step"
SEAMS = (
    for_speed("ansible.module_utils._internal._datatag:AnsibleTagHelper.tag", _WHY, tagged, since("2.19")),
    for_speed(
        "ansible._internal._datatag._tags:Origin.replace", "each line of an inventory has one", replaced, since("2.19")
    ),
    for_speed(
        "ansible.inventory.helpers:remove_trust", "few names of inventories are trusted", trust_removed, since("2.19")
    ),
)
