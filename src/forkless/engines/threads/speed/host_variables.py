# SPDX-License-Identifier: GPL-3.0-or-later
"""
vars-cache, for `hostvars`: the variables of another host are merged again only if one of their sources has changed.

A play in which each of 200 hosts reads a variable of every host merges the variables of a host 200 times. What `get_vars` returns for a host alone,
without a play and a task, depends on a few dicts, which are compared with what they were: the same names in the same order, and the same objects. The
merged dict refers to the values themselves, so a value that was changed in place is seen, too. Each worker gets a private copy, as ever.
"""

from __future__ import annotations

import functools
import itertools
import operator
from typing import TYPE_CHECKING, Protocol, cast

from forkless.core.versions import since
from forkless.engines.threads import context
from forkless.engines.threads.speed import caches
from forkless.engines.threads.speed.facts import may_have_internal_keys
from forkless.engines.threads.workers import copy_variables
from forkless.patching.seam import for_speed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from forkless.engines.threads.context import RunContext

__all__ = ["SEAMS"]

NAME = "vars-cache"
_STATE = "variables of hosts"
_AT_MOST = 4096  # hosts
# The arguments with which HostVars asks. A caller with other arguments is answered by ansible-core.
_ASKED = {"host", "include_hostvars"}


_Dict = dict[object, object]


class _Group(Protocol):
    vars: _Dict
    name: str
    depth: int
    priority: int


class _Host(Protocol):
    vars: _Dict
    name: str
    groups: list[_Group]


class _Facts(Protocol):
    def get(self, name: str) -> _Dict: ...


class _Inventory(Protocol):
    groups: dict[str, _Group]
    _sources: list[str]

    def get_groups_dict(self) -> object: ...


class _FolderOfPlay(Protocol):
    def get_basedir(self) -> str: ...


class _Manager(Protocol):
    """VariableManager."""

    safe_basedir: bool
    _inventory: _Inventory | None
    _loader: _FolderOfPlay
    _fact_cache: _Facts
    _vars_cache: dict[str, _Dict]
    _nonpersistent_fact_cache: dict[str, _Dict]
    _extra_vars: _Dict
    _options_vars: _Dict


class _Sources:
    """All that the variables of a host are merged from, as it was at one time: the objects in dicts and lists, and other values."""

    __slots__ = ("_lengths", "_objects", "_others", "facts")

    def __init__(self, dicts: list[_Dict], lists: list[list[object]], others: tuple[object, ...], facts: _Dict) -> None:
        self._lengths = [*map(len, dicts), *map(len, lists)]
        self._objects = [*_CHAINED(dicts), *_CHAINED(map(_VALUES, dicts)), *_CHAINED(lists)]
        self._others = others
        self.facts = facts

    def are_same(self, now: _Sources) -> bool:
        """Whether nothing has changed: the same keys in the same order with the same objects; everything else is equal."""
        return (
            self._others == now._others
            and self._lengths == now._lengths
            and all(map(operator.is_, self._objects, now._objects))
        )


_CHAINED = itertools.chain.from_iterable
_VALUES = dict.values


def of_a_host(original: Callable[..., object], _site: str) -> object:
    """VariableManager.get_vars, as `hostvars` calls it in a worker. The caller holds the run's `vars_lock` and copies the result."""
    from ansible.vars import manager as upstream

    @functools.wraps(original)
    def get_vars(manager: _Manager, *args: object, **kwargs: object) -> object:
        run_context = context.current()
        if (
            args
            or kwargs.keys() != _ASKED
            or kwargs["include_hostvars"]
            or run_context is None
            or NAME in run_context.off
            or context.current_worker() is None
        ):
            return original(manager, *args, **kwargs)
        known: dict[int, tuple[object, _Sources, object]] = run_context.state.setdefault(_STATE, {})
        host = cast("_Host", kwargs["host"])
        sources = _sources(manager, host, upstream)
        if sources is None:
            return original(manager, **kwargs)
        merged = known.get(id(host))
        if merged is not None and merged[0] is host and merged[1].are_same(sources):
            return merged[2]
        if sources.facts and ("fast-copies" in run_context.off or may_have_internal_keys(sources.facts)):
            return original(manager, **kwargs)  # it would contain copies of facts, which may change
        variables = _merge(original, manager, host, run_context)
        if merged is not None or len(known) < _AT_MOST:
            known[id(host)] = host, sources, variables
        return variables

    return get_vars


def _merge(original: Callable[..., object], manager: object, host: object, run_context: RunContext) -> object:
    """The variables, with the facts themselves in place of copies: the worker's copy is made from them."""
    before, run_context.reads_facts = run_context.reads_facts, True
    try:
        return original(manager, host=host, include_hostvars=False)
    finally:
        run_context.reads_facts = before


def _sources(manager: _Manager, host: _Host, upstream: ModuleType) -> _Sources | None:
    """All that the variables of a host are merged from; None if some of it cannot be compared, or if the merged dict has copies of values."""
    inventory, constants = manager._inventory, upstream.C
    if (
        inventory is None
        or constants.DEFAULT_HASH_BEHAVIOUR != "replace"
        or constants.DEFAULT_DEBUG
        or not caches.only_own_vars_plugin()
    ):
        return None
    name, groups = host.name, host.groups
    try:
        facts = manager._fact_cache.get(name)
    except KeyError:
        facts = {}
    dicts = [
        inventory.groups["all"].vars,
        host.vars,
        facts,
        manager._vars_cache.get(name, {}),
        manager._nonpersistent_fact_cache.get(name, {}),
        manager._extra_vars,
        manager._options_vars,
        *[one.vars for one in groups],
    ]
    lists: list[list[object]] = []
    if facts and type(facts) is dict:
        # Since 2.20 each fact that becomes a variable is tagged, which copies its outermost dict or list.
        inner = [one for one in facts.values() if not copy_variables.is_scalar(one)]
        lists = [one for one in inner if type(one) is list]
        dicts += [cast("_Dict", one) for one in inner if type(one) is not list]
    if not _DICTS.issuperset(map(type, dicts)):
        return None
    others = (
        id(manager),
        name,
        manager._loader.get_basedir(),
        manager.safe_basedir,
        upstream.sys.executable,
        id(inventory.get_groups_dict()),
        tuple(inventory._sources),
        [(id(one), one.name, one.depth, one.priority) for one in groups],
    )
    return _Sources(dicts, lists, others, facts)


_DICTS = frozenset((dict,))

SEAMS = (
    for_speed(
        "ansible.vars.manager:VariableManager.get_vars",
        "every host that reads the variables of another would merge them again",
        of_a_host,
        since("2.19"),
    ),
)
