# SPDX-License-Identifier: GPL-3.0-or-later
"""
`atexit`, as a plugin's code sees it.

A function that a plugin registers would be called when the program ends, perhaps months later, and would keep the plugin's module in memory
until then. A forked worker ended without calling such functions, so those of a worker are dropped. Those of the run's own plugins
(callbacks, inventories) were called when ansible-playbook ended: here when the run's command ends, on the run's own thread, which can be abandoned.
"""

from __future__ import annotations

import atexit
import traceback
from typing import TYPE_CHECKING

from forkless.engines.threads import context
from forkless.engines.threads.patches import stdlib_views
from forkless.engines.threads.patches.worker_view import WorkerView

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines.threads.context import RunContext

__all__ = ["PluginAtexit", "call_all"]

_KEY = "exit functions"


class PluginAtexit(WorkerView):
    """The module `atexit` of a plugin's code."""

    @staticmethod
    def register(function: Callable[..., object], *args: object, **kwargs: object) -> object:
        run_context = context.current()
        if run_context is None:
            return atexit.register(function, *args, **kwargs)
        if context.current_worker() is None:
            run_context.state.setdefault(_KEY, []).append((function, args, kwargs))
        return function

    @staticmethod
    def unregister(function: Callable[..., object]) -> None:
        run_context = context.current()
        if run_context is None:
            atexit.unregister(function)
        elif context.current_worker() is None:
            known = run_context.state.get(_KEY, [])
            known[:] = [one for one in known if one[0] != function]


def call_all(run_context: RunContext) -> None:
    """Call the functions, the last one first. One that raises is reported in the run's output, and the others are called all the same."""
    known = run_context.state.get(_KEY, [])
    while known:
        function, args, kwargs = known.pop()
        try:
            function(*args, **kwargs)
        except (Exception, SystemExit):  # noqa: BLE001  # as Python's own: none keeps the others from being called, or changes the exit code
            stream = stdlib_views.sys_view.stderr
            if stream is not None:  # in a program without a console
                stream.write(f"Error in a function that was registered with atexit:\n{traceback.format_exc()}")
