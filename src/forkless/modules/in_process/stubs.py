# SPDX-License-Identifier: GPL-3.0-or-later
"""
Replacements that give each module in this process its own copy of the state that ansible.module_utils keeps once for a
process.

Each public function takes the original and returns its replacement. On a thread that runs no module, a replacement
behaves like the original.
"""

from __future__ import annotations

import atexit
import copy
import errno
import functools
import inspect
import json
import platform
import re
import signal
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any, Protocol

from forkless.core import versions
from forkless.modules.in_process import programs
from forkless.modules.in_process.invocation import VIEWS, current, executor_submit, thread_start
from forkless.modules.in_process.source import needs_program
from forkless.modules.live_output import run_secrets
from forkless.modules.warm.remote.live_output import asks, secret_forms, tap
from forkless.patching.seam import Seam

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["STAND_INS"]

BASIC = "ansible.module_utils.basic"
MODULE = f"{BASIC}:AnsibleModule"
WARNINGS = "ansible.module_utils.common.warnings"
_MODULE_UTIL = re.compile(r"(ansible|ansible_collections\.\w+\.\w+\.plugins)\.module_utils\.")
SINCE_2_19 = versions.since("2.19")
SINCE_2_22 = versions.since("2.22")


class _AnsibleModule(Protocol):
    no_log_values: Iterable[str]

    def fail_json(self, msg: str, **result: object) -> object: ...


# -- arguments in, result out -------------------------------------------------------------------------------------


def load_params(original: Callable[..., object], _site: str) -> object:
    @functools.wraps(original)
    def stand_in() -> object:
        invocation = current()
        if invocation is None:
            return original()
        arguments = json.loads(invocation.arguments, cls=_decoder(invocation.profile))["ANSIBLE_MODULE_ARGS"]
        invocation.parsed = copy.deepcopy(arguments)  # the module modifies the dict that it receives
        return arguments

    return stand_in


def _decoder(profile: str) -> type[json.JSONDecoder] | None:
    try:
        from ansible.module_utils.common.json import Direction, get_module_decoder
    except ImportError:  # up to 2.18 there are no profiles
        return None
    decoder: type[json.JSONDecoder] = get_module_decoder(profile, Direction.CONTROLLER_TO_MODULE)
    return decoder


class _Parsed:
    """Replaces `_PARSED_MODULE_ARGS`, which is None until a module has read its arguments; reads the current invocation's."""

    def __init__(self, original: Mapping[str, object] | None) -> None:
        self._original = original

    def get(self, key: str, default: object = None) -> object:
        invocation = current()
        where = self._original if invocation is None else invocation.parsed
        return default if where is None else where.get(key, default)

    def __bool__(self) -> bool:
        return current() is not None or bool(self._original)


def parsed_arguments(original: Mapping[str, object] | None, _site: str) -> object:
    return _Parsed(original)


def record_result(original: Callable[..., object], _site: str) -> object:
    @functools.wraps(original)
    def stand_in(self: object, o: dict[str, object]) -> None:
        invocation = current()
        if invocation is None:
            original(self, o)
            return
        from ansible.module_utils.common.json import Direction, get_module_encoder

        encoder = get_module_encoder(invocation.profile, Direction.MODULE_TO_CONTROLLER)
        invocation.stdout.write("\n" + json.dumps(o, cls=encoder) + "\n")

    return stand_in


class _Json(types.ModuleType):
    """The first releases of 2.19 encode a result with the profile of the process; this uses the invocation's."""

    def __init__(self, original: Any) -> None:
        super().__init__("json")
        self._original = original

    def get_module_encoder(self, profile: str | None, direction: object) -> object:
        invocation = current()
        return self._original.get_module_encoder(profile if invocation is None else invocation.profile, direction)

    def __getattr__(self, name: str) -> object:
        return getattr(self._original, name)


def json_(original: object, _site: str) -> object:
    return _Json(original)


def print_(_original: object, _site: str) -> object:
    """A global name in `basic` shadows the builtin `print`, so sys.stdout of the process need not be redirected."""

    def stand_in(*values: object, **more: Any) -> None:
        invocation = current()
        if invocation is not None and more.get("file") is None:
            more["file"] = invocation.stdout
        print(*values, **more)

    return stand_in


class _AtExit(types.ModuleType):
    def register(self, function: Callable[..., object], *args: object, **kwargs: object) -> object:
        invocation = current()
        if invocation is None:
            return atexit.register(function, *args, **kwargs)
        invocation.at_exit.append(functools.partial(function, *args, **kwargs))
        return function

    def __getattr__(self, name: str) -> object:
        return getattr(atexit, name)


