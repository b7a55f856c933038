# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of the engines read out of results."""

from __future__ import annotations


def messages(result, task=None):
    """What each host's last debug (of that task) said."""
    said = {}
    for event in result.events:
        if event.event == "runner_on_ok" and "msg" in event.event_data["res"] and task in (None, event.task):
            said[event.host] = event.event_data["res"]["msg"]
    return said
