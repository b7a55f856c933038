# SPDX-License-Identifier: GPL-3.0-or-later
"""
SSH with no ssh program: one connection per host, many channels, on one thread.

    with forkless.ssh.kept("run-1"):
        link = forkless.ssh.Link(forkless.ssh.Wish(host="web1").settings())
        print(link.execute("uptime").stdout)

The connection plugin forkless.core.ssh is a thin door to this room. Importing it imports neither asyncssh nor Ansible.
"""

from __future__ import annotations

from forkless.ssh._done import Done
from forkless.ssh._errors import EscalationError, HostKeyError, LoginError, LostError, SSHError
from forkless.ssh._pool import RUN, Link, close_all, kept, reset
from forkless.ssh._settings import Settings
from forkless.ssh._wish import Wish

__all__ = [
    "RUN",
    "Done",
    "EscalationError",
    "HostKeyError",
    "Link",
    "LoginError",
    "LostError",
    "SSHError",
    "Settings",
    "Wish",
    "close_all",
    "kept",
    "reset",
]
