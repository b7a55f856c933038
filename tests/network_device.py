# SPDX-License-Identifier: GPL-3.0-or-later
"""
Devices that speak like IOS or EOS over SSH, those of network_api_devices.py, and those of network_grpc_device.py, many in one process.

    python tests/network_device.py '{"r1": {}, "r2": {"os": "eos", "secret": "s3cret"}}' events.jsonl

prints the port of each device as one line of JSON and serves until its stdin ends. Every login, command and end of a session is
appended to the second argument. A separate process, because libssh holds the interpreter's lock while it connects.

`accept` says what happens to a TCP connection before a word is said: "silent" never answers, "reset" resets it, "close" closes it. The
command `drop` ends the session, `reboot` does so and stops the device for good. A device that `asks` for no password serves as a jump. `echo`
"typed" echoes each character when it comes, "lines" each line when it is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import socket
import struct
import sys
import time

import asyncssh

from network_api_devices import HttpDevice, Netconf

VERSIONS = {
    "ios": "Cisco IOS Software, C2960 Software (C2960-LANBASEK9-M), Version 15.0(2)SE4, RELEASE SOFTWARE (fc1)\n"
    '{name} uptime is 1 week\nSystem image file is "flash:/c2960.bin"\ncisco WS-C2960 (PowerPC405) processor with 65536K bytes of memory.\n'
    "Processor board ID FOC1010X104",
    "eos": "Arista vEOS\nSoftware image version: 4.24.1F\nArchitecture: i686",
}  # fmt: skip


class Device:
    """One device: its configuration outlives its sessions."""

    def __init__(
        self,
        name,
        log,
        *,
        os="ios",
        speaks="shell",
        user="admin",
        password="pw",
        secret=None,
        login_delay=0.0,
        lag=0.0,
        sessions=16,
        accept=None,
        asks=True,
        algorithms=None,
        echo="lines",
    ):
        self.name, self.os, self.user, self.password, self.secret = name, os, user, password, secret
        self.speaks, self.login_delay, self.lag, self.free = speaks, login_delay, lag, sessions
        self.accept, self.asks, self.server = accept, asks, None
        self.made = 0  # NETCONF sessions
        self.algorithms = algorithms or {}
        self.echo = echo
        self.lines = [f"hostname {name}"]
        self._log = log

    def tell(self, event, **fields):
        self._log.write(json.dumps({"device": self.name, "event": event, "at": time.monotonic(), **fields}) + "\n")
        self._log.flush()

    def reboot(self):
        """The device does not come back."""
        self.server.close()
        self.tell("rebooted")

    def running_config(self):
        return "\n".join([*self.lines, "end"])


class Login(asyncssh.SSHServer):
    def __init__(self, device):
        self._device = device
        self._in = False

    def connection_made(self, connection):
        self._connection = connection
        self._device.tell("connected")

    def begin_auth(self, username):
        return self._device.asks

    def connection_requested(self, host, port, _from_host, _from_port):
        """A jump to another device."""
        self._device.tell("jump", to=port)
        return True

    def password_auth_supported(self):
        return True

    async def validate_password(self, username, password):
        await asyncio.sleep(self._device.login_delay)
        good = username == self._device.user and password == self._device.password and self._device.free > 0
        client = self._connection.get_extra_info("client_version")
        self._device.tell("login" if good else "refused", user=username, client=client)
        if good:
            self._device.free -= 1
            self._in = True
        return good

    def connection_lost(self, _error):
        if self._in:
            self._device.free += 1
        self._device.tell("closed")


class Session:
    """One shell: what is typed is echoed, as a device does, and answered."""

    def __init__(self, device, process):
        self.device, self.process = device, process
        self.privileged = device.secret is None
        self.config = None  # None, or the parents of the line that is typed next
        self.answer_to = None

    def prompt(self):
        mode = "" if self.config is None else "(config-if)" if self.config else "(config)"
        return f"{self.device.name}{mode}{'#' if self.privileged else '>'}"

    def write(self, text):
        self.process.stdout.write(text.replace("\n", "\r\n").encode())

    async def run(self):
        self.write(f"\n{self.prompt()}")
        typed = b""
        while True:
            data = await self.process.stdin.read(4096)
            if not data:
                return
            typed += data
            if self.device.echo == "typed" and self.answer_to is None:
                self.process.stdout.write(re.sub(rb"[\r\n]", b"", data))
            while (end := re.search(rb"[\r\n]", typed)) is not None:
                line, typed = typed[: end.start()].decode().strip(), typed[end.end() :]
                if not await self.line(line):
                    return

    async def line(self, line):
        device = self.device
        if self.answer_to == "enable":
            self.answer_to = None
            if line == device.secret:
                self.privileged = True
                self.write(f"\n{self.prompt()}")
            else:
                self.write(f"\n% Bad secrets\n\n{self.prompt()}")
            return True
        device.tell("command", line=line)
        await asyncio.sleep(device.lag)
        self.write("\n" if device.echo == "typed" else f"{line}\n")
        if line in ("drop", "reboot"):
            device.tell("dropped")
            if line == "reboot":
                device.reboot()
            self.process.channel.get_connection().abort()
            return False
        if line == "exit" and self.config is None:
            return False
        if line == "enable" and not self.privileged:
            self.answer_to = "enable"
            self.write("Password: ")
            return True
        if line.startswith("sleep "):
            await asyncio.sleep(float(line.split()[1]))
        elif line.startswith("slowly "):
            # The prompt of the middle of an answer, a pause, and the rest.
            self.write(f"begin\n{self.prompt()}")
            await asyncio.sleep(float(line.split()[1]))
            self.write("\nend of slow answer\n")
        elif line == "hang":
            await asyncio.Event().wait()
        out = self.answer(line)
        self.write(f"{out}\n{self.prompt()}" if out else self.prompt())
        return True

    def answer(self, line):
        if line == "disable":
            self.privileged = self.device.secret is None
            return ""
        if line == "end" or (line == "exit" and self.config == []):
            self.config = None
            return ""
        if self.config is not None:
            return self.configure(line)
        if line == "configure terminal" or line.startswith("configure session"):
            if not self.privileged:
                return "% Invalid input detected at '^' marker."
            self.config = []
            return ""
        return self.show(line)

    def configure(self, line):
        lines = self.device.lines
        if line == "exit":
            self.config = []
        elif line.startswith("interface "):
            self.config = [line]
            if line not in lines:
                lines.append(line)
        elif line.startswith("no "):
            self.device.lines = [one for one in lines if one.strip() != line[3:]]
        elif self.config:
            at = lines.index(self.config[0]) + 1
            if f" {line}" not in lines[at:]:
                lines.insert(at, f" {line}")
        elif line and line not in lines:
            lines.append(line)
        return ""

    def show(self, line):
        device = self.device
        if line == "show privilege":
            return f"Current privilege level is {15 if self.privileged else 1}"
        if line.startswith("show running-config"):
            return device.running_config() if self.privileged else "% Invalid input detected at '^' marker."
        if line.startswith("show version"):
            if "json" in line:
                return json.dumps({"version": "4.24.1F", "modelName": "vEOS", "architecture": "i686"})
            return VERSIONS[device.os].format(name=device.name)
        if line.startswith("show hostname"):
            if "json" in line:
                return json.dumps({"hostname": device.name, "fqdn": device.name})
            return f"Hostname: {device.name}"
        if line.startswith("show lines"):
            return "\n".join(f"line {number} of {device.name}" for number in range(int(line.split()[2])))
        if line.startswith("show wrong"):
            return "% Invalid input detected at '^' marker."
        return ""


async def fail(device, reader, writer):
    """A TCP connection that ends, or stays, before a word is said."""
    device.tell("connected")
    if device.accept == "silent":
        with contextlib.suppress(ConnectionResetError):  # the other end may close with RST
            while await reader.read(4096):
                pass
    elif device.accept == "reset":
        # Closing a socket that lingers for 0 s sends RST instead of FIN.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    device.tell("closed")
    writer.close()


async def serve(devices, events):
    key = asyncssh.generate_private_key("ssh-ed25519")
    log = open(events, "a", encoding="utf-8")  # noqa: ASYNC230, SIM115  # a short line now and then, until the process ends
    ports, servers = {}, []
    for name, options in devices.items():
        device = Device(name, log, **options)

        if device.speaks == "grpc" and device.accept is None:
            from network_grpc_device import GrpcDevice  # imported here: few tests need grpcio

            device.server = GrpcDevice(device, asyncio.get_running_loop())
            ports[name] = device.server.port
            continue

        if device.accept is not None or device.speaks == "http":
            answer = functools.partial(fail, device) if device.accept is not None else HttpDevice(device).serve
            server = device.server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=200)
            ports[name] = server.sockets[0].getsockname()[1]
            servers.append(server)  # closed when it is collected
            continue

        async def session(process, device=device):
            device.made += 1
            try:
                await (Netconf(device, process, device.made) if process.subsystem else Session(device, process)).run()
            except (asyncssh.Error, OSError, asyncio.CancelledError):
                pass
            finally:
                process.exit(0)

        server = device.server = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[key], process_factory=session, encoding=None, line_editor=False,
            server_factory=lambda device=device: Login(device), **device.algorithms, keepalive_interval=0, login_timeout=0, backlog=200,
            sftp_factory=True, allow_scp=True,
        )  # fmt: skip
        ports[name] = server.get_port()
    print(json.dumps(ports), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    log.flush()
    os._exit(0)  # sessions that hang are not waited for


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1]), sys.argv[2]))
