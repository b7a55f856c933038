# SPDX-License-Identifier: GPL-3.0-or-later
"""
unset-options: an option of a plugin that nothing sets has its default, which is found once in a run.

For each task ansible-core looks for every option of each plugin in the task's arguments, variables and keywords, in the environment and in the
configuration file, and converts its default to its type. A connection to a network device has some 130 options, and few of them are set. The
places that may differ from one task to the next are looked at each time, by the option's names; only if none of these is there, the value of
the first time is returned. What a plugin is given directly, by a variable or by a keyword is converted once, likewise.

An option is left to ansible-core if its value could be modified or depends on anything else: if it is no text, number or truth value, a path (on
the working directory), a default that is a template, an option with aliases, and any that ansible-core warns of.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

from forkless.engines.threads import context
from forkless.patching import thread_environ
from forkless.patching.seams import for_speed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["NAME", "SEAMS"]

NAME = "unset-options"

# Types whose conversion depends on nothing but the value.
_TYPES = frozenset((None, "str", "string", "bool", "boolean", "int", "integer", "float"))


# So many values are kept of one option; a run has a few for each host.
_MOST = 4096


class _Values(Protocol):
    """Variables, keywords of a task, or options that a plugin is given."""

    def get(self, name: str, /) -> object: ...


class _Definitions(Protocol):
    """What is used of ansible-core's ConfigManager."""

    def get_configuration_definitions(
        self, *, plugin_type: str | None, name: str | None
    ) -> Mapping[str, Mapping[str, object]]: ...


class _Option:
    """One option of one plugin: by which names it may be set, and what it is if it is not."""

    __slots__ = (
        "cli_args",
        "definition",
        "environ",
        "found",
        "has_cli",
        "is_plain",
        "keywords",
        "name",
        "unset",
        "variables",
    )

    def __init__(self, name: str, definition: Mapping[str, object]) -> None:
        self.name = name
        self.definition = definition  # kept, so that no other definition gets its id
        self.is_plain = definition.get("type") in _TYPES
        self.variables = _names(definition, "vars")
        self.keywords = (*_names(definition, "keyword")[::-1], name)
        self.environ = _names(definition, "env")
        self.has_cli = "cli" in definition
        self.cli_args: object = None
        self.unset: tuple[object, object] | None = None
        self.found: dict[tuple[object, ...], tuple[object, tuple[object, object]]] = {}

    def given(
        self, direct: _Values | None, variables: _Values | None, keys: _Values | None
    ) -> tuple[str, str, object] | None:
        """Where ansible-core finds the value, with its name there; None if it is in none of these places."""
        value = direct.get(self.name) if direct else None
        if value is not None:
            return "direct", self.name, value
        if variables:
            for name in reversed(self.variables):  # of several the last one counts
                value = variables.get(name)
                if value is not None:
                    return "variable", name, value
        if keys:
            for name in self.keywords:
                value = keys.get(name)
                if value is not None:
                    return "keyword", name, value
        return None

    def is_in_environ(self) -> bool:
        return bool(self.environ) and thread_environ.is_any_set(self.environ)


def _names(definition: Mapping[str, object], source: str) -> tuple[str, ...]:
    entries = definition.get(source) or ()
    return tuple(str(entry["name"]) for entry in entries) if isinstance(entries, list | tuple) else ()


def _is_plain(definition: Mapping[str, object]) -> bool:
    """Whether the value depends on nothing but the names above and the configuration file, which is the same for the whole run."""
    default = definition.get("default")
    if default is not None and definition.get("type") not in _TYPES:  # None is None as any type
        return False
    if any(one in definition for one in ("aliases", "deprecated")):
        return False
    entries = [one for source in ("vars", "env", "ini", "keyword", "cli") for one in definition.get(source) or ()]  # type: ignore[attr-defined]
    if any(not isinstance(one, dict) or "deprecated" in one for one in entries):
        return False
    return not (isinstance(default, str) and "{" in default)


def value_and_origin(original: Callable[..., tuple[object, object]], _site: str) -> object:
    """ConfigManager.get_config_value_and_origin, for options of plugins."""

    @functools.wraps(original)
    def get(
        manager: _Definitions,
        config: str,
        cfile: str | None = None,
        plugin_type: str | None = None,
        plugin_name: str | None = None,
        keys: _Values | None = None,
        variables: _Values | None = None,
        direct: _Values | None = None,
        **more: object,
    ) -> tuple[object, object]:
        def by_ansible() -> tuple[object, object]:
            return original(manager, config, cfile, plugin_type, plugin_name, keys, variables, direct, **more)

        run_context = context.current()
        if run_context is None or plugin_name is None or cfile is not None or more or NAME in run_context.off:
            return by_ansible()
        definition = manager.get_configuration_definitions(plugin_type=plugin_type, name=plugin_name).get(config)
        if definition is None:
            return by_ansible()
        options: dict[int, _Option | None] = run_context.state.setdefault(NAME, {})
        option = options.get(id(definition))
        if option is None or option.definition is not definition:
            if not _is_plain(definition):
                return by_ansible()
            option = options[id(definition)] = _Option(config, definition)
        given = option.given(direct, variables, keys)
        if given is not None:
            key = _key(*given) if option.is_plain else None
            if key is None:
                return by_ansible()
            known = option.found.get(key)
            if known is None:
                known = given[2], by_ansible()
                if not _can_be_kept(known[1][0]):
                    return known[1]
                if len(option.found) >= _MOST:
                    option.found.clear()
                option.found[key] = known
            return known[1]
        if option.is_in_environ():
            return by_ansible()
        cli_args = run_context.state.get("cliargs") if option.has_cli else None  # None before it is read
        if option.unset is None or option.cli_args is not cli_args:
            found = by_ansible()
            if not _can_be_kept(found[0]):
                return found
            option.unset, option.cli_args = found, cli_args
        return option.unset

    return get


def _key(place: str, name: str, value: object) -> tuple[object, ...] | None:
    """
    What stands for a value that an option is given; None for one that may be modified. Text that ansible-core has tagged is equal to the same
    text with other tags, which the option's value has too: it counts as the object that it is.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool:
        return place, name, kind, value
    return (place, name, kind, id(value)) if isinstance(value, str | int | float) else None


def _can_be_kept(value: object) -> bool:
    """Whether it is immutable. ansible-core's own kinds of text and numbers, which know where they come from, are."""
    return value is None or isinstance(value, str | int | float)


SEAMS = (
    for_speed(
        "ansible.config.manager:ConfigManager.get_config_value_and_origin",
        "for each task every option of each plugin would be looked for in every place",
        value_and_origin,
    ),
)
