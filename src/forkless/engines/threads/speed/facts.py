# SPDX-License-Identifier: GPL-3.0-or-later
"""
fast-copies, for the facts of a host: `get_vars` copies them twice for every task, and filters one of the copies.

What workers get is copied as deep as ever, but a table of flat dicts is copied in C. The strategy gets no copies: it only reads facts, to
template the name of a task and the like. That the names of a host's facts need no filter is found out once, by ansible-core's own function.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from forkless.core.versions import since
from forkless.engines.threads import context
from forkless.engines.threads.workers import copy_variables
from forkless.patching.seams import KNOWN, for_speed, uses_only

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from forkless.engines.threads.context import RunContext

__all__ = ["SEAMS", "may_have_internal_keys"]

_STATE = "names of facts"
# Sets of names of facts that are remembered in a run: hosts of one kind have the same.
_AT_MOST = 1024
_INTERNAL = "_ansible_"
# The types that are no containers. Anything else but exact dicts and lists is left to ansible-core's functions.
_ATOMS: frozenset[type] = frozenset((str, int, float, bool, type(None)))
_DICT_COPY: Callable[..., dict[object, object]] = dict.copy


def response_copied(original: Callable[[object], object], _site: str) -> object:
    """module_response_deepcopy: the same copy, with tables of flat dicts copied in C."""

    def copy(value: object) -> object:
        if type(value) is dict:
            if _ATOMS.issuperset(map(type, value.values())):
                return value.copy()
            return {key: one if type(one) in _ATOMS else copy(one) for key, one in value.items()}
        if type(value) is list:
            if _ATOMS.issuperset(map(type, value)):
                return value.copy()
            if copy_variables.are_flat_dicts(value, _ATOMS):
                return list(map(_DICT_COPY, value))
            return [one if type(one) in _ATOMS else copy(one) for one in value]
        return original(value)  # for what is in a tagged container, it calls this function again

    @functools.wraps(original)
    def copied(value: object) -> object:
        run_context = context.current()
        if run_context is None or "fast-copies" in run_context.off:
            return original(value)
        return copy(value)

    return copied


def may_have_internal_keys(tree: object) -> bool:
    """Whether strip_internal_keys may remove something: a key in a dict at any depth, or a value in which only upstream knows where to look."""
    keys: set[object] = set()
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if type(one) is dict:
            keys.update(one)
            waiting.extend([value for value in one.values() if type(value) not in _ATOMS])
        elif type(one) is not list:
            if not copy_variables.is_scalar(one):
                return True
        elif copy_variables.are_flat_dicts(one, _ATOMS):
            keys.update(*one)
        else:
            waiting.extend([value for value in one if type(value) not in _ATOMS])
    return any(isinstance(key, str) and key.startswith(_INTERNAL) for key in keys)


def facts_cleaned(original: Callable[[object], dict[str, object]], _site: str, *, shared: bool = True) -> object:
    """
    clean_facts: the copy of a host's facts without names that a module must not set, and without internal keys at any depth.

    Which names those are is upstream's decision: it is asked once for each set of names, without the values. If it removes one, it gives a
    warning, so it is asked every time then. With `shared`, the strategy gets the facts themselves instead of copies.
    """
    from ansible.plugins.loader import connection_loader
    from ansible.vars import clean as upstream

    @functools.wraps(original)
    def clean(facts: object) -> object:
        run_context = context.current()
        if type(facts) is not dict or run_context is None or "fast-copies" in run_context.off:
            return original(facts)
        if not facts:
            return {}
        known = _known_names(run_context)
        # The names of connection plugins are forbidden prefixes.
        names: Hashable = (frozenset(facts), tuple(connection_loader.all(path_only=True)))
        if names in known:
            data = {name: value for name, value in facts.items() if not name.startswith(_INTERNAL)}
        else:
            kept = original(dict.fromkeys(facts))
            data = {name: facts[name] for name in kept}
            if all(name in kept or name.startswith(_INTERNAL) for name in facts):
                if len(known) >= _AT_MOST:
                    known.clear()
                known.add(names)
        if may_have_internal_keys(data):
            return upstream.strip_internal_keys(upstream.module_response_deepcopy(data))
        return data if shared and run_context.reads_facts else upstream.module_response_deepcopy(data)

    return clean


def _known_names(run_context: RunContext) -> set[Hashable]:
    found: set[Hashable] = run_context.state.setdefault(_STATE, set())
    return found


def facts_namespaced(original: Callable[[object], object], _site: str) -> object:
    """namespace_facts: the variable `ansible_facts`; for the strategy, with the facts themselves instead of copies."""
    if not uses_only(original, {"startswith", "module_response_deepcopy"}):
        return original

    @functools.wraps(original)
    def namespace(facts: object) -> object:
        run_context = context.current()
        if run_context is None or not run_context.reads_facts or type(facts) is not dict:
            return original(facts)
        return {"ansible_facts": {_without_prefix(name): value for name, value in facts.items()}}

    return namespace


def _without_prefix(name: str) -> str:
    return name[8:] if name.startswith("ansible_") and name != "ansible_local" else name


_LOOKS = "every task would look at each value of all facts"
SEAMS = (
    for_speed(
        "ansible.vars.clean:module_response_deepcopy",
        _LOOKS,
        response_copied,
    ),
    for_speed("ansible.vars.manager:clean_facts", _LOOKS, facts_cleaned, since("2.19")),
    # Up to 2.18 a template could change the values that it is given, so the strategy needs copies.
    for_speed("ansible.vars.manager:clean_facts", _LOOKS, functools.partial(facts_cleaned, shared=False), KNOWN[:1]),
    for_speed(
        "ansible.vars.manager:namespace_facts",
        "the strategy would copy all facts to read none of them",
        facts_namespaced,
        since("2.19"),
    ),
)
