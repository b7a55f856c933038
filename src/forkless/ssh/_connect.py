# SPDX-License-Identifier: GPL-3.0-or-later
"""Opens one SSH connection, through its jumps, and says in a sentence why it could not."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

from forkless.ssh._errors import HostKeyError, LoginError, SSHError
from forkless.ssh._hostkeys import HostKeys
from forkless.ssh._library import asyncssh

if TYPE_CHECKING:
    from forkless.ssh._settings import Settings

__all__ = ["open_connection"]

# The library would begin with chacha20, which here costs twice the CPU for each command: AES is in the processor, ChaCha is not.
CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes256-ctr,aes192-ctr,aes128-ctr"
FAMILIES = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}


async def open_connection(settings: Settings) -> tuple[Any, list[Any]]:
    """The connection, and those that it runs through, nearest first: all are closed together."""
    chain: list[Any] = []
    try:
        tunnel = None
        if settings.through is not None:
            tunnel, chain = await open_connection(settings.through)
            chain.insert(0, tunnel)
        return await _login(settings, tunnel), chain
    except BaseException:  # cancelled as well as failed: the connections it would have run through are closed
        for jump in chain:
            jump.abort()
        raise


async def _login(settings: Settings, tunnel: Any) -> Any:
    library = asyncssh()
    host_keys = HostKeys(settings)
    unread: list[str] = []

    class Client(library.SSHClient):  # type: ignore[misc, name-defined]
        def validate_host_public_key(self, host: str, addr: str, port: int, key: Any) -> bool:
            del host, addr, port
            return host_keys.judge(key)

    def password() -> str | None:
        # A host that is not the one it was gets no password, even where its key was said not to matter.
        return None if host_keys.changed else settings.password

    options: dict[str, Any] = {
        "config": None,
        "username": settings.user,
        "known_hosts": host_keys.trusted,
        "server_host_key_algs": settings.host_key_algorithms or host_keys.algorithms(),
        "client_keys": _keys(settings, unread) or None,
        "agent_path": None,
        "password": password if settings.password is not None else None,
        "password_auth": settings.password is not None,
        "kbdint_auth": settings.password is not None,
        "host_based_auth": False,
        "gss_kex": False,
        "gss_auth": False,
        "x509_trusted_certs": None,
        "x509_trusted_cert_paths": [],
        "keepalive_interval": settings.alive_interval,
        "keepalive_count_max": settings.alive_count,
        "connect_timeout": settings.timeout,
        "login_timeout": max(settings.timeout, 1),
        "compression_algs": ["zlib@openssh.com", "none"] if settings.compression else ["none"],
        "family": FAMILIES.get(settings.family, socket.AF_UNSPEC),
        "tunnel": tunnel,
        "encoding": None,
        "request_pty": False,
    }
    if settings.alias:
        options["host_key_alias"] = settings.alias
    if settings.agent:
        options["agent_path"] = settings.agent
        # None would switch the agent off as well; the empty list means: no key of our own, ask the agent.
        options["client_keys"] = options["client_keys"] or _Nothing()
        if settings.identities_only:
            options["agent_identities"] = _public_keys(settings)
    if settings.forward_agent:
        options["agent_forwarding"] = settings.agent or False
    if settings.bind:
        options["local_addr"] = (settings.bind, 0)
    if settings.preferred:
        options["preferred_auth"] = list(settings.preferred)
    wishes = {"encryption_algs": settings.ciphers or CIPHERS, "mac_algs": settings.macs, "kex_algs": settings.kex}
    options.update({name: wish for name, wish in wishes.items() if wish})
    try:
        connection, _ = await library.create_connection(Client, settings.host, settings.port, **options)
    except asyncio.CancelledError:
        raise
    except Exception as err:
        raise _explain(err, settings, host_keys, unread) from err
    return connection


class _Nothing(list):  # type: ignore[type-arg]
    """An empty list that counts as one with something in it, for a library that takes empty for 'the default keys'."""

    def __bool__(self) -> bool:
        return True


def _public_keys(settings: Settings) -> list[str]:
    return [path + ".pub" for path in settings.identities if os.path.exists(path + ".pub")]


def _keys(settings: Settings, unread: list[str]) -> list[Any]:
    """The private keys that can be read, with their certificates. Those that cannot be are named in `unread`."""
    library = asyncssh()
    found: list[Any] = []
    if settings.key:
        try:
            key = library.import_private_key(settings.key.strip() + "\n", settings.passphrase)
        except (library.KeyImportError, library.KeyEncryptionError) as err:
            raise LoginError(
                f"the private key given for {settings.address} (private_key) cannot be read: {err}"
            ) from err
        found.append(key)
    for path in dict.fromkeys(settings.identities):
        if path.endswith(".pub") or not os.path.isfile(path):
            continue
        certificates = [one for one in (path + "-cert.pub", *settings.certificates) if os.path.isfile(one)]
        try:
            key = library.read_private_key(path, settings.passphrase)
        except (library.KeyImportError, library.KeyEncryptionError, OSError) as err:
            unread.append(f"{path} ({err})")
            continue
        for certificate in certificates:
            try:
                found.append((key, library.read_certificate(certificate)))
            except (library.KeyImportError, ValueError, OSError) as err:
                unread.append(f"{certificate} ({err})")
        found.append(key)
    return found


def _explain(err: Exception, settings: Settings, host_keys: HostKeys, unread: list[str]) -> SSHError:
    library = asyncssh()
    where = settings.address + (f" (through {settings.through.address})" if settings.through else "")
    if host_keys.refusal is not None:
        return host_keys.refusal
    if isinstance(err, library.HostKeyNotVerifiable):
        return HostKeyError(f"the host key of {where} is not trusted: {err.reason}")
    if isinstance(err, library.PermissionDenied):
        tried = (
            [f"the keys {', '.join(p for p in settings.identities if os.path.isfile(p))}"]
            if settings.identities
            else []
        )
        tried += ["the agent"] * bool(settings.agent) + ["a password"] * (settings.password is not None)
        more = f" Could not be read: {'; '.join(unread)}." if unread else ""
        if host_keys.changed and settings.password is not None:
            more += " Its host key has changed, so it was not sent the password."
        return LoginError(f"{where} does not let us in; offered were {' and '.join(tried) or 'nothing'}.{more}")
    if isinstance(err, TimeoutError):
        return SSHError(f"{where} did not answer within {settings.timeout:g} s")
    if isinstance(err, library.ChannelOpenError):
        return SSHError(f"the jump to {where} was not made: {err.reason}")
    if isinstance(err, library.DisconnectError):
        if "timeout" in str(err.reason).lower():
            return SSHError(f"{where} did not finish the login within {settings.timeout:g} s")
        return SSHError(f"{where} ended the connection: {err.reason}")
    if isinstance(err, OSError):
        return SSHError(f"{where} cannot be reached: {err.strerror or err}")
    return SSHError(f"{where} cannot be connected to: {type(err).__name__}: {err}")
