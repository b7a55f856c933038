# SPDX-License-Identifier: GPL-3.0-or-later
"""The definition of an execution environment in examples/. `make upstream-tools` has ansible-builder check it; this needs no package."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

import docs_blocks
import shim_support
from forkless.core import versions

FILE = docs_blocks.ROOT / "examples/execution-environment/execution-environment.yml"


def steps():
    return yaml.safe_load(FILE.read_text())["additional_build_steps"]["append_final"]


@pytest.mark.spawns
def test_its_steps_put_the_shim_first_on_the_path(tmp_path):
    (install,) = [step.removeprefix("RUN ") for step in steps() if step.startswith("RUN ")]
    words = shlex.split(install)
    assert words[0] == "forkless"
    folder = words[-1]
    env = shim_support.with_source(shim_support.environ(tmp_path))
    done = shim_support.call(shim_support.forkless(*words[1:-1], str(tmp_path / "shim")), env, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "shim/ansible-playbook").exists()
    assert f"ENV PATH={folder}:$PATH" in steps()


def test_it_takes_an_ansible_core_that_forkless_knows():
    wanted = yaml.safe_load(FILE.read_text())["dependencies"]["ansible_core"]["package_pip"]
    low, high = re.search(r">=2\.(\d+),<2\.(\d+)$", wanted).groups()
    assert [f"2.{minor}" for minor in range(int(low), int(high))] == [
        one for one in versions.KNOWN if one >= f"2.{low}"
    ]
