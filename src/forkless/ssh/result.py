# SPDX-License-Identifier: GPL-3.0-or-later
"""The become protocol and the result of a command; importing this imports neither asyncio nor asyncssh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

__all__ = ["Become", "CommandResult", "TellData"]

# Is told of what a command prints while it runs: b"o" for stdout or b"e" for stderr, and the bytes.
TellData: TypeAlias = Callable[[bytes, bytes], None]


class Become(Protocol):
    """The part of a become plugin that a channel uses. Ansible's become plugins satisfy it."""

    name: str
    success: str

    def check_success(self, b_output: bytes) -> bool: ...
    def check_password_prompt(self, b_output: bytes) -> bool: ...
    def check_incorrect_password(self, b_output: bytes) -> bool: ...
    def check_missing_password(self, b_output: bytes) -> bool: ...


@dataclass(frozen=True)
class CommandResult:
    rc: int
    stdout: bytes
    stderr: bytes
