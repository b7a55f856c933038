# SPDX-License-Identifier: GPL-3.0-or-later
"""What connections to devices use of untyped objects of ansible-core, netcommon and paramiko, as protocols."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

__all__ = [
    "AnsibleDisplay", "ConnectionFinder", "DeviceClient", "DevicePlugin", "FoundConnection", "GrpcCall", "GrpcChannel", "GrpcMethod", "HasConnection", "HasSocketPath", "NetworkCliPlugin", "PlaySettings", "RpcServer", "Shell", "SshPlugin",
    "module", "play_data",
]  # fmt: skip


class PlaySettings(Protocol):
    """PlayContext."""

    connection: str
    remote_addr: str
    remote_user: str | None
    port: int | None
    private_key_file: str | None
    timeout: int | None

    def serialize(self) -> object: ...

    def dump_attrs(self) -> object: ...

    def deserialize(self, data: object) -> None: ...


class DevicePlugin(Protocol):
    """A connection plugin of netcommon. Its options that are read here are numbers, or true and false, but for network_cli's `ssh_type`."""

    _conn_closed: bool
    _socket_path: str | None
    connected: bool

    def get_option(self, name: str) -> int: ...

    def set_options(self, *, direct: object) -> None: ...

    def pop_messages(self) -> list[tuple[str, str]]: ...

    def close(self) -> None: ...

    def _connect(self) -> object: ...


class SshPlugin(Protocol):
    """The plugin by which network_cli reaches a device: netcommon's libssh, or paramiko's."""

    def get_option(self, name: str) -> object: ...

    def get_options(self, *, hostvars: object) -> object: ...

    def set_option(self, name: str, value: object) -> None: ...

    def set_options(self, *, task_keys: object, var_options: object, direct: object) -> None: ...


class NetworkCliPlugin(DevicePlugin, Protocol):
    """network_cli."""

    _play_context: PlaySettings

    @property
    def ssh_type_conn(self) -> SshPlugin: ...

    def queue_message(self, level: str, text: str) -> None: ...


class RpcServer(Protocol):
    """JsonRpcServer."""

    _objects: set[DevicePlugin]
    _identifier: object

    def internal_error(self, data: str) -> dict[str, object]: ...

    def handle_request(self, request: str | bytes) -> str: ...


class DeviceClient(Protocol):
    """module_utils.connection.Connection, whose methods are those of the plugin."""

    def set_options(self, *, direct: object) -> None: ...

    def update_play_context(self, data: str) -> None: ...

    def set_check_prompt(self, task_uuid: str) -> None: ...

    def pop_messages(self) -> list[tuple[str, str]]: ...


class HasSocketPath(Protocol):
    socket_path: str


class HasConnection(Protocol):
    """ActionBase."""

    _connection: object


class Shell(Protocol):
    """paramiko's Channel."""

    def gettimeout(self) -> float | None: ...

    def settimeout(self, seconds: float | None) -> None: ...

    def recv(self, size: int) -> bytes: ...


class GrpcCall(Protocol):
    """A call of grpcio that was sent, as a future."""

    def result(self) -> object: ...

    def cancel(self) -> bool: ...


class GrpcMethod(Protocol):
    """A method of a device, which is called on a channel."""

    def future(self, request: object, *args: object, **kwargs: object) -> GrpcCall: ...


class GrpcChannel(Protocol):
    """A channel of grpcio, or of its beta API, which holds another one in `_channel`."""

    _channel: GrpcChannel

    def close(self) -> None: ...

    def unary_unary(self, *args: object, **kwargs: object) -> GrpcMethod: ...

    def stream_unary(self, *args: object, **kwargs: object) -> GrpcMethod: ...


class AnsibleDisplay(Protocol):
    verbosity: int
    vvvv: Callable[..., None]
    warning: Callable[[str], None]

    def display(self, text: str, *, color: str | None = None, log_only: bool = False) -> None: ...


class FoundConnection(Protocol):
    """The context of a plugin that was looked for."""

    resolved: bool
    plugin_resolved_name: str | None
    plugin_resolved_path: str | None


class ConnectionFinder(Protocol):
    """connection_loader."""

    def find_plugin_with_context(self, name: str) -> FoundConnection: ...


def module(name: str) -> types.ModuleType:
    """A module of the run's ansible-core, which is imported already."""
    return sys.modules[name]


def play_data(play_context: PlaySettings) -> object:
    """The play context as it is sent to the helper process: since 2.20 by `dump_attrs`."""
    return play_context.dump_attrs() if hasattr(play_context, "from_attrs") else play_context.serialize()
