# SPDX-License-Identifier: GPL-3.0-or-later
"""`WorkerView`, the class of the views through which Ansible and its plugins see modules: assignments to them are a worker's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forkless.engines.threads import context
from forkless.patching.module_view import ModuleView

if TYPE_CHECKING:
    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.workers.worker import Worker

__all__ = ["WorkerView", "inherit"]

_ASSIGNED = "attributes of views"


class WorkerView(ModuleView):
    """A view in which every worker, and every run outside of its workers, sees its own assignments; other threads assign to the module."""

    def __getattr__(self, name: str) -> Any:
        own = self._own_attributes()
        return own[name] if name in own else super().__getattr__(name)

    def __setattr__(self, name: str, value: object) -> None:
        home = context.current_worker() or context.current()
        if isinstance(getattr(type(self), name, None), property):
            super().__setattr__(name, value)
        elif home is None:
            setattr(self.__dict__["_real"], name, value)
        else:
            # A plugin that replaces a function of the stdlib replaces it for its worker only, not for the program.
            home.state.setdefault(_ASSIGNED, {}).setdefault(id(self), {})[name] = value

    def _own_attributes(self) -> dict[str, object]:
        home = context.current_worker() or context.current()
        found: dict[str, object] = {} if home is None else home.state.get(_ASSIGNED, {}).get(id(self), {})
        return found


def inherit(run_context: RunContext, worker: Worker) -> None:
    """Let a worker begin with the assignments that its run's own thread has made; called before it starts."""
    if _ASSIGNED in run_context.state:
        worker.state[_ASSIGNED] = {view: dict(names) for view, names in run_context.state[_ASSIGNED].items()}
