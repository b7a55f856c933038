# SPDX-License-Identifier: GPL-3.0-or-later
"""
How a warm interpreter is started over each kind of connection: local, the ssh program, and forkless.core.ssh.

The command that would start the module starts the interpreter, so tasks that would get the same shell, user, environment
and Python share one (`key`). `place` is the login.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from forkless.modules.ansible_types import AnsibleAction, AnsibleConnection, environ_of
from forkless.modules.warm import channel
from forkless.modules.warm.interpreter import NotStartedError, WarmInterpreter
from forkless.modules.warm.pool import current_pool
from forkless.patching.seam import Seam

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from forkless.core.run_context import Interruptible
    from forkless.modules.ansible_types import BecomePlugin, PlayContextOptions, Upstream
    from forkless.modules.warm.payload import Piece

__all__ = [
    "LOCAL",
    "OUR_SSH",
    "SSH",
    "STAND_INS",
    "AnsibleConnection",
    "Transport",
    "has_password",
    "has_terminal",
    "is_known",
    "machine_of",
    "place_of",
    "terminal_variables",
    "transport_for",
]

LOCAL = "ansible.plugins.connection.local"
SSH = "ansible.plugins.connection.ssh"
OUR_SSH = "ansible_collections.forkless.core.plugins.connection.ssh"
PATIENCE = 20.0  # seconds until a started interpreter must have greeted


class Transport:
    """Starts a warm interpreter with one command over one connection."""

    name: str
    place: Hashable
    key: Hashable
    cwd: str | None = None
    shared = False
    """Whether the ssh program shares one connection (ControlPath), which it says when a terminal is closed."""

    def __init__(self, action: AnsibleAction, command: str, become: BecomePlugin | None) -> None:
        raise NotImplementedError

    def open(self, program: Piece, interrupt: Interruptible) -> WarmInterpreter:
        """Start an interpreter for this program and return it when it has greeted; raises NotStartedError."""
        raise NotImplementedError


def is_known(connection: AnsibleConnection) -> bool:
    """Whether a warm interpreter can be started over this connection."""
    return type(connection).__module__ in _TRANSPORTS


def transport_for(action: AnsibleAction, command: str, become: BecomePlugin | None) -> Transport:
    """Raises NotStartedError if no interpreter can be kept for this login."""
    return _TRANSPORTS[type(action._connection).__module__](action, command, become)


def has_terminal(connection: AnsibleConnection) -> bool:
    """Whether stock Ansible would run the module on a terminal (ssh -tt), which merges stdout and stderr."""
    return bool(
        type(connection).__module__ == SSH
        and not connection.get_option("pipelining")
        and connection.get_option("use_tty")
    )


def terminal_variables() -> dict[str, str]:
    """What sshd sets for a program that `ssh -tt` starts: the run's TERM, which also decides whether Python colours a traceback there."""
    term = environ_of(SSH).get("TERM")
    return {"TERM": term} if term else {}


def place_of(connection: AnsibleConnection, play_context: PlayContextOptions) -> Hashable:
    """The key of a login: connections with the same key reach the same user on the same host over the same path."""
    kind = type(connection).__module__
    if kind == LOCAL:
        return LOCAL
    if kind == OUR_SSH:
        return OUR_SSH, connection.settings
    if has_password(connection, play_context):
        return None  # _build_command would open a pipe for the password, and no interpreter is kept for such a login
    connection.host = connection.get_option("host") or play_context.remote_addr
    line = connection._build_command(connection.get_option("ssh_executable"), "ssh", connection.host, "")
    return SSH, tuple(line[:-1])


def machine_of(connection: AnsibleConnection, play_context: PlayContextOptions) -> Hashable:
    """The key of a host, whichever user logs in: `useradd` and `userdel` act on the host."""
    if type(connection).__module__ == LOCAL:
        return LOCAL
    return connection.get_option("host") or play_context.remote_addr


def has_password(connection: AnsibleConnection, play_context: PlayContextOptions) -> bool:
    return bool(connection.get_option("password") or play_context.password)


class _ProgramTransport(Transport):
    """Starts a warm interpreter through a program of this machine."""

    become: BecomePlugin | None
    password: object
    verdict: float

    def _begin(
        self,
        interpreter: WarmInterpreter,
        start: Callable[[], channel.ProgramChannel],
        interrupt: Interruptible,
    ) -> None:
        """Raises NotStartedError. After that, or when the worker is stopped meanwhile, the program has been ended and reaped."""
        line = None
        password = None if self.password is None else str(self.password).encode()
        try:
            with interrupt.shielded():
                line = start()
            with interrupt.closing(line.end_now):
                line.begin(become=self.become, password=password, verdict=self.verdict, greeting=PATIENCE)
            interpreter.attach(line)
            interpreter.check_version()
        except BaseException:
            if line is not None:
                line.close(at_once=True)
            raise


