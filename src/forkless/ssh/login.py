# SPDX-License-Identifier: GPL-3.0-or-later
"""Opens one SSH connection, through its jump hosts, and explains a failure."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from typing import TYPE_CHECKING, Any

from forkless.ssh.asyncssh_import import asyncssh
from forkless.ssh.errors import HostKeyError, LoginError, SSHError
from forkless.ssh.host_keys import HostKeys
from forkless.ssh.quick_login import QuickLogin

if TYPE_CHECKING:
    from forkless.ssh.settings import Settings

__all__ = ["open_connection"]

# asyncssh prefers chacha20, which costs twice the CPU time for each command: processors accelerate AES, but not
# ChaCha20.
CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes256-ctr,aes192-ctr,aes128-ctr"
FAMILIES = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}


async def open_connection(settings: Settings) -> tuple[object, list[object]]:
    """
    Return the connection and the jump connections below it, nearest to the host first. The caller closes all of them.

    On failure or cancellation the jump connections have been aborted.
    """
    chain: list[Any] = []
    try:
        tunnel = None
        if settings.through is not None:
            tunnel, chain = await open_connection(settings.through)
            chain.insert(0, tunnel)
        return await _login(settings, tunnel), chain
    except BaseException:  # cancellation included
        for jump in chain:
            jump.abort()
        raise


async def _login(settings: Settings, tunnel: object) -> object:
    library = asyncssh()
    host_keys = HostKeys(settings)
    unread: list[str] = []

    quick: list[QuickLogin] = []

    class Client(library.SSHClient):  # type: ignore[misc, name-defined]
        def connection_made(self, conn: object) -> None:
            if settings.quick_login and options["client_keys"] and settings.preferred[:1] in ((), ("publickey",)):
                quick.extend(filter(None, [QuickLogin.of(conn)]))

        def validate_host_public_key(self, host: str, addr: str, port: int, key: object) -> bool:
            del host, addr, port
            return host_keys.judge(key)

    def password() -> str | None:
        # A host with a changed key gets no password, even with StrictHostKeyChecking=no, as in ssh.
        return None if host_keys.changed else settings.password

    options: dict[str, object] = {
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
        "login_timeout": max(settings.timeout if settings.login_timeout is None else settings.login_timeout, 1),
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
        # None would disable the agent as well; an empty list that is true means: no key files, only the agent.
        options["client_keys"] = options["client_keys"] or _EmptyButTrue()
        if settings.identities_only:
            options["agent_identities"] = _public_keys(settings)
    if settings.forward_agent:
        options["agent_forwarding"] = settings.agent or False
    if settings.bind:
        options["local_addr"] = (settings.bind, 0)
    if settings.preferred:
        options["preferred_auth"] = list(settings.preferred)
    chosen = {"encryption_algs": settings.ciphers or CIPHERS, "mac_algs": settings.macs, "kex_algs": settings.kex}
    options.update({name: algorithms for name, algorithms in chosen.items() if algorithms})
    try:
        connection, _ = await library.create_connection(Client, settings.host, settings.port, **options)
    except asyncio.CancelledError:
        raise
    except Exception as err:
        if any(one.left_out_none for one in quick):
            # With keys of the host that are read anew: the first login may have learnt the host's key, and the host must present the same again.
            if isinstance(err, library.DisconnectError) and "authentication failures" in err.reason:
                # The signed request counts as a failure, the question that it replaced does not (MaxAuthTries).
                return await _login(dataclasses.replace(settings, quick_login=False), tunnel)
            if isinstance(err, library.PermissionDenied):
                # A host may let in a user who has an empty password, and was not asked.
                try:
                    return await _login(_without_secrets(settings), tunnel)
                except HostKeyError:
                    raise
                except SSHError:
                    pass  # the first refusal says more
        raise _explain(err, settings, host_keys, unread) from err
    return connection


def _without_secrets(settings: Settings) -> Settings:
    return dataclasses.replace(
        settings, password=None, key=None, identities=(), certificates=(), agent="", quick_login=False
    )


class _EmptyButTrue(list):  # type: ignore[type-arg]
    """An empty list that is true: asyncssh takes a false value for "load the default keys"."""

    def __bool__(self) -> bool:
        return True


def _public_keys(settings: Settings) -> list[str]:
    return [path + ".pub" for path in settings.identities if os.path.exists(path + ".pub")]


def _keys(settings: Settings, unread: list[str]) -> list[object]:
    """The readable private keys, with their certificates. The paths of unreadable files are added to `unread`."""
    library = asyncssh()
    found: list[object] = []
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
            return SSHError(f"{where} did not finish the login within {settings.login_timeout or settings.timeout:g} s")
        # A host without a common algorithm often ends the connection before asyncssh has looked at what it offers.
        hint = ". If it has only older algorithms, name them: KexAlgorithms, HostKeyAlgorithms, Ciphers, MACs"
        return SSHError(
            f"{where} ended the connection: {err.reason}{hint if isinstance(err, library.ConnectionLost) else ''}"
        )
    if isinstance(err, OSError):
        return SSHError(f"{where} cannot be reached: {err.strerror or err}")
    return SSHError(f"{where} cannot be connected to: {type(err).__name__}: {err}")
