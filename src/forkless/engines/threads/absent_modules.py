# SPDX-License-Identifier: GPL-3.0-or-later
"""
Stdlib modules that ansible-core imports unconditionally and some systems lack (iOS, Android, minimal builds).

Each missing one is replaced by the part of it that Ansible uses, only while a run is active.
"""

from __future__ import annotations

import collections
import importlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["fill_in"]

User = collections.namedtuple(  # noqa: PYI024  # the stdlib's own is a tuple with these names
    "User", "pw_name pw_passwd pw_uid pw_gid pw_gecos pw_dir pw_shell"
)
Group = collections.namedtuple("Group", "gr_name gr_passwd gr_gid gr_mem")  # noqa: PYI024  # as above


def _lines(path: str, fields: int) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.rstrip("\n").split(":") for line in file if ":" in line and not line.startswith("#")]
    except OSError:
        return []
    return [row for row in rows if len(row) == fields]


def _users() -> list[User]:
    found = [User(n, p, int(u), int(g), c, d, s) for n, p, u, g, c, d, s in _lines("/etc/passwd", 7)]
    me = os.getuid()
    if all(user.pw_uid != me for user in found):
        name = os.environ.get("LOGNAME") or os.environ.get("USER") or "me"
        found.append(User(name, "x", me, os.getgid(), "", os.environ.get("HOME", "/"), "/bin/sh"))
    return found


def _groups() -> list[Group]:
    found = [Group(n, p, int(g), [m for m in members.split(",") if m]) for n, p, g, members in _lines("/etc/group", 4)]
    mine = os.getgid()
    if all(group.gr_gid != mine for group in found):
        found.append(Group("mine", "x", mine, []))
    return found


def _find(rows: list[Any], field: str, value: object, what: str) -> object:
    for row in rows:
        if getattr(row, field) == value:
            return row
    raise KeyError(f"{what}: {value!r}")


def _pwd() -> dict[str, object]:
    return {
        "struct_passwd": User,
        "getpwall": _users,
        "getpwnam": lambda name: _find(_users(), "pw_name", name, "getpwnam(): name not found"),
        "getpwuid": lambda uid: _find(_users(), "pw_uid", uid, "getpwuid(): uid not found"),
    }


def _grp() -> dict[str, object]:
    return {
        "struct_group": Group,
        "getgrall": _groups,
        "getgrnam": lambda name: _find(_groups(), "gr_name", name, "getgrnam(): name not found"),
        "getgrgid": lambda gid: _find(_groups(), "gr_gid", gid, "getgrgid(): gid not found"),
    }


# Ansible guards its imports of the other modules that are missing there (readline, syslog, curses, resource), or never imports them.
STAND_INS: dict[str, Callable[[], dict[str, object]]] = {"pwd": _pwd, "grp": _grp}

_NEVER = object()


def fill_in() -> Callable[[], None]:
    """Put replacements for missing modules into sys.modules. Returns a function that removes them."""
    before: dict[str, Any] = {}
    for name, make in STAND_INS.items():
        try:
            importlib.import_module(name)
        except ImportError:
            before[name] = sys.modules.get(name, _NEVER)
            module = types.ModuleType(name, f"{name}, as far as Ansible needs it; this system has none")
            module.__dict__.update(make())
            sys.modules[name] = module

    def take_out() -> None:
        for name, was in before.items():
            if was is _NEVER:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = was

    return take_out
