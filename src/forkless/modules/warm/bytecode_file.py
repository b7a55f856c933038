# SPDX-License-Identifier: GPL-3.0-or-later
"""
Bytecode for hosts of another Python, kept from one run to the next: one file for each bytecode version, in Ansible's home (`~/.ansible/forkless`).

Compiling the files of the first module takes the controller 0.1 s, and all hosts wait for it. Entries are found by a hash of their text, so a text that has
changed is never answered for. Hosts execute what is read here, so only a file that nobody else may write, in a folder that nobody else may enter, is
read; a file that is damaged or foreign is written anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["read", "write"]

LARGEST = 8 << 20  # bytes; a larger file is written anew with the new entries alone
_MAGIC = re.compile(r"[0-9a-f]{8}")


def read(folder: str, magic: str) -> dict[str, bytes]:
    """The entries for this bytecode version, by key; {} if there is no file that can be trusted. Any thread may call this."""
    try:
        if not _MAGIC.fullmatch(magic) or not _is_private(os.lstat(folder), stat.S_ISDIR):
            return {}
        with open(os.open(_path(folder, magic), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            if not _is_private(os.fstat(file.fileno()), stat.S_ISREG):
                return {}
            digest, _, content = file.read(2 * LARGEST).partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != digest:
            return {}
        line, _, codes = content.partition(b"\n")
        found, at = {}, 0
        for key, length in json.loads(line):
            found[str(key)] = codes[at : at + length]
            at += length
    except (OSError, ValueError, TypeError):
        return {}
    return found


def write(folder: str, magic: str, codes: Mapping[str, bytes]) -> None:
    """Add these entries to the file. A folder that cannot be written is left alone. Any thread may call this; of two at once, one's entries may be lost."""
    if not _MAGIC.fullmatch(magic):
        return
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not _is_private(os.lstat(folder), stat.S_ISDIR):
            return
        entries = {**read(folder, magic), **codes}
        if sum(map(len, entries.values())) > LARGEST:
            entries = dict(codes)
        head = json.dumps([(key, len(code)) for key, code in entries.items()]).encode()
        content = b"\n".join([head, b"".join(entries.values())])
        _replace(_path(folder, magic), hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def _replace(path: str, content: bytes) -> None:
    """
    Put this content into the file at once, unless another process or thread is just doing so.

    The new file always has the same name, so that a process that is killed while it writes leaves one file, which the next one takes.
    """
    new = f"{path}.new"
    with open(os.open(new, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it with the process
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(new)):
            return  # another one wrote this file and has renamed it since it was opened here
        try:
            os.fchmod(file.fileno(), 0o600)
            file.truncate()
            file.write(content)
            file.flush()
            os.replace(new, path)
        except BaseException:
            os.unlink(new)
            raise


def _path(folder: str, magic: str) -> str:
    return os.path.join(folder, f"bytecode-{magic}")


def _is_private(found: os.stat_result, kind: Callable[[int], bool]) -> bool:
    """Whether this is of the kind, ours, and nobody else's to read, write or enter."""
    return kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
