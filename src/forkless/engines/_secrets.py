# SPDX-License-Identifier: GPL-3.0-or-later
"""How extra vars and passwords get to a child, and to nobody else."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkless._spec import RunSpec

__all__ = ["Secrets"]


class Secrets:
    """
    What the child must read and nobody else may see: not in its arguments, which everyone can list.

    The vault's password is a file in memory that has no name and that only the child inherits. The others need a
    name, since Ansible looks for the real path of such a file: they are in the run's own folder, only we can read
    them, and they go as soon as the play begins.
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
        fd = os.memfd_create("forkless", os.MFD_CLOEXEC)
        self.descriptors.append(fd)
        os.fchmod(fd, 0o400)  # Ansible would run a password file that can be executed
        os.write(fd, text.encode() + b"\n")
        return f"/dev/fd/{fd}"

    def forget(self) -> None:
        """Called when the play begins: by then Ansible has read them all."""
        while self._paths:
            with contextlib.suppress(OSError):
                os.unlink(self._paths.pop())

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())

    def flags(self, spec: RunSpec) -> list[str]:
        """Hold what `spec` has of them, and say it in arguments that everyone may read."""
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
