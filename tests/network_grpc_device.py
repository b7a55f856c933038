# SPDX-License-Identifier: GPL-3.0-or-later
"""
Devices that speak gRPC like IOS XR: a real server of grpcio, for network_device.py.

What the methods of IOS XR take and answer are messages of one number and one or two texts; these few lines write and read them, so that a
device needs neither protobuf nor a compiled description. The command, and the text of a change, say what happens: `hang` is never answered,
`drop` fails, `reboot` ends the device. `login` counts connections, by the address of the client: gRPC sends credentials with every call.
"""

from __future__ import annotations

import concurrent.futures
import json
import threading

import grpc

SERVICE = "IOSXRExtensibleManagabilityService"


def _length(number):
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def message(**texts):
    """A message with texts: `f2="answer"` is field 2."""
    return b"".join(
        bytes([int(name[1:]) << 3 | 2]) + _length(len(text.encode())) + text.encode() for name, text in texts.items()
    )


def text_of(data):
    """The text in field 2 of a message that holds nothing else."""
    if not data:
        return ""
    at, size, shift = 1, 0, 0
    while True:
        size |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return data[at : at + size].decode()


class GrpcDevice(grpc.GenericRpcHandler):
    """The server of one device. `tell` is called on the loop of the other devices, which writes the events."""

    def __init__(self, device, loop):
        self.device, self._loop = device, loop
        self._peers = set()
        self._pool = concurrent.futures.ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers([self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def close(self):
        self._server.stop(None)

    def tell(self, event, **fields):
        self._loop.call_soon_threadsafe(lambda: self.device.tell(event, **fields))

    def service(self, call):
        _, service, method = call.method.split("/")
        answers = {
            "ShowCmdTextOutput": self.show, "ShowCmdJSONOutput": self.show, "GetConfig": self.get, "GetOper": self.get,
        }  # fmt: skip
        if not service.startswith(SERVICE):
            return None
        if method in answers:
            return grpc.unary_stream_rpc_method_handler(answers[method])
        return grpc.unary_unary_rpc_method_handler(lambda data, context: self.change(method, data, context))

    def begin(self, text, context):
        """Check the credentials of a call, and do what its text asks for."""
        if context.peer() not in self._peers:
            self._peers.add(context.peer())
            self.tell("login")
        given = dict(context.invocation_metadata())
        if (given.get("username"), given.get("password")) != (self.device.user, self.device.password):
            self.tell("refused", user=given.get("username"))
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "these credentials are not known here")
        self.tell("command", line=text)
        if "hang" in text:
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait()
            self.tell("cancelled", line=text)
        if "reboot" in text:
            self._loop.call_soon_threadsafe(self.device.reboot)
            threading.Event().wait(60)
        if "drop" in text:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the device has ended the call")

    def show(self, data, context):
        command = text_of(data)
        self.begin(command, context)
        if command == "show wrong":
            yield message(f3=json.dumps({"cisco-grpc:errors": "invalid input detected"}))
        elif command == "show running-config":
            yield message(f2=self.device.running_config())
        else:
            yield message(f2="Hostname: ")  # in two parts
            yield message(f2=self.device.name)

    def get(self, data, context):
        self.begin(text_of(data), context)
        yield message(f2=json.dumps({"hostname": self.device.name, "asked": json.loads(text_of(data) or "null")}))

    def change(self, method, data, context):
        text = text_of(data)
        self.begin(text, context)
        if "wrong" in text:
            return message(f2=json.dumps({"cisco-grpc:errors": f"{method} is refused"}))
        self.device.lines.append(f"{method} {text}")
        return b""
