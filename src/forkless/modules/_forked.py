# SPDX-License-Identifier: GPL-3.0-or-later
"""
The far side of warm modules, in the fork: to be what Ansible's wrapper would be in an interpreter of its own, from its start to its end.

This text travels between those of `_parcel` and `_far`: it needs nothing but a stdlib of 3.8.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.machinery
import io
import os
import runpy
import subprocess
import sys
import threading
import types
from typing import Any

from forkless.modules._parcel import ROOT  # there: its text comes first


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """
    For AnsibleModule.run_command: a program is started without a copy of the interpreter where nothing is to be done in between.

    It always gives a function for that moment, which sets a umask if there is one to set. For the sake of it every page would be shared anew
    with a child that drops them all; gathering facts starts some twenty programs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if does_nothing(kwargs.get("preexec_fn")):
            del kwargs["preexec_fn"]
        super().__init__(*args, **kwargs)


def does_nothing(function: Any) -> bool:
    return (
        getattr(function, "__qualname__", "") == "AnsibleModule.run_command.<locals>.preexec"
        and function.__code__.co_freevars == ("umask",)
        and set(function.__code__.co_names) == {"os", "umask"}
        and not function.__closure__[0].cell_contents
    )


class Programs(types.ModuleType):
    """subprocess as one module sees it; everything but Popen is the real thing."""

    Popen = Popen

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


def start_programs_quickly() -> None:
    basic: Any = sys.modules.get("ansible.module_utils.basic")
    if getattr(basic, "subprocess", None) is subprocess:
        basic.subprocess = Programs("subprocess")


def look_again() -> None:
    """
    Forget what folders had in them.

    importlib.invalidate_caches() would do it, but it imports importlib.metadata, and with it email and more, to tell that, too.
    """
    for name, finder in list(sys.path_importer_cache.items()):
        if finder is None or not os.path.isabs(name):
            del sys.path_importer_cache[name]
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()
    for one in sys.meta_path:
        if one is not importlib.machinery.PathFinder and hasattr(one, "invalidate_caches"):
            one.invalidate_caches()


def limit(number: int) -> None:
    if number:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if min(hard, number) != soft:
            with contextlib.suppress(ValueError):  # some systems lie about their hard limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, number), hard))


def call(order: dict[str, Any], files: dict[str, Any], archive: Any) -> int:
    """Run the module as the wrapper that Ansible sends would. Returns what the interpreter would exit with."""
    sys.argv = [""]
    try:
        # One that may start itself again does so from the archive.
        start(order, files, archive.place() if "ansible.module_utils.common.respawn" in files else ROOT)
    except SystemExit as leaving:
        if leaving.code is None:
            return 0
        if isinstance(leaving.code, int):
            return leaving.code & 0xFF
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001  # as the interpreter does
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def start(order: dict[str, Any], files: dict[str, Any], place: str) -> None:
    params, name = order["params"].encode(), order["fqn"]
    if "ansible.module_utils._internal._ansiballz._loader" in files:
        loader = importlib.import_module("ansible.module_utils._internal._ansiballz._loader")
        loader.run_module(
            json_params=params, profile=order["profile"], module_fqn=name, modlib_path=place, extensions={}
        )
        return
    basic: Any = importlib.import_module("ansible.module_utils.basic")
    basic._ANSIBLE_ARGS = params
    runpy.run_module(name, {"_module_fqn": name, "_modlib_path": place}, "__main__", alter_sys=True)
    print('{"msg": "New-style module did not handle its own exit", "failed": true}')
    sys.exit(1)


def leave(code: int) -> None:
    """The end of an interpreter, without the long taking apart of what the parent still has."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        # Files that were left open are written out first, text before bytes: a collector would close them in any order.
        for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            for thing in [one for one in gc.get_objects() if type(one) is kind]:
                if not thing.closed:
                    with contextlib.suppress(OSError, ValueError):
                        thing.flush()
        gc.collect()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except BaseException:  # noqa: BLE001  # as an interpreter that cannot flush
        code = code or 120
    finally:
        os._exit(code)
