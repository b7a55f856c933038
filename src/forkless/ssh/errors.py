# SPDX-License-Identifier: GPL-3.0-or-later
"""
Errors of SSH connections, sorted by what the caller can do about them.

    WorkerError
    ├── SSHError           (ConnectionError)   the host could not be reached
    │   ├── HostKeyError                       the host key is unknown, revoked or changed; never retried
    │   ├── LoginError                         the host refused the login; never retried
    │   └── ConnectionLostError                the connection was lost while it was in use
    └── EscalationError                        the host was reached, but become failed

The connection plugin converts each into Ansible's corresponding error.
"""

from __future__ import annotations

from forkless.core.errors import WorkerError

__all__ = ["ConnectionLostError", "EscalationError", "HostKeyError", "LoginError", "SSHError"]


class SSHError(WorkerError, ConnectionError):
    """The host could not be reached."""


class HostKeyError(SSHError):
    """The host key is unknown, revoked or changed."""


class LoginError(SSHError):
    """The host refused the user with all keys and passwords that were offered."""


class ConnectionLostError(SSHError):
    """The connection was lost. If `started` is False, the command has certainly not run."""

    def __init__(self, sentence: str, started: bool = True) -> None:
        super().__init__(sentence, started)
        self.sentence = sentence
        self.started = started

    def __str__(self) -> str:
        return self.sentence


class EscalationError(WorkerError):
    """become asked for a password that was not given, rejected it, or did not answer in time."""
