# SPDX-License-Identifier: GPL-3.0-or-later
"""What is replaced in ansible-core so that connections to devices live in the run: stand-ins for `patches.table`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from forkless.engines.threads import context
from forkless.engines.threads.network import device_connections, netcommon
from forkless.engines.threads.network.ansible_objects import module, play_data
from forkless.engines.threads.patches import stdlib_views
from forkless.patching.module_view import ModuleView

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.network.ansible_objects import (
        AnsibleDisplay,
        DeviceClient,
        HasConnection,
        HasSocketPath,
        PlaySettings,
    )
    from forkless.engines.threads.network.device_connections import DeviceConnections

__all__: list[str] = []

SWITCH = "network-connections"

# Levels of messages whose method of Display takes a host.
_WITH_HOST = frozenset({"debug", "v", "vv", "vvv", "vvvv", "vvvvv", "vvvvvv"})


def start_connection(original: Callable[..., object], _site: str) -> object:
    """task_executor.start_connection: finds or opens the run's connection to the device; returns the path that stands for it."""

    @functools.wraps(original)
    def start(play_context: PlaySettings, options: object, task_uuid: object) -> object:
        run_context = context.current()
        if run_context is None or SWITCH in run_context.off or not _usable(run_context, play_context.connection):
            return original(play_context, options, task_uuid)
        connections = device_connections.made_for_run(run_context)
        return _start(connections, play_context, options, str(task_uuid))

    return start


def _usable(run_context: RunContext, connection: str) -> bool:
    loader = module("ansible.plugins.loader").connection_loader
    return netcommon.usable(connection, run_context.state, loader, _display().warning)


def _display() -> AnsibleDisplay:
    display: AnsibleDisplay = module("ansible.executor.task_executor").display
    return display


def _start(connections: DeviceConnections, play_context: PlaySettings, options: object, task_uuid: str) -> str:
    from ansible.errors import AnsibleError
    from ansible.module_utils.connection import Connection, ConnectionError  # noqa: A004  # Ansible's name

    path, device, opening = connections.start(play_context, options, task_uuid)
    error, trace = None, ""

    def pop_messages() -> list[tuple[str, str]]:
        # Also after an error: what is left would be shown with the next task.
        return Connection(path).pop_messages() if connections.get(path) is not None and not device.has_ended else []

    def refresh() -> tuple[str | None, str, list[tuple[str, str]]]:
        return *_refresh(Connection(path), play_context, options, task_uuid), pop_messages()

    if opening is not None:
        messages = [("vvvv", "local domain socket does not exist, starting it"), *opening.messages, *pop_messages()]
        error, trace = opening.error, opening.exception
    else:
        try:
            refreshed = device.ask_at_once(refresh)
            if refreshed is None:
                raise _ended(path)
        except ConnectionError:
            if connections.get(path) is device:
                raise
            return _start(connections, play_context, options, task_uuid)  # it was closed meanwhile: idle for too long
        error, trace, said = refreshed
        messages = [("vvvv", "found existing local domain socket, using it!"), *said]
    _show(messages, play_context.remote_addr)
    if error is not None:
        display = _display()
        if display.verbosity > 2 and trace:
            display.display(f"The full traceback is:\n{trace}", color=module("ansible.constants").COLOR_ERROR)
        # Without a cause: one would turn a failed task into an unreachable host.
        raise AnsibleError(error)
    return str(path)


def _refresh(
    connection: DeviceClient, play_context: PlaySettings, options: object, task_uuid: str
) -> tuple[str | None, str]:
    """Tell an open connection the options and the play context of this task. Returns an error and its traceback."""
    import pickle
    import traceback

    from ansible.module_utils.common.text.converters import to_text

    # Not pickled first, as for the helper's pipe: what arrives is the JSON of the options, and that of a copy would be the same.
    connection.set_options(direct=options)
    try:
        connection.update_play_context(to_text(pickle.dumps(play_data(play_context))))
        connection.set_check_prompt(task_uuid)
    except Exception as error:  # noqa: BLE001  # a plugin may raise anything; the task reports it
        # Only network_cli has both methods: -32601 means that the plugin has no such method.
        if getattr(error, "code", None) != -32601:
            return to_text(error), traceback.format_exc()
    return None, ""


def _show(messages: list[tuple[str, str]], host: str) -> None:
    display = _display()
    for level, text in messages:
        if level == "log":
            display.display(text, log_only=True)
        elif level in _WITH_HOST or not hasattr(display, level):
            getattr(display, level if level in _WITH_HOST else "vvvv")(text, host=host)
        else:
            getattr(display, level)(text)


def connection_send(original: Callable[..., object], _site: str) -> object:
    """module_utils.connection.Connection.send: a request to a device of this run goes to the device's thread, not through a socket."""

    @functools.wraps(original)
    def send(connection: HasSocketPath, data: str) -> object:
        device = device_connections.find(connection.socket_path)
        if device is None:
            return original(connection, data)
        answer = device.answer(data)
        if answer is None:
            raise _ended(connection.socket_path)
        return answer

    return send


def _ended(path: str) -> Exception:
    from ansible.module_utils.connection import ConnectionError  # noqa: A004  # Ansible's name

    error: Exception = ConnectionError(
        f"Unable to connect to socket {path!r}. See the socket path issue category in Network Debug and Troubleshooting Guide."
    )
    return error


class _DevicePaths:
    """os.path for module_utils.connection, which looks whether the socket of a device exists before it calls."""

    def __getattr__(self, name: str) -> object:
        found: object = getattr(stdlib_views.os_view.path, name)
        return found

    @staticmethod
    def exists(path: str) -> bool:
        return device_connections.find(path) is not None or bool(stdlib_views.os_view.path.exists(path))


class _OsOfConnections(ModuleView):
    path = _DevicePaths()


def connection_os(original: types.ModuleType, _site: str) -> object:
    return _OsOfConnections(original)


def configure_module(original: Callable[..., object], _site: str) -> object:
    """ActionBase._configure_module: a module that will be a process finds the device at its socket. Not called for modules in the worker."""

    @functools.wraps(original)
    def configure(action: HasConnection, *args: object, **kwargs: object) -> object:
        device = device_connections.find(getattr(action._connection, "_socket_path", None))
        if device is not None:
            try:
                device.open_socket()
            except OSError as error:
                from ansible.errors import AnsibleError

                raise AnsibleError(
                    f"the socket {device.socket_path} for a module of {device.name} could not be made: {error}"
                ) from None
        return original(action, *args, **kwargs)

    return configure
