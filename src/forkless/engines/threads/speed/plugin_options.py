# SPDX-License-Identifier: GPL-3.0-or-later
"""
unset-options: an option of a plugin that nothing sets has its default, which is found once in a run.

For each task ansible-core looks for every option of each plugin in the task's arguments, variables and keywords, in the environment and in the
configuration file, and converts its default to its type. A connection to a network device has some 130 options, and few of them are set. The
places that may differ from one task to the next are looked at each time, by the option's names; only if none of these is there, the value of
the first time is returned. A number or truth value that a plugin is given directly is converted once, likewise.

An option is left to ansible-core if its value could be modified or depends on anything else: if it is no text, number or truth value, a path (on
the working directory), a default that is a template, an option that the command line sets, one with aliases, and any that ansible-core warns of.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

from forkless.engines.threads import context
from forkless.engines.threads.patches import stdlib_views
from forkless.patching.seams import for_speed

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

__all__ = ["NAME", "SEAMS"]

NAME = "unset-options"

# Types whose conversion depends on nothing but the value.
_TYPES = frozenset((None, "str", "string", "bool", "boolean", "int", "integer", "float"))


class _Definitions(Protocol):
    """What is used of ansible-core's ConfigManager."""

    def get_configuration_definitions(
        self, *, plugin_type: str | None, name: str | None
    ) -> Mapping[str, Mapping[str, object]]: ...


class _Option:
    """One option of one plugin: by which names it may be set, and what it is if it is not."""

    __slots__ = ("converted", "definition", "environ", "keywords", "unset", "variables")

    def __init__(self, name: str, definition: Mapping[str, object]) -> None:
        self.definition = definition  # kept, so that no other definition gets its id
        self.variables = _names(definition, "vars")
        self.keywords = (name, *_names(definition, "keyword"))
        self.environ = _names(definition, "env")
        self.unset: tuple[object, object] | None = None
        self.converted: dict[tuple[type, object], tuple[object, object]] = {}

    def is_set(self, variables: Container[str] | None, keys: Container[str] | None) -> bool:
        if variables and any(name in variables for name in self.variables):
            return True
        if keys and any(name in keys for name in self.keywords):
            return True
        return bool(self.environ) and any(name in stdlib_views.os_view.environ for name in self.environ)


def _names(definition: Mapping[str, object], source: str) -> tuple[str, ...]:
    entries = definition.get(source) or ()
    return tuple(str(entry["name"]) for entry in entries) if isinstance(entries, list | tuple) else ()


def _is_plain(definition: Mapping[str, object]) -> bool:
    """Whether the value depends on nothing but the names above and the configuration file, which is the same for the whole run."""
    default = definition.get("default")
    if default is not None and definition.get("type") not in _TYPES:  # None is None as any type
        return False
    if any(one in definition for one in ("cli", "aliases", "deprecated")):
        return False
    entries = [one for source in ("vars", "env", "ini", "keyword") for one in definition.get(source) or ()]  # type: ignore[attr-defined]
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
        keys: Container[str] | None = None,
        variables: Container[str] | None = None,
        direct: Mapping[str, object] | None = None,
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
        given = direct.get(config) if direct else None
        if given is not None:
            kind = type(given)
            if kind is not bool and kind is not int:
                return by_ansible()
            converted = option.converted.get((kind, given))
            if converted is None:
                converted = by_ansible()
                if _can_be_kept(converted[0]):
                    option.converted[kind, given] = converted
            return converted
        if option.is_set(variables, keys):
            return by_ansible()
        if option.unset is None:
            found = by_ansible()
            if not _can_be_kept(found[0]):
                return found
            option.unset = found
        return option.unset

    return get


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
