# SPDX-License-Identifier: GPL-3.0-or-later
"""
What ansible.module_utils keeps once for a process, kept once for each module that runs in it.

Each function here takes the original and returns what stands in for it. Outside of a module's call every one of them does what
the original does.
"""

from __future__ import annotations

import atexit
import copy
import errno
import functools
import json
import platform
import subprocess
import types
from typing import Any

from forkless.modules import _programs
from forkless.modules._invocation import current
from forkless.modules._source import VIEWS, needs_program

__all__ = ["STAND_INS"]

BASIC = "ansible.module_utils.basic"
MODULE = f"{BASIC}:AnsibleModule"
WARNINGS = "ansible.module_utils.common.warnings"
SINCE_2_19 = ("2.19", "2.20", "2.21")
ALL = ("2.18", *SINCE_2_19)


# -- arguments in, result out -------------------------------------------------------------------------------------


def load_params(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in() -> Any:
        invocation = current()
        if invocation is None:
            return original()
        arguments = json.loads(invocation.arguments, cls=_decoder(invocation.profile))["ANSIBLE_MODULE_ARGS"]
        invocation.parsed = copy.deepcopy(arguments)  # the module changes what it is given
        return arguments

    return stand_in


def _decoder(profile: str) -> Any:
    try:
        from ansible.module_utils.common.json import Direction, get_module_decoder
    except ImportError:  # up to 2.18 there is one way only
        return None
    return get_module_decoder(profile, Direction.CONTROLLER_TO_MODULE)


class _Parsed:
    """In the place of the dict that is None until a module has read its arguments."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def get(self, key: str, default: Any = None) -> Any:
        invocation = current()
        where = self._original if invocation is None else invocation.parsed
        return default if where is None else where.get(key, default)

    def __bool__(self) -> bool:
        return current() is not None or bool(self._original)


def parsed_arguments(original: Any, _site: str) -> Any:
    return _Parsed(original)


def record_result(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, o: dict[str, Any]) -> None:
        invocation = current()
        if invocation is None:
            original(self, o)
            return
        from ansible.module_utils.common.json import Direction, get_module_encoder

        encoder = get_module_encoder(invocation.profile, Direction.MODULE_TO_CONTROLLER)
        invocation.stdout.write("\n" + json.dumps(o, cls=encoder) + "\n")

    return stand_in


def print_(_original: Any, _site: str) -> Any:
    """A name in the module's space stands before the builtin; so nobody's stdout has to be redirected."""

    def stand_in(*values: Any, **more: Any) -> None:
        invocation = current()
        if invocation is not None and more.get("file") is None:
            more["file"] = invocation.stdout
        print(*values, **more)

    return stand_in


class _AtExit(types.ModuleType):
    def register(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        invocation = current()
        if invocation is None:
            return atexit.register(function, *args, **kwargs)
        invocation.at_exit.append(functools.partial(function, *args, **kwargs))
        return function

    def __getattr__(self, name: str) -> Any:
        return getattr(atexit, name)


def at_exit(_original: Any, _site: str) -> Any:
    return _AtExit("atexit")


# -- warnings -----------------------------------------------------------------------------------------------------


class _Collected:
    """A dict or list of warnings: the module's own while one runs."""

    def __init__(self, original: Any, field: str) -> None:
        self._original, self._field = original, field

    def _now(self) -> Any:
        invocation = current()
        if invocation is None:
            return self._original
        kept = getattr(invocation, self._field)
        if kept is None:
            kept = type(self._original)()
            setattr(invocation, self._field, kept)
        return kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._now()[key] = value

    def __iter__(self) -> Any:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __contains__(self, key: Any) -> bool:
        return key in self._now()


def collected(field: str) -> Any:
    return lambda original, _site: _Collected(original, field)


class _Internal(types.ModuleType):
    """Says that this is not the controller while a module runs: its warnings travel in its result, as from any host."""

    def __init__(self, original: Any) -> None:
        super().__init__(original.__name__)
        self.__dict__["_original"] = original

    def __getattr__(self, name: str) -> Any:
        if name == "is_controller" and current() is not None:
            return False
        return getattr(self.__dict__["_original"], name)


def internal(original: Any, _site: str) -> Any:
    return _Internal(original)


# -- what is the program's and not a module's ---------------------------------------------------------------------


def nothing(original: Any, _site: str) -> Any:
    """Does nothing while a module runs here."""

    @functools.wraps(original)
    def stand_in(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs) if current() is None else None

    return stand_in


# -- programs -----------------------------------------------------------------------------------------------------


def run_command(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, args: Any, *more: Any, **kwargs: Any) -> Any:
        invocation = current()
        if invocation is None or invocation.programs:
            return original(self, args, *more, **kwargs)
        if isinstance(args, list) and args and args[0] in _programs.OURS:
            return _programs.run(args)
        return self.fail_json(rc=257, cmd=args, msg=needs_program(invocation.name, args))

    return stand_in


def get_bin_path(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(self: Any, arg: str, required: bool = False, opt_dirs: Any = None) -> Any:
        invocation = current()
        if invocation is None or invocation.programs:
            return original(self, arg, required, opt_dirs)
        if arg in _programs.OURS:
            return arg
        if required:
            self.fail_json(msg=needs_program(invocation.name, arg))
        return None

    return stand_in


def find_program(original: Any, _site: str) -> Any:
    @functools.wraps(original)
    def stand_in(arg: str, *args: Any, **kwargs: Any) -> Any:
        invocation = current()
        if invocation is None or invocation.programs:
            return original(arg, *args, **kwargs)
        if arg in _programs.OURS:
            return arg
        raise ValueError(needs_program(invocation.name, arg))

    return stand_in


def is_executable(original: Any, _site: str) -> Any:
    """Where nothing can be started, no program is found; modules have long known what to do about that."""

    @functools.wraps(original)
    def stand_in(path: Any) -> Any:
        invocation = current()
        return original(path) if invocation is None or invocation.programs else False

    return stand_in


class _Subprocess(types.ModuleType):
    """subprocess for run_command: no Python between fork and exec, as that is not safe beside other threads."""

    def __getattr__(self, name: str) -> Any:
        return getattr(VIEWS.get("subprocess", subprocess), name)

    def Popen(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802  # the stdlib's name
        real = VIEWS.get("subprocess", subprocess).Popen
        function = kwargs.get("preexec_fn")
        if current() is not None and function is not None:
            # All that the function does is to set the umask that it has in its closure; Popen can do that itself.
            del kwargs["preexec_fn"]
            cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            kwargs["umask"] = (cells["umask"].cell_contents if "umask" in cells else None) or -1
        return real(*args, **kwargs)


class _Distro(types.ModuleType):
    """subprocess for the library that names the distribution: it asks lsb_release and uname, and can do without."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def check_output(self, cmd: Any, *args: Any, **kwargs: Any) -> Any:
        invocation = current()
        if invocation is not None and not invocation.programs:
            raise OSError(errno.ENOTSUP, needs_program(invocation.name, cmd))
        return subprocess.check_output(cmd, *args, **kwargs)


def distro(_original: Any, _site: str) -> Any:
    return _Distro("subprocess")


class _Platform(types.ModuleType):
    """platform for the facts: whether Python has 32 or 64 bits can be told without the program `file`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(platform, name)

    def architecture(self, *args: Any) -> Any:
        invocation = current()
        return (
            platform.architecture("")
            if invocation is not None and not invocation.programs
            else platform.architecture(*args)
        )


def platform_(_original: Any, _site: str) -> Any:
    return _Platform("platform")


def subprocess_(_original: Any, _site: str) -> Any:
    return _Subprocess("subprocess")


# site, why, stand-in, minors, optional (there is nothing at the site before), late (only a module that runs here needs it: nobody else imports it)
STAND_INS: tuple[tuple[Any, ...], ...] = (
    (f"{BASIC}:_load_params", "arguments are one for the process", load_params, ALL, False),
    (f"{BASIC}:_PARSED_MODULE_ARGS", "arguments are one for the process", parsed_arguments, SINCE_2_19, False),
    (f"{MODULE}._record_module_result", "the result goes to stdout", record_result, SINCE_2_19, False),
    (f"{BASIC}:print", "the result goes to stdout", print_, ALL, True),
    (f"{BASIC}:atexit", "temporary folders would stay until the program ends", at_exit, ALL, False),
    (f"{BASIC}:subprocess", "runs Python between fork and exec", subprocess_, ALL, False),
    (f"{MODULE}._check_locale", "sets the process's locale", nothing, ALL, False),
    (f"{MODULE}.log", "opens the process's syslog under its own name", nothing, ALL, False),
    (f"{MODULE}.run_command", "says in one sentence what is missing", run_command, ALL, False),
    (f"{MODULE}.get_bin_path", "says in one sentence what is missing", get_bin_path, ALL, False),
    ("ansible.module_utils.common.process:get_bin_path", "no program can be started", find_program, ALL, False),
    ("ansible.module_utils.common.process:is_executable", "no program can be started", is_executable, ALL, False),
    ("ansible.module_utils.distro._distro:subprocess", "no program can be started", distro, ALL, False),
    ("ansible.module_utils.facts.system.platform:platform", "no program can be started", platform_, ALL, False, True),
    (f"{WARNINGS}:_global_warnings", "one list for the process", collected("warnings"), ALL, False),
    (f"{WARNINGS}:_global_deprecations", "one list for the process", collected("deprecations"), ALL, False),
    (f"{WARNINGS}:_internal", "a module's warnings travel in its result", internal, SINCE_2_19, False),
)
