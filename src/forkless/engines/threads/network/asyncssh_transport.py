# SPDX-License-Identifier: GPL-3.0-or-later
"""
network_cli over forkless's own SSH connections, for `ssh_type: auto`.

netcommon's plugin has a transport: the connection plugin `libssh`, or paramiko's. libssh holds the interpreter's lock while it connects
and logs in, and paramiko has a thread for each device. `AsyncsshTransport` takes their place where asyncssh is installed: all devices
are on one event loop, jump hosts need no program, and a stop ends every wait.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from forkless.core.errors import UnsupportedError
from forkless.ssh import Link, LoginError, SSHError, SshOptions
from forkless.ssh.asyncssh_import import asyncssh

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines.threads.network.ansible_objects import NetworkCliPlugin, SshPlugin
    from forkless.ssh.settings import Settings
    from forkless.ssh.shell import InteractiveShell

__all__ = ["AsyncsshTransport", "transport_for"]

# What libssh offers and forkless.ssh does not: devices that are ten years old may know nothing else.
OLD_CIPHERS = "aes256-cbc,aes192-cbc,aes128-cbc"
# Options of the libssh plugin that have no counterpart here: if one is set, libssh is used.
_ONLY_LIBSSH = ("publickey_accepted_algorithms", "password_prompt", "config_file")


class AsyncsshTransport:
    """
    The part of netcommon's libssh and paramiko plugins that network_cli uses. Used on the device's thread.

    Options are those of the plugin in whose place it stands, which holds them and is never connected.
    """

    force_persistence = True

    def __init__(self, plugin: SshPlugin, settings: Settings) -> None:
        self._plugin = plugin
        self._link = Link(settings, shared=False)
        self._play_context: object = None  # network_cli sets it for each task

    def _connect(self) -> AsyncsshTransport:
        from ansible.errors import AnsibleAuthenticationFailure, AnsibleConnectionFailure

        try:
            self._link.connect()
        except LoginError as error:
            raise AnsibleAuthenticationFailure(f"Failed to authenticate: {error}") from error
        except SSHError as error:
            raise AnsibleConnectionFailure(f"ssh connection failed: {error}") from error
        return self

    @property
    def ssh(self) -> AsyncsshTransport:
        return self

    def invoke_shell(self) -> InteractiveShell:
        from ansible.errors import AnsibleConnectionFailure

        try:
            return self._link.shell()
        except SSHError as error:
            raise AnsibleConnectionFailure(f"ssh connection failed: {error}") from error

    def close(self) -> None:
        """Close the connection, also one that is being opened. May be called more than once."""
        self._link.reset()

    def put_file(self, source: str, target: str, proto: str) -> None:
        self._transfer(self._link.put, source, target, proto, f"failed to transfer file to {target}")

    def fetch_file(self, source: str, target: str, proto: str) -> None:
        self._transfer(self._link.fetch, source, target, proto, f"failed to transfer file from {source}")

    def _transfer(self, move: Callable[..., None], source: str, target: str, proto: str, failed: str) -> None:
        from ansible.errors import AnsibleError

        if proto not in ("scp", "sftp"):
            raise AnsibleError(f"Do not know how to do transfer file over protocol {proto}")
        self._connect()
        try:
            move(source, target, method=proto)
        except OSError as error:  # also SSHError
            raise AnsibleError(f"{failed}: {error}") from error

    def _set_log_channel(self, _name: str) -> None:
        """Does nothing: asyncssh has one logger for all connections."""

    def get_options(self, hostvars: object = None) -> object:
        return self._plugin.get_options(hostvars=hostvars)

    def get_option(self, name: str) -> object:
        return self._plugin.get_option(name)

    def set_option(self, name: str, value: object) -> None:
        self._plugin.set_option(name, value)

    def set_options(self, task_keys: object = None, var_options: object = None, direct: object = None) -> None:
        self._plugin.set_options(task_keys=task_keys, var_options=var_options, direct=direct)


def transport_for(connection: NetworkCliPlugin) -> AsyncsshTransport | None:
    """
    The transport for a network_cli plugin whose options are set. None if netcommon's own must be used: if it was asked for by name, or
    asyncssh is not installed, or an option asks for what only libssh or a program can do.
    """
    if str(connection.get_option("ssh_type")) != "auto":
        return None
    plugin = connection.ssh_type_conn
    if any(_option(plugin, name) for name in _ONLY_LIBSSH):
        return None
    try:
        asyncssh()
        return AsyncsshTransport(plugin, _settings(connection, plugin))
    except UnsupportedError:  # not installed, or the way leads through a program
        return None


def _option(plugin: SshPlugin, name: str) -> object:
    """The value of an option; None if this plugin has no such option."""
    try:
        return plugin.get_option(name)
    except (KeyError, AttributeError):
        return None


def _text(plugin: SshPlugin, name: str) -> str:
    return str(_option(plugin, name) or "")


def _settings(connection: NetworkCliPlugin, plugin: SshPlugin) -> Settings:
    """How the device is reached: netcommon's options, then ssh's configuration, which libssh reads too."""
    play = connection._play_context
    password, checks = _option(plugin, "password"), bool(_option(plugin, "host_key_checking"))
    chosen = {
        "ProxyCommand": _text(plugin, "proxy_command"),
        "KexAlgorithms": _text(plugin, "key_exchange_algorithms"),
        "HostKeyAlgorithms": _text(plugin, "hostkeys"),
        "StrictHostKeyChecking": "accept-new" if checks and _option(plugin, "host_key_auto_add") else "",
    }
    arguments = [f"-o {shlex.quote(f'{name}={value}')}" for name, value in chosen.items() if value]
    options = SshOptions(
        host=str(play.remote_addr),
        port=play.port or None,
        user=play.remote_user,
        password=None if password is None else str(password),
        key_file=play.private_key_file and os.path.expanduser(play.private_key_file),
        passphrase=_text(plugin, "private_key_passphrase") or None,
        check_host_keys=checks,
        timeout=float(play.timeout or 10),
        ssh_args=_text(plugin, "ssh_args"),
        common_args=_text(plugin, "ssh_common_args"),
        extra_args=" ".join([_text(plugin, "ssh_extra_args"), *arguments]),
    )
    # libssh's time-out is one for each step; a device may need several seconds for the key exchange alone.
    settings = replace(options.settings(), login_timeout=options.timeout * 3)
    if not settings.ciphers:
        from forkless.ssh.login import CIPHERS

        settings = replace(settings, ciphers=f"{CIPHERS},{OLD_CIPHERS}")
    if not checks:
        settings = replace(settings, known_hosts=())  # as in libssh: neither read nor written
    if _option(plugin, "look_for_keys") is False:
        own = (options.key_file,) if options.key_file else ()
        settings = replace(settings, identities=own, agent="" if password is not None else settings.agent)
    return settings
