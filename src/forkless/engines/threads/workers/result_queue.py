# SPDX-License-Identifier: GPL-3.0-or-later
"""The queue in which workers put their results for the strategy: in memory, in place of ansible-core's pipe between processes."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

from forkless.core import bulk
from forkless.engines.threads import context as thread_context

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["make_queue"]


def _results(item: object) -> list[object]:
    """The results of a task in what a worker sends about it or about one item of its loop."""
    sent = getattr(item, "wire_task_result", item)  # since 2.19, about an item
    whole = getattr(sent, "utr", None)  # since 2.21
    if whole is not None:
        each = [whole, *(whole.loop_results or ())]
        return [whole.registered_values, *(one.result_data for one in each)]
    if type(sent).__name__ == "CallbackSend":  # 2.18, about an item
        sent = next(iter(getattr(sent, "args", ())), None)
    return [getattr(sent, "return_data", None) or getattr(sent, "_result", None)]


def make_queue(upstream: Any) -> type:
    """
    ansible-core's FinalQueue in memory.

    Items are still pickled by `put` and unpickled by `get`: that separates a result from the worker's objects, and keeps Ansible's error
    for a result that cannot be pickled. Only large texts, which cannot be changed, are shared. There is no pipe, so there is no
    descriptor, no semaphore, and no partly written message when a worker is interrupted.
    """

    class MemoryQueue(upstream):  # type: ignore[misc]
        def __init__(self, *_args: object, **_kwargs: object) -> None:
            self._items: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()

        def send_task_result(self, *args: object, **kwargs: object) -> None:
            worker = thread_context.current_worker()
            if worker is None:
                super().send_task_result(*args, **kwargs)
                return
            # Set before the result is sent: the reader may end the run, and with it this worker, immediately.
            worker.answered = True
            try:
                super().send_task_result(*args, **kwargs)
            except BaseException:  # the result was not sent
                worker.answered = False
                raise

        def put(self, item: object) -> None:
            self._items.put(bulk.pickled(item, *_results(item)))

        def get(self) -> object:
            copied = self._items.get()
            if copied is None:
                raise EOFError
            return copied()

        def empty(self) -> bool:
            return self._items.empty()

        def close(self) -> None:
            self._items.put(None)

        def __del__(self) -> None:
            """Upstream's closes pipes; this queue has none."""

    return MemoryQueue
