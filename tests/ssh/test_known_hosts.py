# SPDX-License-Identifier: GPL-3.0-or-later
"""Which lines of known_hosts count for a host: asyncssh decides, and is shown no others."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os

import pytest

import sshd_targets
from forkless.ssh import host_keys
from forkless.ssh.asyncssh_import import asyncssh
from forkless.ssh.host_keys import HostKeys
from forkless.ssh.settings import Settings

pytestmark = pytest.mark.spawns


def hashed(name):
    salt = os.urandom(20)
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(hmac.new(salt, name.encode(), hashlib.sha1).digest()).decode()}"


@pytest.fixture
def keys(tmp_path):
    """Public keys as in known_hosts."""
    made = []
    for number in range(14):
        sshd_targets.keygen(tmp_path / f"k{number}")
        made.append(" ".join((tmp_path / f"k{number}.pub").read_text().split()[:2]))
    return made


HOSTS = [("web1", 22), ("web1", 2222), ("web2", 22), ("10.0.0.7", 22), ("10.0.0.7", 2200), ("other.example.org", 22), ("hidden", 22),
         ("hidden", 2222), ("unknown", 22), ("bad.example.org", 22)]  # fmt: skip


def test_it_finds_what_asyncssh_finds_in_the_whole_file(keys, tmp_path):
    names = ["web1", "[web1]:2222", "web1,10.0.0.7", "web2", "*.example.org", "!bad.example.org,*.example.org", "10.0.0.0/8", hashed("hidden"),
             hashed("[hidden]:2222"), "@revoked web2", "@cert-authority *.example.org", "@revoked [web1]:2222", "10.0.0.7", "web1"]  # fmt: skip
    text = "".join(f"{name} {key} a comment\n" for name, key in zip(names, keys, strict=True))
    text += "# a comment\n\nweb1 too-short\n  web2  ssh-ed25519 not-a-key\n"
    (tmp_path / "known_hosts").write_text(text)
    everything = [line for line in text.splitlines(keepends=True) if len(line.split()) > 2 and line[0] != "#"]
    seen = set()
    for name, port in HOSTS:
        theirs = asyncssh().import_known_hosts("".join(everything)).match(name, "", port if port != 22 else None)
        ours = HostKeys(Settings(host=name, port=port, known_hosts=(str(tmp_path / "known_hosts"),)))
        for mine, whole in ((ours.keys, theirs[0]), (ours.authorities, theirs[1])):
            assert [one.public_data for one in mine] == [one.public_data for one in whole], (name, port)
        seen.update(one.public_data for one in [*ours.keys, *ours.authorities, *ours.revoked])
    assert len(seen) == len(keys), "each line counted for one of the hosts"


def test_a_thousand_hosts_do_not_decode_a_million_keys(keys, tmp_path, monkeypatch):
    lines = [f"host{number} {keys[number % 2]}\n" for number in range(100)]
    lines += [f"{hashed(f'secret{number}')} {keys[number % 2]}\n" for number in range(100)]
    path = tmp_path / "known_hosts"
    path.write_text("".join(lines))
    library, shown = asyncssh(), []
    original = library.import_known_hosts
    monkeypatch.setattr(library, "import_known_hosts", lambda text: shown.append(text.count("\n")) or original(text))
    for name in ("host7", "secret7"):
        assert len(HostKeys(Settings(host=name, known_hosts=(str(path),))).keys) == 1
    assert sum(shown) == 2
    read = host_keys._files[str(path)][1]
    HostKeys(Settings(host="host8", known_hosts=(str(path),)))
    assert host_keys._files[str(path)][1] is read
    with path.open("a") as file:
        file.write(f"new {keys[3]}\n")
    assert len(HostKeys(Settings(host="new", known_hosts=(str(path),))).keys) == 1
