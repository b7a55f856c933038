# SPDX-License-Identifier: GPL-3.0-or-later
"""v2_* calls in, Events out: in the names and with the fields that ansible-runner's readers know."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
import uuid
from typing import TYPE_CHECKING, Any

from forkless._events import Event

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Listener", "Transcript", "make_callback"]

CENSORED = "the output has been hidden due to the fact that 'no_log: true' was specified for this result"


class Transcript:
    """What a run prints: passed on at once, and kept until the next event takes it along."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        # Guards _kept and nothing else; writers call from the strategy's thread and from the results thread.
        self._lock = threading.Lock()
        self._kept: list[str] = []
        self.last = ""
        """The end of all that was printed."""

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
        """Nothing is held back."""

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def reconfigure(self, **_: Any) -> None:
        """Every text can be written here."""


class Listener:
    """Makes Events of what happens, numbers them, and delivers them in order."""

    def __init__(self, ident: str, deliver: Callable[[Event], None], transcript: Transcript | None = None) -> None:
        self._ident = ident
        self._deliver = deliver
        self._transcript = transcript
        # Held while delivering: the order of the counters is the order of arrival. deliver() never blocks.
        self._lock = threading.Lock()
        self._counter = 0
        self._line = 0
        self.recap = False
        self.playbook: dict[str, Any] = {}
        self.play: dict[str, Any] = {}
        self.task: dict[str, Any] = {}
        self._started: dict[tuple[str, str], dt.datetime] = {}

    def emit(self, event: str, fields: dict[str, Any], *, own: str | None = None, parent: str = "") -> None:
        now = dt.datetime.now(dt.UTC)
        self.recap = self.recap or event == "playbook_on_stats"
        with self._lock:
            text = self._transcript.take() if self._transcript else ""
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
                event_data=_plain(fields),
            )
            self._line += lines
            self._deliver(made)

    def last_words(self) -> None:
        """Text that no event took along: an error before the first play, a warning after the recap."""
        if self._transcript is not None:
            text = self._transcript.take()
            if text.strip():
                self._transcript._kept.append(text)
                self.emit("verbose", {})

    def began(self, host: str, task: str) -> None:
        self._started[host, task] = dt.datetime.now(dt.UTC)

    def times(self, host: str, task: str) -> dict[str, Any]:
        end = dt.datetime.now(dt.UTC)
        start = self._started.get((host, task), end)
        return {"start": start.isoformat(), "end": end.isoformat(), "duration": (end - start).total_seconds()}


def _plain(value: Any) -> Any:
    """JSON's types only: whatever a plugin put into a result, an event can be written down."""
    return json.loads(json.dumps(value, default=str, skipkeys=True))


def _result(result: Any) -> dict[str, Any]:
    found = dict(result._result)
    if found.get("_ansible_no_log"):
        return {"censored": CENSORED, "changed": bool(found.get("changed"))}
    if isinstance(found.get("results"), list | tuple):
        found["results"] = [
            {"censored": CENSORED} if isinstance(one, dict) and one.get("_ansible_no_log") else one
            for one in found["results"]
        ]
    return found


def make_callback(listener: Listener) -> Any:
    """A callback plugin that tells `listener`. Made per run, as Ansible itself must be imported to make it."""
    from ansible.plugins.callback import CallbackBase

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
            fields = {
                **listener.playbook,
                **listener.play,
                "name": listener.play["play"],
                "pattern": hosts,
                "uuid": str(play._uuid),
            }
            parent = listener.playbook.get("playbook_uuid", "")
            listener.emit("playbook_on_play_start", fields, own=str(play._uuid), parent=parent)

        def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
            self._task_start(task, is_conditional, "playbook_on_task_start")

        def v2_playbook_on_cleanup_task_start(self, task: Any) -> None:
            self._task_start(task, False, "playbook_on_task_start")

        def v2_playbook_on_handler_task_start(self, task: Any) -> None:
            self._task_start(task, True, "playbook_on_task_start", is_handler=True)

        def _task_start(self, task: Any, conditional: bool, event: str, **more: Any) -> None:
            listener.task = _about(task)
            fields = {
                **self._where(),
                "name": listener.task["task"],
                "is_conditional": bool(conditional),
                "uuid": str(task._uuid),
            }
            listener.emit(event, {**fields, **more}, own=str(task._uuid), parent=listener.play.get("play_uuid", ""))

        def v2_playbook_on_include(self, included_file: Any) -> None:
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
            self, varname: str, private: bool = True, prompt: Any = None, *_: Any, **__: Any
        ) -> None:
            # Not the default, nor the answer: either may be a secret.
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
            self._tell("runner_on_start", {**_about(task), "host": host.get_name()}, parent=str(task._uuid))

        def v2_runner_on_ok(self, result: Any) -> None:
            self._on_result("runner_on_ok", result)

        def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
            self._on_result("runner_on_failed", result, ignore_errors=bool(ignore_errors))

        def v2_runner_on_skipped(self, result: Any) -> None:
            self._on_result("runner_on_skipped", result)

        def v2_runner_on_unreachable(self, result: Any) -> None:
            self._on_result("runner_on_unreachable", result)

        def v2_runner_item_on_ok(self, result: Any) -> None:
            self._on_result("runner_item_on_ok", result)

        def v2_runner_item_on_failed(self, result: Any) -> None:
            self._on_result("runner_item_on_failed", result)

        def v2_runner_item_on_skipped(self, result: Any) -> None:
            self._on_result("runner_item_on_skipped", result)

        def v2_runner_retry(self, result: Any) -> None:
            self._on_result("runner_retry", result)

        def v2_runner_on_async_poll(self, result: Any) -> None:
            self._on_result("runner_on_async_poll", result)

        def v2_runner_on_async_ok(self, result: Any) -> None:
            self._on_result("runner_on_async_ok", result)

        def v2_runner_on_async_failed(self, result: Any) -> None:
            self._on_result("runner_on_async_failed", result)

        def v2_on_file_diff(self, result: Any) -> None:
            # Also without one, as ansible-runner: Ansible calls this for each item of a loop.
            self._on_result("runner_on_file_diff", result, diff=_result(result).get("diff"))

        def _on_result(self, event: str, result: Any, **more: Any) -> None:
            host, task = result._host.get_name(), result._task
            fields = {
                **_about(task),
                "host": host,
                "remote_addr": host,
                "res": _result(result),
                **listener.times(host, str(task._uuid)),
                "event_loop": task.loop_with or (True if task.loop else None),
                **more,
            }
            self._tell(event, fields, parent=str(task._uuid))

        def _tell(self, event: str, fields: dict[str, Any], parent: str = "") -> None:
            own = str(uuid.uuid4())
            listener.emit(event, {**self._where(), **fields, "uuid": own}, own=own, parent=parent)

        @staticmethod
        def _where() -> dict[str, Any]:
            return {**listener.playbook, **listener.play, **listener.task}

    made = EventCallback()
    if hasattr(made, "_init_callback_methods"):
        made._init_callback_methods()
    return made


def _about(task: Any) -> dict[str, Any]:
    fields = {
        "task": (task.name or task.action).strip(),
        "task_uuid": str(task._uuid),
        "task_action": str(task.action),
        "resolved_action": str(getattr(task, "resolved_action", None) or task.action),
        "task_args": "" if task.no_log else ", ".join(f"{key}={value}" for key, value in dict(task.args).items()),
        "task_path": task.get_path() or "",
    }
    if task._role is not None:
        fields["role"] = task._role.get_name()
    return fields
