# SPDX-License-Identifier: GPL-3.0-or-later
"""
Makes a library that a play installs on the controller visible to the tasks after it.

A forked worker imports its plugins and their libraries itself, so a task finds what an earlier task installed. Threads share one
import, and `HAS_LIBRARY = False` would stay false. An installation changes the mtime of a site-packages folder. Only then are the
modules searched that import one of the new names: each is executed again in a separate namespace, and the values that differ are
copied into the shared module. Only the folders' mtimes and names are kept.
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

from forkless.engines.threads.patches import collection_modules, stdlib_views

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["look"]

# Held while modules are updated: two workers may notice the change at the same time.
_lock = threading.Lock()
# Times and names for each imported ansible-core: one for another configuration may have been imported before the installation.
_seen: weakref.WeakKeyDictionary[types.ModuleType, Any] = weakref.WeakKeyDictionary()
_PLAIN = (type(None), bool, int, float, str, bytes, tuple, frozenset)


def _times() -> tuple[tuple[str, int], ...]:
    found = []
    for path in sys.path:
        if path.endswith("-packages"):  # site-packages and dist-packages only: a project's folder changes all the time
            try:  # not contextlib.suppress, which takes longer than the rest
                found.append((path, os.stat(path).st_mtime_ns))
            except OSError:
                continue
    return tuple(found)


def _names(folders: tuple[tuple[str, int], ...]) -> frozenset[str]:
    found: set[str] = set()
    for path, _ in folders:
        with contextlib.suppress(OSError):
            found.update(entry.partition(".")[0] for entry in os.listdir(path))
    # Only importable names: not the *.dist-info folders, and not __pycache__, which appears when a module is first compiled.
    return frozenset(name for name in found if name.isidentifier() and name != "__pycache__")


def look() -> None:
    """Called before a worker starts: if a library was installed, update the modules that failed to import it."""
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
    collection_modules.forget_shared()
    imports = dict(_shared_with_imports())
    waiting = [name for name, wanted in imports.items() if any(one.partition(".")[0] in new for one in wanted)]
    done: set[str] = set()
    while waiting:
        name = waiting.pop(0)
        if name in done:
            continue
        done.add(name)
        # A plugin of a project may have been taken out meanwhile, by another thread or by what a module imports.
        module = sys.modules.get(name)
        if module is not None and _again(module):  # modules with `from name import ...` still hold the old value
            waiting += [other for other, wanted in imports.items() if name in wanted]


def _shared_with_imports() -> Iterator[tuple[str, set[str]]]:
    """Ansible's modules, each with the names that it imports at module level. Collection modules are executed for each worker anyway."""
    for name, module in list(sys.modules.items()):
        if name.startswith("ansible.") and isinstance(module, types.ModuleType) and not _of_collection(module):
            code = _code(module)
            if code is not None:
                yield name, set(_imports(code, module.__spec__.parent if module.__spec__ else None))


def _of_collection(module: types.ModuleType) -> bool:
    """Whether an `ansible.*` name is redirected to a collection."""
    return type(module) is collection_modules.CollectionModule


def _code(module: types.ModuleType) -> types.CodeType | None:
    spec = module.__spec__
    loader: Any = spec.loader if spec else None
    try:
        code = loader.get_code(module.__name__)
    except Exception:  # noqa: BLE001  # a loader may raise anything; then the module is skipped
        return None
    return code if isinstance(code, types.CodeType) else None


def _imports(code: types.CodeType, parent: str | None) -> Iterator[str]:
    """The imported names. For `from a.b import c` both a.b and a.b.c: the bytecode does not tell which of them is a module."""
    level, names, above = None, None, ""
    for step in dis.get_instructions(code):
        if step.opname.startswith(
            "LOAD_"
        ):  # the level, then the fromlist; the exact opcode differs between Python versions
            level, names = names, step.argval
        elif step.opname == "IMPORT_NAME":
            above = _resolved(step.argval, level, parent)
            yield above
        elif step.opname == "IMPORT_FROM":
            yield f"{above}.{step.argval}"


def _resolved(name: str, level: object, parent: str | None) -> str:
    if isinstance(level, int) and level and parent:
        with contextlib.suppress(ImportError):
            return importlib.util.resolve_name("." * level + name, parent)
    return name


def _again(module: types.ModuleType) -> bool:
    """Execute the module in a new namespace, and copy the values that differ. The module object stays, with all that was set on it since."""
    code = _code(module)
    twin = types.ModuleType(module.__name__, module.__doc__)
    space = twin.__dict__
    space.update({name: value for name, value in vars(module).items() if name.startswith("__") and name.endswith("__")})
    try:
        exec(code, space)  # type: ignore[arg-type]  # noqa: S102  # what an import does
    except Exception:  # noqa: BLE001  # the module stays as it was
        return False
    mine = vars(module)
    new = {name: value for name, value in space.items() if not _same(mine, name, value)}
    mine.update({name: _at_home(value, mine) for name, value in new.items()})
    return bool(new)


def _same(mine: dict[str, object], name: str, value: object) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return True
    if name not in mine:
        return False
    old = mine[name]
    if isinstance(old, _PLAIN):
        # None and False say that a library is missing. Any other value may be state that was set since the import, so it is kept.
        return (old is not None and old is not False) or old is value
    if isinstance(old, types.FunctionType) and isinstance(value, types.FunctionType):
        # A different line number means that the other branch's definition was chosen. A seam's function is in another file and is kept.
        here = old.__code__.co_filename == value.__code__.co_filename
        return not here or old.__code__.co_firstlineno == value.__code__.co_firstlineno
    if isinstance(old, type) and isinstance(value, type):
        return [one.__qualname__ for one in old.__mro__] == [one.__qualname__ for one in value.__mro__]
    return not isinstance(old, type | types.FunctionType)  # locks, tables and modules hold shared state and are kept


def _at_home(value: object, mine: dict[str, object]) -> object:
    """Rebind a function of the new namespace to the module's globals."""
    if isinstance(value, types.FunctionType) and value.__globals__.get("__name__") == mine.get("__name__"):
        moved = types.FunctionType(value.__code__, mine, value.__name__, value.__defaults__, value.__closure__)
        moved.__kwdefaults__, moved.__dict__ = value.__kwdefaults__, value.__dict__
        return moved
    return stdlib_views.seen_by_workers(value)
