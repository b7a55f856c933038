# SPDX-License-Identifier: GPL-3.0-or-later
"""
Module-level state of plugins that a run's own thread has, for the workers that start later.

A forked worker began with a copy of what inventory, vars, callback and other plugins had put into their modules in the main process: a
token that an inventory plugin has fetched is there when a lookup plugin asks for it. Here a worker executes these files anew, and is then given
the state that the run's own modules had when the worker started. An object that the import has made is filled in place, so that all
references to it stay right; a name that was assigned since is assigned.

A worker that starts while the run's modules are as their imports have left them costs one comparison of each; nothing is copied.
"""

from __future__ import annotations

import contextlib
import itertools
import marshal
import pickle
import threading
from typing import TYPE_CHECKING, TypeAlias

from forkless.engines.threads import context
from forkless.engines.threads.patches import worker_view
from forkless.engines.threads.patches.frozen_state import Frozen, freeze
from forkless.engines.threads.patches.module_places import (
    fill,
    has_parts,
    holders,
    is_code,
    is_immutable,
    is_plain_object,
    state_of,
)

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Hashable

    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.patches.module_places import Holder, Place, PluginValue, Route
    from forkless.engines.threads.workers.worker import Worker

__all__ = ["ENVIRON", "executed", "has_executed", "take_snapshot"]

_OF_RUN, _OF_WORKER, _FILES = "modules that workers inherit", "inherited modules", "executed files"

# Among the state of a run whose own thread has changed a variable of the environment.
ENVIRON = "environment changed"

# The name of an object of a run's module of which each worker has its own: the module's key, and the place.
Name: TypeAlias = "tuple[Hashable, Place | None]"
Change: TypeAlias = "tuple[Place, str, object]"
# Marks a module's own dict of names, and what a holder is of, where a place is asked for.
_NAMES, _OWNER = "<names>", "<owner>"


class _Record:
    """A module that the run's own thread has executed: as its import has left it, and as it was seen last."""

    def __init__(
        self,
        key: Hashable,
        module: types.ModuleType,
        load: Callable[[], types.ModuleType],
        *,
        varies: bool,
        elsewhere: set[int],
    ) -> None:
        self.module, self._key, self.load = module, key, load
        self._elsewhere = frozenset(elsewhere)
        """The ids of objects that another record looks after: a file that has imported them by name has the same in a worker."""
        self.varies = varies
        """Whether two imports of the file may leave different values."""
        self._look()
        self.first = self._places
        self.first_bytes = dict(zip(self._roots, self._seen[1], strict=True))
        self.differs = False

    def _look(self) -> None:
        self._holders = holders(self.module)
        self._places = {(route, name): value for route, one in self._holders.items() for name, value in one.items()}
        self._roots = {
            place: value
            for place, value in self._places.items()
            if _is_state(value) and id(value) not in self._elsewhere
        }
        self._values = [one.values() for one in self._holders.values()]
        self._seen = self._fingerprint()

    def _fingerprint(self) -> tuple[list[int], list[bytes]]:
        """Equal as long as no name is assigned and no object is changed. It is asked for every worker, and so most of it is done in C."""
        return list(map(id, itertools.chain.from_iterable(self._values))), [*map(_as_bytes, self._roots.values())]

    def root_ids(self) -> list[int]:
        return [id(value) for value in self._roots.values()]

    def has_changed(self) -> bool:
        """Whether the module is not as it was when this was asked last."""
        if self._fingerprint() == self._seen:
            return False
        self._look()
        self.differs = bool(self.changes())
        return True

    def names(self) -> dict[int, Name]:
        """By id, the objects of this module of which a worker's module has its own."""
        found: dict[int, Name] = {
            id(self.module): (self._key, None),
            id(vars(self.module)): (self._key, ((), _NAMES)),
        }
        for route, one in self._holders.items():
            if route and one.space is not None:
                found[id(one.owner)] = (self._key, (route, _OWNER))
        for place, value in self._places.items():
            if self.first.get(place) is value and _is_state(value) and (has_parts(value) or not self._differs(place)):
                found.setdefault(id(value), (self._key, place))
        return found

    def changes(self) -> list[Change]:
        """What makes a worker's module as this one is."""
        found: list[Change] = [(place, "delete", None) for place in self.first if place not in self._places]
        for place, value in self._places.items():
            if place not in self.first or self.first[place] is not value:
                found.append((place, "assign", value))
            elif place in self._roots and self._differs(place):
                found.append((place, "fill", state_of(value)) if has_parts(value) else (place, "assign", value))
        return found

    def _differs(self, place: Place) -> bool:
        return _as_bytes(self._places[place]) != self.first_bytes.get(place)

    def differences(self, own: dict[Place, object]) -> list[Change]:
        """The same for a module that is as its import has left it: what an import has made of the time, of a random number or a file."""
        found: list[Change] = []
        for place, value in self.first.items():
            if place not in own or value is own[place] or type(value) is not type(own[place]):
                continue
            data = self.first_bytes.get(place, _PICKLED)
            if is_immutable(value):
                if value != own[place]:
                    found.append((place, "assign", value))
            elif not data.startswith(_PICKLED) and data != _as_bytes(own[place]):
                twin = marshal.loads(data)  # noqa: S302  # our own bytes
                if type(value) is bytearray:
                    twin = bytearray(twin)
                elif not _is_plain(value):  # marshal makes bytes of a bytearray or an array
                    continue
                found.append((place, "fill", state_of(twin)) if has_parts(twin) else (place, "assign", twin))
        return found


