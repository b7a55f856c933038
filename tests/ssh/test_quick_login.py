# SPDX-License-Identifier: GPL-3.0-or-later
"""A login without two of asyncssh's questions: the same hosts let the same users in, and refuse the same."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import types

import pytest

import sshd_targets
from forkless import ssh
from forkless.ssh import host_keys, login, quick_login
from forkless.ssh.asyncssh_import import asyncssh
from forkless.ssh.quick_login import QuickLogin

MSG_SERVICE_ACCEPT, MSG_EXT_INFO = 6, 7
AS_ASYNCSSH = ["none", "publickey?", "publickey"]
pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns]


@pytest.fixture
def requests(monkeypatch):
    """The methods of the requests that were sent, and whether a key was only asked about."""
    kind, sent = asyncssh().SSHClientConnection, []
    send = kind.send_userauth_request

    async def send_and_tell(self, method, *parts, **more):
        sent.append(method.decode() + ("?" if method == b"publickey" and parts[0] == b"\0" else ""))
        await send(self, method, *parts, **more)

    monkeypatch.setattr(kind, "send_userauth_request", send_and_tell)
    return sent


@pytest.mark.matrix
def test_the_first_request_is_signed_unless_that_is_switched_off(link, requests):
    assert link().execute("echo in").stdout == b"in\n"
    assert requests == ["publickey"]
    requests.clear()
    off = {**os.environ, "FORKLESS_DISABLE": "quick-login"}
    assert link(environ=off).execute("echo in").stdout == b"in\n"
    assert requests == AS_ASYNCSSH


@pytest.fixture
def agreed(monkeypatch):
    """For each request, whether the host had agreed to a login before it was sent. Its answer is held back for the first one, but not for ever."""
    kind, found = asyncssh().SSHClientConnection, []
    send, answers = kind.send_userauth_request, dict(kind._packet_handlers)

    async def send_and_tell(self, *parts, **more):
        found.append(self._auth_in_progress)
        sent.set()
        await send(self, *parts, **more)

    async def hold_back(self, *answer):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(sent.wait(), agreed.longest)
        answers[MSG_SERVICE_ACCEPT](self, *answer)

    sent = asyncio.Event()
    agreed = types.SimpleNamespace(longest=20.0, found=found)
    monkeypatch.setattr(kind, "send_userauth_request", send_and_tell)
    monkeypatch.setattr(kind, "_packet_handlers", {**answers, MSG_SERVICE_ACCEPT: hold_back})
    return agreed


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_the_first_request_does_not_wait_until_the_host_agrees_to_a_login(link, sshds, agreed, tmp_path, kind):
    """How an RSA key signs depends on what the host says it knows."""
    key, authorized = tmp_path / "key", sshds.folder / "authorized"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(key)], check=True)
    before = authorized.read_text()
    authorized.write_text(before + (tmp_path / "key.pub").read_text())
    try:
        assert link(key_file=str(key)).execute("echo in").stdout == b"in\n"
    finally:
        authorized.write_text(before)
    assert agreed.found == [False]


def test_a_host_that_does_not_say_which_signatures_it_knows_is_waited_for(link, agreed, monkeypatch):
    monkeypatch.setitem(asyncssh().SSHClientConnection._packet_handlers, MSG_EXT_INFO, lambda *_: None)
    agreed.longest = 0.1
    assert link().execute("echo in").stdout == b"in\n"
    assert agreed.found == [True]


def test_a_refused_key_that_was_sent_early_is_followed_by_the_next(link, sshd, agreed, tmp_path):
    sshd_targets.keygen(tmp_path / "other")
    both = link(args=f"-o IdentityFile={sshd.key}", key_file=str(tmp_path / "other"))
    assert both.execute("echo in").stdout == b"in\n"
    assert agreed.found == [False, True]


def test_another_asyncssh_logs_in_by_itself(link, requests, monkeypatch):
    """A connection whose fields are not those that are known is left alone."""
    of = QuickLogin.of.__func__

    def without_field(connection):
        names = (
            "_auth",
            "_auth_methods",
            "_server_sig_algs",
            "try_next_auth",
            "send_userauth_request",
            "send_service_request",
        )
        known = {name: getattr(connection, name) for name in names}
        assert of(QuickLogin, types.SimpleNamespace(**known)) is not None
        for name in names:
            fields = {**known}
            del fields[name]
            assert of(QuickLogin, types.SimpleNamespace(**fields)) is None

    monkeypatch.setattr(QuickLogin, "of", without_field)
    assert link().execute("echo in").stdout == b"in\n"
    assert requests == AS_ASYNCSSH


def test_another_server_is_asked_as_asyncssh_does(link, requests, monkeypatch):
    monkeypatch.setattr(quick_login, "_SERVERS", "SSH-2.0-Other_")
    assert link().execute("echo in").stdout == b"in\n"
    assert requests == AS_ASYNCSSH


def test_a_key_that_is_refused_is_followed_by_the_next(link, sshd, requests, tmp_path):
    sshd_targets.keygen(tmp_path / "other")
    both = link(args=f"-o IdentityFile={sshd.key}", key_file=str(tmp_path / "other"))
    assert both.execute("echo in").stdout == b"in\n"
    assert requests == ["publickey", "publickey"]


def test_a_password_is_tried_after_a_refused_key(as_root, link, tmp_path):
    sshd_targets.keygen(tmp_path / "other")
    assert link(key_file=str(tmp_path / "other"), password=sshd_targets.PASSWORD).execute("echo in").stdout == b"in\n"


def test_who_is_refused_is_told_what_was_offered(link, tmp_path):
    sshd_targets.keygen(tmp_path / "other")
    with pytest.raises(ssh.LoginError, match=f"does not let us in; offered were the keys {tmp_path}/other"):
        link(key_file=str(tmp_path / "other")).execute("true")


def test_a_user_with_an_empty_password_needs_no_key(as_root, sshds, options, tmp_path, monkeypatch):
    """sshd lets such a user in by the method that is left out."""
    name = sshd_targets.account_name()
    sshd_targets.add_user(name, tmp_path, "")
    sshd_targets.keygen(tmp_path / "other")
    quick = []
    monkeypatch.setattr(
        login, "QuickLogin", types.SimpleNamespace(of=lambda one: quick.append(QuickLogin.of(one)) or quick[-1])
    )
    target = sshd_targets.start_sshd(
        sshds.folder, name, "127.0.0.1", name, own_world=True, more="PermitEmptyPasswords yes"
    )
    try:
        link = ssh.Link(options(target, key_file=str(tmp_path / "other")).settings())
        try:
            assert link.execute("id -un").stdout.decode() == f"{name}\n"
        finally:
            link.close()
        assert [one.left_out_none for one in quick] == [True]
    finally:
        sshd_targets.stop(target)
        with sshd_targets.accounts():
            subprocess.run(["userdel", "-f", name], check=False, capture_output=True)


def test_a_host_that_counts_the_signed_request_is_asked_for_the_password_all_the_same(
    as_root, sshds, options, tmp_path, monkeypatch
):
    """Its refusal, and that of a dialogue, are two of `MaxAuthTries`; the question that the request replaces does not count."""
    name = sshd_targets.account_name()
    sshd_targets.add_user(name, tmp_path, sshd_targets.PASSWORD)
    sshd_targets.keygen(tmp_path / "other")
    target = sshd_targets.start_sshd(
        sshds.folder, name, "127.0.0.1", name, own_world=True, more="MaxAuthTries 2\nPubkeyAuthentication no"
    )
    try:
        link = ssh.Link(options(target, key_file=str(tmp_path / "other"), password="wrong").settings())
        try:
            # Without a password that was tried, the host would have "ended the connection".
            with pytest.raises(ssh.LoginError, match="does not let us in; offered were .* and a password"):
                link.execute("true")
        finally:
            link.close()
    finally:
        sshd_targets.stop(target)
        with sshd_targets.accounts():
            subprocess.run(["userdel", "-f", name], check=False, capture_output=True)


def test_a_key_that_cannot_sign_does_not_end_the_login(as_root, link, tmp_path, monkeypatch):
    sshd_targets.keygen(tmp_path / "other")
    keypair = asyncssh().public_key.SSHLocalKeyPair

    def sign(self, data):
        raise ValueError("the system's policy forbids it")

    monkeypatch.setattr(keypair, "sign", sign)
    assert link(key_file=str(tmp_path / "other"), password=sshd_targets.PASSWORD).execute("echo in").stdout == b"in\n"


def test_a_second_login_trusts_the_key_of_the_first_and_no_other(link, sshd, tmp_path, monkeypatch):
    """The host was unknown, and refuses the key: what is learnt from the first connection counts for the second."""
    sshd_targets.keygen(tmp_path / "other")
    known = tmp_path / "known_hosts"
    judged = []
    real = host_keys.HostKeys.judge

    def judge(self, key):
        judged.append(len(self.keys))
        return real(self, key)

    monkeypatch.setattr(host_keys.HostKeys, "judge", judge)
    with pytest.raises(ssh.LoginError):
        link(
            common_args=f"-F none -o IdentityAgent=none -o UserKnownHostsFile={known} -o StrictHostKeyChecking=accept-new",
            key_file=str(tmp_path / "other"),
        ).execute("true")
    assert len(known.read_text().splitlines()) == 1
    assert judged == [0]  # in the second login asyncssh itself found the key among the known ones
