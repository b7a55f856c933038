# SPDX-License-Identifier: GPL-3.0-or-later
"""How much there is to do: plays, tasks and hosts, counted when a playbook begins, so that a view can say how far it is."""

from __future__ import annotations

from typing import Any

__all__ = ["Plan", "make_counter"]


class Plan:
    """Weights of the plays that are known: tasks times hosts. Includes add tasks later, so it is an estimate."""

    def __init__(self) -> None:
        self.weights: list[int] = []
        self.tasks: list[int] = []
        self._best = 0.0

    def progress(self, play: int, done: int) -> float | None:
        """How much is done, from 0 to 1, when `done` results are in for the play of that number. Never goes back."""
        whole = sum(self.weights)
        if not whole or play < 0 or play >= len(self.weights):
            return None
        now = (sum(self.weights[:play]) + min(done, self.weights[play])) / whole
        self._best = max(self._best, now)
        return self._best


def make_counter(plan: Plan) -> Any:
    """A callback plugin that counts. Made per run, as Ansible itself must be imported to make it."""
    from ansible.plugins.callback import CallbackBase

    class Counter(CallbackBase):  # type: ignore[misc]
        CALLBACK_VERSION = 2.0
        CALLBACK_TYPE = "notification"
        CALLBACK_NAME = "forkless.plan"

        def v2_playbook_on_start(self, playbook: Any) -> None:
            for play in playbook.get_plays():
                tasks = _tasks(play)
                plan.tasks.append(tasks)
                plan.weights.append(max(1, tasks) * max(1, _hosts(play)))

    made = Counter()
    if hasattr(made, "_init_callback_methods"):
        made._init_callback_methods()
    return made


def _tasks(play: Any) -> int:
    from ansible.playbook.block import Block

    def count(block: Any) -> int:
        return sum(
            count(one) if isinstance(one, Block) else (getattr(one, "action", "") not in ("meta", "ansible.builtin.meta"))
            for one in block.block
        )

    try:
        facts = 0 if play.gather_facts is False else 1
        return facts + sum(count(block) for block in play.compile())
    except Exception:  # noqa: BLE001  # a name that is templated later; the view goes without an estimate
        return 0


def _hosts(play: Any) -> int:
    try:
        return len(play.get_variable_manager()._inventory.get_hosts(play.hosts))
    except Exception:  # noqa: BLE001  # the pattern is templated later, or matches nothing
        return 0
