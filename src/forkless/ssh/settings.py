# SPDX-License-Identifier: GPL-3.0-or-later
"""All settings of one connection as a hashable value, so that tasks with equal settings share a connection."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """Identifies a connection. Secrets take part in comparison and hash, but not in repr."""

    host: str
    port: int = 22
    user: str = ""
    name: str = ""  # the name as given, before HostName replaced it; used in messages
    password: str | None = field(default=None, repr=False)
    identities: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    key: str | None = field(default=None, repr=False)
    passphrase: str | None = field(default=None, repr=False)
    identities_only: bool = False
    agent: str = ""
    forward_agent: bool = False
    strict: str = "yes"  # yes, accept-new, no
    known_hosts: tuple[str, ...] = ()
    alias: str = ""
    hash_known_hosts: bool = False
    timeout: float = 10.0
    login_timeout: float | None = None  # for key exchange and authentication together; None: as long as `timeout`
    alive_interval: float = 0.0
    alive_count: int = 3
    compression: bool = False
    preferred: tuple[str, ...] = ()
    ciphers: str = ""
    macs: str = ""
    kex: str = ""
    host_key_algorithms: str = ""
    family: str = "any"
    bind: str = ""
    quick_login: bool = True  # see quick_login.py
    through: Settings | None = None  # the host to jump from
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def address(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"

    @property
    def known_as(self) -> str:
        """The host's name in known_hosts."""
        return self.alias or self.host
