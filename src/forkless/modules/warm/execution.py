# SPDX-License-Identifier: GPL-3.0-or-later
"""
The way of tasks whose modules run in a warm interpreter.

Everything before the command that would start the module, and everything after its output, is Ansible's code. The
command selects the warm interpreter: tasks that would get the same shell, user, environment and Python share one. A
module that cannot run warm (`_RunColdError`) is run again from the beginning as stock Ansible does; this is decided
before the module has started, never after.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import re
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any, ClassVar

from forkless.modules.ansible_types import environ_of
from forkless.modules.cold import ColdExecution
from forkless.modules.live_output import live_output_of
from forkless.modules.warm import payload, transports
from forkless.modules.warm import remote_temp_dir as remote_temp_dirs
from forkless.modules.warm.archives import ArchiveReference, archive_by_reference
from forkless.modules.warm.async_task import AsyncTask, UnknownWrapperError, end_followed_job, follow_job
from forkless.modules.warm.interpreter import InterpreterLostError, NotStartedError, WarmInterpreter, not_removed
from forkless.modules.warm.late_temp_dir import promise_temp_dir
from forkless.modules.warm.program import BOOT, server_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forkless.core.run_context import Interruptible
    from forkless.modules.ansible_types import (
        AnsibleAction,
        AnsibleConnection,
        BecomePlugin,
        CommandOutput,
        Upstream,
    )
    from forkless.modules.warm.pool import InterpreterPool

__all__ = ["WarmExecution"]

# An interpreter reads these variables only when it starts, so a task that sets one gets an interpreter that was started
# with it.
_AT_START = ("LANG", "LC_", "PYTHON", "LD_", "TZ", "PATH", "HOME", "MALLOC_", "GLIBC", "SSL_", "OPENSSL")
# What remote/main.py answers if a job there could not be told from the interpreter, and if stock Ansible could not create
# its folder for a task. Another interpreter there would answer the same.
_TRUE_OF_HOST = ("the command line of a job cannot be shown here", "remote_tmp cannot be used")


class _RunColdError(Exception):
    """The module must run as stock Ansible runs it. Raised and caught in this file only."""


class WarmExecution(ColdExecution):
    """Modules run in a warm interpreter; the files around them are handled as stock Ansible does."""

    name: ClassVar[str] = "warm"
    pool: InterpreterPool

    def __init__(self, action: AnsibleAction, pool: InterpreterPool, interrupt: Interruptible) -> None:
        super().__init__(action, pool)
        self.interrupt = interrupt
        self._trying = False  # `_execute_module` is running and its module is to run warm
        self._module: payload.Wrapped | None = None
        self._async: AsyncTask | None = None  # the module is to be started by async_wrapper

    def execute_module(self, upstream: Upstream, *args: object, **kwargs: object) -> object:
        wrap_async = kwargs.get("wrap_async", args[6] if len(args) > 6 else False)
        if self._trying:
            return upstream(*args, **kwargs)
        self._trying, self._async = True, AsyncTask() if wrap_async else None
        try:
            result = upstream(*args, **kwargs)
        except _RunColdError as why:
            _display().debug(f"not run warm: {why}")
        else:
            end_followed_job(self.connection, result, self.interrupt)
            if not wrap_async and not _pipelined(self.connection):
                promise_temp_dir(self.connection._shell, self.action._make_tmp_path)
            return result
        finally:
            self._trying, self._module, self._async = False, None, None
        return upstream(*args, **kwargs)

    def configure_module(self, upstream: Upstream, *args: object, **kwargs: object) -> object:
        try:
            return upstream(*args, **kwargs)
        except sys.modules["ansible.errors"].AnsibleConnectionFailure as error:
            # Stock makes a folder on the host before it looks for an interpreter there. A host that cannot be reached
            # is found then, and its error has no other one, "interpreter discovery needed", as its context.
            if self._trying and not _pipelined(self.connection):
                error.__context__ = None
            raise

    def build(self, upstream: Upstream, *args: object, **kwargs: Any) -> object:
        """Build the module as Ansible does, and take it apart for the interpreter."""
        if not self._trying:
            return upstream(*args, **kwargs)
        # A task with `async` has its module sent as a file if it cannot run warm, so its archive must be in it.
        with archive_by_reference() if self._async is None else contextlib.nullcontext(ArchiveReference()) as reference:
            built = upstream(*args, **kwargs)
        in_tuple = isinstance(built, tuple)  # up to 2.18
        data, style, shebang = built if in_tuple else (built.b_module_data, built.module_style, built.shebang)
        wrapped = payload.take_apart(data, reference.manifest) if style == "new" and shebang else None
        environ = {name: str(value) for name, value in (kwargs.get("environment") or {}).items()}
        if self._async is not None:
            with _cold_if_unknown():
                self._async.add(wrapped, shebang or "", environ)
            return built
        if wrapped is None:
            raise _RunColdError(f"of the style {style}")
        self._module = dataclasses.replace(wrapped, environ=environ)
        return built

    def is_pipelining_enabled(self, upstream: Upstream, module_style: str, wrap_async: bool = False) -> object:
        """With pipelining, Ansible copies no module file to the host first."""
        if self._trying and self._async is None and not wrap_async:
            return module_style == "new"
        return upstream(module_style, wrap_async)

    def transfer_file(self, upstream: Upstream, local_path: str, remote_path: str) -> object:
        """For an async task whose module runs warm, a stub is sent in place of the module and of async_wrapper."""
        if self._async is not None:
            with open(local_path, "rb") as sent, _cold_if_unknown():
                stub = self._async.stub(sent.read(), remote_path)
            if stub is not None:
                with tempfile.NamedTemporaryFile(dir=sys.modules["ansible.constants"].DEFAULT_LOCAL_TMP) as file:
                    file.write(stub)
                    file.flush()
                    return self.send_file(upstream, file.name, remote_path)
        return self.send_file(upstream, local_path, remote_path)

    def send_file(self, upstream: Upstream, local_path: str, remote_path: str) -> object:
        return upstream(local_path, remote_path)

    def low_level_execute_command(
        self,
        upstream: Upstream,
        cmd: str,
        sudoable: bool = True,
        in_data: bytes | None = None,
        *args: object,
        **kwargs: object,
    ) -> object:
        module = self._module
        if self._async is not None:
            with _cold_if_unknown():
                found = self._async.order(cmd)
            if found is None:
                return super().low_level_execute_command(upstream, cmd, sudoable, in_data, *args, **kwargs)
            module, cmd = found
        elif module is None or in_data is not module.data:
            return super().low_level_execute_command(upstream, cmd, sudoable, in_data, *args, **kwargs)
        self._module = self._async = None
        connection = self.connection
        inner, environ = self._without_environ(cmd, module.environ)
        become, program = connection.become, server_program(ask_groups=connection.become is not None)
        if become is not None:
            become._id = ""  # build_become_command sets it, so an empty id means that become was not used

        def run(command: str, **_: object) -> CommandOutput:
            used = become if become is not None and become._id else None
            remote_temp_dir = remote_temp_dirs.of_connection(connection)
            if used is not None and remote_temp_dir is not None and remote_temp_dir.order() is not None:
                ahead = functools.partial(self._send_ahead, remote_temp_dir)
                with remote_temp_dirs.instead(connection, ahead):  # the login user must own the files
                    upstream(self._boot(inner), False, None, *args, **kwargs)
            return self._run(command, module, environ, used, program)

        with remote_temp_dirs.instead(connection, run):
            return upstream(self._boot(inner), sudoable, None, *args, **kwargs)

    def _boot(self, interpreter: str) -> str:
        return f"{interpreter} -c {self.connection._shell.quote(BOOT)}"

    def _without_environ(self, command: str, environ: dict[str, str]) -> tuple[str, dict[str, str]]:
        """
        Split the task's environment from the command: the forked module process sets it, so tasks with other variables
        share the interpreter.

        Only variables that an interpreter reads when it starts remain in the command: with ANSIBLE_ASYNC_DIR in its own
        environment the interpreter would be taken for a process of the job.
        """
        prefix = self.connection._shell.env_prefix(**environ).strip()
        if not environ or not command.startswith(f"{prefix} "):
            return command, {}
        at_start = {name: value for name, value in environ.items() if name.startswith(_AT_START)}
        kept = self.connection._shell.env_prefix(**at_start).strip()
        rest = {name: value for name, value in environ.items() if name not in at_start}
        return f"{kept} {command[len(prefix) :].lstrip()}".lstrip(), rest

    def _run(
        self,
        command: str,
        module: payload.Wrapped,
        environ: dict[str, str],
        become: BecomePlugin | None,
        program: payload.Piece,
    ) -> CommandOutput:
        action, connection, pool = self.action, self.connection, self.pool
        connection._connect()
        name = module.fqn if module.job is None else f"{module.fqn} {module.job.fqn}"
        shown = command.replace(connection._shell.quote(BOOT), name)
        _display().vvv(f"EXEC (warm) {shown}", host=action._play_context.remote_addr)
        transport = self._transport(command, become)
        remote_temp_dir = remote_temp_dirs.of_connection(connection)
        lay = remote_temp_dir.order() if remote_temp_dir is not None else None
        machine = transports.machine_of(connection, action._play_context)
        become_user = become is not None and (action.get_become_option("become_user") or "root") != "root"
        one_stream = transports.has_terminal(connection)
        if one_stream:  # ssh -tt tells the host which terminal it has
            environ = {**transports.terminal_variables(), **environ}
        # Nobody is there to hear a job that is not waited for.
        heard = not module.argv or (module.job is not None and action._task.poll > 0)
        live = live_output_of(action) if heard else None
        tell = None if live is None else live.tell
        order: dict[str, object] = {
            "cwd": transport.cwd,
            "environ": environ,
            "lay": lay,
            "remote_tmp": self._remote_tmp(become),
            "one_stream": one_stream,
        }
        for attempt in (1, 2):
            try:
                interpreter = pool.get(
                    transport.place,
                    transport.key,
                    lambda: transport.open(program, self.interrupt),
                    machine=machine,
                    become_user=become_user,
                )
            except NotStartedError as err:
                raise _RunColdError(str(err)) from err
            for path, why in interpreter.take_not_removed():
                _display().warning(not_removed(path, why))
            try:
                with _uploading(remote_temp_dir if lay else None, interpreter):
                    done = _as_a_shell_says(*interpreter.run(module, order, interrupt=self.interrupt, tell=tell))
                    if module.job is not None and tell is not None:
                        follow_job(connection, module.argv[1], interpreter, tell)
                    return _as_a_terminal_shows(*done, transport) if one_stream else done
            except NotStartedError as err:
                if str(err) in _TRUE_OF_HOST:
                    raise _RunColdError(str(err)) from err
                pool.forget(interpreter)
                if attempt == 2:
                    raise _RunColdError(str(err)) from err
            except InterpreterLostError as err:
                pool.forget(interpreter)
                raise _connection_failure(
                    f"the interpreter that ran {name} on {transport.name} went away while it ran; "
                    "whether the module did its work is not known"
                ) from err
        raise AssertionError  # not reached

    def _transport(self, command: str, become: BecomePlugin | None) -> transports.Transport:
        try:
            return transports.transport_for(self.action, command, become)
        except NotStartedError as err:
            raise _RunColdError(str(err)) from err

    def _remote_tmp(self, become: BecomePlugin | None) -> tuple[str, str] | None:
        """
        The `remote_tmp` folder that stock Ansible would create on the host without pipelining, as later tasks may rely
        on it, and whose it is. Where it cannot be used, the task is left to stock's code, for which the host is unreachable.

        It is the login user's, and is made by that user also before a task of root's: root must not follow symbolic
        links in that user's home. The name is "" if the module runs as the login user, and "?" if it is not known here.
        None with pipelining, for a become user other than root, for whom stock takes a folder of the system, and for a
        path with unusual characters.
        """
        action = self.action
        if _pipelined(self.connection) or (become is not None and action._is_become_unprivileged()):
            return None
        login = action._get_remote_user() or ""
        first, _, rest = str(action.get_shell_option("remote_tmp", default="~/.ansible/tmp")).partition("/")
        if become is not None and not login:
            login = "?"
            if type(self.connection).__module__ == transports.LOCAL:
                login = _controller_user()
                first = environ_of(transports.LOCAL).get("HOME", first) if first == "~" else first
        if first == "~" and login != "?":
            first += login
        path = f"{first}/{rest}"
        if not re.fullmatch(r"(~[\w.-]*)?/[\w./+@%:,=-]*", path, re.ASCII) or ".." in path:
            return None
        return path, login if become is not None else ""

    def _send_ahead(self, remote_temp_dir: remote_temp_dirs.RemoteTempDir, command: str, **_: object) -> CommandOutput:
        """Upload the pending files through the login user's interpreter, for a module that a become user runs next."""
        self.connection._connect()
        transport = self._transport(command, None)
        try:
            machine = transports.machine_of(self.connection, self.action._play_context)
            program = server_program(ask_groups=False)
            interpreter = self.pool.get(
                transport.place, transport.key, lambda: transport.open(program, self.interrupt), machine=machine
            )
            with _uploading(remote_temp_dir, interpreter):
                interpreter.request({"lay": remote_temp_dir.order()}, interrupt=self.interrupt)
        except NotStartedError as err:
            raise _RunColdError(str(err)) from err
        except InterpreterLostError as err:
            raise _connection_failure(
                f"the interpreter on {transport.name} went away before the module was started"
            ) from err
        return 0, b"", b""


