# SPDX-License-Identifier: GPL-3.0-or-later
"""
lazy-values: what ansible-core does with each variable, argument and result of a template, without the steps that have no effect.

Since 2.19 every template wraps all variables of its host, each in an object of its own, and every value that passes through a filter is announced to
those who watch for deprecated or undefined values. Most values are text and numbers that nobody watches for.
"""

from __future__ import annotations

import collections
import functools
import itertools
from typing import TYPE_CHECKING, Protocol

from forkless.core.versions import since
from forkless.engines.threads import context
from forkless.patching.seams import for_speed, uses_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["NAME", "SEAMS"]

NAME = "lazy-values"
_PLAIN = frozenset((str, int, float, bool, type(None)))
# Fewer values are wrapped by ansible-core's own loop as fast.
_MANY = 4


class _LazySource(Protocol):
    """_LazyValueSource."""

    templar: object


class _Watching(Protocol):
    """NotifiableAccessContextBase."""

    _type_interest: frozenset[type]


class _Broker(Protocol):
    """AnsibleAccessContext."""

    _notify_contexts: list[_Watching]


def _is_on() -> bool:
    run_context = context.current()
    return run_context is not None and NAME not in run_context.off


def _wrapped_in_c(lazy_value: type) -> Callable[[Iterable[object], int], list[object]]:
    """A function that wraps values in ansible-core's _LazyValue without calling its __init__, which is Python, for each."""
    make: Callable[..., object] = object.__new__
    put = vars(lazy_value)["value"].__set__

    def wrapped(values: Iterable[object], count: int) -> list[object]:
        made = list(map(make, itertools.repeat(lazy_value, count)))
        collections.deque(map(put, made, values), maxlen=0)
        return made

    return wrapped


def variables_wrapped(original: staticmethod[..., _LazySource], _site: str) -> object:
    """_AnsibleLazyTemplateDict._lazy_values: every variable of a host, for each template."""
    from ansible._internal._templating import _lazy_containers as upstream
    from ansible.module_utils._internal._datatag import _AnsibleTaggedDict

    function = original.__func__
    kinds, source, wrap = (dict, _AnsibleTaggedDict), upstream._LazyValueSource, _wrapped_in_c(upstream._LazyValue)
    if not uses_only(function, _WRAP) or not _is_plain_slot(upstream._LazyValue):
        return original

    @functools.wraps(function)
    def lazy_values(values: dict[object, object], lazy_options: object) -> object:
        if type(values) not in kinds or len(values) < _MANY or not _is_on():
            return function(values, lazy_options)
        empty = function({}, lazy_options)  # it knows the template's engine
        lazy = zip(values, wrap(dict.values(values), len(values)), strict=True)
        return source(source=lazy, templar=empty.templar, lazy_options=lazy_options)

    return staticmethod(lazy_values)


def elements_wrapped(original: staticmethod[..., _LazySource], _site: str) -> object:
    """_AnsibleLazyTemplateList._lazy_values."""
    from ansible._internal._templating import _lazy_containers as upstream
    from ansible.module_utils._internal._datatag import _AnsibleTaggedList

    function = original.__func__
    kinds, source, wrap = (list, _AnsibleTaggedList), upstream._LazyValueSource, _wrapped_in_c(upstream._LazyValue)
    if not uses_only(function, _WRAP) or not _is_plain_slot(upstream._LazyValue):
        return original

    @functools.wraps(function)
    def lazy_values(values: list[object], lazy_options: object) -> object:
        if type(values) not in kinds or len(values) < _MANY or not _is_on():
            return function(values, lazy_options)
        empty = function([], lazy_options)
        lazy = wrap(list.__iter__(values), len(values))
        return source(source=lazy, templar=empty.templar, lazy_options=lazy_options)

    return staticmethod(lazy_values)


def _is_plain_slot(lazy_value: type) -> bool:
    """Whether a _LazyValue is nothing but its value."""
    return (
        vars(lazy_value)["__slots__"] == ("value",)
        and not hasattr(lazy_value, "__post_init__")
        and "__new__" not in vars(lazy_value)
    )


