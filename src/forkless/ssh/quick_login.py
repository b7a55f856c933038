# SPDX-License-Identifier: GPL-3.0-or-later
"""
Logs in to OpenSSH with three round trips less than asyncssh does by itself.

asyncssh asks the host for a login and waits for its agreement. Then it asks which methods the host accepts (by the method "none"), and whether it
accepts a key, and signs when the host says so. Here nothing is waited for and both questions are left out: the first request is signed by the first
key, as other SSH libraries do it too, and follows the one for a login at once, as Dropbear's client does it. What is used of asyncssh is not
documented, so a connection of another shape logs in as asyncssh does. FORKLESS_DISABLE=quick-login switches it off.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["QuickLogin"]

_SERVERS = "SSH-2.0-OpenSSH_"
_ASKS = b"\0"  # a boolean of the protocol: the request is a question, and has no signature


class _Connection(Protocol):
    """What is used of asyncssh's SSHClientConnection."""

    _auth_methods: list[bytes]
    _auth: object
    _server_sig_algs: set[bytes]
    send_service_request: Callable[[bytes], None]
    try_next_auth: Callable[..., None]
    send_userauth_request: Callable[..., Awaitable[None]]

    def get_extra_info(self, name: str) -> object: ...


class QuickLogin:
    """Of one connection; only the event loop's thread may use it."""

    def __init__(self, connection: _Connection) -> None:
        self.left_out_none = False
        """Whether the host was not asked whether it lets the user in without anything."""
        self._connection = connection
        self._begun_early = False
        self._ask_for_login = connection.send_service_request
        self._next, self._send = connection.try_next_auth, connection.send_userauth_request

    @classmethod
    def of(cls, connection: object) -> QuickLogin | None:
        """For a connection that was made just now; None if asyncssh has another shape than the one that is known."""
        if getattr(connection, "_auth_methods", None) != [b"none"]:
            return None
        if not all(hasattr(connection, name) for name in ("_auth", "_server_sig_algs")):
            return None
        methods = ("try_next_auth", "send_userauth_request", "send_service_request")
        if not all(callable(getattr(connection, name, None)) for name in methods):
            return None
        known = cast("_Connection", connection)
        made = cls(known)
        known.try_next_auth, known.send_userauth_request = made._begin, made._request
        known.send_service_request = made._service_request
        return made

    def _service_request(self, service: bytes) -> None:
        """Keys were exchanged, and the host is asked for a login."""
        self._connection.send_service_request = self._ask_for_login
        self._ask_for_login(service)
        if self._is_openssh():
            # When the rest of what has come is read: an OpenSSH that is not very old says with its keys which signatures it knows.
            asyncio.get_running_loop().call_soon(self._begin_early)

    def _begin_early(self) -> None:
        """Send the first request without waiting for the answer to the one for a login."""
        waits = self._connection.try_next_auth == self._begin
        if waits and self._connection._server_sig_algs:
            self._begun_early = True
            self._try_keys()

    def _begin(self, *, next_method: bool = False) -> None:
        """
        The host lets us try: begin with the keys. If it refuses them, its answer says which methods are left, as the answer to "none" does.

        Called when the host agrees to a login, or with `next_method` when there is no key to try. After an early beginning the agreement needs nothing.
        """
        self._connection.try_next_auth = self._next
        if not self._begun_early:
            self._try_keys()
        elif next_method:
            self._next(next_method=True)

    def _try_keys(self) -> None:
        connection = self._connection
        if self._is_openssh() and connection._auth_methods == [b"none"]:
            connection._auth_methods = [b"publickey"]
            self.left_out_none = True
        self._next()

    def _is_openssh(self) -> bool:
        version = self._connection.get_extra_info("server_version")
        return isinstance(version, str) and version.startswith(_SERVERS)

    async def _request(self, method: bytes, *parts: bytes, **more: object) -> None:
        keypair = getattr(self._connection._auth, "_keypair", None)
        if self.left_out_none and method == b"publickey" and len(parts) == 3 and parts[0] == _ASKS and _signs(keypair):
            # A key that cannot sign, as the system's rules for cryptography may forbid it, is no reason to give up: the host may refuse it anyway.
            with contextlib.suppress(ValueError):
                await self._send(method, b"\1", *parts[1:], key=keypair, trivial=False)
                return
        await self._send(method, *parts, **more)


def _signs(keypair: object) -> bool:
    """Whether this is a key of a file: an agent may ask its user, and a security key waits to be touched."""
    algorithm = getattr(keypair, "algorithm", b"")
    return (
        type(keypair).__name__ == "SSHLocalKeyPair"
        and isinstance(algorithm, bytes)
        and not algorithm.startswith(b"sk-")
    )
