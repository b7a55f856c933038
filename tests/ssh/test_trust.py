# SPDX-License-Identifier: GPL-3.0-or-later
"""Whom we believe, and who believes us: host keys, passwords, keys, agents, certificates, jumps."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

import sshd_targets
from forkless import ssh
from forkless.core.errors import UnsupportedError

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns]


@pytest.fixture
def stranger(sshds, tmp_path):
    """Another host key, under the name of the real host."""
    sshd_targets.keygen(tmp_path / "other")
    target = sshds.hosts[0]
    known = tmp_path / "known_hosts"
    known.write_text(f"[{target.address}]:{target.port} {(tmp_path / 'other.pub').read_text()}")
    return known


def trusting(path, *more):
    return f"-F none -o UserKnownHostsFile={path} -o IdentityAgent=none " + " ".join(more)


def test_an_unknown_host_is_refused_and_shown_how_to_add(sshd, link, tmp_path):
    with pytest.raises(ssh.HostKeyError, match=r"is not known: it shows SHA256:.*ssh-keyscan"):
        link(common_args=trusting(tmp_path / "none")).connect()
    assert not (tmp_path / "none").exists()


def test_a_changed_host_key_is_refused_before_anything_is_sent(sshd, link, stranger):
    before = sshd.log().count("Accepted publickey")
    with pytest.raises(ssh.HostKeyError, match=r"HAS CHANGED.*Nothing was sent") as caught:
        link(common_args=trusting(stranger), password="sesame").connect()
    assert "sesame" not in str(caught.value)
    assert sshd.log().count("Accepted publickey") == before


def test_a_changed_host_key_is_refused_also_with_accept_new(link, stranger):
    with pytest.raises(ssh.HostKeyError, match="HAS CHANGED"):
        link(common_args=trusting(stranger, "-o StrictHostKeyChecking=accept-new")).connect()


def test_a_host_of_another_kind_of_key_counts_as_changed(sshd, link, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", tmp_path / "k"], check=True)
    known = tmp_path / "known"
    known.write_text(f"[{sshd.address}]:{sshd.port} {(tmp_path / 'k.pub').read_text()}")
    with pytest.raises(ssh.HostKeyError, match="HAS CHANGED"):
        link(common_args=trusting(known)).connect()


def test_accept_new_adds_the_key_and_then_holds_on_to_it(sshd, link, tmp_path):
    known = tmp_path / "deep" / "known"
    link(common_args=trusting(known, "-o StrictHostKeyChecking=accept-new")).connect()
    assert known.read_text().startswith(f"[{sshd.address}]:{sshd.port} ssh-ed25519 ")
    link(common_args=trusting(known)).connect()


def test_a_hashed_known_hosts_is_read_and_written(sshd, link, tmp_path):
    known = tmp_path / "known"
    link(common_args=trusting(known, "-o StrictHostKeyChecking=accept-new -o HashKnownHosts=yes")).connect()
    assert known.read_text().startswith("|1|")
    assert sshd.address not in known.read_text()
    link(common_args=trusting(known)).connect()
    found = subprocess.run(
        ["ssh-keygen", "-F", f"[{sshd.address}]:{sshd.port}", "-f", known], capture_output=True, text=True, check=True
    )
    assert "ssh-ed25519" in found.stdout


def test_checking_can_be_switched_off_and_a_changed_host_still_gets_no_password(as_root, link, stranger):
    link(common_args=trusting(stranger), check_host_keys=False).connect()  # by key, which gives nothing away
    with pytest.raises(ssh.LoginError, match="host key has changed, so it was not sent the password"):
        link(
            common_args=trusting(stranger, "-o IdentitiesOnly=yes"),
            key_file="/nonexistent",
            check_host_keys=False,
            password=sshd_targets.PASSWORD,
        ).connect()


def test_a_revoked_host_key_is_refused_even_with_checking_off(sshd, link, tmp_path):
    known = tmp_path / "known"
    known.write_text(f"@revoked [{sshd.address}]:{sshd.port} {(sshd.folder / 'host_key.pub').read_text()}")
    with pytest.raises(ssh.HostKeyError, match="revoked"):
        link(common_args=trusting(known), check_host_keys=False).connect()


def test_a_bad_line_in_known_hosts_does_not_hide_the_good_ones(sshds, link, tmp_path):
    known = tmp_path / "known"
    known.write_text("nonsense\n" + pathlib.Path(sshds.known_hosts).read_text())
    link(common_args=trusting(known)).connect()


def test_a_host_with_a_certificate_is_known_by_its_authority(sshds, options, tmp_path):
    own = "127.0.0.1" if not sshds.root else sshds.hosts[0].address
    host_key = sshds.folder / "certified" / "host_key"
    target = None
    try:
        target = sshd_targets.start_sshd(
            sshds.folder, "certified", own, sshds.user, own_world=sshds.root, more=f"HostCertificate {host_key}-cert.pub",
            before=lambda: subprocess.run(
                ["ssh-keygen", "-q", "-s", sshds.folder / "ca", "-I", "host", "-h", "-n", own, f"{host_key}.pub"], check=True
            ),
        )  # fmt: skip
        known = tmp_path / "known"
        known.write_text(f"@cert-authority * {(sshds.folder / 'ca.pub').read_text()}")
        one = ssh.Link(options(target, common_args=trusting(known)).settings())
        assert one.execute("echo yes").stdout == b"yes\n"
        one.close()
    finally:
        if target:
            sshd_targets.stop(target)


# -- who believes us ----------------------------------------------------------------------------------------------


def test_a_password_opens(as_root, link):
    assert link(key_file="/nonexistent", password=sshd_targets.PASSWORD).execute("echo in").stdout == b"in\n"


def test_a_wrong_password_is_not_shown_in_the_refusal(as_root, link):
    with pytest.raises(ssh.LoginError, match="does not let us in.*a password") as caught:
        link(key_file="/nonexistent", password="not the one").connect()
    assert "not the one" not in str(caught.value)


def test_secrets_are_not_in_the_picture_of_the_settings(options):
    settings = options(password="s3cret", key="k3y", passphrase="phr4se").settings()
    assert not any(word in repr(settings) for word in ("s3cret", "k3y", "phr4se"))


def test_an_encrypted_key_opens_with_its_passphrase_and_is_named_without(sshds, link, tmp_path):
    key = tmp_path / "locked"
    key.write_bytes(pathlib.Path(sshds.key).read_bytes())
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "a phrase", "-f", key], check=True, capture_output=True)
    assert link(key_file=str(key), passphrase="a phrase").execute("echo in").stdout == b"in\n"
    with pytest.raises(ssh.LoginError, match="Could not be read: .*locked"):
        link(key_file=str(key)).connect()


def test_a_key_can_be_given_as_text(sshds, link):
    text = pathlib.Path(sshds.key).read_text()
    assert link(key_file="/nonexistent", key=text).execute("echo in").stdout == b"in\n"


def test_an_agent_signs_for_us(sshds, link):
    socket_path = str(sshds.folder / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket_path], stdout=subprocess.DEVNULL)
    try:
        while not os.path.exists(socket_path):
            assert agent.poll() is None
        subprocess.run(
            ["ssh-add", "-q", sshds.key],
            env={**os.environ, "SSH_AUTH_SOCK": socket_path},
            check=True,
            capture_output=True,
        )
        args = f"-F none -o UserKnownHostsFile={sshds.known_hosts} -o IdentityAgent={socket_path}"
        assert link(key_file="/nonexistent", common_args=args).execute("echo in").stdout == b"in\n"
    finally:
        agent.terminate()
        agent.wait()
        os.path.exists(socket_path) and os.unlink(socket_path)


def test_a_user_certificate_opens_where_the_key_alone_does_not(sshds, link, tmp_path):
    sshd_targets.keygen(tmp_path / "me")
    with pytest.raises(ssh.LoginError):
        link(key_file=str(tmp_path / "me")).connect()
    subprocess.run(
        ["ssh-keygen", "-q", "-s", sshds.folder / "ca", "-I", "me", "-n", sshds.user, tmp_path / "me.pub"], check=True
    )
    assert link(key_file=str(tmp_path / "me")).execute("echo in").stdout == b"in\n"


# -- the way there ------------------------------------------------------------------------------------------------


def config(tmp_path, sshds, text):
    path = tmp_path / "config"
    path.write_text(
        f"Host *\n UserKnownHostsFile {sshds.known_hosts}\n IdentityFile {sshds.key}\n IdentityAgent none\n User {sshds.user}\n{text}"
    )
    return path


def test_the_configuration_file_names_host_port_user_and_key(sshds, sshd, tmp_path):
    path = config(tmp_path, sshds, f"Host web*\n HostName {sshd.address}\n Port {sshd.port}\n")
    one = ssh.Link(ssh.SshOptions(host="web1", common_args=f"-F {path}").settings())
    assert one.execute("echo there").stdout == b"there\n"
    one.close()


def test_a_jump_goes_through_the_bastion(as_root, sshds, tmp_path):
    bastion, behind = sshds.hosts[0], sshds.hosts[1]
    path = config(
        tmp_path, sshds,
        f"Host bastion\n HostName {bastion.address}\n Port {bastion.port}\n"
        f"Host behind\n HostName {behind.address}\n Port {behind.port}\n ProxyJump bastion\n",
    )  # fmt: skip
    before = bastion.log().count("Accepted publickey")
    one = ssh.Link(ssh.SshOptions(host="behind", common_args=f"-F {path}").settings())
    assert one.execute("hostname").stdout == b"target1\n"
    one.close()
    assert bastion.log().count("Accepted publickey") == before + 1


def test_the_old_way_to_say_a_jump_needs_no_program_either(as_root, sshds, tmp_path):
    bastion, behind = sshds.hosts[0], sshds.hosts[1]
    path = config(tmp_path, sshds, "")
    proxy = f'-o ProxyCommand="ssh -W %h:%p -q -p {bastion.port} {sshds.user}@{bastion.address}"'
    one = ssh.Link(ssh.SshOptions(host=behind.address, port=behind.port, common_args=f"-F {path} {proxy}").settings())
    assert one.execute("hostname").stdout == b"target1\n"
    one.close()


def test_a_proxy_command_that_is_a_program_is_refused_with_the_way_out():
    with pytest.raises(UnsupportedError, match="nc bastion.*ProxyJump"):
        ssh.SshOptions(host="x", common_args="-F none -o ProxyCommand='nc bastion 22'").settings()
