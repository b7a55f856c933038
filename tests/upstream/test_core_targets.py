# SPDX-License-Identifier: GPL-3.0-or-later
"""A dozen of ansible-core's own integration targets, on `forkless playbook`."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def load():
    spec = importlib.util.spec_from_file_location("core_targets", HERE / "core_targets.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.spawns
@pytest.mark.timeout(900)
def test_a_dozen_of_ansible_cores_own_targets_pass(tmp_path):
    targets = load()
    if not targets.YARDSTICK.is_dir():
        pytest.skip(f"the yardstick is not at {targets.YARDSTICK}: it comes with the project's shared folder")
    found = targets.run(list(targets.QUICK), tmp_path / "out.json")
    assert found == dict.fromkeys(targets.QUICK, "pass")
