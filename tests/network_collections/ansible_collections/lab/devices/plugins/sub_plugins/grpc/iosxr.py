# SPDX-License-Identifier: GPL-3.0-or-later
"""
cisco.iosxr's plugin for gRPC, with what ansible-core looks for and cisco.iosxr lacks.

ansible-core sets options of the plugin below a connection, which it finds under the lower-case name of its class. With
cisco.iosxr's own, each task fails there: "'Connection' object has no attribute 'grpc'", with every release of ansible-core that is tested.
"""

from __future__ import annotations

from ansible_collections.cisco.iosxr.plugins.sub_plugins.grpc.iosxr import Grpc as IosxrGrpc


class Grpc(IosxrGrpc):
    _load_name = "lab.devices.iosxr"
    grpc = property(lambda self: self)

    def set_options(self, task_keys=None, var_options=None, direct=None):
        """There are none."""
