# SPDX-License-Identifier: GPL-3.0-or-later
"""Functions with which tests of the engines read results."""

from __future__ import annotations

from forkless.core import versions
from forkless.engines.threads import engine


def messages(result, task=None):
    """The message of each host's last debug task, or of the given task."""
    said = {}
    for event in result.events:
        if event.event == "runner_on_ok" and "msg" in event.event_data["res"] and task in (None, event.task):
            said[event.host] = event.event_data["res"]["msg"]
    return said


def world_of_runs():
    """
    The modules of the last run's ansible-core, by name. A test cannot import them: an import in the test gives the
    modules that belong to the program.
    """
    return next(reversed(engine._config_gate._worlds.values()))


def shown(secret):
    """How output shows a secret that ansible-core knows: since 2.22 it is masked."""
    from forkless.patching import seams

    return "$REDACTED$" if seams.minor(seams.version()) in versions.since("2.22") else secret
