# SPDX-License-Identifier: GPL-3.0-or-later
"""
The items of a task's loop in parallel, for a task or play that sets the variable `forkless_loop_workers`.

The task's worker starts more workers, each with a copy of all that a worker has. Every one of them goes through ansible-core's own loop over
all items, and executes the items that no other has claimed; for the others it records a skipped result that nobody sees. Meanwhile the task's
own worker goes through the same loop, in order, and in place of executing an item it waits for the result of the worker that did. So everything
around an item (its variables, label, callbacks, the collected result) is ansible-core's code in ansible-core's order, and one item sees as
little of another as one worker of another.
"""

from __future__ import annotations

import copy
import functools
import re
import sys
import threading
from typing import TYPE_CHECKING, Protocol

from forkless.core.errors import ForklessError
from forkless.engines.threads import context as thread_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines.threads.workers.worker import Worker

__all__ = ["VARIABLE", "loop_items_of", "run_loop"]

VARIABLE = "forkless_loop_workers"
MOST = 64
_SHARE = "loop_share"  # the key in Worker.state
# Actions that run on the controller, and whose items build on the items before them or that ask a person.
_IN_ORDER = frozenset(
    ("add_host", "group_by", "include_role", "include_tasks", "include_vars", "meta", "pause", "set_fact", "set_stats")
)
# Sent by the loop itself: the task's own worker sends them, in order.
_OF_THE_LOOP = ("v2_runner_item_on_", "v2_on_file_diff")


class _LoopControl(Protocol):
    label: object
    pause: object
    break_when: object

    def copy(self) -> _LoopControl: ...


class _Task(Protocol):
    action: str
    args: object
    when: object
    vars: object
    environment: object
    delegate_to: object
    register: object
    loop_control: _LoopControl


class _Executor(Protocol):
    """What is used of ansible-core's TaskExecutor."""

    _task: _Task
    _connection: object
    _loader: object
    _final_q: object
    _execute: Callable[..., object]


class _ItemResult:
    """What one item came to: its result, its task after templating, and the connection that it used."""

    def __init__(self, result: object, task: _Task, connection: object) -> None:
        self.result, self.task, self.connection = result, task, connection


class LoopShare:
    """The items of one loop and who executes each. All methods may be called by any worker of the loop."""

    def __init__(self, items: list[object]) -> None:
        self.items = items
        self._changed = threading.Condition()
        self._claimed: dict[int, Worker | None] = {}
        self._done: dict[int, _ItemResult] = {}
        self._active: set[Worker] = set()

    def join(self, worker: Worker) -> None:
        with self._changed:
            self._active.add(worker)

    def leave(self, worker: Worker) -> None:
        with self._changed:
            self._active.discard(worker)
            self._changed.notify_all()

    def claim(self, index: int, worker: Worker) -> bool:
        with self._changed:
            if index in self._claimed:
                return False
            self._claimed[index] = worker
            return True

    def give(self, index: int, item: _ItemResult) -> None:
        with self._changed:
            self._done[index] = item
            self._changed.notify_all()

    def take(self, index: int) -> _ItemResult | None:
        """
        Wait for an item's result. None: no worker has claimed it and none is left, so the caller executes it.

        ForklessError: the worker that had claimed the item ended without a result.
        """
        with self._changed:
            while index not in self._done:
                owner = self._claimed.get(index)
                if owner is None and not any(one.is_alive() for one in self._active):
                    self._claimed[index] = None
                    return None
                if owner is not None and (owner not in self._active or not owner.is_alive()):
                    raise ForklessError(
                        f"The worker of loop item {index + 1} ended before the item did; whether it did its work is not known."
                    )
                # At most half a second: an exception that is sent to this thread is raised between two waits.
                self._changed.wait(0.5)
            return self._done.pop(index)


class _ItemQueue:
    """The result queue of a worker that executes items: what the loop reports is left to the task's own worker."""

    def __init__(self, real: object) -> None:
        self._real = real

    def send_callback(self, name: str, *args: object, **kwargs: object) -> None:
        if not name.startswith(_OF_THE_LOOP):
            self._real.send_callback(name, *args, **kwargs)  # type: ignore[attr-defined]

    def send_task_result(self, *_args: object, **_kwargs: object) -> None:
        worker = thread_context.current_worker()
        if worker is not None:
            worker.answered = True

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def _share_of(worker: Worker | None) -> LoopShare | None:
    found = None if worker is None else worker.state.get(_SHARE)
    return found if isinstance(found, LoopShare) else None


def loop_items_of(original: Callable[..., object], _site: str) -> Callable[..., object]:
    """Replaces TaskExecutor._get_loop_items: lookups of a loop are evaluated once, by the task's own worker."""

    @functools.wraps(original)
    def stand_in(self: _Executor) -> object:
        share = _share_of(thread_context.current_worker())
        return original(self) if share is None else share.items

    return stand_in


