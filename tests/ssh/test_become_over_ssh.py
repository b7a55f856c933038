# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's own become plugins, spoken to over a channel: with and without a password, with and without a terminal."""

from __future__ import annotations

import shutil

import pytest

import sshd_targets
from forkless import ssh

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns]


class Shell:
    """As much of a shell plugin as become needs."""

    ECHO = "echo"
    COMMAND_SEP = ";"
    executable = "/bin/sh"
    CD = "cd"
    _SHELL_AND = "&&"


@pytest.fixture
def becoming(as_root, link):
    if not shutil.which("sudo"):
        pytest.fail("these tests escalate with sudo; install Debian's sudo to run them", pytrace=False)
    from ansible.plugins.loader import become_loader

    def run(method, user, command, *, password=None, input_=None, tty=False, flags=None, where=None):
        plugin = become_loader.get(method)
        options = {"become_user": user, "become_pass": password}
        if flags is not None:
            options["become_flags"] = flags
        plugin.set_options(direct=options)
        built = plugin.build_become_command(command, Shell())
        return link(**(where or {})).execute(
            f"/bin/sh -c {sshd_targets.quote(built)}",
            input_=input_,
            become=plugin,
            expects_prompt=bool(plugin.prompt),
            password=None if password is None else password.encode(),
            tty=tty,
        )

    return run


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_sudo_without_a_password(becoming, tty):
    done = becoming("sudo", "root", "id -un; echo oops >&2", tty=tty)
    assert done.rc == 0
    assert b"root" in done.stdout.split()  # on a terminal what sudo grumbles comes on the same stream


def test_sudo_without_a_password_takes_input_after_the_escalation(becoming):
    assert becoming("sudo", "root", "cat", input_=b"to root\n").stdout == b"to root\n"


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_sudo_with_a_password(becoming, tty):
    flags = "-H -S" if not tty else "-H"
    done = becoming("sudo", "nobody", "id -un", password=sshd_targets.PASSWORD, tty=tty, flags=flags)
    assert done.rc == 0, done
    assert done.stdout.split()[-1] == b"nobody"
    assert sshd_targets.PASSWORD.encode() not in done.stdout + done.stderr


def test_sudo_with_a_password_takes_input_after_it(becoming):
    done = becoming("sudo", "nobody", "cat", password=sshd_targets.PASSWORD, input_=b"\x01\x02", flags="-H -S")
    assert done.stdout == b"\x01\x02"


def test_a_password_that_is_not_asked_for_is_not_sent(becoming):
    done = becoming("sudo", "root", "cat", password="never sent", input_=b"only this", flags="-H -S")
    assert done.stdout == b"only this"


def test_a_wrong_password_is_told(becoming):
    with pytest.raises(ssh.EscalationError, match="Incorrect sudo password"):
        becoming("sudo", "nobody", "id", password="wrong", flags="-H -S")


def test_a_missing_password_is_told(becoming):
    with pytest.raises(ssh.EscalationError, match="Missing sudo password"):
        becoming("sudo", "nobody", "id", flags="-H -S -n")


def test_su_with_a_password_on_a_terminal(becoming, sshds):
    done = becoming("su", sshds.user, "id -un", password=sshd_targets.PASSWORD, tty=True)
    assert done.stdout.split()[-1].decode() == sshds.user


def test_su_with_a_wrong_password_is_told(becoming, sshds):
    with pytest.raises(ssh.EscalationError, match="Incorrect su password"):
        becoming("su", sshds.user, "id -un", password="wrong", tty=True)


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_su_without_a_password(becoming, sshds, tty):
    """root needs none; so this host lets root in, into the /root that it has for itself."""
    target = sshd_targets.start_sshd(
        sshds.folder, f"lets-root-in-{tty}", sshds.hosts[0].address, sshds.user, own_world=True, more="PermitRootLogin yes"
    )  # fmt: skip
    try:
        with ssh.kept("su"):
            done = becoming("su", sshds.user, "id -un", tty=tty, where={"target": target, "user": "root"})
        assert done.rc == 0, done
        assert done.stdout.split()[-1].decode() == sshds.user
    finally:
        sshd_targets.stop(target)