def container_created(original: staticmethod[..., object], _site: str) -> object:
    """
    _AnsibleLazyTemplateMixin._try_create of a value that is no container but has a known type: the value itself.

    Upstream enters two context managers to find that out, and leaves them by an exception.
    """
    from ansible._internal._templating import _lazy_containers as upstream

    function = original.__func__
    known, containers = upstream._KNOWN_TYPES, upstream._AnsibleLazyTemplateMixin._dispatch_types
    if not uses_only(function, _CREATE):
        return original

    @functools.wraps(function)
    def try_create(item: object, *options: object, **named: object) -> object:
        kind = type(item)
        if kind in known and kind not in containers and _is_on():
            return item
        return function(item, *options, **named)

    return staticmethod(try_create)


def announced(original: Callable[..., None], _site: str) -> object:
    """AnsibleAccessContext.access: nothing is done for a value that no context of the thread is interested in."""
    from ansible.module_utils._internal._datatag import _try_get_internal_tags_mapping as tags_of

    if not uses_only(original, _ACCESS):
        return original

    @functools.wraps(original)
    def access(broker: _Broker, value: object) -> None:
        watching = broker._notify_contexts
        if not watching:
            return
        kind = type(value)
        tags = () if kind in _PLAIN else tags_of(value)
        for one in watching:
            interest = one._type_interest
            if kind in interest or (tags and not interest.isdisjoint(tags)):
                original(broker, value)
                return
        if not _is_on():
            original(broker, value)

    return access


def mapping_checked(original: Callable[..., None], _site: str) -> object:
    """_validate_mutable_mappings of two dicts, which are mappings: get_vars combines some two hundred for a task of a large project."""
    if not uses_only(original, _VALIDATE):
        return original

    @functools.wraps(original)
    def validate(a: object, b: object) -> None:
        if not (isinstance(a, dict) and isinstance(b, dict) and _is_on()):
            original(a, b)

    return validate


# All names that ansible-core's functions use in the minors for which they are replaced. If a function uses another name, it does more
# than this replacement, and the original is called.
_WRAP = {"_LazyValueSource", "TemplateContext", "current", "templar", "items"}
_CREATE = {
    "type", "_AnsibleLazyTemplateMixin", "_dispatch_types", "get", "_lazy_values", "_try_get_internal_tags_mapping", "t", "cast",
    "AnsibleTaggedObject", "_instance_factory", "Skippable", "_TemplateConfig", "unknown_type_encountered_handler", "handle",
    "AnsibleVariableTypeError", "_KNOWN_TYPES", "__name__", "TemplateContext", "current", "template_value",
}  # fmt: skip
_ACCESS = {
    "_notify_contexts", "AnsibleTagHelper", "tag_types", "frozenset", "type", "set", "reversed", "_mask", "add", "_type_interest",
    "intersection", "_notify",
}  # fmt: skip
_VALIDATE = {
    "isinstance", "MutableMapping", "append", "dumps", "Exception", "to_native", "AnsibleError", "__class__", "__name__", "format",
}  # fmt: skip

_LAZY = "ansible._internal._templating._lazy_containers"
SEAMS = (
    for_speed(
        f"{_LAZY}:_AnsibleLazyTemplateDict._lazy_values",
        "every template would wrap every variable in Python",
        variables_wrapped,
        since("2.19"),
    ),
    for_speed(
        f"{_LAZY}:_AnsibleLazyTemplateList._lazy_values",
        "every element of a list would be wrapped in Python",
        elements_wrapped,
        since("2.19"),
    ),
    for_speed(
        f"{_LAZY}:_AnsibleLazyTemplateMixin._try_create",
        "an exception would be raised for each number and text",
        container_created,
        since("2.19"),
    ),
    for_speed(
        "ansible._internal._templating._access:AnsibleAccessContext.access",
        "nobody watches for most values",
        announced,
        since("2.19"),
    ),
    for_speed(
        "ansible.utils.vars:_validate_mutable_mappings", "abstract base classes are slow to ask", mapping_checked
    ),
)
