# SPDX-License-Identifier: GPL-3.0-or-later
"""Turns Ansible's v2_* callbacks into Events, with the names and fields of ansible-runner's job events."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import threading
import uuid
from typing import TYPE_CHECKING, Any

from forkless.core.bulk import json_copy
from forkless.core.events import Event, without_environment
from forkless.engines.threads import context
from forkless.engines.threads.output_queue import OutputQueue
from forkless.modules.live_output import OutputMasker

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.modules import TaskOutput

__all__ = ["Listener", "Transcript", "make_callback"]

CENSORED = "the output has been hidden due to the fact that 'no_log: true' was specified for this result"


class Transcript:
    """The text that a run prints: passed on at once, and kept until the next event, whose `stdout` it becomes."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        # Guards _kept and `last`. Both the run's thread and the results thread write.
        self._lock = threading.Lock()
        self._kept: list[str] = []
        self.last = ""
        """The last 4096 characters that were printed."""

    def write(self, text: str) -> int:
        with self._lock:
            self._kept.append(text)
            self.last = (self.last + text)[-4096:]
        self._write(text)
        return len(text)

    def take(self) -> str:
        with self._lock:
            text = "".join(self._kept)
            self._kept.clear()
        return text

    def flush(self) -> None:
        """Does nothing: no text is buffered."""

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def reconfigure(self, **_: object) -> None:
        """Does nothing: any text can be written."""


class Listener:
    """Creates Events, numbers them, and delivers them in order. `emit` may be called from any thread."""

    def __init__(self, ident: str, deliver: Callable[[Event], None], transcript: Transcript | None = None) -> None:
        self._ident = ident
        self._deliver = deliver
        self.transcript = transcript
        self.newest: Callable[[], int | None] = lambda: None
        """The number of the worker that was made last, which `runner_on_start` is about."""
        # Held while delivering, so that events are delivered in the order of their counters. deliver() never blocks.
        self._lock = threading.Lock()
        self._output = OutputQueue(ident, self.deliver_output, self._lock)
        self._counter = 0
        self._line = 0
        self.recap = False
        self.playbook: dict[str, Any] = {}
        self.play: dict[str, Any] = {}
        self.task: dict[str, Any] = {}
        self._started: dict[tuple[str, str], dt.datetime] = {}
        self.mask: Callable[[str], str] | None = None
        """Replaces the secrets that ansible-core knows in a text; None before 2.22, which has no masker."""
        self.mask_output: Callable[[str], str] | None = None
        """The same for what a task prints while it runs, where a secret may be indented, cut or divided between two messages."""
        self.announced: dict[str, tuple[str, str]] = {}
        """Name and arguments of each task of this play as they were when it started, before a host's variables were filled in."""

    def emit(
        self,
        event: str,
        fields: dict[str, object],
        *,
        own: str | None = None,
        parent: str = "",
        worker: int | None = None,
    ) -> None:
        now = dt.datetime.now(dt.UTC)
        self.recap = self.recap or event == "playbook_on_stats"
        plain = json_copy(fields)  # a plugin may put any object into a result, and every event must be serializable
        without_environment(plain)
        if self.mask is not None:
            plain.update({key: _masked(plain[key], self.mask) for key in plain.keys() - _NOT_MASKED})
        with self._lock:
            self._output.deliver()  # what a task printed is delivered before its result
            text = self.transcript.take() if self.transcript else ""
            shown = text.rstrip("\n").replace("\n", "\r\n")
            lines = text.count("\n")
            self._counter += 1
            made = Event(
                event=event,
                uuid=own or str(uuid.uuid4()),
                counter=self._counter,
                stdout=shown,
                start_line=self._line,
                end_line=self._line + lines,
                created=now.isoformat(),
                runner_ident=self._ident,
                parent_uuid=parent,
                pid=os.getpid(),
                event_data=plain,
                worker=worker,
            )
            self._line += lines
            self._deliver(made)

    def live_output(self, host: str, output: TaskOutput) -> None:
        """A task prints while it runs. Any thread may call this; it never waits, and drops lines if events cannot be delivered."""
        self._output.put(host, output)

    def deliver_output(self, host: str, output: TaskOutput, dropped: int) -> None:
        """Called with the lock held. Takes nothing of the transcript: Ansible's own events have the text that Ansible printed."""
        own = str(uuid.uuid4())
        fields = {
            **self.playbook,
            **self.play,
            **_about(output.task, self.announced),
            "host": host,
            "stream": output.stream,
            "text": output.text,
            "line": output.line,
            "dropped": dropped,
            "uuid": own,
        }
        if output.item is not None:
            fields["item"] = json_copy(output.item)
        if self.mask is not None and self.mask_output is not None:
            fields["text"] = self.mask_output(output.text)
            fields.update({key: _masked(fields[key], self.mask) for key in fields.keys() - _NOT_MASKED})
        self._counter += 1
        self._deliver(
            Event(
                event="runner_on_output",
                uuid=own,
                counter=self._counter,
                start_line=self._line,
                end_line=self._line,
                created=dt.datetime.now(dt.UTC).isoformat(),
                runner_ident=self._ident,
                parent_uuid=str(output.task._uuid),
                pid=os.getpid(),
                event_data=fields,
            )
        )

    def deliver_waiting_output(self) -> None:
        """Deliver what tasks have printed so far. Called before a result is printed, which their lines stand before."""
        with self._lock:
            self._output.deliver()

    def end_output(self) -> None:
        """Deliver what tasks have printed, while the run still has its masker, and end the thread that does it."""
        self._output.close()

    def last_words(self) -> None:
        """Deliver text that no event has taken: an error before the first play, or a warning after the recap."""
        self._output.close()
        if self.transcript is not None:
            text = self.transcript.take()
            if text.strip():
                self.transcript._kept.append(text)
                self.emit("verbose", {})

    def began(self, host: str, task: str) -> None:
        self._started[host, task] = dt.datetime.now(dt.UTC)

    def times(self, host: str, task: str) -> dict[str, object]:
        end = dt.datetime.now(dt.UTC)
        start = self._started.get((host, task), end)
        return {"start": start.isoformat(), "end": end.isoformat(), "duration": (end - start).total_seconds()}


