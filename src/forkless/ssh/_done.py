# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes into a command and what comes out of it; for those who need not know how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Become", "Done"]


class Become(Protocol):
    """What a channel must know of a become plugin. Ansible's own plugins fit."""

    name: str
    success: str

    def check_success(self, b_output: bytes) -> bool: ...
    def check_password_prompt(self, b_output: bytes) -> bool: ...
    def check_incorrect_password(self, b_output: bytes) -> bool: ...
    def check_missing_password(self, b_output: bytes) -> bool: ...


@dataclass(frozen=True)
class Done:
    rc: int
    stdout: bytes
    stderr: bytes
