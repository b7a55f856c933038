# SPDX-License-Identifier: GPL-3.0-or-later
"""
The socket of a device, for modules that are processes of their own.

Modules that run in the worker call the device's thread directly. A module that is a process (all of fortinet.fortios, `async`,
`import_modules: false`) finds the device at a path of the file system, as with ansible-core's helper process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING

from forkless.core.thread_stack import OwnThread

if TYPE_CHECKING:
    from forkless.engines.threads.network.device_worker import DeviceWorker

__all__ = ["DeviceSocket"]

# Seconds between two looks whether the device has been closed.
TICK = 0.25
# Each message begins with its length: eight bytes, most significant first.
_LENGTH = struct.Struct("!Q")
# Whose socket is at a path. Guarded by the lock, which is held for system calls only.
_owners: dict[str, DeviceSocket] = {}
_lock = threading.Lock()


class DeviceSocket:
    """
    Listens at the device's path until `close`. Requests are answered one after the other, by the device's thread.

    After a task has timed out, the next connection to the same device has the same path, and may need it before the first is closed. It takes
    the path over.
    """

    def __init__(self, device: DeviceWorker) -> None:
        self._device = device
        self._closed = threading.Event()
        os.makedirs(os.path.dirname(device.socket_path), mode=0o700, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._take_path()
            self._listener.listen(8)
            self._listener.settimeout(TICK)
            self._thread = OwnThread(target=self._serve, name=f"forkless-device-socket-{device.name}", daemon=True)
            self._thread.start()
        except BaseException:
            self._leave_path()
            self._listener.close()
            raise

    def _take_path(self) -> None:
        path = self._device.socket_path
        with _lock:
            if _owners.pop(path, None) is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            self._listener.bind(path)
            _owners[path] = self

    def _leave_path(self) -> None:
        path = self._device.socket_path
        with _lock:
            if _owners.get(path) is self:
                del _owners[path]
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def close(self) -> None:
        """Remove the socket and end its thread. Called on the device's thread."""
        self._closed.set()
        self._leave_path()
        self._thread.join()

    def _serve(self) -> None:
        with self._listener:
            while not self._closed.is_set():
                with contextlib.suppress(OSError):  # no client within a TICK, or one that went away
                    client, _ = self._listener.accept()
                    with client:
                        client.settimeout(TICK)
                        self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        """Answer the requests of one client until it goes away."""
        while (head := self._read(client, _LENGTH.size)) is not None:
            data = self._read(client, _LENGTH.unpack(head)[0])
            if data is None:
                return
            handle = functools.partial(self._device.handle, data)
            # A module that was ended, by `timeout:` of its task, leaves a command behind, whose answer would go to the next.
            request = self._device.ask(handle, functools.partial(_is_there, client))
            if request is None:
                return
            answer = str(request.answer).encode("utf-8", "surrogateescape")
            if not self._send(client, _LENGTH.pack(len(answer)) + answer):
                return

    def _send(self, client: socket.socket, data: bytes) -> bool:
        """Whether all was sent before the device was closed. A client may have been stopped, and read nothing."""
        left = memoryview(data)
        while left:
            try:
                left = left[client.send(left) :]
            except TimeoutError:
                if self._closed.is_set():
                    return False
        return True

    def _read(self, client: socket.socket, size: int) -> bytes | None:
        """Exactly `size` bytes; None if the client went away or the device was closed."""
        data = b""
        while len(data) < size:
            try:
                more = client.recv(size - len(data))
            except TimeoutError:
                if self._closed.is_set():
                    return None
                continue
            if not more:
                return None
            data += more
        return data


def _is_there(client: socket.socket) -> bool:
    """Whether the process at the other end of the socket still has it open."""
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except (BlockingIOError, TimeoutError):  # nothing to read
        return True
    except OSError:
        return False
