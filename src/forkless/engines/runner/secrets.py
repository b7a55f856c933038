# SPDX-License-Identifier: GPL-3.0-or-later
"""Passes extra vars and passwords to a child process without exposing them to other users of the machine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkless.core.spec import RunSpec

__all__ = ["Secrets", "above_standard_streams"]


def above_standard_streams(fd: int) -> int:
    """
    The descriptor, moved above 2. A program that has closed its standard streams gets their numbers for whatever it opens next, and
    in the child these numbers are the child's own streams.
    """
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


class Secrets:
    """
    Secrets for the child. They never appear in its arguments, which every user of the machine can list.

    The vault password and the answers are in memory files (memfd, on Linux) without a name, which only the child inherits. The others need
    a path, because Ansible resolves the real path of such a file: they are in the run's private folder with mode 0600, and are
    removed as soon as the play begins.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._paths: list[str] = []
        self.descriptors: list[int] = []

    def file(self, name: str, text: str) -> str:
        path = os.path.join(self._folder, name)
        self._paths.append(path)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def memory(self, text: str) -> str:
        if not hasattr(os, "memfd_create"):
            return self.file("vault", text + "\n")
        fd = above_standard_streams(os.memfd_create("forkless", os.MFD_CLOEXEC))
        self.descriptors.append(fd)
        os.fchmod(fd, 0o400)  # Ansible executes a password file that is executable
        os.write(fd, text.encode() + b"\n")
        return f"/dev/fd/{fd}"

    def forget(self) -> None:
        """Remove the files. Called when the play begins: by then Ansible has read them all."""
        while self._paths:
            with contextlib.suppress(OSError):
                os.unlink(self._paths.pop())

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())

    def flags(self, spec: RunSpec) -> list[str]:
        """Store the secrets of `spec`, and return command-line arguments that name files only."""
        flags: list[str] = []
        if spec.extra_vars:
            flags += ["-e", "@" + self.file("extra-vars.json", json.dumps(dict(spec.extra_vars)))]
        if spec.vault_password is not None:
            flags += ["--vault-password-file", self.memory(spec.vault_password)]
        if spec.answers:
            flags += ["--answers-file", self.memory(json.dumps(dict(spec.answers)))]
        for key, flag in (("conn_pass", "--connection-password-file"), ("become_pass", "--become-password-file")):
            if key in spec.passwords:
                flags += [flag, self.file(key, spec.passwords[key] + "\n")]
        return flags