def at_exit(_original: object, _site: str) -> object:
    return _AtExit("atexit")


# -- warnings -----------------------------------------------------------------------------------------------------


class _Collected:
    """Replaces a global dict or list of warnings: while a module runs on the thread, the invocation's own one is used."""

    def __init__(self, original: object, field: str) -> None:
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

    def __getattr__(self, name: str) -> object:
        return getattr(self._now(), name)

    def __setitem__(self, key: object, value: object) -> None:
        self._now()[key] = value
        invocation = current()
        if invocation is not None:
            for name in _module_utils_being_imported():
                # A module_util that warns when it is imported must warn every module. In stock Ansible each module is a
                # process, so the module_util is removed from sys.modules and the next module imports it again.
                invocation.at_exit.append(functools.partial(sys.modules.pop, name, None))

    def __iter__(self) -> object:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __contains__(self, key: object) -> bool:
        return key in self._now()


def _module_utils_being_imported() -> list[str]:
    """Names of the module_utils whose top-level code is on this thread's stack, innermost first."""
    found = []
    frame = inspect.currentframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name == "<module>" and _MODULE_UTIL.match(name):
            found.append(name)
        frame = frame.f_back
    return found


def collected(field: str) -> Callable[[object, str], object]:
    return lambda original, _site: _Collected(original, field)


class _Internal(types.ModuleType):
    """`is_controller` is False while a module runs, so that its warnings are returned in its result, as from any host."""

    def __init__(self, original: types.ModuleType) -> None:
        super().__init__(original.__name__)
        self.__dict__["_original"] = original

    def __getattr__(self, name: str) -> object:
        if name == "is_controller" and current() is not None:
            return False
        return getattr(self.__dict__["_original"], name)


def internal(original: types.ModuleType, _site: str) -> object:
    return _Internal(original)


# -- process state that a module must not change -------------------------------------------------------------------


def nothing(original: Callable[..., object], _site: str) -> object:
    """The replacement does nothing while a module runs on the calling thread."""

    @functools.wraps(original)
    def stand_in(self: object, *args: object, **kwargs: object) -> object:
        return original(self, *args, **kwargs) if current() is None else None

    return stand_in


# -- programs -----------------------------------------------------------------------------------------------------


def run_command(original: Callable[..., object], _site: str) -> object:
    @functools.wraps(original)
    def stand_in(self: _AnsibleModule, args: object, *more: object, **kwargs: object) -> object:
        invocation = current()
        if invocation is None or invocation.programs:
            if invocation is not None and invocation.output is not None and not asks(sys._getframe(1)):
                invocation.secrets = secret_forms([*run_secrets(), *self.no_log_values])
                with invocation.telling():
                    return original(self, args, *more, **kwargs)
            return original(self, args, *more, **kwargs)
        if isinstance(args, list) and args and args[0] in programs.OURS:
            return programs.run(args)
        return self.fail_json(rc=257, cmd=args, msg=needs_program(invocation.name, args))

    return stand_in


def get_bin_path(original: Callable[..., object], _site: str) -> object:
    @functools.wraps(original)
    def stand_in(self: _AnsibleModule, arg: str, required: bool = False, opt_dirs: object = None) -> object:
        invocation = current()
        if invocation is None or invocation.programs:
            return original(self, arg, required, opt_dirs)
        if arg in programs.OURS:
            return arg
        if required:
            self.fail_json(msg=needs_program(invocation.name, arg))
        return None

    return stand_in


def find_program(original: Callable[..., object], _site: str) -> object:
    @functools.wraps(original)
    def stand_in(arg: str, *args: object, **kwargs: object) -> object:
        invocation = current()
        if invocation is None or invocation.programs:
            return original(arg, *args, **kwargs)
        if arg in programs.OURS:
            return arg
        raise ValueError(needs_program(invocation.name, arg))

    return stand_in


def is_executable(original: Callable[..., object], _site: str) -> object:
    """If no program can be started, none is reported as executable: modules already handle a missing program."""

    @functools.wraps(original)
    def stand_in(path: object) -> object:
        invocation = current()
        return original(path) if invocation is None or invocation.programs else False

    return stand_in


