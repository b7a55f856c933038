# SPDX-License-Identifier: GPL-3.0-or-later
"""
How a module gets run: in an interpreter that is kept warm on its host (`_warm`), or here, in this process, where no program can be
started or when that was asked for.

`STAND_INS` is what must be in place for it, as (site, why, stand-in, minors, optional, late); the threads engine makes them seams of its own.
`installed()` puts them in for people without an engine:

    with forkless.modules.installed():
        result = forkless.modules.run("/path/to/module.py", {"path": "/etc/hosts"})

In this process means just that: the module has the program's user, its memory and its open files. Nothing is kept from it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
import json
from typing import TYPE_CHECKING, Any

from forkless._errors import SpecError
from forkless.modules import _action, _carried, _execute, _imports, _nearby, _source, _stand_ins, _warm
from forkless.modules._action import MODE
from forkless.modules._execute import BEFORE, Done, execute, wire_arguments
from forkless.modules._keep import KEEP, kept
from forkless.modules._place import has_own_folder
from forkless.modules._source import VIEWS
from forkless.modules._warm import REACH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "BEFORE",
    "KEEP",
    "MODE",
    "MODES",
    "REACH",
    "STAND_INS",
    "VIEWS",
    "Done",
    "execute",
    "has_own_folder",
    "installed",
    "kept",
    "run",
    "wire_arguments",
]

MODES = ("auto", "warm", "cold", "in-process")
STAND_INS = (
    *_stand_ins.STAND_INS,
    *_action.STAND_INS,
    *_warm.STAND_INS,
    *_nearby.STAND_INS,
    *_carried.STAND_INS,
    *_imports.STAND_INS,
)

_NOTHING = object()


@contextlib.contextmanager
def installed(*, actions: bool = False) -> Iterator[None]:
    """The stand-ins in, and out again, newest first. With `actions` those for Ansible's action plugins as well."""
    minor = ".".join(importlib.metadata.version("ansible-core").split(".")[:2])
    undo: list[Any] = []
    try:
        for site, _why, stand_in, minors, optional, *_late in STAND_INS if actions else _stand_ins.STAND_INS:
            if minor in minors:
                undo.append(_put(site, stand_in, optional=optional))
        yield
    finally:
        while undo:
            undo.pop()()


def _put(site: str, stand_in: Any, *, optional: bool) -> Any:
    module, _, path = site.partition(":")
    owner: Any = importlib.import_module(module)
    *steps, name = path.split(".")
    for step in steps:
        owner = getattr(owner, step)
    original = inspect.getattr_static(owner, name, _NOTHING) if optional else inspect.getattr_static(owner, name)
    setattr(owner, name, stand_in(None if original is _NOTHING else original, site))

    def take_out() -> None:
        if original is _NOTHING:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return take_out


def run(
    path: str,
    arguments: Mapping[str, Any],
    *,
    name: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
    programs: bool | None = None,
) -> dict[str, Any]:
    """Run one module and return its result as it would come over the wire."""
    source = _source.load(path, name or _action._full_name("module", path))
    if source is None:
        raise SpecError(f"{path} is not a Python module of the new style; only those can be run in this process")
    done = _execute.execute(source, wire_arguments(arguments), environ=environ, cwd=cwd, programs=programs)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        result = {
            "failed": True,
            "msg": "MODULE FAILURE",
            "rc": done.rc,
            "module_stdout": done.stdout,
            "module_stderr": done.stderr,
        }
    return result
