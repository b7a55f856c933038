# SPDX-License-Identifier: GPL-3.0-or-later
"""
fast-copies, for results: ansible-core makes a copy of native types of every result before callbacks are given it.

Values that have only native types already are copied in C; anything else is left to ansible-core's visitor.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Protocol

from forkless.core.versions import since
from forkless.engines.threads import context
from forkless.patching.seams import for_speed, uses_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["SEAMS"]

_ATOMS: frozenset[type] = frozenset((str, int, float, bool, type(None)))
_TEXT = frozenset((str,))
_DICTS = frozenset((dict,))
_DICT_COPY: Callable[..., dict[object, object]] = dict.copy
_DICT_VALUES: Callable[..., Iterable[object]] = dict.values


class _Visitor(Protocol):
    """AnsibleVariableVisitor."""

    trusted_as_template: bool
    origin: object

    def _visit_key(self, key: object) -> object: ...
    def _visit(self, key: object, value: object) -> object: ...


class _NotNativeError(Exception):
    """A value has a type that is not known to stay as it is."""


def _copy(value: object) -> object:
    """A deep copy of a tree of exact dicts, lists and scalars whose keys are exact texts, which is what the visitor makes of one."""
    if type(value) in _ATOMS:
        return value
    if type(value) is dict:
        if not _TEXT.issuperset(map(type, value)):
            raise _NotNativeError
        if _ATOMS.issuperset(map(type, value.values())):
            return value.copy()
        return {key: one if type(one) in _ATOMS else _copy(one) for key, one in value.items()}
    if type(value) is list:
        if _ATOMS.issuperset(map(type, value)):
            return value.copy()
        if (
            _DICTS.issuperset(map(type, value))
            and _ATOMS.issuperset(map(type, itertools.chain.from_iterable(map(_DICT_VALUES, value))))
            and _TEXT.issuperset(map(type, itertools.chain.from_iterable(value)))
        ):
            return list(map(_DICT_COPY, value))
        return [one if type(one) in _ATOMS else _copy(one) for one in value]
    raise _NotNativeError


def visited(original: Callable[..., object], _site: str) -> object:
    """AnsibleVariableVisitor.visit of a dict: the same copy, with values of native types copied in C. Visitors that add tags, or have methods of their own, are upstream's."""
    from ansible._internal._json import AnsibleVariableVisitor

    if not uses_only(AnsibleVariableVisitor._visit, _NAMES):
        return original

    @functools.wraps(original)
    def visit(visitor: _Visitor, value: object) -> object:
        run_context = context.current()
        if (
            run_context is None
            or "fast-copies" in run_context.off
            or type(value) is not dict
            or type(visitor) is not AnsibleVariableVisitor
            or visitor.trusted_as_template
            or visitor.origin
        ):
            return original(visitor, value)
        made: dict[object, object] = {}
        for key, one in value.items():
            name = visitor._visit_key(key)
            try:
                made[name] = _copy(one)
            except _NotNativeError:
                made[name] = visitor._visit(key, one)
        return made

    return visit


# All names that ansible-core's function uses in the known minors. If it uses another name, it does more than this replacement.
_NAMES = {
    "AnsibleTagHelper", "AnsibleTaggedObject", "AnsibleVariableTypeError", "DECRYPT", "EncryptedString", "EncryptedStringBehavior", "FAIL",
    "Iterable", "Origin", "PRESERVE", "REDACT", "_ANSIBLE_ALLOWED_MAPPING_VAR_TYPES", "_ANSIBLE_ALLOWED_NON_SCALAR_COLLECTION_VAR_TYPES",
    "_ANSIBLE_ALLOWED_VAR_TYPES", "_current", "_datatag", "_early_visit", "_internal", "_native_copy", "_sentinel", "_template_engine",
    "_transform", "_type_transform_mapping", "_visit", "_visit_key", "apply_transforms", "bool", "cast", "convert_custom_scalars",
    "convert_mapping_to_dict", "convert_sequence_to_list", "convert_to_native_values", "encrypted_string_behavior", "enumerate", "float",
    "from_value", "int", "is_intermediate_iterable", "is_intermediate_mapping", "is_tagged_on", "isinstance", "items", "origin", "str", "t",
    "tag", "tag_copy", "transform", "type",
}  # fmt: skip

SEAMS = (
    for_speed(
        "ansible._internal._json:AnsibleVariableVisitor.visit",
        "every value of a result would be visited in Python",
        visited,
        since("2.19"),
    ),
)
