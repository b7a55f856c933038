# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a queued run: the same HTML file as of `forkless playbook --report`, made of stored events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forkless.cli.view import report
from forkless.cli.view.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forkless.core.events import Event
    from forkless.web.answers import RunAnswer

__all__ = ["page_of"]


def page_of(run: RunAnswer, events: Sequence[Event]) -> str:
    line = Timeline()
    line.began = (run.started or run.created).timestamp()
    recap: dict[str, dict[str, int]] = {}
    for event in events:
        line.feed(event)
        if event.event == "playbook_on_stats":
            for name, counts in event.event_data.items():
                if isinstance(counts, dict):
                    recap.setdefault(name, {}).update(counts)
    line.close()
    line.ended = (run.ended or run.now).timestamp()
    facts = {
        "playbook": run.title, "run": str(run.id), "launched by": run.created_by, "inventory": ", ".join(run.inventory), "limit": run.limit,
        "tags": ", ".join(run.tags), "project": run.project, "commit": run.commit, "worker": run.worker, "command": run.command,
        "ansible-core on the worker": run.versions.get("ansible_core", ""), "Python on the worker": run.versions.get("python", ""),
    }  # fmt: skip
    status = "error" if run.status == "lost" else run.status
    kept = {name: value for name, value in facts.items() if value}
    return report.page(line, status=status, rc=run.rc if run.rc is not None else 250, facts=kept, recap=recap)
