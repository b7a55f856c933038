# SPDX-License-Identifier: GPL-3.0-or-later
"""
How a module is run: in a warm interpreter on its host, in this process if no program can be started or the run asks for
it, or as stock Ansible does. `dispatch` chooses for each task; `adaptor` lists every override of ActionBase.

`STAND_INS` lists the replacements that both ways need, as seams of the
threads engine; `installed()` installs them for callers without an engine:

    with forkless.modules.installed():
        result = forkless.modules.run("/path/to/module.py", {"path": "/etc/hosts"})

A module that runs in this process has the program's user, memory and open files. It is not isolated from the program.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from forkless.core.errors import SpecError
from forkless.modules import adaptor
from forkless.modules.dispatch import MODES
from forkless.modules.in_process import execute as execution
from forkless.modules.in_process import source as module_source
from forkless.modules.in_process import stubs
from forkless.modules.in_process.cwd_and_environ import FOLDERS, has_own_folder
from forkless.modules.in_process.execute import ModuleResult, encode_arguments, execute
from forkless.modules.in_process.execution import full_name
from forkless.modules.in_process.invocation import VIEWS
from forkless.modules.live_output import TaskOutput
from forkless.modules.warm import archives, import_cache, transports
from forkless.modules.warm.interpreter import not_removed
from forkless.modules.warm.pool import InterpreterPool, interpreter_pool
from forkless.patching import seams

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "FOLDERS",
    "MODES",
    "STAND_INS",
    "VIEWS",
    "InterpreterPool",
    "ModuleResult",
    "TaskOutput",
    "encode_arguments",
    "execute",
    "has_own_folder",
    "installed",
    "interpreter_pool",
    "not_removed",
    "run",
]

STAND_INS = (
    *stubs.STAND_INS,
    *adaptor.STAND_INS,
    *transports.STAND_INS,
    *import_cache.STAND_INS,
    *archives.STAND_INS,
)


@contextlib.contextmanager
def installed(*, actions: bool = False) -> Iterator[None]:
    """
    Install the replacements for modules in this process, and undo them in reverse order when the block ends.

    With `actions`, the replacements for Ansible's action plugins are installed as well. The replacements are global to
    the process.
    """
    wanted = seams.for_minor(STAND_INS if actions else stubs.STAND_INS, seams.minor(seams.version()))
    take_out = seams.install(wanted)
    try:
        yield
    finally:
        take_out()


def run(
    path: str,
    arguments: Mapping[str, object],
    *,
    name: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
    programs: bool | None = None,
) -> dict[str, object]:
    """Run one module in this process and return its result, decoded from the JSON that the module printed."""
    source = module_source.load(path, name or full_name("module", path))
    if source is None:
        raise SpecError(f"{path} is not a Python module of the new style; only those can be run in this process")
    done = execution.execute(source, encode_arguments(arguments), environ=environ, cwd=cwd, programs=programs)
    try:
        result: dict[str, object] = json.loads(done.stdout)
    except ValueError:
        result = {
            "failed": True,
            "msg": "MODULE FAILURE",
            "rc": done.rc,
            "module_stdout": done.stdout,
            "module_stderr": done.stderr,
        }
    return result
