# SPDX-License-Identifier: GPL-3.0-or-later
"""
Shells of network_cli that notice the alarm of their thread while they wait for data.

netcommon ends a wait for more output, and a command that takes too long, by SIGALRM. A thread has no signals: here `recv` waits until
the alarm is due, and then calls its handler, which raises.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeGuard

    from forkless.engines.threads.network.ansible_objects import DevicePlugin, NetworkCliPlugin, Shell
    from forkless.engines.threads.network.asyncssh_transport import AsyncsshTransport
    from forkless.engines.threads.network.device_worker import DeviceWorker

__all__ = ["AlarmedChannel", "has_shell", "watch_alarms"]


class AlarmedChannel:
    """A paramiko channel whose `recv` rings the device's alarm when it is due. Used on the device's thread."""

    def __init__(self, channel: Shell, device: DeviceWorker) -> None:
        self._channel, self._device = channel, device
        self._timeout: float | None = channel.gettimeout()

    def __getattr__(self, name: str) -> object:
        return getattr(self._channel, name)

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds
        self._channel.settimeout(seconds)

    def gettimeout(self) -> float | None:
        return self._timeout

    def recv(self, size: int) -> bytes:
        started = time.monotonic()
        while True:
            own = None if self._timeout is None else max(0.0, started + self._timeout - time.monotonic())
            alarm = self._device.seconds_to_alarm()
            waits = [seconds for seconds in (own, alarm) if seconds is not None]
            self._channel.settimeout(min(waits) if waits else None)
            try:
                data = self._channel.recv(size)
            except TimeoutError:
                if self._device.seconds_to_alarm() == 0.0:
                    self._device.ring()
                elif own is not None and time.monotonic() >= started + (self._timeout or 0.0):
                    raise
            else:
                return data
            finally:
                self._channel.settimeout(self._timeout)


def watch_alarms(connection: DevicePlugin, device: DeviceWorker, transport: AsyncsshTransport | None) -> None:
    """
    Make a network_cli plugin wrap each shell that it opens, and open it by `transport` if there is one.

    Other plugins have no shell, and time-outs of their own.
    """
    if not has_shell(connection):
        return
    kind = type(connection)

    def get(self: DevicePlugin) -> object:
        return vars(self)["_ssh_shell"]

    def put(self: DevicePlugin, shell: Shell) -> None:
        # libssh's channel has no time-out: its reads return at once, and the clock of the run interrupts the loop around them.
        vars(self)["_ssh_shell"] = AlarmedChannel(shell, device) if hasattr(shell, "gettimeout") else shell

    names: dict[str, object] = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "_ssh_shell": property(get, put),
    }
    if transport is not None:
        names.update(_by(transport))
    connection.__class__ = type(kind.__name__, (kind,), names)


def has_shell(connection: DevicePlugin) -> TypeGuard[NetworkCliPlugin]:
    """Whether it is a network_cli plugin."""
    return "_ssh_shell" in vars(connection)


def _by(transport: AsyncsshTransport) -> dict[str, object]:
    """What a network_cli plugin has of its own when another transport reaches the device."""

    def copy_file(_self: object, source: str, destination: str, proto: str = "scp", timeout: int = 30) -> None:
        del timeout  # persistent_command_timeout ends a transfer that hangs
        transport.put_file(source, destination, proto)

    def get_file(_self: object, source: str, destination: str, proto: str = "scp", timeout: int = 30) -> None:
        del timeout
        transport.fetch_file(source, destination, proto)

    return {
        "ssh_type": property(lambda _self: "paramiko"),  # whose channels have the methods that an InteractiveShell has
        # `close` sets the attribute to None, for another plugin at the next use; this one can be connected again.
        "ssh_type_conn": property(lambda _self: transport),
        "copy_file": copy_file,
        "get_file": get_file,
    }
