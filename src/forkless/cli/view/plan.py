# SPDX-License-Identifier: GPL-3.0-or-later
"""The amount of work: plays, tasks and hosts, counted when a playbook begins, so that a view can show the progress."""

from __future__ import annotations

from typing import Any

__all__ = ["Plan", "make_counter"]


class Plan:
    """The weight of each known play: tasks times hosts. It is an estimate, because includes add tasks later."""

    def __init__(self) -> None:
        self.weights: list[int] = []
        self.tasks: list[int] = []
        self._best = 0.0

    def progress(self, play: int, done: int) -> float | None:
        """The progress from 0 to 1 after `done` results of the play with that number. It never decreases."""
        whole = sum(self.weights)
        if not whole or play < 0 or play >= len(self.weights):
            return None
        now = (sum(self.weights[:play]) + min(done, self.weights[play])) / whole
        self._best = max(self._best, now)
        return self._best


def make_counter(plan: Plan) -> object:
    """A callback plugin that fills the plan. The class is created for each run, because it needs the run's ansible-core."""
    from ansible.plugins.callback import CallbackBase

    class PlanCounter(CallbackBase):  # type: ignore[misc]
        CALLBACK_VERSION = 2.0
        CALLBACK_TYPE = "notification"
        CALLBACK_NAME = "forkless.plan"

        def v2_playbook_on_start(self, playbook: Any) -> None:
            for play in playbook.get_plays():
                tasks = _tasks(play)
                plan.tasks.append(tasks)
                plan.weights.append(max(1, tasks) * max(1, _hosts(play)))

    made = PlanCounter()
    if hasattr(made, "_init_callback_methods"):
        made._init_callback_methods()
    return made


def _tasks(play: Any) -> int:
    from ansible.playbook.block import Block

    def count(block: Any) -> int:
        return sum(
            count(one)
            if isinstance(one, Block)
            else (getattr(one, "action", "") not in ("meta", "ansible.builtin.meta"))
            for one in block.block
        )

    try:
        facts = 0 if play.gather_facts is False else 1
        return facts + sum(count(block) for block in play.compile())
    except Exception:  # noqa: BLE001  # a name that is templated later: the view has no estimate
        return 0


def _hosts(play: Any) -> int:
    try:
        return len(play.get_variable_manager()._inventory.get_hosts(play.hosts))
    except Exception:  # noqa: BLE001  # the pattern is templated later, or matches nothing
        return 0
