# SPDX-License-Identifier: GPL-3.0-or-later
"""
SSH without the ssh program: one connection per host with many channels, all on one thread.

    with forkless.ssh.kept("run-1"):
        link = forkless.ssh.Link(forkless.ssh.SshOptions(host="web1").settings())
        print(link.execute("uptime").stdout)

The connection plugin forkless.core.ssh is a thin layer over this package. Importing it imports neither asyncssh nor
Ansible, and each name only when it is used: every run imports this package, and few connect by it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkless.ssh.errors import ConnectionLostError, EscalationError, HostKeyError, LoginError, SSHError
    from forkless.ssh.kept_runs import kept
    from forkless.ssh.options import SshOptions
    from forkless.ssh.pool import RUN, Link, close_all, reset
    from forkless.ssh.result import CommandResult
    from forkless.ssh.settings import Settings

__all__ = [
    "RUN",
    "CommandResult",
    "ConnectionLostError",
    "EscalationError",
    "HostKeyError",
    "Link",
    "LoginError",
    "SSHError",
    "Settings",
    "SshOptions",
    "close_all",
    "kept",
    "reset",
]

_MODULES = {
    "RUN": "pool",
    "CommandResult": "result",
    "ConnectionLostError": "errors",
    "EscalationError": "errors",
    "HostKeyError": "errors",
    "Link": "pool",
    "LoginError": "errors",
    "SSHError": "errors",
    "Settings": "settings",
    "SshOptions": "options",
    "close_all": "pool",
    "kept": "kept_runs",
    "reset": "pool",
}
# Names used up to 0.1, kept for compatibility.
_FORMER = {"Done": "CommandResult", "LostError": "ConnectionLostError", "Wish": "SshOptions"}


def __getattr__(name: str) -> object:
    now = _FORMER.get(name, name)
    if now not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[now]}"), now)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_FORMER})
