# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless run with env/ssh_key, on a real sshd: the key opens the host, and nothing of it is left."""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile

import pytest

from forkless.cli import main

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns, pytest.mark.timeout(600)]


@pytest.fixture
def job(sshds, tmp_path):
    for name in ("project", "inventory", "env"):
        (tmp_path / name).mkdir()
    lines = sshds.inventory().splitlines()
    (tmp_path / "inventory/hosts").write_text("\n".join(line for line in lines if "private_key" not in line) + "\n")
    (tmp_path / "env/ssh_key").write_text(pathlib.Path(sshds.key).read_text())
    return tmp_path


def whoami(job, connection, *more):
    flags = ["-m", "raw", "-a", "whoami", "--hosts", "targets[0]", "--cmdline", f"-e ansible_connection={connection}"]
    return main(["run", str(job), *flags, *more])


@pytest.mark.parametrize("connection", ["forkless.core.ssh", "ssh"])
def test_the_key_of_the_folder_opens_a_host_and_is_gone_afterwards(job, sshds, connection, capsys):
    before = {place: set(os.listdir(place)) for place in (tempfile.gettempdir(), "/dev/shm") if os.path.isdir(place)}
    assert whoami(job, connection) == 0
    assert sshds.user in capsys.readouterr().out
    for place, names in before.items():
        assert not [one for one in set(os.listdir(place)) - names if one.startswith("forkless-run-")]
    assert "PRIVATE KEY" not in "".join(one.read_text() for one in (job / "artifacts").rglob("*") if one.is_file())


def test_a_key_with_a_passphrase_is_opened_by_env_passwords(job, sshds, capsys):
    key = job / "env/ssh_key"
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "hush-phrase", "-f", str(key)], check=True)
    assert whoami(job, "forkless.core.ssh") == 2
    assert "env/ssh_key has a passphrase, and env/passwords does not answer" in capsys.readouterr().err
    (job / "env/passwords").write_text("'^Enter passphrase for .*:': wrong\n")
    assert whoami(job, "forkless.core.ssh") == 2
    assert "is not the right one" in capsys.readouterr().err
    (job / "env/passwords").write_text("'^Enter passphrase for .*:': hush-phrase\n")
    assert whoami(job, "forkless.core.ssh") == 0
    assert sshds.user in capsys.readouterr().out
