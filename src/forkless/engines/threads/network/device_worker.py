# SPDX-License-Identifier: GPL-3.0-or-later
"""
One connection to one device, on a thread of its own.

ansible-core starts a process for each device, which holds the connection plugin and answers JSON-RPC requests on a socket. A
`DeviceWorker` is that process as a thread: it has module-level state, streams, an alarm and an interrupt of its own, answers one request
at a time, and ends after `persistent_connect_timeout` seconds without a request.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, NoReturn, TypeVar

from forkless.core.thread_stack import OwnThread, start_with_deep_stack
from forkless.engines.threads.network import channels, grpc_channel
from forkless.engines.threads.network.ansible_objects import module
from forkless.engines.threads.network.device_socket import DeviceSocket
from forkless.engines.threads.workers.threads import own_folder
from forkless.engines.threads.workers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines.threads.network.ansible_objects import AnsibleDisplay, DevicePlugin, PlaySettings, RpcServer
    from forkless.engines.threads.network.asyncssh_transport import AsyncsshTransport

__all__ = ["DeviceWorker", "Opening", "Request"]

T = TypeVar("T")

# Seconds by which an alarm that the thread has not noticed itself, in a wait on its channel, is overdue before it is interrupted.
OVERDUE = 0.2
# network_cli's handler of the alarm that ends a wait for more output. It is set for the length of one `recv`, which always notices it.
RUNG_BY_THE_CHANNEL = "_handle_buffer_read_timeout"

_ADVICE = "See the timeout setting options in the Network Debug and Troubleshooting Guide."


class Silent(io.StringIO):
    """A stream that reads as empty and discards what is written to it: /dev/null of the helper process."""

    def write(self, text: str) -> int:
        return len(text)


class Request:
    """What one thread asks of a device's thread, and the answer. `done` is set exactly once, also if the device's thread ends."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.done = threading.Event()
        self.answer: object = None
        self.answered = False


