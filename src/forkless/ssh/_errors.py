# SPDX-License-Identifier: GPL-3.0-or-later
"""
What can go wrong on the way to a host, sorted by what the caller can do about it.

    WorkerError
    ├── SSHError           (ConnectionError)   the host could not be reached
    │   ├── HostKeyError                       it is not known, or it is not who it was; never tried again
    │   ├── LoginError                         it does not let us in; never tried again
    │   └── LostError                          the connection went away while it was in use
    └── EscalationError                        the host was reached, but become did not succeed

These are the transport's own: the connection plugin turns each into the error that Ansible has for it.
"""

from __future__ import annotations

from forkless._errors import WorkerError

__all__ = ["EscalationError", "HostKeyError", "LoginError", "LostError", "SSHError"]


class SSHError(WorkerError, ConnectionError):
    """The host could not be reached."""


class HostKeyError(SSHError):
    """The host's key is not known, was revoked, or has changed."""


class LoginError(SSHError):
    """The host does not let this user in with what was offered."""


class LostError(SSHError):
    """The connection went away. `started` tells whether the command may have run."""

    def __init__(self, sentence: str, started: bool = True) -> None:
        super().__init__(sentence, started)
        self.sentence = sentence
        self.started = started

    def __str__(self) -> str:
        return self.sentence


class EscalationError(WorkerError):
    """become asked for a password that was not there, or did not take the one it got."""
