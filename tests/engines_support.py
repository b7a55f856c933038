# SPDX-License-Identifier: GPL-3.0-or-later
"""Functions with which tests of the engines read results."""

from __future__ import annotations

import gc
import sys
import threading
import time
from importlib import _bootstrap

from forkless.core import versions
from forkless.engines.threads import context, engine


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


def locks_held_by(thread):
    """
    What other threads have to wait for while this one, by its number, executes a plugin: the names of modules that it is
    importing by Python's means, and the locks of its run and of our modules. They are seen at once, where a wait for a
    thread that is kept waiting would have to last long.
    """
    imports = [(name, reference()) for name, reference in list(_bootstrap._module_locks.items())]
    held = [name for name, lock in imports if lock is not None and lock.owner == thread]
    contexts = [one for one in gc.get_objects() if type(one) is context.RunContext]
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("forkless.engines.")]
    for owner in contexts + modules:
        for name, lock in list(vars(owner).items()):
            if isinstance(lock, _RLOCK):
                held += [name] if f" owner={thread} " in repr(lock) else []
            elif isinstance(lock, _LOCK) and _is_kept(lock):
                held.append(f"{getattr(owner, '__name__', owner)}.{name}")
    return held


_RLOCK, _LOCK = type(threading.RLock()), type(threading.Lock())


def _is_kept(lock):
    """A plain lock does not say who has it: whether somebody keeps it, and not only has it for a moment."""
    for _ in range(50):
        if not lock.locked():
            return False
        time.sleep(0.1)
    return True


def own_thread_of(run):
    """The number of the thread on which a run calls ansible-core's command."""
    contexts = [one for one in gc.get_objects() if type(one) is context.RunContext]
    [thread] = [one.thread for one in contexts if one.ident == run.ident]
    return thread.ident
