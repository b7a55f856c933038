# SPDX-License-Identifier: GPL-3.0-or-later
"""
Bytecode for hosts whose Python is another version than this one, compiled by that version if it is installed on this machine.

Without it every host compiles ansible-core's module_utils for itself, which takes it a third of the time until its first module. The compiling process
reads texts and writes bytecode; it imports and executes nothing of them. This process never reads the bytecode. FORKLESS_DISABLE=host-bytecode
switches it off.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zlib
from typing import TYPE_CHECKING

from forkless.core import platform, switches
from forkless.modules.ansible_types import environ_of
from forkless.modules.warm import bytecode_file
from forkless.modules.warm.remote import importer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from forkless.modules.warm.payload import Piece

__all__ = ["COMPILER", "HostBytecode"]

ENOUGH = 4  # hosts with one version of Python: for fewer, starting a process here costs more than it saves there
MOST = 4096  # files in the cache
LIMIT = 10.0  # seconds for the compiling process, and for waiting for another thread's
FOLDERS = ("/usr/bin", "/usr/local/bin")
_VERSION = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}")

# Reads a line of JSON with (path, length) of each text, and the texts. Writes a line with its bytecode version and the lengths, and the bytecode; its
# length is 0 for a text that is no Python.
_SCRIPT = """
import importlib.util, json, marshal, sys, zlib
read, write = sys.stdin.buffer, sys.stdout.buffer
codes = []
for path, length in json.loads(read.readline()):
    text = read.read(length)
    try:
        codes.append(zlib.compress(marshal.dumps(compile(text, path, "exec", dont_inherit=True)), 6))
    except (SyntaxError, ValueError):
        codes.append(b"")
write.write(json.dumps([importlib.util.MAGIC_NUMBER.hex(), [len(code) for code in codes]]).encode() + b"\\n")
write.write(b"".join(codes))
"""


class HostBytecode:
    """All methods may be called by any thread. While one thread compiles, others wait for what it makes."""

    def __init__(self, folder: Callable[[], str | None] = lambda: None) -> None:
        """`folder`: where bytecode is kept from one run to the next; None: nowhere."""
        self._folder = folder
        self._read: set[tuple[str, str]] = set()
        self._lock = threading.Lock()  # guards the fields, and is held while a process compiles
        self._hosts: collections.Counter[str] = collections.Counter()
        self._unusable: set[str] = set()
        self._codes: collections.OrderedDict[tuple[str, str], bytes] = collections.OrderedDict()

    def of(self, magic: str, version: str, pieces: Sequence[Piece], *, greeting: bool) -> dict[str, bytes]:
        """
        The compressed bytecode of these files by their keys, for a host whose Python has this bytecode version; {} if there is none.

        `greeting`: it is the host's first order.
        """
        if not magic or _off() or not self._lock.acquire(timeout=LIMIT):
            return {}
        try:
            self._hosts[magic] += greeting
            folder = self._folder()
            if folder is not None and (folder, magic) not in self._read:
                self._read.add((folder, magic))
                self._keep(magic, bytecode_file.read(folder, magic))
            sources = [one for one in pieces if one.path.endswith(".py") and (magic, one.key) not in self._codes]
            if sources and self._hosts[magic] >= ENOUGH and magic not in self._unusable:
                made = self._compile(magic, version, sources)
                if made and folder is not None:
                    bytecode_file.write(folder, magic, made)
            return {one.key: code for one in pieces if (code := self._codes.get((magic, one.key)))}
        finally:
            self._lock.release()

    def _compile(self, magic: str, version: str, pieces: Sequence[Piece]) -> dict[str, bytes]:
        for python in _pythons(version):
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
                made = dict(zip([one.key for one in pieces], _compiled(python, magic, pieces), strict=True))
                self._keep(magic, made)
                return made
        self._unusable.add(magic)
        return {}

    def _keep(self, magic: str, codes: Mapping[str, bytes]) -> None:
        self._codes.update(((magic, key), code) for key, code in codes.items())
        while len(self._codes) > MOST:
            self._codes.popitem(last=False)


def _off() -> bool:
    action = "ansible.plugins.action"
    return switches.disabled("host-bytecode", environ_of(action) if action in sys.modules else None)


def _pythons(version: str) -> Iterable[str]:
    """Where a Python such as 3.11 may be on this machine: each place once. The host says the version, and must not choose another program."""
    if not _VERSION.fullmatch(version) or not platform.can_exec():
        return ()
    name = f"python{version}"
    found = [os.path.join(folder, name) for folder in FOLDERS] + [shutil.which(name)]
    return list(dict.fromkeys(one for one in found if one and os.access(one, os.X_OK)))


def _compiled(python: str, magic: str, pieces: Sequence[Piece]) -> list[bytes]:
    """Raises an error of subprocess, OSError, or ValueError if this Python has another bytecode version."""
    texts = [zlib.decompress(one.text) for one in pieces]
    head = json.dumps([(f"{importer.ROOT}/{one.path}", len(text)) for one, text in zip(pieces, texts, strict=True)])
    done = subprocess.run(
        [python, "-I", "-S", "-B", "-c", _SCRIPT], input=b"\n".join([head.encode(), b"".join(texts)]), capture_output=True,
        check=True, timeout=LIMIT, cwd="/", env={"LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    line, _, rest = done.stdout.partition(b"\n")
    its_magic, lengths = json.loads(line)
    if its_magic != magic or len(lengths) != len(pieces) or sum(lengths) != len(rest):
        raise ValueError(f"{python} has another bytecode version than the host's")
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    return [rest[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _in_ansible_home() -> str | None:
    """In the home that the configuration of the active runs names."""
    home = getattr(sys.modules.get("ansible.constants"), "ANSIBLE_HOME", None)
    return os.path.join(str(home), "forkless") if home and platform.can_exec() else None


COMPILER = HostBytecode(_in_ansible_home)
