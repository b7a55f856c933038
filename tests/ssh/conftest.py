# SPDX-License-Identifier: GPL-3.0-or-later
"""Real sshds for the tests of this folder, and a Link to them."""

from __future__ import annotations

import os
import pathlib
import tempfile

import pytest

import sshd_targets
from forkless import ssh


@pytest.fixture(scope="session")
def sshds():
    if sshd_targets.SSHD is None:
        pytest.fail(sshd_targets.MISSING, pytrace=False)
    with sshd_targets.targets(2, more=sshd_targets.QUICK_KEY_EXCHANGE) as up:
        yield up


@pytest.fixture
def sshd(sshds):
    return sshds.hosts[0]


@pytest.fixture
def spot(sshds):
    """A folder that we and the user on the hosts can both write to; pytest's own are for us alone."""
    place = pathlib.Path(tempfile.mkdtemp(dir=sshds.folder))
    place.chmod(0o777)
    return place


@pytest.fixture
def as_root():
    if os.geteuid() != 0:
        pytest.skip("needs root, to make users and namespaces for the sshds")


@pytest.fixture
def options(sshds):
    """What an inventory would say about a host, with changes."""

    def make(target=None, *, args="", **changes):
        target = target or sshds.hosts[0]
        fields = {
            "host": target.address,
            "port": target.port,
            "user": target.user,
            "key_file": sshds.key,
            "common_args": f"-F none -o UserKnownHostsFile={sshds.known_hosts} -o IdentityAgent=none {args}",
        }
        return ssh.SshOptions(**(fields | changes))

    return make


@pytest.fixture
def link(options):
    """Makes links, and closes them."""
    made = []

    def make(target=None, **changes):
        made.append(ssh.Link(options(target, **changes).settings()))
        return made[-1]

    yield make
    for one in made:
        one.close()
