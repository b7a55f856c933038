# SPDX-License-Identifier: GPL-3.0-or-later
"""What this package uses of Ansible's untyped objects, as protocols, and the environment that a plugin of Ansible sees."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from forkless.modules.warm.interpreter import Channel

__all__ = [
    "AnsibleAction",
    "AnsibleConnection",
    "BecomePlugin",
    "CommandOutput",
    "PlayContextOptions",
    "ShellPlugin",
    "TaskFields",
    "TellOutput",
    "Upstream",
    "environ_of",
]

# A method of Ansible, bound to its object. Ansible declares no types, and its minors differ in what they return.
Upstream: TypeAlias = Callable[..., Any]
CommandOutput: TypeAlias = tuple[int, bytes, bytes]
# Receives output while a module runs: the stream's name, whole lines, and how many lines were dropped before them.
TellOutput: TypeAlias = Callable[[str, bytes, int], None]


class ShellPlugin(Protocol):
    tmpdir: str | None

    def join_path(self, *parts: str) -> str: ...
    def quote(self, text: str) -> str: ...
    def env_prefix(self, **variables: str) -> str: ...
    def _generate_temp_dir_name(self) -> str: ...


class BecomePlugin(Protocol):
    name: str
    prompt: str
    success: str
    _id: str

    def get_option(self, option: str) -> str | None: ...
    def expect_prompt(self) -> bool: ...
    def check_password_prompt(self, output: bytes) -> bool: ...
    def check_success(self, output: bytes) -> bool: ...


class _Settings(Hashable, Protocol):
    @property
    def name(self) -> str: ...


class AnsibleConnection(Protocol):
    transport: str
    become: BecomePlugin | None
    default_user: str
    cwd: str | bytes | None
    host: str
    _shell: ShellPlugin
    settings: _Settings  # of forkless.core.ssh only
    tell_output: Callable[[bytes, bytes], None] | None  # likewise: is told of what a command prints while it runs

    def _connect(self) -> object: ...
    def get_option(self, option: str) -> Any: ...
    def get_option_and_origin(self, option: str) -> tuple[object, str]: ...
    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> CommandOutput: ...
    def _build_command(
        self, binary: str, subsystem: str, *words: str
    ) -> list[bytes]: ...  # of ansible.builtin.ssh only
    def open_stream(  # of forkless.core.ssh only
        self,
        command: str,
        first: bytes,
        become: BecomePlugin | None,
        feed: Callable[[bytes], None],
        gone: Callable[[], None],
        idle: Callable[[], bool],
    ) -> Channel: ...
    def put_file(self, in_path: str, out_path: str) -> object: ...


class PlayContextOptions(Protocol):
    remote_addr: str
    executable: str | None
    password: str
    timeout: float


class TaskFields(Protocol):
    action: str
    async_val: int
    poll: int
    environment: list[dict[str, str]]
    no_log: bool
    loop: object
    loop_with: str | None
    loop_control: object
    _uuid: str


class _Loader(Protocol):
    def get_basedir(self) -> str: ...


class _Templar(Protocol):
    available_variables: Mapping[str, object]


class AnsibleAction(Protocol):
    """An action plugin: one task on one host, or one item of its loop. One worker's thread uses it."""

    _connection: AnsibleConnection
    _task: TaskFields
    _play_context: PlayContextOptions
    _loader: _Loader
    _templar: _Templar
    _cleanup_remote_tmp: bool

    def get_become_option(self, option: str) -> str | None: ...
    def get_shell_option(self, option: str, default: str) -> str: ...
    def _get_remote_user(self) -> str | None: ...
    def _is_become_unprivileged(self) -> bool: ...
    def _should_remove_tmp_path(self, path: str) -> bool: ...
    def _remote_expand_user(self, path: str, sudoable: bool = True) -> str: ...
    def _make_tmp_path(self) -> object: ...
    def _fixup_perms2(self, paths: Sequence[str]) -> object: ...


def environ_of(module: str) -> MutableMapping[str, str]:
    """The environment that a module of Ansible sees: the run's, if the engine replaced `os` in it."""
    seen: MutableMapping[str, str] = getattr(sys.modules[module], "os", os).environ
    return seen
