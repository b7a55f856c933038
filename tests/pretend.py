# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine that runs no Ansible: a function of the test takes the place of the run, behind the `Engine` contract."""

from __future__ import annotations

import base64
import json
import threading
import uuid

from forkless import Event, Status
from forkless.core.result import Outcome


def event(counter, name="runner_on_ok", **fields):
    return Event(event=name, uuid=str(uuid.uuid4()), counter=counter, event_data={"host": "web1"}, **fields)


class Pretend:
    """`play(deliver, write, stop)` is called as the run; its return value, if any, is the outcome."""

    name = "pretend"

    def __init__(self, play=None):
        self.play = play or (lambda deliver, write, stop: None)
        self.lock = threading.Lock()
        self.at_once = self.most = 0

    def carry_out(self, spec, *, ident, deliver, write, stop, wait=True):
        with self.lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        try:
            outcome = self.play(deliver, write, stop)
        finally:
            with self.lock:
                self.at_once -= 1
        if outcome:
            return outcome
        return Outcome(stop.why, 254) if stop.requested else Outcome(Status.SUCCESSFUL, 0)


def some(count, size=0):
    """A `play` function that delivers `count` events."""

    def play(deliver, write, stop):
        for n in range(1, count + 1):
            deliver(event(n, stdout="x" * size))
            write("x" * size + "\n")
        deliver(event(count + 1, "playbook_on_stats"))

    return play


def until_stopped(deliver, write, stop):
    deliver(event(1))
    stop.wait()


def _mark(what):
    text = base64.b64encode(json.dumps(what).encode()).decode()
    return f"\\033[K{text}\\033[{len(text)}D\\033[K"


# A child that writes its recap as ansible-runner's callback plugin does, and exits at once. It is the shortest possible run,
# and therefore the most likely to lose its last event.
SHORTEST = f"""#!/bin/sh
mkdir -p "$AWX_ISOLATED_DATA_DIR/job_events"
echo '{{"uuid": "u1", "event": "playbook_on_stats", "event_data": {{"ok": {{"a": 1}}}}}}' > "$AWX_ISOLATED_DATA_DIR/job_events/u1-partial.json"
printf '{_mark({"uuid": "u1"})}PLAY RECAP\\n{_mark({})}'
"""
