# SPDX-License-Identifier: GPL-3.0-or-later
"""
Puts forkless.runner into every Python that the upstream suite starts, at the moment it has imported ansible-runner.

Not earlier: Ansible's modules are Pythons too, and have no use for ansible-runner.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys


class _Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):  # noqa: ANN001, ANN201, ARG002
        if name != "ansible_runner.interface":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def and_patch(module):  # noqa: ANN001, ANN202
            execute(module)
            import forkless.runner

            forkless.runner.patch()

        spec.loader.exec_module = and_patch
        return spec


if os.environ.get("FORKLESS_SPAWN_IN_PLACE"):
    sys.meta_path.insert(0, _Hook())
