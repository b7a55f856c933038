# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices for each file of tests, and what must be true after each test."""

from __future__ import annotations

import contextlib

import pytest

import forkless
import prepare_collections
from forkless.engines.threads import engine as threads_engine
from network_support import ENVIRONMENT, Devices, NetworkProject


@pytest.fixture(scope="session", autouse=True)
def collections(tmp_path_factory):
    """The collections, and an ansible-core that is imported already: importing it starts ldconfig, which the fork guard would see."""
    if not prepare_collections.there():
        pytest.skip(prepare_collections.MISSING)
    folder = tmp_path_factory.mktemp("first")
    play = folder / "first.yml"
    play.write_text("- hosts: localhost\n  gather_facts: false\n  tasks: [debug: msg=imported]\n")
    assert forkless.run(play, engine="threads", env=ENVIRONMENT, cwd=folder).rc == 0


@pytest.fixture(scope="module")
def make_devices(tmp_path_factory):
    with contextlib.ExitStack() as stack:

        def make(**specs):
            made = Devices(tmp_path_factory.mktemp("devices"), specs)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture(autouse=True)
def no_run_is_active_afterwards():
    yield
    assert threads_engine._config_gate._active_runs == 0


@pytest.fixture
def on_devices(tmp_path):
    return lambda devices: NetworkProject(tmp_path / "project", devices)