# Fields that are not masked: results, which ansible-core has masked, and what readers compare, such as the name of a host. Everything
# else may be the result of a template: paths of included files too.
_NOT_MASKED = frozenset(
    {"changed", "dark", "failures", "host", "ignored", "ok", "play_uuid", "playbook_uuid", "processed", "remote_addr"}
    | {"diff", "duration", "end", "res", "rescued", "skipped", "start", "stream", "task_uuid", "uuid", "varname"}
)


def _masked(value: object, mask: Callable[[str], str]) -> object:
    """A JSON value with `mask` applied to every string in it."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {mask(key): _masked(inner, mask) for key, inner in value.items()}
    return [_masked(inner, mask) for inner in value] if isinstance(value, list) else value


def _result(result: Any) -> dict[str, object]:
    found = dict(result._result)
    if found.get("_ansible_no_log"):
        return {"censored": CENSORED, "changed": bool(found.get("changed"))}
    if isinstance(found.get("results"), list | tuple):
        found["results"] = [
            {"censored": CENSORED} if isinstance(one, dict) and one.get("_ansible_no_log") else one
            for one in found["results"]
        ]
    return found


def make_callback(listener: Listener) -> object:
    """A callback plugin that calls `listener`. Created for each run, because its base class is in the imported ansible-core."""
    from ansible import constants as C  # noqa: N812  # the name that Ansible uses
    from ansible.plugins.callback import CallbackBase

    with contextlib.suppress(ImportError):
        from ansible.module_utils.secrets import mask_secrets

        run_context = context.current()

        def mask(text: str) -> str:
            # The masker belongs to the run, and the threads of the output queue and of the watchdog work for no run.
            if run_context is None or context.current() is not None:
                return str(mask_secrets(text))
            with context.enter(run_context):
                return str(mask_secrets(text))

        listener.mask = mask
        output_masker = OutputMasker()

        def mask_output(text: str) -> str:
            if run_context is None or context.current() is not None:
                return output_masker.masked(text)
            with context.enter(run_context):
                return output_masker.masked(text)

        listener.mask_output = mask_output

    class EventCallback(CallbackBase):  # type: ignore[misc]
        CALLBACK_VERSION = 2.0
        CALLBACK_TYPE = "notification"
        CALLBACK_NAME = "forkless.events"

        # -- plays and tasks

        def v2_playbook_on_start(self, playbook: Any) -> None:
            listener.playbook = {"playbook": playbook._file_name, "playbook_uuid": str(uuid.uuid4())}
            own = listener.playbook["playbook_uuid"]
            listener.emit("playbook_on_start", {**listener.playbook, "uuid": own}, own=own)

        def v2_playbook_on_play_start(self, play: Any) -> None:
            hosts = play.hosts if isinstance(play.hosts, str) else ",".join(map(str, play.hosts or ()))
            listener.play = {
                "play": play.get_name().strip() or hosts,
                "play_uuid": str(play._uuid),
                "play_pattern": hosts,
            }
            listener.task = {}
            listener.announced.clear()
            fields = {
                **listener.playbook,
                **listener.play,
                "name": listener.play["play"],
                "pattern": hosts,
                "uuid": str(play._uuid),
            }
            parent = listener.playbook.get("playbook_uuid", "")
            listener.emit("playbook_on_play_start", fields, own=str(play._uuid), parent=parent)

        def v2_playbook_on_task_start(self, task: object, is_conditional: bool) -> None:
            self._task_start(task, is_conditional, "playbook_on_task_start")

        def v2_playbook_on_cleanup_task_start(self, task: object) -> None:
            self._task_start(task, False, "playbook_on_task_start")

        def v2_playbook_on_handler_task_start(self, task: object) -> None:
            self._task_start(task, True, "playbook_on_task_start", is_handler=True)

        def _task_start(self, task: Any, conditional: bool, event: str, **more: object) -> None:
            values = C.DISPLAY_ARGS_TO_STDOUT and not task.no_log
            listener.announced[str(task._uuid)] = (_name(task), _arguments(task, values=values))
            listener.task = _about(task, listener.announced)
            fields = {
                **self._where(),
                "name": listener.task["task"],
                "is_conditional": bool(conditional),
                "uuid": str(task._uuid),
            }
            listener.emit(event, {**fields, **more}, own=str(task._uuid), parent=listener.play.get("play_uuid", ""))

        def v2_playbook_on_include(self, included_file: object) -> None:
            fields = {"included_file": getattr(included_file, "_filename", None)}
            self._tell("playbook_on_include", fields, parent=listener.task.get("task_uuid", ""))

        def v2_playbook_on_no_hosts_matched(self) -> None:
            self._tell("playbook_on_no_hosts_matched", {})

        def v2_playbook_on_no_hosts_remaining(self) -> None:
            self._tell("playbook_on_no_hosts_remaining", {})

        def v2_playbook_on_notify(self, handler: Any, host: Any) -> None:
            fields = {"host": host.get_name(), "handler": handler.get_name()}
            self._tell("playbook_on_notify", fields, parent=listener.task.get("task_uuid", ""))

        def v2_playbook_on_vars_prompt(
            self, varname: str, private: bool = True, prompt: object = None, *_: object, **__: object
        ) -> None:
            # Neither the default nor the answer: either may be a secret.
            self._tell("playbook_on_vars_prompt", {"varname": varname, "private": private, "prompt": prompt})

        def v2_playbook_on_stats(self, stats: Any) -> None:
            keys = ("changed", "dark", "failures", "ignored", "ok", "processed", "rescued", "skipped")
            counts = {key: dict(getattr(stats, key, {})) for key in keys}
            listener.task = {}
            own = str(uuid.uuid4())
            listener.emit(
                "playbook_on_stats",
                {**listener.playbook, **counts, "artifact_data": dict(stats.custom.get("_run", {})), "uuid": own},
                own=own,
                parent=listener.playbook.get("playbook_uuid", ""),
            )

        # -- results

        def v2_runner_on_start(self, host: Any, task: Any) -> None:
            listener.began(host.get_name(), str(task._uuid))
            fields = {**_about(task, listener.announced), "host": host.get_name()}
            self._tell("runner_on_start", fields, parent=str(task._uuid), worker=listener.newest())

        def v2_runner_on_ok(self, result: object) -> None:
            self._on_result("runner_on_ok", result)

        def v2_runner_on_failed(self, result: object, ignore_errors: bool = False) -> None:
            self._on_result("runner_on_failed", result, ignore_errors=bool(ignore_errors))

        def v2_runner_on_skipped(self, result: object) -> None:
            self._on_result("runner_on_skipped", result)

        def v2_runner_on_unreachable(self, result: object) -> None:
            self._on_result("runner_on_unreachable", result)

        def v2_runner_item_on_ok(self, result: object) -> None:
            self._on_result("runner_item_on_ok", result)

        def v2_runner_item_on_failed(self, result: object) -> None:
            self._on_result("runner_item_on_failed", result)

        def v2_runner_item_on_skipped(self, result: object) -> None:
            self._on_result("runner_item_on_skipped", result)

        def v2_runner_retry(self, result: object) -> None:
            self._on_result("runner_retry", result)

        def v2_runner_on_async_poll(self, result: object) -> None:
            self._on_result("runner_on_async_poll", result)

        def v2_runner_on_async_ok(self, result: object) -> None:
            self._on_result("runner_on_async_ok", result)

        def v2_runner_on_async_failed(self, result: object) -> None:
            self._on_result("runner_on_async_failed", result)

        def v2_on_file_diff(self, result: object) -> None:
            # Also without a diff, as in ansible-runner: Ansible calls this for each item of a loop.
            self._on_result("runner_on_file_diff", result, diff=_result(result).get("diff"))

        def _on_result(self, event: str, result: Any, **more: object) -> None:
            host, task = result._host.get_name(), result._task
            fields = {
                **_about(task, listener.announced),
                "host": host,
                "remote_addr": host,
                "res": _result(result),
                **listener.times(host, str(task._uuid)),
                "event_loop": task.loop_with or (True if task.loop else None),
                **more,
            }
            self._tell(event, fields, parent=str(task._uuid))

        def _tell(self, event: str, fields: dict[str, object], parent: str = "", worker: int | None = None) -> None:
            own = str(uuid.uuid4())
            listener.emit(event, {**self._where(), **fields, "uuid": own}, own=own, parent=parent, worker=worker)

        @staticmethod
        def _where() -> dict[str, object]:
            return {**listener.playbook, **listener.play, **listener.task}

    made = EventCallback()
    if hasattr(made, "_init_callback_methods"):
        made._init_callback_methods()
    return made


def _name(task: Any) -> str:
    return str((task.name or task.action).strip())


def _arguments(task: Any, *, values: bool) -> str:
    """
    The names of a task's arguments; with `values` also their values, in ansible-runner's format.

    Only the module knows which values are secret, by its argument spec, and only when it runs on its host. The arguments as the
    module received them, without secrets, are in `res.invocation`.
    """
    given = dict(task.args)
    return ", ".join(f"{key}={value}" for key, value in given.items()) if values else ", ".join(map(str, given))


def _about(task: Any, announced: dict[str, tuple[str, str]]) -> dict[str, object]:
    """
    The fields that every event has about its task.

    A result's task has its name and arguments filled in for one host and one item. Under `no_log` the name is taken from the start of
    the task. Arguments always are: an event has those that Ansible itself printed, if DISPLAY_ARGS_TO_STDOUT is set.
    """
    name, arguments = announced.get(str(task._uuid), (str(task.action), ""))
    fields = {
        "task": name if task.no_log else _name(task),
        "task_uuid": str(task._uuid),
        "task_action": str(task.action),
        "resolved_action": str(getattr(task, "resolved_action", None) or task.action),
        "task_args": arguments,
        "task_path": task.get_path() or "",
    }
    if task._role is not None:
        fields["role"] = task._role.get_name()
    return fields