class Opening:
    """The outcome of opening a connection plugin: what ansible-core's helper process reports when it was started."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []
        self.error: str | None = None
        self.exception = ""


class DeviceWorker(Worker):
    """
    The connection to one device. `ask` may be called by any thread of the run; everything else happens on the device's own thread.

    `at_close` is called once, before the last answer is handed out, so that no later task finds a connection that is about to end.
    `asyncssh` allows network_cli to use forkless's own SSH connections.
    """

    def __init__(
        self, name: str, socket_path: str, at_close: Callable[[DeviceWorker], None], *, asyncssh: bool = True
    ) -> None:
        self._arm()
        self.name = name
        self._asyncssh = asyncssh
        self.socket_path = socket_path
        self._at_close = at_close
        # Taken now: a connection that ends before it was opened has imported nothing of ansible-core.
        self._display: AnsibleDisplay = module("ansible.executor.task_executor").display
        self._final_q = None  # as in the helper process: what is displayed here reaches no one but the log
        self.worker_id = 0
        self.streams = {"stdout": io.StringIO(), "stderr": Silent(), "stdin": Silent()}
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._current: Request | None = None
        self._closed = False
        self._alarm_at: tuple[float, object] | None = None
        self._rung: object | None = None
        self._connection: DevicePlugin | None = None
        self._server: RpcServer | None = None
        self._transport: AsyncsshTransport | None = None
        self._grpc_channels: list[grpc_channel.InterruptibleChannel] = []
        self._socket: DeviceSocket | None = None
        self._log_messages = False

    # -- for other threads ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self._started = True
        self.since = time.monotonic()
        thread = OwnThread(target=self._serve, name=f"forkless-device-{self.name}", daemon=True)
        try:
            start_with_deep_stack(thread)
        except BaseException:  # there is no thread that could answer
            self._end_requests()
            self._done.set()
            raise

    def ask(self, work: Callable[[], object], wanted: Callable[[], bool] = lambda: True) -> Request | None:
        """
        Hand a request to the device's thread and wait until it is done. None if the connection has ended.

        If the answer is not `wanted` any more, the connection is ended.
        """
        request = Request(work)
        with self._lock:
            if self._closed:
                return None
            self._requests.put(request)
        try:
            # With a timeout: an exception that is sent to the calling thread is raised only between two waits in C.
            while not request.done.wait(0.5):
                if not wanted():
                    self.give_up()
        except BaseException:
            # The task was stopped or timed out. What the device sends next would be taken for the answer to the next request.
            self.give_up()
            raise
        return request if request.answered else None

    def ask_at_once(self, work: Callable[[], T]) -> T | None:
        """
        Call `work` on the device's thread, where it may make several requests; each way from one thread to another costs as much as a
        short request. Raises what `work` raises. None if the connection has ended.
        """
        outcome: list[tuple[T, None] | tuple[None, Exception]] = []

        def guarded() -> None:
            try:
                outcome.append((work(), None))
            except Exception as error:  # noqa: BLE001  # raised again by the thread that asks
                outcome.append((None, error))

        if self.ask(guarded) is None:
            return None
        answer, error = outcome.pop()
        if error is not None:
            raise error
        return answer

    @property
    def has_ended(self) -> bool:
        """Whether there is no connection any more; the thread may still be about to notice it."""
        return self._closed or self._connection is None or self._connection._conn_closed

    def answer(self, data: str) -> str | None:
        """Answer one JSON-RPC request, for any thread of the run. None if the connection has ended."""
        if threading.current_thread() is self.thread:  # it makes several requests at once
            return None if self.has_ended else self.handle(data)
        request = self.ask(functools.partial(self.handle, data))
        return None if request is None else str(request.answer)

    def give_up(self) -> None:
        """Take no more requests and end what the thread is blocked in."""
        self.close()
        self.terminate()

    def close(self) -> None:
        """Take no more requests; the thread ends when it is done with what it does. May be called by any thread, more than once."""
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            self._at_close(self)
            self._requests.put(None)

    def open_socket(self) -> None:
        """Listen at `socket_path`, for a module that is a process of its own, until the connection ends. Raises OSError."""
        request = None if self._socket is not None else self.ask(self._open_socket)
        if request is not None and request.answer:
            raise OSError(str(request.answer))

    def ring_if_overdue(self, now: float) -> None:
        """Called by the clock of the run: interrupt the thread if its alarm is due and it did not notice by itself."""
        alarm = self._alarm_at  # read once: the device's thread may set its next alarm meanwhile
        if getattr(self.on_alarm, "__name__", "") == RUNG_BY_THE_CHANNEL:
            # An exception that is sent could be raised after the wait, in the next command, whose answer would be lost.
            return
        if alarm is not None and alarm[1] is not self._rung and now > alarm[0] + OVERDUE:
            self._rung = alarm[1]
            self._ring(alarm[1])

    def describe(self) -> tuple[str, str]:
        return self.name, "connection to the device"

    def abandon(self) -> None:
        """Leave a session that does not close behind, as Ansible's helper process would stay: no task waits for it."""
        self._done.set()

    def _say(self, text: str) -> None:
        self._log(text)

    # -- the alarm -----------------------------------------------------------------------------------------------

    def alarm(self, seconds: float) -> None:
        """signal.alarm of the helper process. Called on the device's thread."""
        if self._alarm_at is not None:
            self._alarm_at = None
            self.interrupt.clear_alarm()
        if seconds > 0:
            self._alarm_at = (time.monotonic() + seconds, self.interrupt.set_alarm())

    def seconds_to_alarm(self) -> float | None:
        """None if there is no alarm, or the clock has rung it: like a signal, an alarm comes once."""
        alarm = self._alarm_at
        return None if alarm is None or alarm[1] is self._rung else max(0.0, alarm[0] - time.monotonic())

    def ring(self) -> None:
        """Call the alarm's handler on the device's thread, in a wait that has lasted until the alarm was due."""
        self.alarm(0)
        if callable(self.on_alarm):
            self.on_alarm(signal.SIGALRM, sys._getframe(1))

    # -- the thread ----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        with own_folder():
            self._work()

    def _end(self) -> None:
        self.close()  # a stop may have come before run() began
        self._end_requests()
        super()._end()
        # Once more, now that no exception is sent to this thread any more: a second interrupt may have ended _shut_down.
        self._close_socket()
        self._close_sessions()

    def run(self) -> None:
        try:
            while not self._closed and (request := self._next()) is not None:
                self._current = request
                request.answer = request.work()
                request.answered = True
                if self._connection is None or self._connection._conn_closed:
                    self.close()
                self._current = None
                request.done.set()
        finally:
            self.close()
            self._end_requests()
            self._shut_down()

    def _next(self) -> Request | None:
        """The next request; None after `persistent_connect_timeout` seconds without one."""
        idle = None if self._connection is None else self._connection.get_option("persistent_connect_timeout")
        try:
            return self._requests.get(timeout=idle or None)
        except queue.Empty:
            self._log(f"persistent connection idle timeout triggered, timeout value is {idle} secs.\n{_ADVICE}")
            return None

    def _end_requests(self) -> None:
        """Release the threads that wait for an answer that will not come."""
        with self._lock:
            self._closed = True
        current, self._current = self._current, None
        if current is not None:
            current.done.set()
        with contextlib.suppress(queue.Empty):
            while True:
                request = self._requests.get_nowait()
                if request is not None:
                    request.done.set()

    def _open_socket(self) -> str:
        """Returns why there is no socket, or "" if there is one."""
        if self._socket is None:
            try:
                self._socket = DeviceSocket(self)
            except (OSError, RuntimeError) as error:
                return str(error)
        return ""

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _shut_down(self) -> None:
        self._close_socket()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
            if connection.get_option("persistent_log_messages"):
                for _level, message in connection.pop_messages():
                    self._log(message)
        except Exception:  # noqa: BLE001  # as in the helper process: the device or the session may have ended
            pass
        finally:
            self._close_sessions()
        self._log("shutdown complete")

    def _close_sessions(self) -> None:
        """
        Close what a plugin has opened and does not know yet, as the end of a process would: paramiko's and ncclient's sessions are
        threads, and so are the timers of a login that did not finish.
        """
        for thread in self.interrupt.member_threads():
            close = getattr(thread, "close", None) or getattr(thread, "cancel", None)
            if callable(close):
                with contextlib.suppress(Exception):
                    close()
        for channel in self._grpc_channels:
            with contextlib.suppress(Exception):
                channel.close()
        if self._transport is not None:
            self._transport.close()

    # -- what the helper process does ----------------------------------------------------------------------------

    def open(self, options: bytes, play_context_data: bytes, task_uuid: str, pid: str, folder: str) -> Opening:
        """Create the connection plugin from pickled options and play context. It connects when it is first called."""
        from ansible.playbook.play_context import PlayContext
        from ansible.plugins.loader import connection_loader
        from ansible.utils.jsonrpc import JsonRpcServer

        opening = Opening()
        said = opening.messages
        play_context: PlaySettings = PlayContext()
        play_context.deserialize(pickle.loads(play_context_data))  # noqa: S301  # pickled by this process
        try:
            said.append(("vvvv", f"control socket path is {self.socket_path}"))
            key_file = play_context.private_key_file
            if key_file and key_file[0] not in "~/":
                play_context.private_key_file = os.path.join(folder, key_file)
            made: DevicePlugin = connection_loader.get(
                play_context.connection, play_context, "/dev/null", task_uuid=task_uuid, ansible_playbook_pid=pid
            )
            self._connection = made
            made.set_options(direct=pickle.loads(options))  # noqa: S301  # pickled by this process
            made._socket_path = self.socket_path
            self._transport = self._own_transport(made)
            channels.watch_alarms(made, self, self._transport)
            if grpc_channel.has_grpc_channel(made):
                grpc_channel.watch_calls(made, self._grpc_channels.append)
            server: RpcServer = JsonRpcServer()
            self._server = server
            server._objects = {made}  # the class has one set for all connections of a process
            self._log_messages = bool(made.get_option("persistent_log_messages"))
            said.extend(("vvvv", line) for line in self.streams["stdout"].getvalue().splitlines())
            said.append(("vvvv", "local domain socket listeners started successfully"))
        except Exception as error:  # noqa: BLE001  # a plugin may raise anything; the task reports it
            from ansible.module_utils.common.text.converters import to_text

            opening.error, opening.exception = to_text(error), traceback.format_exc()
            if self._connection is not None:
                said.extend(self._connection.pop_messages())
                self._connection = None
        self.streams["stdout"] = Silent()
        return opening

    def _own_transport(self, connection: DevicePlugin) -> AsyncsshTransport | None:
        if not self._asyncssh or not channels.has_shell(connection):
            return None
        from forkless.engines.threads.network import asyncssh_transport  # imported here: few runs have devices

        transport = asyncssh_transport.transport_for(connection)
        if transport is not None:
            connection.queue_message("vvvv", "ssh type is now set to asyncssh")
        return transport

    def handle(self, data: str | bytes) -> str:
        """Answer one JSON-RPC request within `persistent_command_timeout` seconds."""
        connection, server = self._connection, self._server
        if connection is None or server is None:
            raise RuntimeError("a request to a device whose connection was not opened")
        if self._log_messages:
            self._log(f"jsonrpc request: {data!r}")
        if json.loads(data).get("method") == "exec_command" and not connection.connected:
            connection._connect()
        self.on_alarm = self._command_timeout
        self.alarm(connection.get_option("persistent_command_timeout"))
        try:
            answer = server.handle_request(data)
            if self._alarm_was_missed():
                # httpapi's and netconf's own time-outs are as long as the alarm, which is set first: as a signal it always comes first.
                answer = self._timed_out(server, data)
        except Exception:  # noqa: BLE001  # the alarm's, after the plugin's method had returned: the method's are in its answer
            answer = self._timed_out(server, data)
        finally:
            self.alarm(0)
        if self._log_messages:
            self._log(f"jsonrpc response: {answer}")
        return answer

    def _alarm_was_missed(self) -> bool:
        alarm = self._alarm_at
        return alarm is not None and alarm[1] is not self._rung and time.monotonic() >= alarm[0]

    def _timed_out(self, server: RpcServer, data: str | bytes) -> str:
        """The answer to a request that has lasted longer than `persistent_command_timeout`."""
        server._identifier = json.loads(data).get("id")
        try:
            self._command_timeout(signal.SIGALRM, None)
        except Exception as error:  # noqa: BLE001  # the only way out of it
            return json.dumps(server.internal_error(data=str(error)))
        finally:
            del server._identifier

    def _command_timeout(self, _number: int, _frame: object) -> NoReturn:
        connection = self._connection
        seconds = 0 if connection is None else connection.get_option("persistent_command_timeout")
        message = f"command timeout triggered, timeout value is {seconds} secs.\n{_ADVICE}"
        self._log(message)
        raise Exception(message)  # noqa: TRY002  # what JsonRpcServer reports by its text

    def _log(self, message: str) -> None:
        self._display.display(message, log_only=True)
