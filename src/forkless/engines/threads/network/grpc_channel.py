# SPDX-License-Identifier: GPL-3.0-or-later
"""
gRPC channels that belong to one device of one run, and whose calls end when their thread is interrupted.

In ansible-core each channel is in a helper process. Three things are different in a process with many:

- Channels to one address share a TCP connection, unless each is told to have its own.
- grpcio waits for the answer to a call in C, and looks for signals five times a second, so that SIGALRM ends the wait in the helper. An
  exception that is sent to a thread is not raised there. The same call as a future is waited for in Python, where it is raised.
- netcommon's plugin does not close its channel: grpcio's beta API, which it calls, has no such method. The end of the helper does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines.threads.network.ansible_objects import DevicePlugin, GrpcCall, GrpcChannel, GrpcMethod

# The option of grpcio's channels by which a channel shares its TCP connections with no other.
OWN_CONNECTIONS = ("grpc.use_local_subchannel_pool", 1)

__all__ = ["InterruptibleChannel", "has_grpc_channel", "watch_calls"]


class InterruptibleMethod:
    """A method of a device with one answer. A call that is interrupted is cancelled: the device must not go on with it."""

    def __init__(self, method: GrpcMethod) -> None:
        self._method = method

    def __getattr__(self, name: str) -> object:
        return getattr(self._method, name)

    def future(self, request: object, *args: object, **kwargs: object) -> GrpcCall:
        return self._method.future(request, *args, **kwargs)

    def __call__(self, request: object, *args: object, **kwargs: object) -> object:
        return self.with_call(request, *args, **kwargs)[0]

    def with_call(self, request: object, *args: object, **kwargs: object) -> tuple[object, GrpcCall]:
        call = self._method.future(request, *args, **kwargs)
        try:
            return call.result(), call
        except BaseException:
            call.cancel()  # without effect on a call that has failed
            raise


class InterruptibleChannel:
    """A channel of grpcio. Answers that are streams are waited for in Python anyway."""

    def __init__(self, channel: GrpcChannel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> object:
        return getattr(self._channel, name)

    def close(self) -> None:
        """End all calls and the connection. May be called more than once, by any thread."""
        self._channel.close()

    def unary_unary(self, *args: object, **kwargs: object) -> GrpcMethod:
        return InterruptibleMethod(self._channel.unary_unary(*args, **kwargs))

    def stream_unary(self, *args: object, **kwargs: object) -> GrpcMethod:
        return InterruptibleMethod(self._channel.stream_unary(*args, **kwargs))


def has_grpc_channel(connection: DevicePlugin) -> bool:
    """Whether it is netcommon's grpc plugin."""
    return type(connection).__module__.endswith(".netcommon.plugins.connection.grpc")


def watch_calls(connection: DevicePlugin, opened: Callable[[InterruptibleChannel], None]) -> None:
    """
    Make a grpc plugin use an `InterruptibleChannel` with TCP connections of its own for each channel that it opens.

    `opened` is called with each, and has to close it in the end.
    """
    kind = type(connection)

    def get_options(self: DevicePlugin) -> object:
        return vars(self)["_channel_options"]

    def put_options(self: DevicePlugin, options: list[tuple[str, object]] | None) -> None:
        vars(self)["_channel_options"] = [*(options or ()), OWN_CONNECTIONS]

    def get(self: DevicePlugin) -> object:
        try:
            return vars(self)["_channel"]
        except KeyError:
            raise AttributeError("_channel") from None  # as before the first connection

    def put(self: DevicePlugin, channel: GrpcChannel) -> None:
        # The plugin wraps the channel in one of grpcio's beta API, which calls the methods of the inner one.
        channel._channel = inner = InterruptibleChannel(channel._channel)
        opened(inner)
        vars(self)["_channel"] = channel

    names = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "_channel": property(get, put),
        "_channel_options": property(get_options, put_options),
    }
    connection.__class__ = type(kind.__name__, (kind,), names)
