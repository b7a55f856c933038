# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads OpenSSH's command-line arguments and configuration files into one table of options."""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forkless.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["SshConfig", "home"]

USER_FILE, SYSTEM_FILE = "~/.ssh/config", "/etc/ssh/ssh_config"
# ssh keeps the first value of an option; of these it collects all values.
COLLECTED = ("identityfile", "certificatefile")
# Flags of ssh that take a value, and the option that the value sets. "" marks a flag that is ignored.
FLAGS = {
    "-i": "identityfile", "-l": "user", "-p": "port", "-J": "proxyjump", "-c": "ciphers", "-m": "macs",
    "-b": "bindaddress", "-B": "", "-D": "", "-E": "", "-e": "", "-I": "", "-L": "", "-O": "", "-P": "", "-Q": "",
    "-R": "", "-S": "", "-w": "", "-W": "stdioforward",
}  # fmt: skip
SWITCHES = {
    "A": ("forwardagent", "yes"),
    "a": ("forwardagent", "no"),
    "C": ("compression", "yes"),
    "4": ("addressfamily", "inet"),
    "6": ("addressfamily", "inet6"),
    "t": ("requesttty", "force"),
    "T": ("requesttty", "no"),
}
MOST_INCLUDES = 16


def home(path: str, environ: Mapping[str, str]) -> str:
    """Expand ~ in `path` with HOME, else with the passwd entry. Without both, `path` is returned unchanged."""
    if (path == "~" or path.startswith("~/")) and environ.get("HOME"):
        return environ["HOME"] + path[1:]
    return os.path.expanduser(path)


@dataclass
class SshConfig:
    """
    The options read so far, by lower-case name; the first value of each is kept.

    Callers add command-line arguments first, then files. This is ssh's order and gives the command line precedence.
    """

    values: dict[str, list[str]] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    file: str | None = None  # -F
    tty: bool = False
    rest: list[str] = field(default_factory=list)  # words of a command line that are not flags
    notes: list[str] = field(default_factory=list)

    def put(self, name: str, value: str) -> None:
        name = name.lower()
        if name in COLLECTED:
            self.values.setdefault(name, []).append(value)
        elif name not in self.values:
            self.values[name] = [value]

    def get(self, name: str, default: str = "") -> str:
        return self.values.get(name, [default])[0]

    def yes(self, name: str, *, default: bool = False) -> bool:
        return self.get(name, "yes" if default else "no").lower() in ("yes", "true", "force", "ask", "confirm")

    def number(self, name: str, default: float) -> float:
        text = self.get(name)
        if not text:
            return default
        match = re.fullmatch(r"(\d+)([smh]?)", text.lower())
        if not match:
            raise SpecError(f"'{text}' is no number of seconds for the ssh option {name}")
        return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]

    def arguments(self, text: str) -> None:
        """Add the arguments of an ssh command, such as `ansible_ssh_common_args`."""
        words = iter(split_words(text))
        for word in words:
            if not word.startswith("-") or word == "-":
                self.rest.append(word)
                continue
            flag, attached = word[:2], word[2:]
            if flag in ("-o", "-F") or flag in FLAGS:
                value = attached or next(words, None)
                if value is None:
                    raise SpecError(f"the ssh argument {flag} wants a value, and there is none: {text!r}")
                self._flag(flag, value)
            else:
                for letter in word[1:]:
                    if letter in SWITCHES:
                        self.put(*SWITCHES[letter])

    def _flag(self, flag: str, value: str) -> None:
        if flag == "-o":
            name, value = split_line(value)
            self.put(name, value)
        elif flag == "-F":
            self.file = value
        elif FLAGS[flag]:
            self.put(FLAGS[flag], value)

    def files(self, host: str, user: str, local_user: str) -> None:
        """Add the options that the configuration files have for `host`."""
        if self.file == "none":
            return
        paths = [home(self.file, self.environ)] if self.file else [home(USER_FILE, self.environ), SYSTEM_FILE]
        if self.file and not os.path.exists(paths[0]):
            raise SpecError(f"the ssh configuration file {self.file} (-F) does not exist")
        for path in paths:
            self._read(path, host, user, local_user, depth=0, live=True)

    def _read(self, path: str, host: str, user: str, local_user: str, *, depth: int, live: bool) -> None:
        if depth > MOST_INCLUDES:
            raise SpecError(f"{path}: Include goes deeper than {MOST_INCLUDES} files")
        for name, value in lines_of(path):
            if name == "host":
                live = matches(value.split(), host)
            elif name == "match":
                live = self._match(path, value, host, user, local_user)
            elif not live:
                continue
            elif name == "include":
                for pattern in split_words(value):
                    folder = home("~/.ssh", self.environ) if path != SYSTEM_FILE else os.path.dirname(SYSTEM_FILE)
                    for found in sorted(glob.glob(os.path.join(folder, home(pattern, self.environ)))):
                        self._read(found, host, user, local_user, depth=depth + 1, live=True)
            else:
                self.put(name, value)

    def _match(self, path: str, value: str, host: str, user: str, local_user: str) -> bool:
        words = iter(shlex.split(value.replace("=", " ")))
        for word in words:
            negate, test = word.startswith("!"), word.lstrip("!").lower()
            if test in ("all", "canonical", "final"):
                here = test == "all"
            else:
                argument = next(words, "")
                if test == "exec":
                    # Evaluating it would start a program. The block is skipped, as if that program had failed.
                    self.notes.append(f"{path}: 'Match exec' starts a program; the block was skipped")
                    return False
                hostname = self.get("hostname", host).replace("%h", host)
                against = {
                    "host": hostname, "originalhost": host, "user": self.get("user", user), "localuser": local_user,
                }  # fmt: skip
                if test not in against:
                    self.notes.append(f"{path}: 'Match {test}' is not known here; the block was skipped")
                    return False
                here = matches(argument.split(","), against[test])
            if here == negate:
                return False
        return True


def lines_of(path: str) -> Iterator[tuple[str, str]]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in map(str.strip, file):
                if line and not line.startswith("#"):
                    name, value = split_line(line)
                    yield name.lower(), value
    except OSError:
        return  # ssh ignores a missing or unreadable file, too


@functools.lru_cache(maxsize=256)
def split_words(text: str) -> tuple[str, ...]:
    """As a shell does. Every task has the same arguments, and shlex looks at each character in Python."""
    return tuple(shlex.split(text))


def split_line(line: str) -> tuple[str, str]:
    """`Name value`, `Name=value`, `Name = "value"`."""
    match = re.match(r"\s*([^\s=]+)\s*=?\s*(.*?)\s*$", line)
    if not match:
        return line.strip(), ""
    value = match[2]
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return match[1], value


def matches(patterns: Iterable[str], name: str) -> bool:
    """Whether a pattern matches and no pattern that begins with ! does."""
    hit = False
    for pattern in patterns:
        if fnmatch.fnmatchcase(name.lower(), pattern.lstrip("!").strip('"').lower()):
            if pattern.startswith("!"):
                return False
            hit = True
    return hit