@contextlib.contextmanager
def _cold_if_unknown() -> Iterator[None]:
    try:
        yield
    except UnknownWrapperError as err:
        raise _RunColdError(str(err)) from err


def _pipelined(connection: AnsibleConnection) -> bool:
    with contextlib.suppress(KeyError):
        return bool(connection.get_option("pipelining"))
    return False


def _controller_user() -> str:
    with contextlib.suppress(ImportError, KeyError):
        return str(importlib.import_module("pwd").getpwuid(os.geteuid()).pw_name)
    return "?"


def _display() -> Any:
    return sys.modules["ansible.plugins.action"].display


@contextlib.contextmanager
def _uploading(remote_temp_dir: remote_temp_dirs.RemoteTempDir | None, interpreter: WarmInterpreter) -> Iterator[None]:
    """
    Mark the pending files as uploaded when the block ends, even by an error: once the order was sent, the files may
    exist.

    The files stay pending only if the interpreter refused the order (NotStartedError).
    """
    refused = False
    try:
        yield
    except NotStartedError:
        refused = True
        raise
    finally:
        if remote_temp_dir is not None and not refused:
            remote_temp_dir.uploaded(interpreter)


def _connection_failure(sentence: str) -> Exception:
    made: Exception = sys.modules["ansible.errors"].AnsibleConnectionFailure(sentence)
    return made


def _as_a_shell_says(rc: int, out: bytes, err: bytes) -> CommandOutput:
    """For a module killed by a signal, return the exit status and message that the shell above it would have given."""
    if rc >= 0:
        return rc, out, err
    quiet = -rc in (signal.SIGINT, signal.SIGPIPE)
    return 128 - rc, out, err + (b"" if quiet else f"{signal.strsignal(-rc)}\n".encode())


def _as_a_terminal_shows(rc: int, out: bytes, err: bytes, transport: transports.Transport) -> CommandOutput:
    """Return the output with a terminal's line ends, and the message that ssh -tt prints when it closes."""
    shared = "Shared connection" if transport.shared else "Connection"
    return rc, (out + err).replace(b"\n", b"\r\n"), f"{shared} to {transport.name} closed.\r\n".encode()
