# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands in one place and is repeated in another: the version, the make targets, the licence."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml

import forkless

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_version_has_one_source():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert (ROOT / project["tool"]["hatch"]["version"]["path"]).samefile(forkless.__file__)
    galaxy = yaml.safe_load((ROOT / "src/ansible_collections/forkless/core/galaxy.yml").read_text())
    assert galaxy["version"] == forkless.__version__


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name)
def test_hosted_ci_calls_targets_that_exist(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = yaml.safe_load(path.read_text())
    for job in workflow["jobs"].values():
        chosen = job.get("strategy", {}).get("matrix", {}).get("target", [])
        steps = [step.get("run", "") for step in job.get("steps", [])]
        called = [
            word
            for run in steps
            if run.startswith("make ")
            for word in run.split()[1:]
            if re.fullmatch("[a-z-]+", word)
        ]
        assert {*chosen, *called} <= targets


@pytest.mark.spawns
def test_make_complains_of_nothing_in_a_fresh_clone(tmp_path):
    """The recipes are given settings that are asked of the Python in .venv, which the first target makes."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }  # `make test` runs this
    done = subprocess.run(["make", "help"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("help ")
    assert done.stderr == ""


def test_the_licence_is_the_one_that_the_files_name():
    text = (ROOT / "LICENSE").read_text()
    assert "GNU GENERAL PUBLIC LICENSE" in text
    assert "Version 3, 29 June 2007" in text
    assert len(text.splitlines()) > 600
