# SPDX-License-Identifier: GPL-3.0-or-later
"""Events of an invented run, in the form that the engines produce."""

from __future__ import annotations

import datetime as dt
import time
import uuid

from forkless import Event


def a_run(*, hosts, tasks, failed=0, running=0, name="task", message="it broke", seconds=1.0, forks=10):
    """`tasks` tasks on `hosts` hosts; the first `failed` hosts fail in the last task, the last `running` still run it."""
    counter = 0
    clock = time.time() - hosts / forks * tasks * seconds

    def event(kind, when, own=None, **about):
        nonlocal counter
        counter += 1
        stamp = dt.datetime.fromtimestamp(when, dt.UTC).isoformat()
        return Event(event=kind, uuid=own or str(uuid.uuid4()), counter=counter, created=stamp, event_data=about)

    yield event("playbook_on_play_start", clock, name="Servers", pattern="all")
    for number in range(tasks):
        about = {
            "task": f"{name} {number}",
            "task_uuid": f"t{number}",
            "task_action": "command",
            "task_path": f"site.yml:{number}",
        }
        yield event("playbook_on_task_start", clock, **about)
        last = number == tasks - 1
        for first in range(0, hosts, forks):
            batch = [f"host{one:04}" for one in range(first, min(hosts, first + forks))]
            for host in batch:
                yield event("runner_on_start", clock, host=host, **about)
            clock += seconds
            for host in batch:
                place = int(host[4:])
                if last and place >= hosts - running:
                    continue
                bad = last and place < failed
                result = {"msg": message, "rc": 1} if bad else {"changed": number % 3 == 0}
                yield event("runner_on_failed" if bad else "runner_on_ok", clock, host=host, res=result, **about)
