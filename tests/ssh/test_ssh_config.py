# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenSSH's words, read as OpenSSH reads them."""

from __future__ import annotations

import pytest

from forkless import ssh
from forkless.core.errors import SpecError


def settle(tmp_path, text="", host="web1", **more):
    path = tmp_path / "config"
    path.write_text(text)
    more.setdefault("ssh_args", "")
    return ssh.SshOptions(host=host, **(more | {"ssh_args": f"-F {path} {more['ssh_args']}"})).settings()


def test_the_first_value_wins_and_the_command_line_comes_first(tmp_path):
    text = "Host web*\n Port 1\nHost *\n Port 2\n User all\n"
    assert settle(tmp_path, text).port == 1
    assert settle(tmp_path, text, host="db").port == 2
    assert settle(tmp_path, text, port=3).port == 3
    assert settle(tmp_path, text, common_args="-p 4 -l me").port == 4
    assert settle(tmp_path, text, common_args="-oPort=5 -l me").user == "me"


def test_a_pattern_with_an_exclamation_mark_takes_hosts_out(tmp_path):
    text = "Host web* !web1\n Port 1\n"
    assert settle(tmp_path, text).port == 22
    assert settle(tmp_path, text, host="web2").port == 1


def test_names_values_and_quotes_are_read_in_every_spelling(tmp_path):
    text = 'HOST web1\n  hostname = "10.0.0.1"\n\tPORT=7\n# no\n'
    settings = settle(tmp_path, text)
    assert (settings.host, settings.port, settings.name) == ("10.0.0.1", 7, "web1")


def test_identity_files_are_collected_and_their_tokens_filled_in(tmp_path):
    text = "Host *\n IdentityFile /k/%h\n IdentityFile /k/%r\n"
    assert settle(tmp_path, text, user="u", key_file="/k/own").identities == ("/k/own", "/k/web1", "/k/u")


def test_include_and_match_are_followed(tmp_path):
    (tmp_path / "more").write_text("Host *\n User included\n")
    text = f"Include {tmp_path}/more\nMatch host web1 user included\n Port 9\nMatch all\n Compression yes\n"
    settings = settle(tmp_path, text)
    assert (settings.user, settings.port, settings.compression) == ("included", 9, True)


def test_match_exec_is_skipped_and_noted_because_it_would_start_a_program(tmp_path):
    settings = settle(tmp_path, "Match exec true\n Port 9\n")
    assert settings.port == 22
    assert "Match exec" in settings.notes[0]


@pytest.mark.parametrize(
    ("said", "strict"),
    [("yes", "yes"), ("ask", "yes"), ("accept-new", "accept-new"), ("no", "no"), ("off", "no"), ("nonsense", "yes")],
)
def test_only_the_words_for_no_switch_checking_off(tmp_path, said, strict):
    assert settle(tmp_path, common_args=f"-o StrictHostKeyChecking={said}").strict == strict


def test_checking_is_on_when_nothing_is_said(tmp_path):
    assert settle(tmp_path).strict == "yes"


def test_dev_null_as_known_hosts_knows_nobody(tmp_path):
    settings = settle(tmp_path, common_args="-o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=none")
    assert settings.known_hosts == ()
    assert settings.strict == "yes"


def test_jumps_are_a_chain_with_users_and_ports(tmp_path):
    text = "Host b2\n HostName two\n"
    settings = settle(tmp_path, text, common_args="-J me@b1:7,b2")
    assert (settings.through.host, settings.through.through.host) == ("two", "b1")
    assert (settings.through.through.user, settings.through.through.port) == ("me", 7)


def test_a_circle_of_jumps_is_an_error(tmp_path):
    with pytest.raises(SpecError, match="circle"):
        settle(tmp_path, "Host *\n ProxyJump web2\n")


def test_arguments_about_the_control_socket_mean_nothing(tmp_path):
    settings = settle(tmp_path, ssh_args="-C -o ControlMaster=auto -o ControlPersist=60s -S /x -vvv")
    assert settings.compression


def test_a_missing_configuration_file_is_named():
    with pytest.raises(SpecError, match="/no/such"):
        ssh.SshOptions(host="x", ssh_args="-F /no/such").settings()


def test_asking_for_a_terminal_is_seen():
    assert ssh.SshOptions(host="x", ssh_args="-tt").tty
    assert ssh.SshOptions(host="x", extra_args="-o RequestTTY=force").tty
    assert not ssh.SshOptions(host="x").tty


def test_home_and_agent_are_those_of_the_run(tmp_path):
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host *\n Port 5\n IdentityFile ~/key\n")
    settings = ssh.SshOptions(host="x", environ={"HOME": str(tmp_path), "SSH_AUTH_SOCK": "/run/agent"}).settings()
    assert (settings.port, settings.identities, settings.agent) == (5, (f"{tmp_path}/key",), "/run/agent")
    assert settings.known_hosts[0] == f"{tmp_path}/.ssh/known_hosts"


# -- why asyncssh's own loader is not used (ARCHITECTURE.md): if one of these fails, asyncssh can do it now


def by_asyncssh(path, host="web1"):
    from asyncssh.config import SSHClientConfig

    return SSHClientConfig.load(None, [str(path)], False, False, False, "me", (), host, ())


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "config"
        path.write_text(text)
        return path

    return write


@pytest.mark.spawns  # importing asyncssh does
def test_asyncssh_ignores_how_strictly_host_keys_are_checked(config, tmp_path):
    text = "StrictHostKeyChecking accept-new\n"
    assert by_asyncssh(config(text)).get("StrictHostKeyChecking") is None
    assert settle(tmp_path, text).strict == "accept-new"


@pytest.mark.spawns
def test_asyncssh_starts_a_program_for_match_exec(config, tmp_path):
    path = config(f"Match exec 'touch {tmp_path}/started'\n Port 9\n")
    by_asyncssh(path)
    assert (tmp_path / "started").exists()


@pytest.mark.spawns
def test_asyncssh_refuses_times_as_openssh_writes_them(config, tmp_path):
    with pytest.raises(ValueError, match="Invalid ConnectTimeout integer value: 2m"):
        by_asyncssh(config("ConnectTimeout 2m\n"))
    assert settle(tmp_path, "ConnectTimeout 2m\n").port == 22


@pytest.mark.spawns
def test_asyncssh_reads_the_home_of_the_process_not_that_of_the_run(config, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home-of-the-process"))
    path = config("IdentityFile %d/key\n")
    assert by_asyncssh(path).get("IdentityFile") == [f"{tmp_path}/home-of-the-process/key"]
