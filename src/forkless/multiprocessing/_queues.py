# SPDX-License-Identifier: GPL-3.0-or-later
"""
A put() that need not wait is done on the spot.

The stdlib's Queue.put leaves everything to a feeder thread, so that it never blocks on a full pipe. Between processes
that thread runs beside its caller; between threads of one program it only adds a change of threads to each message.
So what is small, and what the pipe has room for, and nothing is queued before, is written at once. Everything else
goes by the feeder as it always did: so does what cannot be pickled, and it is the feeder that says so.
"""

from __future__ import annotations

import select
from multiprocessing import queues
from queue import Full
from typing import Any

from forkless.multiprocessing._abandoned import Stop

__all__ = ["put"]

# A pipe that is ready for writing takes this much at once, whole or not at all; the connection adds a header of 4 bytes.
_AT_ONCE = select.PIPE_BUF - 4
# After a message that was too big, how many go by the feeder unseen: pickling them twice would be the costlier mistake.
_PATIENCE = 50


def put(stock: Any) -> Any:
    def put(self: Any, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        parcel = None if self._closed or self._thread is None or self._buffer else _small(self, obj)
        if parcel is None:
            stock(self, obj, block, timeout)
            return
        if not self._sem.acquire(block, timeout):
            raise Full
        with self._notempty:
            if not _sent(self, parcel):
                self._buffer.append(obj)
                self._notempty.notify()

    return put


def _small(queue: Any, obj: Any) -> memoryview | None:
    """The message, if it is of a size that can be sent at once."""
    skip = vars(queue).get("_forkless_skip", 0)
    if skip:
        queue._forkless_skip = skip - 1
        return None
    try:
        parcel: memoryview = queues._ForkingPickler.dumps(obj)  # type: ignore[attr-defined]
    except Stop:
        raise
    except (Exception, SystemExit):  # noqa: BLE001  (the feeder will meet it again, and report it)
        return None
    if len(parcel) > _AT_ONCE:
        queue._forkless_skip = _PATIENCE
        return None
    return parcel


def _sent(queue: Any, parcel: memoryview) -> bool:
    """Whether it could be written without waiting for anyone. Called with _notempty held, so that the feeder stays idle."""
    idle = not queue._buffer and queue._notempty._waiters
    if not idle or not queue._wlock.acquire(False):
        return False
    try:
        if not select.select([], [queue._writer], [], 0)[1]:
            return False
        queue._send_bytes(parcel)
    except (OSError, ValueError):
        return False  # nobody reads any more, or the descriptor is too high for select(): the feeder knows what to do
    finally:
        queue._wlock.release()
    return True
