# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a run, counted from its events: for lists of runs, and for the sentence about a run that was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkless.core.events import Event

__all__ = ["Progress"]

_RESULTS = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_skipped": "skipped",
}


class Progress:
    """Fed with each event in order, by one thread."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(("ok", "changed", "failed", "unreachable", "skipped", "tasks"), 0)
        self._hosts: set[str] = set()
        self._running: dict[str, str] = {}
        self._play = ""
        self._task = ""
        self.recap: dict[str, dict[str, int]] = {}

    def add(self, event: Event) -> None:
        if event.event == "playbook_on_play_start":
            self._play = str(event.event_data.get("play") or "")
        elif event.event in ("playbook_on_task_start", "playbook_on_handler_task_start"):
            self._task = event.task or ""
            self._counts["tasks"] += 1
        elif event.event == "playbook_on_stats":
            self._recap(event)
        host = event.host
        if host is None:
            return
        self._hosts.add(host)
        if event.event == "runner_on_start":
            self._running[host] = event.task or ""
        elif event.event in _RESULTS:
            self._running.pop(host, None)
            ignored = event.event == "runner_on_failed" and event.event_data.get("ignore_errors")
            self._counts["ok" if ignored else _RESULTS[event.event]] += 1
            res = event.event_data.get("res")
            if isinstance(res, dict) and res.get("changed") and event.event == "runner_on_ok":
                self._counts["changed"] += 1

    def _recap(self, event: Event) -> None:
        keys = ("ok", "changed", "dark", "failures", "skipped", "rescued", "ignored")
        names = {host for key in (*keys, "processed") for host in event.event_data.get(key, {})}
        self.recap = {host: {key: int(event.event_data.get(key, {}).get(host, 0)) for key in keys} for host in names}

    def as_dict(self) -> dict[str, object]:
        return {**self._counts, "hosts": len(self._hosts), "play": self._play[:200], "task": self._task[:200]}

    @property
    def place(self) -> str | None:
        """Where the run is: "task 'restart nginx' on web1, web2 and 3 more". None before its first task."""
        if not self._running:
            return f"task '{self._task[:200]}'" if self._task else None
        task = next(reversed(self._running.values()))
        hosts = [host for host, at in self._running.items() if at == task]
        more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
        return f"task '{task[:200]}' on {', '.join(hosts[:3])}{more}"
