# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds Settings from a host's inventory variables and ssh's configuration."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from forkless.core import switches
from forkless.core.errors import SpecError, UnsupportedError
from forkless.ssh.asyncssh_import import local_user
from forkless.ssh.config import SshConfig, home, split_words
from forkless.ssh.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SshOptions"]

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
MOST_JUMPS = 8


@dataclass
class SshOptions:
    """The options of the connection plugin. For an empty option ssh's configuration decides."""

    host: str
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    key_file: str | None = None
    key: str | None = field(default=None, repr=False)
    passphrase: str | None = field(default=None, repr=False)
    check_host_keys: bool = True
    timeout: float = 10.0
    ssh_args: str = ""
    common_args: str = ""
    extra_args: str = ""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    """The environment for HOME and SSH_AUTH_SOCK: the run's, which may differ from the program's."""

    def words(self) -> SshConfig:
        """The options in the order of ansible.builtin.ssh's command line: ssh keeps the first value of an option."""
        words = SshConfig(environ=self.environ)
        words.arguments(self.ssh_args)
        if not self.check_host_keys:
            words.put("StrictHostKeyChecking", "no")
        if self.port:
            words.put("Port", str(self.port))
        if self.key_file:
            words.put("IdentityFile", self.key_file)
        if self.user:
            words.put("User", self.user)
        words.put("ConnectTimeout", str(int(self.timeout)))
        words.arguments(self.common_args)
        words.arguments(self.extra_args)
        return words

    def settings(self) -> Settings:
        settings = _settle(self.words(), self.host, depth=0)
        return replace(settings, password=self.password, key=self.key, passphrase=self.passphrase)

    @property
    def tty(self) -> bool:
        """Whether the arguments ask for a terminal, which rules out pipelining."""
        return self.words().get("requesttty").lower() in ("yes", "force")


def _settle(words: SshConfig, name: str, *, depth: int) -> Settings:
    if depth > MOST_JUMPS:
        raise SpecError(f"{name}: more than {MOST_JUMPS} jumps; does ProxyJump go in a circle?")
    me = local_user()
    words.files(name, words.get("user", me), me)
    host = words.get("hostname", name).replace("%h", name).replace("%%", "%")
    port = int(words.number("port", 22))
    user = words.get("user", me)
    tokens = {
        "%": "%", "h": host, "n": name, "p": str(port), "r": user, "u": me, "d": home("~", words.environ), "k": words.get("hostkeyalias", name),
    }  # fmt: skip

    def path(text: str) -> str:
        text = re.sub(r"%(.)", lambda m: tokens.get(m[1], m[0]), text)
        return home(re.sub(r"\$\{(\w+)\}", lambda m: words.environ.get(m[1], ""), text), words.environ)

    strict = words.get("stricthostkeychecking", "yes").lower()
    agent = words.get("identityagent", "SSH_AUTH_SOCK")
    agent = (
        "" if agent == "none" else words.environ.get("SSH_AUTH_SOCK", "") if agent == "SSH_AUTH_SOCK" else path(agent)
    )
    identities = words.values.get("identityfile") or [f"~/.ssh/{key}" for key in DEFAULT_KEYS]
    known = words.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
    known += " " + words.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
    return Settings(
        host=host,
        port=port,
        user=user,
        name=name,
        identities=tuple(path(one) for one in identities if one != "none"),
        certificates=tuple(path(one) for one in words.values.get("certificatefile", [])),
        identities_only=words.yes("identitiesonly"),
        agent=agent,
        forward_agent=words.yes("forwardagent"),
        # 'ask' means 'yes' here: a worker has no terminal to ask on. ansible.builtin.ssh without a terminal refuses,
        # too.
        strict={"no": "no", "off": "no", "false": "no", "accept-new": "accept-new"}.get(strict, "yes"),
        known_hosts=tuple(path(one) for one in split_words(known) if one not in ("none", "/dev/null")),
        alias=words.get("hostkeyalias"),
        hash_known_hosts=words.yes("hashknownhosts"),
        timeout=words.number("connecttimeout", 10.0),
        alive_interval=words.number("serveraliveinterval", 0.0),
        alive_count=int(words.number("serveralivecountmax", 3)),
        compression=words.yes("compression"),
        preferred=tuple(filter(None, words.get("preferredauthentications").split(","))),
        ciphers=words.get("ciphers"),
        macs=words.get("macs"),
        kex=words.get("kexalgorithms"),
        host_key_algorithms=words.get("hostkeyalgorithms"),
        family=words.get("addressfamily", "any"),
        bind=words.get("bindaddress"),
        quick_login=not switches.disabled("quick-login", words.environ),
        through=_through(words, name, tokens, depth=depth),
        notes=tuple(words.notes),
    )


def _through(words: SshConfig, name: str, tokens: dict[str, str], *, depth: int) -> Settings | None:
    """The last jump host, or None; its `through` is the jump host before it."""
    jump = words.get("proxyjump")
    if jump and jump.lower() != "none":
        before: Settings | None = None
        for hop in jump.split(","):
            here = _settle(_hop(hop.strip(), words), _hop_name(hop), depth=depth + 1)
            before = here if before is None else replace(here, through=before)
        return before
    command = words.get("proxycommand")
    if not command or command.lower() == "none":
        return None
    return _from_command(re.sub(r"%(.)", lambda m: tokens.get(m[1], m[0]), command), name, tokens, words, depth=depth)


def _hop(text: str, words: SshConfig) -> SshConfig:
    match = re.fullmatch(r"(?:ssh://)?(?:(?P<user>.+)@)?(?P<host>\[[^\]]+\]|[^:@]+)(?::(?P<port>\d+))?/?", text)
    if not match:
        raise SpecError(f"ProxyJump '{text}' is not of the form [user@]host[:port]")
    hop = SshConfig(environ=words.environ, file=words.file)
    if match["user"]:
        hop.put("User", match["user"])
    if match["port"]:
        hop.put("Port", match["port"])
    return hop


def _hop_name(text: str) -> str:
    text = text.strip().removeprefix("ssh://").rpartition("@")[2].rstrip("/")
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


def _from_command(command: str, name: str, tokens: dict[str, str], words: SshConfig, *, depth: int) -> Settings:
    """Turn `ssh -W host:port bastion` into a jump, which needs no program. Any other command raises UnsupportedError."""
    program, *rest = shlex.split(command) or [""]
    if os.path.basename(program) == "ssh":
        hop = SshConfig(environ=words.environ, file=words.file)
        hop.arguments(shlex.join(rest))
        if hop.get("stdioforward").strip("[]") in (f"{tokens['h']}:{tokens['p']}", f"[{tokens['h']}]:{tokens['p']}"):
            user, _, host = (hop.rest or [""])[0].rpartition("@")
            if host:
                if user:
                    hop.put("User", user)
                return _settle(hop, host, depth=depth + 1)
    raise UnsupportedError(
        f"the way to {name} leads through a program (ProxyCommand {command}), and forkless.core.ssh starts none; "
        "say it as a jump: -o ProxyJump=user@bastion"
    )
