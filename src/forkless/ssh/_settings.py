# SPDX-License-Identifier: GPL-3.0-or-later
"""What one connection is to be: a value, complete and hashable, so that two wishes for the same one find each other."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """Everything that decides which connection this is. Secrets are part of the key and not of the picture."""

    host: str
    port: int = 22
    user: str = ""
    name: str = ""  # the name as given, for messages and known_hosts, before HostName replaced it
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
    through: Settings | None = None  # the host to jump from
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def address(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"

    @property
    def known_as(self) -> str:
        """The name that its key is kept under."""
        return self.alias or self.host