class _LocalTransport(_ProgramTransport):
    """Starts a warm interpreter on this machine, through the shell that the local connection would use."""

    def __init__(self, action: AnsibleAction, command: str, become: BecomePlugin | None) -> None:
        connection = action._connection
        constants = sys.modules["ansible.constants"]
        self.name = "this machine"
        self.place = place_of(connection, action._play_context)
        self.command, self.become = command, become
        self.cwd = os.fsdecode(connection.cwd) if connection.cwd else None
        self.environ = dict(environ_of(LOCAL))
        self.shell = constants.DEFAULT_EXECUTABLE.split()[0] if constants.DEFAULT_EXECUTABLE else None
        self.password = become.get_option("become_pass") if become is not None and become.expect_prompt() else None
        # Ansible's own time limit for become. After it the module runs cold, and Ansible reports the timeout itself.
        limit = getattr(connection, "_become_success_timeout", None)
        if limit is None:  # up to 2.18 the only limit is for the answer to a password
            limit = PATIENCE if self.password is None else action._play_context.timeout
        self.verdict = float(limit)
        same = command.replace(become._id, "") if become is not None else command
        self.key = (same, self.password, self.shell, self.cwd, tuple(sorted(self.environ.items())))

    def open(self, program: Piece, interrupt: Interruptible) -> WarmInterpreter:
        if self.shell is None or not os.path.exists(self.shell):
            raise NotStartedError("there is no such shell")
        interpreter = WarmInterpreter("local", program=program)
        start = functools.partial(
            channel.ProgramChannel, interpreter, self.command, cwd=self.cwd, environ=self.environ, shell=self.shell
        )
        self._begin(interpreter, start, interrupt)
        return interpreter


class _AsyncsshTransport(Transport):
    """Starts a warm interpreter over a connection of the plugin forkless.core.ssh, on an SSH channel of its own."""

    def __init__(self, action: AnsibleAction, command: str, become: BecomePlugin | None) -> None:
        connection = action._connection
        settings = connection.settings
        self.name = settings.name
        self.place = place_of(connection, action._play_context)
        self.command, self.become, self._connection = command, become, connection
        password = become.get_option("become_pass") if become is not None and become.prompt else None
        self.key = (command.replace(become._id, "") if become is not None else command, password)

    def open(self, program: Piece, interrupt: Interruptible) -> WarmInterpreter:
        interpreter = WarmInterpreter(self.name, program=program, login=self.become is None)
        try:
            stream = self._connection.open_stream(
                self.command, b"", self.become, interpreter.feed, interpreter.gone, lambda: not interpreter.busy
            )
        except sys.modules["ansible.errors"].AnsibleConnectionFailure:
            raise  # the host is unreachable; the message is the connection plugin's
        except sys.modules["ansible.errors"].AnsibleError as err:
            raise NotStartedError(str(err)) from err
        try:
            interpreter.attach(stream)
            with interrupt.closing(interpreter.close):
                interpreter.ready.wait(PATIENCE)
        except BaseException:  # the worker was stopped
            stream.close()
            raise
        if interpreter.lost or not interpreter.ready.is_set():
            interpreter.close()
            raise NotStartedError(
                "the warm interpreter ended before it greeted"
                if interpreter.lost
                else "the warm interpreter did not greet in time"
            )
        try:
            interpreter.check_version()
        except NotStartedError:
            interpreter.close()
            raise
        return interpreter


class _SshProgramTransport(_ProgramTransport):
    """Starts a warm interpreter through the ssh program, with the command line that ansible.builtin.ssh builds."""

    def __init__(self, action: AnsibleAction, command: str, become: BecomePlugin | None) -> None:
        connection = action._connection
        self.name = connection.host = connection.get_option("host") or action._play_context.remote_addr
        if has_password(connection, action._play_context):
            raise NotStartedError("a password for ssh is given to a program that asks for it each time")
        self.line = connection._build_command(connection.get_option("ssh_executable"), "ssh", self.name, command)
        self.become = become
        self.password = become.get_option("become_pass") if become is not None and become.expect_prompt() else None
        self.verdict = 2.0 + connection.get_option("timeout")  # as ansible.builtin.ssh computes it
        self.environ = dict(environ_of(SSH))
        self.shared = any(b"ControlPath" in word for word in self.line)
        self.place = (SSH, tuple(self.line[:-1]))  # the same value as `place_of`
        self.key = (command.replace(become._id, "") if become is not None else command, self.password)

    def open(self, program: Piece, interrupt: Interruptible) -> WarmInterpreter:
        interpreter = WarmInterpreter(str(self.name), program=program, login=self.become is None)
        start = functools.partial(channel.ProgramChannel, interpreter, self.line, environ=self.environ)
        self._begin(interpreter, start, interrupt)
        return interpreter


def reset_ssh(original: Upstream, _site: str) -> Upstream:
    """`meta: reset_connection` closes the login's warm interpreters: their open sessions would keep the old login alive."""

    @functools.wraps(original)
    def stand_in(self: Any) -> object:
        pool = current_pool()
        if pool is not None:
            pool.close_place(place_of(self, self._play_context))
        return original(self)

    return stand_in


_TRANSPORTS: dict[str, type[Transport]] = {
    LOCAL: _LocalTransport,
    OUR_SSH: _AsyncsshTransport,
    SSH: _SshProgramTransport,
}

STAND_INS = (Seam(f"{SSH}:Connection.reset", "a warm interpreter is of the connection that is reset", reset_ssh),)
