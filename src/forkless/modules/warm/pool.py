# SPDX-License-Identifier: GPL-3.0-or-later
"""The warm interpreters of a run: one for each login, user and Python, started when needed, closed with the run."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from forkless.core import platform
from forkless.core.run_context import SCOPE
from forkless.core.thread_stack import OwnThread
from forkless.modules.warm.interpreter import GRACE, NotStartedError, WarmInterpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

__all__ = ["InterpreterPool", "current_pool", "interpreter_pool"]

MAX_PER_PLACE = 8  # interpreters for one login (each environment needs its own); above that the longest idle are closed
DESCRIPTORS = 3  # open files here for one interpreter: the pipes to the program that reaches it
FEWEST = 8  # interpreters, however few files may be open
TRIES = 2  # an interpreter that failed to start this often is not started again in this run


class InterpreterPool:
    """All methods may be called by any thread. No lock but a slot's own is held while an interpreter starts."""

    def __init__(self) -> None:
        self._most = _affordable()
        # Guards the fields; never held while an interpreter is started or closed.
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._leaving: list[
            tuple[Any, WarmInterpreter]
        ] = []  # become users' interpreters that are being closed, with their machines
        self._slots: dict[Hashable, _Slot] = {}
        self._notes: dict[Hashable, dict[Any, str]] = {}
        self._leftovers: list[tuple[str, str]] = []
        self._closed = False

    def get(
        self,
        place: Hashable,
        key: Hashable,
        start: Callable[[], WarmInterpreter],
        *,
        machine: Any = None,
        become_user: bool = False,
    ) -> WarmInterpreter:
        """
        Return the warm interpreter for this key; `start` is called if there is none.

        Threads that ask for the key while it is being started wait and get the same interpreter. NotStartedError: it
        failed to start, or failed TRIES times before, or the pool was closed.

        With `become_user` the interpreter belongs to a user whom the next task may remove, so it is closed before
        another user's command runs on the machine.
        """
        with self._lock:
            if self._closed:
                raise NotStartedError("the run is over")
            slot = self._slots.setdefault((place, key), _Slot(place, machine if become_user else None))
            idle = self._too_many(place, slot)
        for one in idle:
            one.retire()
        self.close_idle_of_other_users(machine, slot)
        with slot.lock:
            if slot.interpreter is not None and not slot.interpreter.lost:
                return slot.interpreter
            if slot.failed >= TRIES:
                raise NotStartedError("the warm interpreter could not be started before")
            slot.drop()
            try:
                slot.interpreter = start()
                slot.interpreter.leftovers = self._leftovers
            except NotStartedError:
                slot.failed += 1
                raise
            if self._closed:
                slot.drop()
                raise NotStartedError("the run is over")
            return slot.interpreter

    def of_login(self, place: Hashable) -> WarmInterpreter | None:
        """A running interpreter of the login user, or None. Never starts one."""
        with self._lock:
            there = [slot.interpreter for slot in self._slots.values() if slot.place == place]
        return next((one for one in there if one is not None and one.login and not one.lost), None)

    def notes(self, place: Hashable) -> dict[Any, str]:
        """Facts about this login, kept until `close_place`. The caller may add to the dict."""
        with self._lock:
            return self._notes.setdefault(place, {})

    @property
    def has_become_user_interpreters(self) -> bool:
        there = any(
            slot.become_user_on is not None and slot.interpreter is not None for slot in list(self._slots.values())
        )
        return there or bool(self._leaving)

    def close_idle_of_other_users(self, machine: Any, wanted: Any = None) -> None:
        """
        `userdel` fails while the user owns a process, so idle interpreters of other become users are closed before any
        command runs on the machine. Interpreters that another worker is closing at the same time are waited for as
        well, GRACE seconds at most.
        """
        with self._lock:
            leaving: list[WarmInterpreter] = []
            for slot in self._slots.values():
                interpreter = slot.interpreter
                stays = slot is wanted or slot.become_user_on is None or slot.become_user_on != machine
                if not stays and interpreter is not None and not interpreter.busy:
                    slot.interpreter = None
                    leaving.append(interpreter)
                    self._leaving.append((machine, interpreter))
        deadline = time.monotonic() + GRACE  # one deadline for all interpreters
        try:
            for one in leaving:
                one.retire(until=deadline)
        finally:
            with self._lock:
                self._leaving = [(where, one) for where, one in self._leaving if one not in leaving]
                self._left.notify_all()
                self._left.wait_for(
                    lambda: all(where != machine for where, _ in self._leaving), max(0.0, deadline - time.monotonic())
                )

    def _too_many(self, place: Hashable, wanted: _Slot) -> list[WarmInterpreter]:
        there = [slot for slot in self._slots.values() if slot.place == place and slot is not wanted]
        resting = [
            (slot.interpreter.used, n)
            for n, slot in enumerate(there)
            if slot.interpreter is not None and not slot.interpreter.busy
        ]
        idle: list[WarmInterpreter] = []
        for _, number in sorted(resting)[: max(0, len(resting) - MAX_PER_PLACE + 1)]:
            interpreter, there[number].interpreter = there[number].interpreter, None
            idle += [interpreter] if interpreter is not None else []
        return idle + self._above_limit(wanted)

    def _above_limit(self, wanted: _Slot) -> list[WarmInterpreter]:
        """Each host of a run has an interpreter: with some hundred hosts the process would have no file left to open."""
        running = [slot for slot in self._slots.values() if slot is not wanted and slot.interpreter is not None]
        above = len(running) + 1 - self._most
        if above <= 0:
            return []
        resting = [slot for slot in running if slot.interpreter is not None and not slot.interpreter.busy]
        resting.sort(key=lambda slot: 0.0 if slot.interpreter is None else slot.interpreter.used)
        idle: list[WarmInterpreter] = []
        for slot in resting[:above]:
            interpreter, slot.interpreter = slot.interpreter, None
            idle += [interpreter] if interpreter is not None else []
        return idle

    def forget(self, interpreter: WarmInterpreter) -> None:
        """Retire an interpreter that is stale or has ended; the next `get` starts another, if it has ever taken orders."""
        with self._lock:
            slots = [slot for slot in self._slots.values() if slot.interpreter is interpreter]
            for slot in slots:
                slot.interpreter = None
                slot.failed = TRIES if interpreter.cannot_serve else slot.failed + (not interpreter.serving)
        interpreter.retire()

    def close_place(self, place: Hashable) -> None:
        """Close all interpreters of this login and drop its notes, for `meta: reset_connection`."""
        with self._lock:
            slots = [slot for slot in self._slots.values() if slot.place == place]
            self._notes.pop(place, None)
        for slot in slots:
            slot.drop()

    def take_not_removed(self) -> list[tuple[str, str]]:
        """Folders on hosts that interpreters, now closed, could not remove after their last task, and why; each is returned once."""
        found, self._leftovers[:] = list(self._leftovers), []
        return found

    def close(self) -> None:
        with self._lock:
            self._closed = True
            slots = list(self._slots.values())
            self._slots.clear()
        threads = [OwnThread(target=slot.drop, name="forkless-interpreter-end", daemon=True) for slot in slots]
        for thread, slot in zip(threads, slots, strict=True):
            try:
                thread.start()
            except RuntimeError:  # the thread limit is reached
                slot.drop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def _affordable() -> int:
    """How many interpreters may run at once: half of the files that this process may open are left to workers and to the program."""
    limit = platform.open_files_limit()
    return sys.maxsize if limit is None else max(FEWEST, limit // 2 // DESCRIPTORS)


class _Slot:
    def __init__(self, place: Hashable, become_user_on: Any) -> None:
        self.place = place
        self.become_user_on = become_user_on
        self.lock = threading.Lock()
        self.interpreter: WarmInterpreter | None = None
        self.failed = 0

    def drop(self) -> None:
        interpreter, self.interpreter = self.interpreter, None
        if interpreter is not None:
            interpreter.close()


@contextlib.contextmanager
def interpreter_pool() -> Iterator[InterpreterPool]:
    """Keep interpreters warm until the block ends, when all of them are closed. The pool serves threads in whose RunScope it is."""
    pool = InterpreterPool()
    try:
        yield pool
    finally:
        pool.close()


def current_pool() -> InterpreterPool | None:
    """The pool of the run that the calling thread works for; None if it works for no run, and all modules run cold."""
    scope = SCOPE.get()
    pool = None if scope is None else scope.interpreter_pool
    return pool if isinstance(pool, InterpreterPool) else None
