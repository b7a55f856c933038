# SPDX-License-Identifier: GPL-3.0-or-later
"""
Devices that speak eAPI and FortiOS's API over HTTP, and NETCONF over SSH, beside the shells of network_device.py.

eAPI asks for credentials with every request. FortiOS has sessions: `login` and `closed` count them. A command `hang` is never
answered, `drop` ends the connection, `reboot` the device.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import xml.etree.ElementTree as ET

BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
EOM = b"]]>]]>"
# Kept here: a task that only an object of its own waits for is collected.
NEVER = asyncio.Event()


class HttpDevice:
    """The HTTP server of one device: one request on each TCP connection."""

    def __init__(self, device):
        self.device = device
        self.sessions = set()
        self._made = 0

    async def serve(self, reader, writer):
        self.device.tell("connected")
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split("\r\n", 1)[0].split()
            headers = dict(re.findall(r"(?m)^([^:\r\n]+): *([^\r\n]*)", head.partition("\r\n")[2]))
            headers = {name.lower(): value for name, value in headers.items()}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.device.tell("request", method=method, path=path.partition("?")[0])
            status, answer = await self.answer(method, path.partition("?")[0], headers, body)
            extra = 'WWW-Authenticate: Basic realm="device"\r\n' if status == 401 else ""
            data = json.dumps(answer).encode()
            writer.write(
                f"HTTP/1.1 {status} Answer\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{extra}Connection: close\r\n\r\n".encode() + data
            )  # fmt: skip
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.device.tell("disconnected")
            writer.close()

    async def answer(self, method, path, headers, body):
        if path == "/command-api":
            given = base64.b64decode(headers.get("authorization", "").removeprefix("Basic ")).decode()
            if given != f"{self.device.user}:{self.device.password}":
                self.device.tell("refused", user=given.partition(":")[0])
                return 401, {}
            asked = json.loads(body)
            return 200, {"jsonrpc": "2.0", "id": asked["id"], **await self.commands(asked["params"])}
        return await self.fortios(method, path, headers, body)

    async def commands(self, params):
        done = []
        for one in params["cmds"]:
            command, given = (one["cmd"], one.get("input")) if isinstance(one, dict) else (one, None)
            self.device.tell("command", line=command)
            if command == "hang":
                await NEVER.wait()
            if command == "reboot":
                self.device.reboot()
            if command in ("drop", "reboot"):
                raise ConnectionError
            if command == "enable" and given != self.device.secret:
                return {"error": {"code": 1005, "message": "enable failed", "data": [{"errors": ["Bad secret"]}]}}
            if command.startswith("show wrong"):
                return {"error": {"code": 1002, "message": "invalid command", "data": [{"errors": ["Invalid input"]}]}}
            facts = {"hostname": self.device.name, "version": "4.24.1F", "modelName": "vEOS"}
            done.append(facts if params["format"] == "json" else {"output": f"Hostname: {self.device.name}\n"})
        return {"result": done}

    async def fortios(self, method, path, headers, body):
        if path == "/api/v2/authentication" and method == "POST":
            given = json.loads(body)
            if (given["username"], given["password"]) != (self.device.user, self.device.password):
                self.device.tell("refused", user=given["username"])
                return 200, {"status_message": "LOGIN_FAILED"}
            self._made += 1
            key = f"{self.device.name}-{self._made}"
            self.sessions.add(key)
            self.device.tell("login", user=given["username"])
            return 200, {"status_message": "LOGIN_SUCCESS", "session_key": key}
        key = headers.get("authorization", "").removeprefix("Bearer ")
        if key not in self.sessions:
            return 401, {}
        if path == "/api/v2/authentication":
            self.sessions.discard(key)
            self.device.tell("closed")
            return 200, {}
        return 200, {
            "http_method": method, "status": "success", "http_status": 200, "vdom": "root", "version": "v7.4.0", "build": 1,
            "serial": self.device.name, "path": "system", "name": "status", "results": {"hostname": self.device.name},
        }  # fmt: skip


class Netconf:
    """One NETCONF session, in the framing of version 1.0."""

    def __init__(self, device, process, number):
        self.device, self.process, self.number = device, process, number

    def send(self, text):
        self.process.stdout.write(text.encode() + EOM)

    async def run(self):
        self.send(
            f'<hello xmlns="{BASE}"><capabilities><capability>urn:ietf:params:netconf:base:1.0</capability>'
            "<capability>urn:ietf:params:netconf:capability:candidate:1.0</capability></capabilities>"
            f"<session-id>{self.number}</session-id></hello>"
        )
        typed = b""
        while data := await self.process.stdin.read(65536):
            typed += data
            while EOM in typed:
                message, _, typed = typed.partition(EOM)
                root = ET.fromstring(message.strip())
                if root.tag.endswith("rpc") and not await self.answer(root):
                    return

    async def answer(self, rpc):
        operation = rpc[0].tag.rpartition("}")[2]
        self.device.tell("command", line=operation)
        if operation == "reboot":
            self.device.reboot()
        if operation in ("drop", "reboot"):
            self.process.channel.get_connection().abort()
            return False
        if operation == "hang":
            await NEVER.wait()
        inside = "<ok/>"
        if operation in ("get", "get-config"):
            inside = f"<data><system><hostname>{self.device.name}</hostname></system></data>"
        elif operation == "wrong":
            inside = (
                "<rpc-error><error-type>rpc</error-type><error-tag>operation-failed</error-tag>"
                "<error-severity>error</error-severity><error-message>not known here</error-message></rpc-error>"
            )
        self.send(f'<rpc-reply xmlns="{BASE}" message-id="{rpc.get("message-id")}">{inside}</rpc-reply>')
        return operation != "close-session"