def _is_plain(value: PluginValue) -> bool:
    kind = type(value)
    if kind is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if kind in (list, tuple, set, frozenset) else is_immutable(value)


def _is_state(value: object) -> bool:
    return not is_immutable(value) and not is_code(value)


# What the bytes of an object begin with, and no bytes of marshal do.
_PICKLED = b"\0"


def _as_bytes(value: PluginValue) -> bytes:
    """Equal for equal values: of numbers, text and containers of them by marshal, which is quick."""
    try:
        return marshal.dumps(value, 2)
    except ValueError:
        return _by_items(value) if type(value) is dict and len(value) <= _FEW else _frozen(value)


# A dict of so many names is looked at name by name: beside one object that is not plain, the others may be large.
_FEW = 100


def _by_items(value: dict[PluginValue, PluginValue]) -> bytes:
    parts: list[bytes] = []
    shared: list[object] = []
    for one in [part for item in [*value.items()] for part in item]:
        try:
            made = marshal.dumps(one, 2)
        except ValueError:
            made = _frozen(one)
            shared += getattr(made, "shared", ())
        parts += len(made).to_bytes(8, "big"), made
    seen = _Fingerprint(_PICKLED + b"".join(parts))
    seen.shared = shared
    return seen


class _Fingerprint(bytes):
    """Bytes with ids of objects, and these objects: as long as they are kept, no other object has such an id."""

    shared: list[object]


def _frozen(value: PluginValue) -> bytes:
    if is_plain_object(value):
        with contextlib.suppress(ValueError):
            return _PICKLED + marshal.dumps(value.__dict__, 2)
    try:
        made = freeze(state_of(value) if has_parts(value) else value, {})
    except Exception:  # noqa: BLE001  # an object's own code may raise anything
        return _PICKLED
    # The bytes have only numbers of what is shared: times, functions.
    seen = _Fingerprint(_PICKLED + made.data + repr([*map(id, made.shared)]).encode())
    seen.shared = made.shared
    return seen


class _Snapshot:
    """The modules of a run as they were when a worker started; shared by all workers that start before anything is changed."""

    def __init__(self, records: dict[Hashable, _Record]) -> None:
        self.records = records
        self.differing = {key for key, record in records.items() if record.differs}
        self._frozen: dict[Hashable, Frozen] = {}
        self._names: dict[int, Name] = {}
        if self.differing:
            for record in records.values():
                self._names |= record.names()
            self.changes = self._copy({key: records[key].changes() for key in self.differing})

    def _copy(self, changes: dict[Hashable, list[Change]]) -> Frozen:
        """All in one copy, so that an object that two modules have is one object in the worker, too."""
        try:
            return freeze(changes, self._names)
        except Exception:  # noqa: BLE001  # an object's own code may raise anything: that one stays as the import makes it
            return freeze(
                {key: [one for one in some if self._can_copy(one)] for key, some in changes.items()}, self._names
            )

    def _can_copy(self, change: Change) -> bool:
        try:
            freeze(change, self._names)
        except Exception:  # noqa: BLE001
            return False
        return True


class _RunModules:
    """The modules that the run's own threads have executed."""

    def __init__(self) -> None:
        self.records: dict[Hashable, _Record] = {}
        # Callbacks may import a file on the thread of results.
        self._lock = threading.Lock()
        self._newest: _Snapshot | None = None

    def add(
        self, key: Hashable, module: types.ModuleType, load: Callable[[], types.ModuleType], *, varies: bool
    ) -> None:
        elsewhere = {number for one in self.records.values() for number in one.root_ids()}
        record = _Record(key, module, load, varies=varies, elsewhere=elsewhere)
        with self._lock:
            self.records = {**self.records, key: record}
            self._newest = None

    def snapshot(self) -> _Snapshot:
        changed = [record for record in self.records.values() if record.has_changed()]
        if changed or self._newest is None:
            self._newest = _Snapshot(self.records)
        return self._newest


