# SPDX-License-Identifier: GPL-3.0-or-later
"""
A library that a play installs on the controller, seen by the tasks after it.

A forked worker imported its plugins, and what they import, for itself: what one task installed the next one found. Here they are imported once
for a process, and `HAS_LIBRARY = False` would stay so. Whether something was installed is told by the folders that libraries lie in; only when
one of them has changed are the modules looked for that could not import what is there now. Each is run again on the side, and what came
out otherwise is put into the one that everybody has. Nothing is kept but the folders' times.
"""

from __future__ import annotations

import contextlib
import dis
import importlib
import importlib.util
import os
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

from forkless.engines import _views

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["look"]

# Held while modules are brought up to date: two runs may come at once.
_lock = threading.Lock()
# The times, by the ansible-core that is imported: under another configuration it is another one, which may have seen less.
_seen: weakref.WeakKeyDictionary[types.ModuleType, Any] = weakref.WeakKeyDictionary()
_PLAIN = (type(None), bool, int, float, str, bytes, tuple, frozenset)


def _times() -> tuple[tuple[str, int], ...]:
    found = []
    for path in sys.path:
        if path.endswith(
            "-packages"
        ):  # site-packages and dist-packages: not the project's folder, which changes all the time
            with contextlib.suppress(OSError):
                found.append((path, os.stat(path).st_mtime_ns))
    return tuple(found)


def _names(folders: tuple[tuple[str, int], ...]) -> frozenset[str]:
    found: set[str] = set()
    for path, _ in folders:
        with contextlib.suppress(OSError):
            found.update(entry.partition(".")[0] for entry in os.listdir(path))
    # Of what lies there only this can be imported: not the records of installations, and not the compiled code, which appears when it is first needed.
    return frozenset(name for name in found if name.isidentifier() and name != "__pycache__")


def look() -> None:
    """Called before a worker starts: if something was installed, those who missed it get it."""
    world = sys.modules["ansible"]
    times = _times()
    if _seen.get(world, (None,))[0] == times:
        return
    with _lock:
        names = _names(times)
        before = _seen.get(world)
        _seen[world] = times, names
        new = names - before[1] if before is not None else frozenset()
        if new:
            _bring_up_to_date(new)


def _bring_up_to_date(new: frozenset[str]) -> None:
    importlib.invalidate_caches()
    imports = dict(_shared_with_imports())
    waiting = [name for name, wanted in imports.items() if any(one.partition(".")[0] in new for one in wanted)]
    done: set[str] = set()
    while waiting:
        name = waiting.pop(0)
        if name in done:
            continue
        done.add(name)
        if _again(sys.modules[name]):  # who took a name out of it has the old one
            waiting += [other for other, wanted in imports.items() if name in wanted]


def _shared_with_imports() -> Iterator[tuple[str, set[str]]]:
    """Ansible's modules and the collections', with the names that each imports at its top."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("ansible.", "ansible_collections.")) and isinstance(module, types.ModuleType):
            code = _code(module)
            if code is not None:
                yield name, set(_imports(code, module.__spec__.parent if module.__spec__ else None))


def _code(module: types.ModuleType) -> types.CodeType | None:
    spec = module.__spec__
    loader: Any = spec.loader if spec else None
    try:
        code = loader.get_code(module.__name__)
    except Exception:  # noqa: BLE001  # whatever it is, its code is not to be had
        return None
    return code if isinstance(code, types.CodeType) else None


def _imports(code: types.CodeType, parent: str | None) -> Iterator[str]:
    """Of `from a.b import c` both a.b and a.b.c: which of them is a module is not said."""
    level, names, above = None, None, ""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_CONST":  # how many dots, then which names
            level, names = names, step.argval
        elif step.opname == "IMPORT_NAME":
            above = _resolved(step.argval, level, parent)
            yield above
        elif step.opname == "IMPORT_FROM":
            yield f"{above}.{step.argval}"


def _resolved(name: str, level: Any, parent: str | None) -> str:
    if isinstance(level, int) and level and parent:
        with contextlib.suppress(ImportError):
            return importlib.util.resolve_name("." * level + name, parent)
    return name


def _again(module: types.ModuleType) -> bool:
    """Run it on the side, and take over what came out otherwise. The module itself stays, with all that others put into it."""
    code = _code(module)
    twin = types.ModuleType(module.__name__, module.__doc__)
    space = twin.__dict__
    space.update({name: value for name, value in vars(module).items() if name.startswith("__") and name.endswith("__")})
    try:
        exec(code, space)  # type: ignore[arg-type]  # noqa: S102  # what an import does
    except Exception:  # noqa: BLE001  # it stays as it was
        return False
    mine = vars(module)
    new = {name: value for name, value in space.items() if not _same(mine, name, value)}
    mine.update({name: _at_home(value, mine) for name, value in new.items()})
    return bool(new)


def _same(mine: dict[str, Any], name: str, value: Any) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return True
    if name not in mine:
        return False
    old = mine[name]
    if isinstance(old, _PLAIN):
        # What says that something is missing. Any other value may have been set since the module was imported, and is everybody's.
        return (old is not None and old is not False) or old is value
    if isinstance(old, types.FunctionType) and isinstance(value, types.FunctionType):
        # Which of two definitions was chosen. One that a seam put there comes from another file, and stays.
        here = old.__code__.co_filename == value.__code__.co_filename
        return not here or old.__code__.co_firstlineno == value.__code__.co_firstlineno
    if isinstance(old, type) and isinstance(value, type):
        return [one.__qualname__ for one in old.__mro__] == [one.__qualname__ for one in value.__mro__]
    return not isinstance(old, type | types.FunctionType)  # locks, tables, modules: what is in them is everybody's


def _at_home(value: Any, mine: dict[str, Any]) -> Any:
    """A function of the twin looks for names in the twin."""
    if isinstance(value, types.FunctionType) and value.__globals__.get("__name__") == mine.get("__name__"):
        moved = types.FunctionType(value.__code__, mine, value.__name__, value.__defaults__, value.__closure__)
        moved.__kwdefaults__, moved.__dict__ = value.__kwdefaults__, value.__dict__
        return moved
    return _views.seen_by_workers(value)
