# SPDX-License-Identifier: GPL-3.0-or-later
"""
The resource tracker without a process.

The stdlib's tracker is a process that outlives the program and unlinks what a killed program left in /dev/shm. Here
every child is a thread of the program, so the program keeps the list itself and unlinks what is left when it exits.
"""

from __future__ import annotations

import atexit
import os
import warnings
from multiprocessing import resource_tracker
from typing import Any

__all__ = ["InProcessTracker"]

_names: dict[str, set[str]] = {}


class InProcessTracker(resource_tracker.ResourceTracker):
    """The class of the stdlib's single tracker object while STAND_IN is installed. Any thread may use it."""

    def ensure_running(self) -> None:
        """Do nothing: there is no process to start."""

    def _check_alive(self) -> bool:
        return True

    def getfd(self) -> int | None:
        return None

    def _stop(self, *_: object, **__: object) -> None:
        self._exitcode = int(any(_names.values()))
        _clear_up()

    def _send(self, cmd: str, name: str, rtype: str) -> None:
        # The limits are those of the stdlib's pipe: a line of text, or since 3.13.10 JSON for names that are not ASCII.
        if name.isascii() and len(f"{cmd}:{name}:{rtype}\n") > 512:
            raise ValueError("msg too long")
        if not name.isascii() and len(os.fsencode(name)) > 255:
            raise ValueError("shared memory name too long (max 255 bytes)")
        known = _names.setdefault(rtype, set())
        if cmd == "REGISTER":
            known.add(name)
        else:
            known.discard(name)


def _clear_up() -> None:
    functions: dict[str, Any] = vars(resource_tracker)["_CLEANUP_FUNCS"]
    for rtype, names in _names.items():
        if names and rtype != "dummy":
            warnings.warn(
                f"resource_tracker: There appear to be {len(names)} leaked {rtype} objects to clean up at shutdown: {names}",
                stacklevel=2,
            )
        while names:
            name = names.pop()
            try:
                functions[rtype](name)
            except Exception as error:  # noqa: BLE001  a name that cannot be unlinked must not prevent the others
                warnings.warn(f"resource_tracker: {name!r}: {error}", stacklevel=2)


atexit.register(_clear_up)
