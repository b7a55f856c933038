# SPDX-License-Identifier: GPL-3.0-or-later
"""
A NETCONF server by the package `netconf` from PyPI, which is not ours: with sessions, locks, and errors in the words of RFC 6241.

    .nox/network/netconf/bin/python tests/netconf_server.py FOLDER

prints its port and serves until its stdin ends. The folder gets the host's key. The configuration is a hostname, which edit-config sets.
"""

from __future__ import annotations

import os
import pathlib
import socket
import sys


class LoopbackSocket(socket.socket):
    """sshutil listens at every address of the machine."""

    def bind(self, address):
        super().bind(("::ffff:127.0.0.1", *address[1:]))


socket.socket = LoopbackSocket

import paramiko  # noqa: E402  # after the socket was replaced
from lxml import etree  # noqa: E402
from netconf import qmap, server  # noqa: E402

USERS = {"admin": "pw", "other": "pw"}
NAMESPACE = "urn:example:system"


class Login(server.SSHUserPassController):
    def check_auth_password(self, username, password):
        return paramiko.AUTH_SUCCESSFUL if USERS.get(username) == password else paramiko.AUTH_FAILED


class Methods(server.NetconfMethods):
    hostname, locked = "router", 0

    def nc_append_capabilities(self, capabilities):
        added = etree.SubElement(capabilities, qmap("nc") + "capability")
        added.text = "urn:ietf:params:netconf:capability:writable-running:1.0"

    def _data(self, **values):
        data = etree.Element(qmap("nc") + "data")
        system = etree.SubElement(data, f"{{{NAMESPACE}}}system", nsmap={None: NAMESPACE})
        for name, value in values.items():
            etree.SubElement(system, f"{{{NAMESPACE}}}{name}").text = str(value)
        return data

    def rpc_get(self, _session, _rpc, _filter):
        return self._data(hostname=self.hostname, locked=self.locked)

    def rpc_get_config(self, _session, _rpc, _source, _filter):
        return self._data(hostname=self.hostname)

    def rpc_lock(self, _session, _rpc, _target):
        self.locked += 1
        return etree.Element(qmap("nc") + "ok")

    def rpc_unlock(self, _session, _rpc, _target):
        return etree.Element(qmap("nc") + "ok")

    def rpc_edit_config(self, _session, rpc, *_params):
        self.hostname = rpc.findtext(f".//{{{NAMESPACE}}}hostname")
        return etree.Element(qmap("nc") + "ok")


if __name__ == "__main__":
    key = pathlib.Path(sys.argv[1]) / "host_key"
    paramiko.RSAKey.generate(2048).write_private_key_file(str(key))
    serving = server.NetconfSSHServer(Login(), Methods(), port=0, host_key=str(key))
    print(serving.port, flush=True)
    sys.stdin.read()
    os._exit(0)  # sessions that are open are not waited for
