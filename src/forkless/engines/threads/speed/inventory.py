# SPDX-License-Identifier: GPL-3.0-or-later
"""
plain-inventory: lines of an INI inventory whose meaning is seen from their characters need no tokenizer and no Python parser.

ansible-core splits every line with `shlex`, parses every value with `ast.literal_eval`, and asks the file system twice for each host where the
inventory is. With 10,000 hosts that is half the time to start. Quotes, backslashes, comments, and values that could be a literal other than a decimal
number are left to ansible-core.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from typing import TYPE_CHECKING, Protocol

from forkless.core.versions import since
from forkless.engines.threads import context
from forkless.engines.threads.speed import caches
from forkless.patching.seams import for_speed, uses_only

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NAME", "SEAMS"]

NAME = "plain-inventory"

_PART = r"[A-Za-z0-9_./:@%+,=~\[\]-]+"  # no quote, backslash, comment or white space in it
_PLAIN_LINE = re.compile(rf"{_PART}(?:[ \t]+{_PART})*")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,17}")
# Of these, literal_eval says that they are malformed or no syntax: names, attributes and differences of names, absolute paths, IPv4 addresses.
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,200}|/[A-Za-z0-9_./:@%+,=~-]{0,200}|[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
_CONSTANTS = frozenset(("True", "False", "None"))


class _IniPlugin(Protocol):
    """What is used of ansible-core's INI plugin."""

    def _parse_recursive_coerce_types_and_tag(self, value: object) -> object: ...


def _is_on() -> bool:
    run_context = context.current()
    return run_context is not None and NAME not in run_context.off


def tokens(original: Callable[..., list[str]], _site: str) -> Callable[..., list[str]]:
    """shlex_split in the INI plugin: a line without quotes, backslashes and comments is split at its white space."""

    @functools.wraps(original)
    def split(line: str, comments: bool = False, posix: bool = True) -> list[str]:
        if type(line) is str and _PLAIN_LINE.fullmatch(line) and _is_on():
            return line.split()
        return original(line, comments, posix)

    return split


def value(original: Callable[..., object], _site: str) -> Callable[..., object]:
    """InventoryModule._parse_value: a decimal number, or text that is no literal, is known without Python's parser."""
    if not uses_only(original, _VALUE):
        return original

    @functools.wraps(original)
    def parse(plugin: _IniPlugin, text: str) -> object:
        if type(text) is str and _is_on():
            if _DECIMAL.fullmatch(text):
                return plugin._parse_recursive_coerce_types_and_tag(int(text))
            if _WORD.fullmatch(text) and text not in _CONSTANTS:
                return plugin._parse_recursive_coerce_types_and_tag(text)
        return original(plugin, text)

    return parse


def folder(original: Callable[..., object], _site: str) -> Callable[..., object]:
    """basedir, for each host of a source: of an absolute path it depends only on whether that is a folder or a file now."""

    @functools.wraps(original)
    def find(source: object) -> object:
        if type(source) is not str or not source.startswith("/"):
            return original(source)
        run_context = context.current()
        if run_context is None or NAME in run_context.off:
            return original(source)
        folders: dict[tuple[str, int], object] = run_context.state.setdefault("inventory-folders", {})
        try:
            key = (source, stat.S_IFMT(os.stat(source).st_mode))
        except (OSError, ValueError):
            return original(source)
        if key not in folders:
            folders[key] = original(source)
        return folders[key]

    return find


def variables_at_start(original: Callable[..., object], _site: str) -> Callable[..., object]:
    """
    get_vars_from_inventory_sources in the inventory manager, which calls it for each host: no variables, if no vars plugin is to run at that stage.

    Only if Ansible's own vars plugin is the only one. Whether it runs when the inventory is read is a setting of the run.
    """
    from ansible.plugins.loader import vars_loader
    from ansible.vars import plugins as upstream

    if not uses_only(original, _AT_START) or not uses_only(upstream.get_vars_from_path, _FROM_PATH):
        return original

    @functools.wraps(original)
    def get(loader: object, sources: object, entities: object, stage: str) -> object:
        run_context = context.current()
        if run_context is None or NAME in run_context.off or not caches.only_own_vars_plugin():
            return original(loader, sources, entities, stage)
        # Its options are read when it is loaded, once for the run.
        plugins = [plugin for plugin, _ in vars_loader._plugin_instance_cache.values()]
        if any(upstream._plugin_should_run(one, stage) for one in plugins):
            return original(loader, sources, entities, stage)
        return {}

    return get


# All names that ansible-core's function uses in the minors for which it is replaced. If it uses another name, it does more.
_VALUE = {
    "warnings", "catch_warnings", "simplefilter", "SyntaxWarning", "ast", "literal_eval", "ValueError", "SyntaxError",
    "_parse_recursive_coerce_types_and_tag",
}  # fmt: skip

_AT_START = {"os", "path", "exists", "isdir", "dirname", "get_vars_from_path", "combine_vars"}
_FROM_PATH = {
    "vars_loader", "_paths", "_prime_vars_loader", "_plugin_instance_cache", "get", "ansible_name", "startswith", "hasattr", "display",
    "warning", "_plugin_should_run", "get_vars", "get_plugin_vars", "combine_vars",
}  # fmt: skip

_INI = "ansible.plugins.inventory.ini"
SEAMS = (
    for_speed(f"{_INI}:shlex_split", "every line would be read character by character", tokens),
    for_speed(
        f"{_INI}:InventoryModule._parse_value", "Python would parse every value of every host", value, since("2.19")
    ),
    for_speed(
        "ansible.inventory.manager:get_vars_from_inventory_sources",
        "every host would ask plugins that do not run yet",
        variables_at_start,
    ),
    for_speed("ansible.inventory.data:basedir", "every host would look for the inventory's folder", folder),
)