def run_loop(original: Callable[..., object], _site: str) -> Callable[..., object]:
    """Replaces TaskExecutor._run_loop."""

    @functools.wraps(original)
    def stand_in(self: _Executor, items: list[object]) -> object:
        worker = thread_context.current_worker()
        share = _share_of(worker)
        if worker is not None and share is not None:
            return _execute_items(self, worker, share, functools.partial(original, self, items))
        count = 1 if worker is None else min(len(items), _wanted(self, worker))
        if worker is None or count < 2:
            return original(self, items)
        return _collect_items(self, worker, items, count, functools.partial(original, self, items))

    return stand_in


def _wanted(executor: _Executor, worker: Worker) -> int:
    """How many items may run at once: the variable's value, 1 where an item may depend on the one before it."""
    value = worker._task_vars.get(VARIABLE)
    if value is None or "loop-workers" in worker.run_context.off:
        return 1
    value = sys.modules["ansible.template"].Templar(executor._loader, worker._task_vars).template(value)
    if not str(value).isdecimal() or not 1 <= int(value) <= MOST:
        raise sys.modules["ansible.errors"].AnsibleError(
            f"The variable {VARIABLE} is {value!r}; it must be a number from 1 to {MOST}."
        )
    task, control = executor._task, executor._task.loop_control
    if task.action.rpartition(".")[2] in _IN_ORDER or control.pause or control.break_when or _reads_its_result(task):
        return 1
    return int(value)


def _reads_its_result(task: _Task) -> bool:
    """Whether an item may ask for the result of the item before it: what is registered is named where an item has none of its own yet."""
    names = [str(task.register)] if isinstance(task.register, str) else list(task.register or ())  # type: ignore[call-overload]
    if not names:
        return False
    text = repr((task.when, task.args, task.vars, task.environment, task.delegate_to))
    return re.search(rf"\b(?:{'|'.join(map(re.escape, names))})\b", text) is not None


def _execute_items(executor: _Executor, worker: Worker, share: LoopShare, loop: Callable[[], object]) -> object:
    """On a worker of the loop: execute the items that it can claim, one after another."""
    real, numbers = executor._execute, iter(range(len(share.items)))
    # The label is the task's own worker's: it may ask for a result, and here most items have none.
    executor._task.loop_control = executor._task.loop_control.copy()
    executor._task.loop_control.label = None

    def execute(*args: object, **kwargs: object) -> object:
        index = next(numbers)
        if worker.interrupt.sent is not None:
            raise worker.interrupt.sent
        if not share.claim(index, worker):
            return _skipped()
        result = real(*args, **kwargs)
        # A copy: the loop of either worker adds to it.
        share.give(index, _ItemResult(copy.copy(result), executor._task, executor._connection))
        return result

    executor._execute = execute
    return loop()


def _collect_items(
    executor: _Executor, worker: Worker, items: list[object], count: int, loop: Callable[[], object]
) -> object:
    """On the task's own worker: start the others, and take each item's result in order."""
    share = LoopShare(items)
    others: list[Worker] = []
    real, numbers = executor._execute, iter(range(len(items)))

    def execute(*args: object, **kwargs: object) -> object:
        index = next(numbers)
        item = share.take(index)
        if item is None:
            return real(*args, **kwargs)
        kept = ("_parent", "_loader", "_variable_manager", "_role", "_loop_control")
        vars(executor._task).update({name: value for name, value in vars(item.task).items() if name not in kept})
        executor._connection = item.connection  # only its name is asked for
        return _recorded(item.result)

    executor._execute = execute
    try:
        for _ in range(count):
            other = worker.for_items(_ItemQueue(executor._final_q))
            other.state[_SHARE] = share
            other.at_end.append(functools.partial(share.leave, other))
            share.join(other)
            # Before it starts: an exception that is sent to this thread may be raised as soon as it has.
            others.append(other)
            try:
                other.start()
            except RuntimeError:  # the thread limit is reached: those that there are do the work
                others.remove(other)
                share.leave(other)
                break
        result = loop()
        for other in others:
            while other.is_alive():
                other.join(0.5)  # an exception that is sent to this thread is raised between two waits
    except BaseException:
        for other in others:
            other.terminate()
        raise
    finally:
        vars(executor).pop("_execute", None)
        executor._connection = None  # it is another worker's, which closes it
    return result


def _results() -> object | None:
    """UnifiedTaskResult and TaskContext live in one module since 2.21."""
    module = sys.modules.get("ansible._internal._task")
    return module if hasattr(module, "UnifiedTaskResult") else None


def _skipped() -> object:
    """The result of an item that another worker executes. It is thrown away."""
    module = _results()
    if module is None:
        return {"skipped": True, "changed": False}
    with module.UnifiedTaskResult.create_and_record() as result:  # type: ignore[attr-defined]
        result.set_skipped("another worker's item")
    return result


def _recorded(result: object) -> object:
    """An item's result, recorded in the calling worker's loop as if the item had been executed here."""
    module = _results()
    if module is not None:
        current = module.TaskContext.current()  # type: ignore[attr-defined]
        current._enable_registered_vars()
        current._raw_loop_results.append(result)
        current._populate_item_label(result)
    return result
