# SPDX-License-Identifier: GPL-3.0-or-later
"""
The resource tracker, without its process.

The stdlib's is a process that outlives the program, to unlink what a killed program left in /dev/shm. Here every child
is a thread of the program, so the program can keep the list itself, and clear up when it exits.
"""

from __future__ import annotations

import atexit
import warnings
from multiprocessing import resource_tracker
from typing import Any

__all__ = ["InProcessTracker"]

_names: dict[str, set[str]] = {}


class InProcessTracker(resource_tracker.ResourceTracker):
    """The class that the stdlib's one tracker object is given while we stand in."""

    def ensure_running(self) -> None:
        """It is, as long as the program is."""

    def _check_alive(self) -> bool:
        return True

    def getfd(self) -> int | None:
        return None

    def _stop(self, *_: Any, **__: Any) -> None:
        self._exitcode = int(any(_names.values()))
        _clear_up()

    def _send(self, cmd: str, name: str, rtype: str) -> None:
        message = f"{cmd}:{name}:{rtype}\n".encode("ascii")
        if len(message) > 512:
            raise ValueError("msg too long")
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
            except Exception as error:  # noqa: BLE001  one name that cannot be unlinked must not keep the rest
                warnings.warn(f"resource_tracker: {name!r}: {error}", stacklevel=2)


atexit.register(_clear_up)