class _SubprocessStub(types.ModuleType):
    """subprocess without `preexec_fn` for run_command: Python code between fork and exec can deadlock beside threads."""

    def __getattr__(self, name: str) -> object:
        return getattr(VIEWS.get("subprocess", subprocess), name)

    def Popen(self, *args: object, **kwargs: Any) -> object:  # noqa: N802  # the stdlib's name
        real = VIEWS.get("subprocess", subprocess).Popen
        function = kwargs.get("preexec_fn")
        if current() is not None and function is not None:
            # run_command's preexec_fn only sets the umask from its closure; Popen's `umask` does the same.
            del kwargs["preexec_fn"]
            cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            kwargs["umask"] = (cells["umask"].cell_contents if "umask" in cells else None) or -1
        process = real(*args, **kwargs)
        invocation = current()
        if invocation is not None and invocation.output is not None and invocation.running:
            tap(process, invocation.output, invocation.secrets)
        return process


class _Distro(types.ModuleType):
    """subprocess for `distro`, which calls lsb_release and uname and continues without them after an OSError."""

    def __getattr__(self, name: str) -> object:
        return getattr(subprocess, name)

    def check_output(self, cmd: str | Sequence[str], *args: Any, **kwargs: Any) -> object:
        invocation = current()
        if invocation is not None and not invocation.programs:
            raise OSError(errno.ENOTSUP, needs_program(invocation.name, cmd))
        return subprocess.check_output(cmd, *args, **kwargs)


def distro(_original: object, _site: str) -> object:
    return _Distro("subprocess")


class _Platform(types.ModuleType):
    """platform for the facts: `architecture("")` tells 32 from 64 bits without starting the program `file`."""

    def __getattr__(self, name: str) -> object:
        return getattr(platform, name)

    def architecture(self, *args: str) -> object:
        invocation = current()
        return (
            platform.architecture("")
            if invocation is not None and not invocation.programs
            else platform.architecture(*args)
        )


def platform_(_original: object, _site: str) -> object:
    return _Platform("platform")


def subprocess_(_original: object, _site: str) -> object:
    return _SubprocessStub("subprocess")


class _SignalStub(types.ModuleType):
    """signal for ansible-core's debug dump, which must not replace the program's handler of SIGUSR1."""

    @staticmethod
    def signal(number: int, action: object) -> object:
        view = VIEWS.get("signal")
        return signal.SIG_DFL if view is None else view.signal(number, action)

    def __getattr__(self, name: str) -> object:
        return getattr(signal, name)


def signal_(_original: object, _site: str) -> object:
    return _SignalStub("signal")


STAND_INS = (
    Seam(f"{BASIC}:_load_params", "arguments are one for the process", load_params),
    Seam(f"{BASIC}:_PARSED_MODULE_ARGS", "arguments are one for the process", parsed_arguments, SINCE_2_19),
    Seam(f"{MODULE}._record_module_result", "the result goes to stdout", record_result, SINCE_2_19),
    Seam(f"{BASIC}:_json", "a result's form is one for the process", json_, ("2.19",)),
    Seam(f"{BASIC}:print", "the result goes to stdout", print_, optional=True),
    Seam(f"{BASIC}:atexit", "temporary folders would stay until the program ends", at_exit),
    Seam(f"{BASIC}:subprocess", "runs Python between fork and exec", subprocess_),
    Seam(f"{MODULE}._check_locale", "sets the process's locale", nothing),
    Seam(f"{MODULE}.log", "opens the process's syslog under its own name", nothing),
    Seam(f"{MODULE}.run_command", "says in one sentence what is missing", run_command),
    Seam(f"{MODULE}.get_bin_path", "says in one sentence what is missing", get_bin_path),
    Seam("ansible.module_utils.common.process:get_bin_path", "no program can be started", find_program),
    Seam("ansible.module_utils.common.process:is_executable", "no program can be started", is_executable),
    # ansible-core prefers an installed `distro` (a package or a single file) to its own copy.
    Seam(
        "ansible.module_utils.distro._distro:subprocess",
        "no program can be started",
        distro,
        elsewhere=("distro.distro:subprocess", "distro:subprocess"),
    ),
    # Late: only modules that gather facts import it.
    Seam("ansible.module_utils.facts.system.platform:platform", "no program can be started", platform_, late=True),
    Seam("threading:Thread.start", "a module's threads are in its process", thread_start),
    Seam(
        "concurrent.futures.thread:ThreadPoolExecutor.submit", "a module's threads are in its process", executor_submit
    ),
    Seam(f"{WARNINGS}:_global_warnings", "one list for the process", collected("warnings")),
    Seam(f"{WARNINGS}:_global_deprecations", "one list for the process", collected("deprecations")),
    Seam("ansible.module_utils._internal._debug:signal", "signals are the program's", signal_, SINCE_2_22),
    Seam(f"{WARNINGS}:_internal", "a module's warnings travel in its result", internal, SINCE_2_19),
)
