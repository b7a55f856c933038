# SPDX-License-Identifier: GPL-3.0-or-later
"""
SSH without the ssh program: one connection per host with many channels, all on one thread.

    with forkless.ssh.kept("run-1"):
        link = forkless.ssh.Link(forkless.ssh.SshOptions(host="web1").settings())
        print(link.execute("uptime").stdout)

The connection plugin forkless.core.ssh is a thin layer over this package. Importing it imports neither asyncssh nor
Ansible.
"""

from __future__ import annotations

from forkless.ssh.errors import ConnectionLostError, EscalationError, HostKeyError, LoginError, SSHError
from forkless.ssh.options import SshOptions
from forkless.ssh.pool import RUN, Link, close_all, kept, reset
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

# Names used up to 0.1, kept for compatibility.
Done, LostError, Wish = CommandResult, ConnectionLostError, SshOptions