class _Inheritance:
    """What one worker is given. Used by all threads of the worker."""

    def __init__(self, snapshot: _Snapshot) -> None:
        self._snapshot = snapshot
        self._own: dict[Hashable, tuple[dict[Place, object], dict[Route, Holder]]] = {}
        self._changes: dict[Hashable, list[Change]] | None = None
        self._copying = False
        self._postponed = False

    def give(self, key: Hashable, module: types.ModuleType) -> None:
        """Give the state to a module that the worker has just executed."""
        record = self._snapshot.records.get(key)
        if record is None or not (record.varies or key in self._snapshot.differing or self._postponed):
            return
        self._own.pop(key, None)  # found while the file was being executed
        places, _ = self._found(key, module)
        if record.varies:
            self._apply(key, record.differences(places))
        if key not in self._snapshot.differing and not self._postponed:
            return
        if self._changes is not None:
            self._apply(key, self._changes.get(key, []))
        elif not self._copying:
            self._copy()

    def _copy(self) -> None:
        """Objects of other modules are looked for, and these modules executed; they are given their state afterwards."""
        self._copying = True
        try:
            changes = self._snapshot.changes.thaw(self._counterpart)
        except LookupError:
            # A file that is being executed imports this one, and has not made the object yet: tried again when it is executed.
            self._postponed = True
            return
        finally:
            self._copying = False
        self._changes, self._postponed = changes, False
        for one in [one for one in self._own if one in self._snapshot.differing]:
            self._apply(one, changes.get(one, []))

    def _found(self, key: Hashable, module: types.ModuleType) -> tuple[dict[Place, object], dict[Route, Holder]]:
        """The places of the worker's module, as its import has left them."""
        if key not in self._own:
            found = holders(module)
            places = {(route, name): value for route, one in found.items() for name, value in one.items()}
            self._own[key] = places, found
        return self._own[key]

    def _counterpart(self, name: Name) -> object:
        key, place = name
        module = self._snapshot.records[key].load()
        if place is None:
            return module
        if place[1] == _NAMES:
            return vars(module)
        places, found = self._found(key, module)
        return found[place[0]].owner if place[1] == _OWNER else places[place]

    def _apply(self, key: Hashable, changes: list[Change]) -> None:
        places, found = self._own[key]
        first = self._snapshot.records[key].first
        for (route, name), how, content in changes:
            holder = found.get(route)
            if holder is None:
                continue
            if how == "assign":
                holder.put(name, content)
            elif how == "delete":
                holder.delete(name)
            elif (route, name) in places and places[route, name] is not first.get((route, name)):
                # What the run's module has as well is a library's object, which all share.
                state: PluginValue = content
                fill(places[route, name], state)
                holder.filled(name)


# What the code of a plugin's or library's objects may raise when they are looked at or copied. The worker's module then stays as its import has left
# it: no play fails because of this. A stop and a task's time limit are none of these.
_OF_OBJECTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.PickleError,
)


def executed(key: Hashable, module: types.ModuleType, load: Callable[[], types.ModuleType], *, varies: bool) -> None:
    """
    Called when a plugin's file with state was executed, on the thread that has done so. For a run's own thread the module is remembered, and a
    worker's is given the state of the run's. `load` returns the calling worker's module of this file, and executes it if need be. `varies`: two imports of
    the file may leave different values.
    """
    worker = context.current_worker()
    if worker is None:
        run_context = context.current()
        if run_context is not None:
            with contextlib.suppress(*_OF_OBJECTS):
                run_context.state.setdefault(_OF_RUN, _RunModules()).add(key, module, load, varies=varies)
        return
    worker.state.setdefault(_FILES, set()).add(module.__file__)
    inherited: _Inheritance | None = worker.state.get(_OF_WORKER)
    if inherited is not None:
        with contextlib.suppress(*_OF_OBJECTS):
            inherited.give(key, module)


def has_executed(worker: Worker, file: str) -> bool:
    """Whether the worker has executed a plugin's file with state."""
    return file in worker.state.get(_FILES, ())


def take_snapshot(run_context: RunContext, worker: Worker) -> None:
    """Called on the thread that starts a worker, before it does."""
    above = context.current_worker()
    if above is not None:  # another worker for items of the same loop
        if _OF_WORKER in above.state:
            worker.state[_OF_WORKER] = _Inheritance(above.state[_OF_WORKER]._snapshot)
        return
    worker_view.inherit(run_context, worker)
    if ENVIRON in run_context.state and run_context.environ is not None:
        worker.environ = dict(run_context.environ)
    modules: _RunModules | None = run_context.state.get(_OF_RUN)
    if modules is not None:
        with contextlib.suppress(*_OF_OBJECTS):
            worker.state[_OF_WORKER] = _Inheritance(modules.snapshot())
