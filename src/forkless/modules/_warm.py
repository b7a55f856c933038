# SPDX-License-Identifier: GPL-3.0-or-later
"""
ActionBase, for tasks whose modules run in an interpreter that is kept warm.

Everything up to the command that would start the module, and everything after its output, stays Ansible's. The command itself tells which
hearth it is for: whoever would get the same shell, user, environment and interpreter gets the same one. What cannot be run so
(`_Cold`) is run again from the start in Ansible's own way; that is decided before a module has started, never after.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from forkless import _disable, _platform
from forkless.modules import _lines, _luggage, _payload
from forkless.modules._action import MODE
from forkless.modules._hearth import BOOT, NOBODY, Hearth, LostError, NotStartedError, boot_text
from forkless.modules._keep import KEEP

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["OUR_SSH", "REACH", "SSH", "STAND_INS", "environ_of", "has_password", "place_of", "wanted"]

# How the worker on this thread is reached when it must stop. An engine sets it.
REACH: contextvars.ContextVar[Any] = contextvars.ContextVar("forkless.modules.reach", default=NOBODY)

ACTION = "ansible.plugins.action:ActionBase"
ALL = ("2.18", "2.19", "2.20", "2.21")
LOCAL = "ansible.plugins.connection.local"
SSH = "ansible.plugins.connection.ssh"
OUR_SSH = "ansible_collections.forkless.core.plugins.connection.ssh"

# These are read when an interpreter starts: a task that sets one gets a hearth that was started with it.
_AT_START = ("LANG", "LC_", "PYTHON", "LD_", "TZ", "PATH", "HOME", "MALLOC_", "GLIBC", "SSL_", "OPENSSL")


PATIENCE = 20.0  # seconds for an interpreter to speak: it may be a slow host, but a module would be slow there too


class _Cold(Exception):
    """Never leaves this file: run it in Ansible's own way."""


def wanted(action: Any) -> bool:
    """Whether this action's modules may be run warm."""
    if KEEP.get() is None or MODE.get() not in ("auto", "warm") or not _platform.can_exec():
        return False
    connection, task = action._connection, action._task
    kind = type(connection).__module__
    if (
        kind not in (LOCAL, SSH, OUR_SSH)
        or task.async_val
        or sys.modules["ansible.constants"].DEFAULT_KEEP_REMOTE_FILES
    ):
        return False
    if getattr(connection._shell, "SHELL_FAMILY", "") != "sh" or getattr(connection, "_remote_is_local", False):
        return False
    if kind != OUR_SSH and not REACH.get().own_session:
        return False  # it wants the terminal of the program, and an interpreter that is kept for all has none
    if not _may_stay_away(connection):
        return False
    become = connection.become
    if become is not None and not getattr(become, "pipelining", become.name != "su"):
        return False
    return not _disable.disabled("warm-modules", environ_of(kind)) and not environ_of(kind).get(
        "_ANSIBLE_COVERAGE_CONFIG"
    )


def _may_stay_away(connection: Any) -> bool:
    """
    Whether a module's file need not be on its host.

    Where nobody said anything it need not. Who says that there is to be no pipelining wants to see it there.
    """
    try:
        pipelined, origin = connection.get_option_and_origin("pipelining")
    except KeyError:
        return True
    return bool(pipelined) or origin == "default"


def environ_of(kind: str) -> Any:
    """The environment that the connection itself sees: the run's, if the engine gave it one."""
    return getattr(sys.modules[kind], "os", os).environ


# -- the stand-ins ----------------------------------------------------------------------------------------------


def execute_module(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, *args: Any, **kwargs: Any) -> Any:
        wrap_async = kwargs.get("wrap_async", args[6] if len(args) > 6 else False)
        if wrap_async or getattr(self, "_forkless_warm", False) or not wanted(self):
            return original(self, *args, **kwargs)
        self._forkless_warm = True
        try:
            return original(self, *args, **kwargs)
        except _Cold as why:
            sys.modules["ansible.plugins.action"].display.debug(f"not run warm: {why}")
        finally:
            self._forkless_warm = False
        return original(self, *args, **kwargs)

    return stand_in


