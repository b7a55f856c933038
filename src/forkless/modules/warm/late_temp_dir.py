# SPDX-License-Identifier: GPL-3.0-or-later
"""
The temporary folder that stock Ansible makes for a module: made when an action plugin asks for its name.

Without pipelining, an action plugin that has run a module finds a folder of the host in `_connection._shell.tmpdir`, and may
put files into it. A module that runs warm needs none, and a folder for each module would cost two requests to the host.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.modules.ansible_types import ShellPlugin

__all__ = ["forget_temp_dir", "promise_temp_dir"]

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_MAKE = "_forkless_make_tmp_path"  # of the shell plugin's object: makes the folder
_SUBCLASS = "_forkless_promising"  # of its class, in which the subclass is kept for as long as the class lives


def promise_temp_dir(shell: ShellPlugin, make: Callable[[], object]) -> None:
    """
    Let a plugin that asks this shell for its temporary folder have one, which `make` makes and assigns to `tmpdir`.

    ansible-core itself, which asks for the folder in order to use or remove one that there is, is not given another. Only
    the worker's thread that owns the connection may call this.
    """
    plugin = type(shell)
    if _SUBCLASS not in plugin.__dict__:
        setattr(plugin, _SUBCLASS, _promising(plugin))
    if plugin.__dict__[_SUBCLASS] is not None:
        shell.__class__ = plugin.__dict__[_SUBCLASS]
    shell.__dict__[_MAKE] = make


def forget_temp_dir(shell: ShellPlugin) -> None:
    """An action removes its folder at its end. The next item of a loop has none until it has run a module itself."""
    shell.__dict__.pop(_MAKE, None)


def _promising(plugin: type) -> type:
    """A subclass of a shell plugin's class, with the same name, in which `tmpdir` is a property."""
    others = (os.path.dirname(sys.modules["ansible"].__file__ or "") + os.sep, _OURS)

    def tmpdir(self: ShellPlugin) -> str | None:
        found: str | None = self.__dict__.get("tmpdir")
        if found is None and _MAKE in self.__dict__ and not sys._getframe(1).f_code.co_filename.startswith(others):
            self.__dict__.pop(_MAKE)()
            found = self.__dict__.get("tmpdir")
        return found

    def assign(self: ShellPlugin, path: str | None) -> None:
        self.__dict__["tmpdir"] = path

    own = {
        "tmpdir": property(tmpdir, assign),
        _SUBCLASS: None,
        "__module__": plugin.__module__,
        "__doc__": plugin.__doc__,
    }
    return type(plugin.__name__, (plugin,), own)
