# SPDX-License-Identifier: GPL-3.0-or-later
"""
Which ansible.netcommon is installed, and whether its connection plugins are the ones that forkless knows.

netcommon.json holds the fingerprint of each function whose behaviour a `DeviceWorker` depends on, for each release that was examined. A
plugin with any other function there is left to ansible-core's helper process. `write_fingerprints` adds a release.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.resources
import json
import os
import sys
from typing import TYPE_CHECKING, TypedDict

from forkless.core.syntax_trees import one_at_a_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from forkless.engines.threads.network.ansible_objects import ConnectionFinder

__all__ = [
    "IN_THE_RUN",
    "changed",
    "installed",
    "known_versions",
    "plugin_at",
    "read_version",
    "usable",
    "write_fingerprints",
]

_PACKAGE = "ansible_collections.ansible.netcommon.plugins.connection."
_BASE = "plugin_utils/connection_base.py"

# The connection plugins that live in the run.
IN_THE_RUN = ("connection/network_cli.py", "connection/httpapi.py", "connection/netconf.py", "connection/grpc.py")
# The functions that matter, by file: the plugins above, what they open themselves, and the base class.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "connection/network_cli.py": (
        "__init__", "_connect", "_handle_buffer_read_timeout", "_handle_command_timeout", "close", "receive", "receive_libssh",
        "receive_paramiko", "send", "set_check_prompt", "set_options", "ssh_type", "ssh_type_conn", "update_play_context",
    ),
    "connection/libssh.py": ("_connect", "close"),
    "connection/httpapi.py": (
        "__init__", "_connect", "_url", "close", "load_platform_plugins", "send", "transport_test", "update_play_context",
    ),
    "connection/netconf.py": ("__init__", "_connect", "_get_proxy_command", "close", "exec_command", "manager", "update_play_context"),
    "connection/grpc.py": ("__init__", "_connect", "close"),
    _BASE: ("__getattr__", "__init__", "set_options"),
}  # fmt: skip
# network_cli opens libssh's plugin itself.
_WITH = {"connection/network_cli.py": ("connection/libssh.py",)}


class Release(TypedDict):
    """What is known of one release: the digest of each file, and of each function in it."""

    files: dict[str, str]
    functions: dict[str, dict[str, str]]


_parse = one_at_a_time(ast.parse)


def fingerprints(path: str, names: tuple[str, ...]) -> dict[str, str]:
    """A hash of the source of each of these methods of the file's class; "missing" for one that is not there."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    found = dict.fromkeys(names, "missing")
    for node in ast.walk(_parse(text)):
        if isinstance(node, ast.ClassDef) and node.name in ("Connection", "NetworkConnectionBase"):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name in found:
                    # Stripped lines without blank lines and comments are equal on every Python; a dump of the tree is not.
                    lines = [one.strip() for one in (ast.get_source_segment(text, item) or "").splitlines()]
                    code = "\n".join(one for one in lines if one and not one.startswith("#"))
                    found[item.name] = hashlib.sha256(code.encode()).hexdigest()[:12]
    return found


@functools.cache
def _known() -> dict[str, Release]:
    text = importlib.resources.files(__package__).joinpath("netcommon.json").read_text(encoding="utf-8")
    loaded: dict[str, Release] = json.loads(text)
    return loaded


def known_versions() -> list[str]:
    return list(_known())


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


@functools.lru_cache(maxsize=64)
def _changed_in(path: str, name: str, _stamp: tuple[int, int]) -> tuple[str, ...]:
    if any(_digest(path) == files["files"].get(name) for files in _known().values()):
        return ()
    now = fingerprints(path, FUNCTIONS[name])
    seen: Mapping[str, set[str]] = {
        function: {files["functions"].get(name, {}).get(function, "") for files in _known().values()}
        for function in FUNCTIONS[name]
    }
    return tuple(f"{name}: {function}" for function, look in now.items() if look not in seen[function])


def changed(plugins: str, name: str) -> list[str]:
    """The functions of one plugin of the collection, whose folder `plugins` is, that differ from every release that was examined."""
    found: list[str] = []
    for one in (name, *_WITH.get(name, ()), _BASE):
        path = os.path.join(plugins, *one.split("/"))
        try:
            stat = os.stat(path)
            found += _changed_in(path, one, (stat.st_mtime_ns, stat.st_size))
        except (OSError, SyntaxError, ValueError) as error:
            found.append(f"{one}: {error}")
    return found


def read_version(plugins: str) -> str:
    """The version in the collection's manifest, "unknown" for one that was not installed from a package."""
    try:
        with open(os.path.join(plugins, "..", "MANIFEST.json"), encoding="utf-8") as file:
            return str(json.load(file)["collection_info"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def installed() -> str | None:
    """The folder of the plugins of the first ansible.netcommon on Ansible's paths for collections; None if there is none."""
    from ansible import constants

    roots = [*constants.COLLECTIONS_PATHS, *sys.path]
    for root in roots:
        base = root if os.path.basename(root) == "ansible_collections" else os.path.join(root, "ansible_collections")
        plugins = os.path.join(os.path.expanduser(base), "ansible", "netcommon", "plugins")
        if os.path.isdir(plugins):
            return plugins
    return None


def plugin_at(resolved_name: str, path: str) -> tuple[str, str] | None:
    """The folder of the collection's plugins, and the file in it, for a connection plugin that lives in the run; None for any other."""
    file = f"connection/{resolved_name.removeprefix(_PACKAGE)}.py"
    if not resolved_name.startswith(_PACKAGE) or file not in IN_THE_RUN:
        return None
    return os.path.dirname(os.path.dirname(path)), file


def usable(
    connection: str, state: MutableMapping[object, object], loader: ConnectionFinder, warn: Callable[[str], None]
) -> bool:
    """
    Whether a task's connection plugin may be opened in this process. Looked up once in a run, whose `state` remembers it.

    `warn` is called with one sentence if it is a plugin of netcommon and differs from what is known.
    """
    key = ("network plugin", connection)
    verdict = state.get(key)
    if not isinstance(verdict, bool):
        found = loader.find_plugin_with_context(connection)
        at = plugin_at(str(found.plugin_resolved_name), str(found.plugin_resolved_path)) if found.resolved else None
        different = [] if at is None else changed(*at)
        if at is not None and different:
            warn(
                f"ansible.netcommon {read_version(at[0])} is not known to this forkless ({different[0]}"
                f"{' and others' if len(different) > 1 else ''}): connections to devices use Ansible's helper processes. See forkless doctor."
            )
        verdict = state[key] = at is not None and not different
    return verdict


def write_fingerprints(plugins: str, path: str | None = None) -> str:
    """Add the collection whose folder of plugins is given to netcommon.json. Returns its version."""
    path = path or str(importlib.resources.files(__package__).joinpath("netcommon.json"))
    version = read_version(plugins)
    files = {name: os.path.join(plugins, *name.split("/")) for name in FUNCTIONS}
    entry = {
        "files": {name: _digest(where) for name, where in files.items() if os.path.exists(where)},
        "functions": {name: fingerprints(where, FUNCTIONS[name]) for name, where in files.items() if os.path.exists(where)},
    }  # fmt: skip
    with open(path, encoding="utf-8") as file:
        known = json.load(file)
    known[version] = entry
    with open(path, "w", encoding="utf-8") as file:
        json.dump(
            dict(sorted(known.items(), key=lambda one: [int(part) for part in one[0].split(".")])), file, indent=1
        )
        file.write("\n")
    return version