def configure_module(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _building.set(self if getattr(self, "_forkless_warm", False) else None)
        try:
            return original(self, *args, **kwargs)
        finally:
            _building.reset(token)

    return stand_in


_building: contextvars.ContextVar[Any] = contextvars.ContextVar("forkless.modules.building", default=None)


def modify_module(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        built = original(*args, **kwargs)
        if _building.get() is None:
            return built
        plain = isinstance(built, tuple)
        data, style, shebang = built if plain else (built.b_module_data, built.module_style, built.shebang)
        wrapped = _payload.take_apart(data) if style == "new" and shebang else None
        if wrapped is None:
            raise _Cold(f"of the style {style}")
        wrapped.environ = {name: str(value) for name, value in (kwargs.get("environment") or {}).items()}
        if plain:
            return wrapped, style, shebang
        return importlib.import_module("dataclasses").replace(built, b_module_data=wrapped)

    return stand_in


def is_pipelining_enabled(original: Any, _site: str) -> Any:
    """Pipelined means: nothing is copied to the host first."""

    @functools.wraps(original)
    def stand_in(self: Any, module_style: str, wrap_async: bool = False) -> Any:
        if getattr(self, "_forkless_warm", False) and not wrap_async:
            return module_style == "new"
        return original(self, module_style, wrap_async)

    return stand_in


def low_level_execute_command(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, cmd: Any, sudoable: bool = True, in_data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(in_data, _payload.Wrapped) or not getattr(self, "_forkless_warm", False):
            keep = KEEP.get()
            if keep is not None and keep.has_guests and type(self._connection).__module__ in _DOORS:
                keep.see_off_guests(machine_of(self._connection, self._play_context))
            return original(self, cmd, sudoable, in_data, *args, **kwargs)
        connection = self._connection
        inner, environ = _without_environ(self, cmd, in_data.environ)
        become, text = connection.become, _texts()[connection.become is not None]
        if become is not None:
            become._id = ""  # set by building the command; tells whether become was used at all
        wrapped = in_data

        def run(command: str, **_: Any) -> Any:
            used = become if become is not None and become._id else None
            luggage = _luggage.of(connection)
            if used is not None and luggage is not None and luggage.order() is not None:
                ahead = functools.partial(_send_ahead, self, luggage, _texts()[False])
                with _luggage.instead(connection, ahead):  # what is laid down is of who is logged in
                    original(self, _boot(self, inner, _texts()[False]), False, None, *args, **kwargs)
            return _run(self, command, wrapped, environ, used, text)

        with _luggage.instead(connection, run):
            return original(self, _boot(self, inner, text), sudoable, None, *args, **kwargs)

    return stand_in


def _boot(action: Any, interpreter: str, text: bytes) -> str:
    return f"{interpreter} -c {action._connection._shell.quote(BOOT.format(length=len(text)))}"


@functools.cache
def _texts() -> dict[bool, bytes]:
    return {asks: boot_text(ask_groups=asks) for asks in (False, True)}


def _without_environ(action: Any, command: str, environ: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The task's environment is given to the fork, unless the interpreter itself would look at it."""
    if not environ or any(name.startswith(_AT_START) for name in environ):
        return command, {}
    prefix = action._connection._shell.env_prefix(**environ).strip()
    if not command.startswith(f"{prefix} "):
        return command, {}
    return command[len(prefix) :].lstrip(), environ


def _run(
    action: Any, command: str, wrapped: _payload.Wrapped, environ: dict[str, str], become: Any, text: bytes
) -> tuple[int, bytes, bytes]:
    keep, reach, connection = KEEP.get(), REACH.get(), action._connection
    assert keep is not None  # noqa: S101  # `wanted` looked
    connection._connect()
    display = sys.modules["ansible.plugins.action"].display
    shown = command.replace(action._connection._shell.quote(BOOT.format(length=len(text))), wrapped.order["fqn"])
    display.vvv(f"EXEC (warm) {shown}", host=action._play_context.remote_addr)
    door = _DOORS[type(connection).__module__](action, command, become)
    luggage = _luggage.of(connection)
    lay = luggage.order() if luggage is not None else None
    machine = machine_of(connection, action._play_context)
    guest = become is not None and (action.get_become_option("become_user") or "root") != "root"
    for attempt in (1, 2):
        try:
            hearth = keep.get(door.place, door.key, lambda: door.open(text, reach), machine=machine, guest=guest)
        except NotStartedError as err:
            raise _Cold(str(err)) from err
        try:
            with _laid_down(luggage if lay else None, hearth):
                return _as_a_shell_says(*hearth.run(wrapped, cwd=door.cwd, environ=environ, reach=reach, lay=lay))
        except NotStartedError as err:
            keep.forget(hearth)
            if attempt == 2:
                raise _Cold(str(err)) from err
        except LostError as err:
            keep.forget(hearth)
            raise _connection_failure(
                f"the interpreter that ran {wrapped.order['fqn']} on {door.name} went away while it ran; whether the module did its work is not known"
            ) from err
    raise AssertionError  # not reached


def _send_ahead(
    action: Any, luggage: _luggage.Luggage, text: bytes, command: str, **_: Any
) -> tuple[int, bytes, bytes]:
    """What is to be laid down is, by whoever is logged in, for a module that another user runs."""
    keep, reach, connection = KEEP.get(), REACH.get(), action._connection
    assert keep is not None  # noqa: S101  # `wanted` looked
    connection._connect()
    door = _DOORS[type(connection).__module__](action, command, None)
    try:
        machine = machine_of(connection, action._play_context)
        hearth = keep.get(door.place, door.key, lambda: door.open(text, reach), machine=machine)
        with _laid_down(luggage, hearth):
            hearth.carry({"lay": luggage.order()}, reach=reach)
    except NotStartedError as err:
        raise _Cold(str(err)) from err
    except LostError as err:
        raise _connection_failure(f"the interpreter on {door.name} went away before the module was started") from err
    return 0, b"", b""


@contextlib.contextmanager
def _laid_down(luggage: _luggage.Luggage | None, hearth: Hearth) -> Iterator[None]:
    """Once the order is out, its files may be there, however it ends; unless it was refused."""
    refused = False
    try:
        yield
    except NotStartedError:
        refused = True
        raise
    finally:
        if luggage is not None and not refused:
            luggage.arrived(hearth)


def _connection_failure(sentence: str) -> Exception:
    made: Exception = sys.modules["ansible.errors"].AnsibleConnectionFailure(sentence)
    return made


def _as_a_shell_says(rc: int, out: bytes, err: bytes) -> tuple[int, bytes, bytes]:
    """A module that a signal ended: there would have been a shell above it, and these are its words."""
    if rc >= 0:
        return rc, out, err
    quiet = -rc in (signal.SIGINT, signal.SIGPIPE)
    return 128 - rc, out, err + (b"" if quiet else f"{signal.strsignal(-rc)}\n".encode())


def place_of(connection: Any, play_context: Any) -> Hashable:
    """What a host is to those who keep something for it: whatever leads to the same login there."""
    kind = type(connection).__module__
    if kind == LOCAL:
        return LOCAL
    if kind == OUR_SSH:
        return OUR_SSH, connection.settings
    if has_password(connection, play_context):
        return None  # to build the line opens a pipe for it; and nothing is kept there
    connection.host = connection.get_option("host") or play_context.remote_addr
    line = connection._build_command(connection.get_option("ssh_executable"), "ssh", connection.host, "")
    return SSH, tuple(line[:-1])


def machine_of(connection: Any, play_context: Any) -> Any:
    """Where users are added and removed, whoever is logged in."""
    if type(connection).__module__ == LOCAL:
        return LOCAL
    return connection.get_option("host") or play_context.remote_addr


def has_password(connection: Any, play_context: Any) -> bool:
    return bool(connection.get_option("password") or play_context.password)


class _LocalDoor:
    """To a hearth on this machine, through the shell that the local connection would use."""

    def __init__(self, action: Any, command: str, become: Any) -> None:
        connection = action._connection
        constants = sys.modules["ansible.constants"]
        self.name = "this machine"
        self.place = place_of(connection, action._play_context)
        self.command, self.become = command, become
        self.cwd = os.fsdecode(connection.cwd) if connection.cwd else None
        self.environ = dict(environ_of(LOCAL))
        self.shell = constants.DEFAULT_EXECUTABLE.split()[0] if constants.DEFAULT_EXECUTABLE else None
        self.password = become.get_option("become_pass") if become is not None and become.expect_prompt() else None
        # Ansible's own patience: what takes longer is run in its own way, which has the words for it.
        limit = getattr(connection, "_become_success_timeout", None)
        if limit is None:  # up to 2.18, where it is for an answer to a password
            limit = PATIENCE if self.password is None else action._play_context.timeout
        self.verdict = float(limit)
        same = command.replace(become._id, "") if become is not None else command
        self.key = (same, self.password, self.shell, self.cwd, tuple(sorted(self.environ.items())))

    def open(self, text: bytes, reach: Any) -> Hearth:
        if self.shell is None or not os.path.exists(self.shell):
            raise NotStartedError("there is no such shell")
        hearth = Hearth("local")
        with reach.shielded():
            line = _lines.ProgramLine(hearth, self.command, cwd=self.cwd, environ=self.environ, shell=self.shell)
        password = None if self.password is None else str(self.password).encode()
        with reach.closing(line.end_now):
            line.begin(text, become=self.become, password=password, verdict=self.verdict, greeting=PATIENCE)
        hearth.warm(line)
        return hearth


class _OurSshDoor:
    """To a hearth at the other end of a connection of forkless.core.ssh, on a channel of its own."""

    cwd = None

    def __init__(self, action: Any, command: str, become: Any) -> None:
        connection = action._connection
        settings = connection.settings
        self.name = settings.name
        self.place = place_of(connection, action._play_context)
        self.command, self.become, self._connection = command, become, connection
        password = become.get_option("become_pass") if become is not None and become.prompt else None
        self.key = (command.replace(become._id, "") if become is not None else command, password)

    def open(self, text: bytes, reach: Any) -> Hearth:
        hearth = Hearth(self.name, login=self.become is None)
        try:
            wire = self._connection.open_wire(
                self.command, text, self.become, hearth.feed, hearth.gone, lambda: not hearth.busy
            )
        except sys.modules["ansible.errors"].AnsibleConnectionFailure:
            raise  # unreachable, and in the same words as without us
        except sys.modules["ansible.errors"].AnsibleError as err:
            raise NotStartedError(str(err)) from err
        hearth.warm(wire)
        with reach.closing(hearth.close):
            hearth.ready.wait(PATIENCE)
        if hearth.lost or not hearth.ready.is_set():
            hearth.close()
            raise NotStartedError("it ended before it spoke" if hearth.lost else "it said nothing in time")
        return hearth


class _SshDoor:
    """To a hearth at the other end of the ssh program, with the command line that the builtin plugin builds."""

    cwd = None

    def __init__(self, action: Any, command: str, become: Any) -> None:
        connection = action._connection
        self.name = connection.host = connection.get_option("host") or action._play_context.remote_addr
        if has_password(connection, action._play_context):
            raise _Cold("a password for ssh is given to a program that asks for it each time")
        self.line = connection._build_command(connection.get_option("ssh_executable"), "ssh", self.name, command)
        self.become = become
        self.password = become.get_option("become_pass") if become is not None and become.expect_prompt() else None
        self.verdict = 2.0 + connection.get_option("timeout")  # as the plugin itself
        self.environ = dict(environ_of(SSH))
        self.place = (SSH, tuple(self.line[:-1]))  # as `place_of` says
        self.key = (command.replace(become._id, "") if become is not None else command, self.password)

    def open(self, text: bytes, reach: Any) -> Hearth:
        hearth = Hearth(str(self.name), login=self.become is None)
        with reach.shielded():
            line = _lines.ProgramLine(hearth, self.line, environ=self.environ)
        password = None if self.password is None else str(self.password).encode()
        with reach.closing(line.end_now):
            line.begin(text, become=self.become, password=password, verdict=self.verdict, greeting=PATIENCE)
        hearth.warm(line)
        return hearth


def reset_ssh(original: Any, _site: str) -> Any:
    """meta: reset_connection: a session that stays open would keep the old login alive."""

    @functools.wraps(original)
    def stand_in(self: Any) -> Any:
        keep = KEEP.get()
        if keep is not None:
            keep.leave(place_of(self, self._play_context))
        return original(self)

    return stand_in


_DOORS: dict[str, Any] = {LOCAL: _LocalDoor, OUR_SSH: _OurSshDoor, SSH: _SshDoor}


STAND_INS: tuple[tuple[str, str, Any, tuple[str, ...], bool], ...] = (
    (f"{ACTION}._execute_module", "may be run warm, or else again in Ansible's own way", execute_module, ALL, False),
    (f"{ACTION}._configure_module", "tells whose module is being built", configure_module, ALL, False),
    ("ansible.plugins.action:modify_module", "what was wrapped is taken apart", modify_module, ALL, False),
    (f"{ACTION}._low_level_execute_command", "a hearth runs the module", low_level_execute_command, ALL, False),
    (f"{ACTION}._is_pipelining_enabled", "nothing is copied", is_pipelining_enabled, ALL, False),
    (f"{SSH}:Connection.reset", "a hearth is of the connection that is reset", reset_ssh, ALL, False),
)
