# SPDX-License-Identifier: GPL-3.0-or-later
"""RunSpec, the value that says what to run. It is validated when it is constructed, so engines need not validate it."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from forkless.core.answers import Answers
from forkless.core.errors import SpecError

if TYPE_CHECKING:
    from typing import Self, Unpack

__all__ = ["RunOptions", "RunSpec", "SpecOptions", "StrPath"]

StrPath = str | os.PathLike[str]

_COMMANDS = ("ansible-playbook", "ansible", "ansible-console")
# The fields that `argv()` turns into arguments.
_ARGUMENTS = (
    "playbook", "module", "module_args", "hosts", "inventory", "limit", "tags", "skip_tags", "extra_vars", "check", "diff", "become",
    "forks", "verbosity", "args",
)  # fmt: skip
_IDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def _path(value: object, what: str) -> str:
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or "\0" in path:
        raise SpecError(f"{what} must be a path, not {value!r}")
    return path


def _folder(value: object) -> str:
    cwd = "" if value is None else _path(value, "cwd")
    if os.path.isabs(cwd):
        return os.path.normpath(cwd)
    try:
        here = os.getcwd()
    except OSError as err:
        raise SpecError(
            f"the working directory of this process cannot be used ({err.strerror}); give cwd= as an absolute path"
        ) from None
    return os.path.normpath(os.path.join(here, cwd))


def _paths(value: object, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str | os.PathLike):
        return (_path(value, what),)
    if isinstance(value, Sequence) and all(isinstance(one, str | os.PathLike) for one in value):
        return tuple(_path(one, what) for one in value)
    raise SpecError(f"{what} must be a path or a list of paths, not {value!r}")


def _words(value: object, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
        return tuple(value)
    # The message names the type only: the value may hold a secret, such as extra vars among the arguments.
    kinds = ", ".join(sorted({type(one).__name__ for one in value})) if isinstance(value, Sequence) else ""
    found = f"a {type(value).__name__}" + (f" of {kinds}" if kinds else "")
    raise SpecError(f"{what} must be a string or a list of strings, not {found}")


def _seconds(value: object, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise SpecError(f"{what} must be a number of seconds above zero, not {value!r}")
    # The longest wait that Python supports, which is some centuries.
    return float(min(value, threading.TIMEOUT_MAX))


class RunOptions(TypedDict, total=False):
    """The keyword arguments of `run`, `start`, `run_async` and `open_run`: all fields of RunSpec but the playbook, which is positional."""

    module: str | None
    module_args: str | Mapping[str, Any] | None
    hosts: str | None
    inventory: StrPath | Sequence[StrPath] | None
    limit: str | None
    tags: str | Sequence[str] | None
    skip_tags: str | Sequence[str] | None
    extra_vars: Mapping[str, Any]
    check: bool
    diff: bool
    become: bool
    forks: int | None
    verbosity: int
    vault_password: str | None
    passwords: Mapping[str, str]
    answers: Mapping[str, str]
    args: str | Sequence[str]
    env: Mapping[str, str]
    cwd: StrPath | None
    timeout: float | None
    idle_timeout: float | None
    stuck_after: float | None
    artifacts: StrPath | None
    keep: int | None
    modules: str
    live_output: bool
    ident: str | None


class SpecOptions(RunOptions, total=False):
    """All fields of RunSpec with the types that its constructor accepts; `__post_init__` converts them to the declared types."""

    playbook: StrPath | Sequence[StrPath] | None
    command_line: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """
    A playbook (or one module on a pattern of hosts), the inventory, and how to run it.

    Fields have the names of ansible-playbook's flags. A flag without a field goes into `args`, as on the command line.
    Relative paths are resolved against `cwd`, which the run sees as its current directory; the program's current directory
    is never changed.
    """

    playbook: tuple[str, ...] = ()
    module: str | None = None
    # Fields that may hold a secret are not in the repr, because reprs end up in logs and tracebacks.
    module_args: str | Mapping[str, Any] | None = field(default=None, repr=False)
    hosts: str | None = None
    inventory: tuple[str, ...] = ()
    limit: str | None = None
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    extra_vars: Mapping[str, Any] = field(default_factory=dict, repr=False)
    check: bool = False
    diff: bool = False
    become: bool = False
    forks: int | None = None
    verbosity: int = 0
    vault_password: str | None = field(default=None, repr=False)
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    """`{"conn_pass": ..., "become_pass": ...}`: the passwords that -k and -K would ask for."""
    answers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """
    Answers to prompts: a regular expression that is searched in the question, and the answer, as in ansible-runner's `passwords`.
    Used for `vars_prompt`, `pause`, -k, -K and --ask-vault-password. The first pattern that matches is used.
    """
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """
    Environment variables of this run only, added to the program's environment: ANSIBLE_* settings, what plugins and their
    libraries read from `os.environ`, and what child processes inherit. The program's environment is not changed.
    """
    cwd: str = ""
    """Absolute path; defaults to the program's current directory at the time of construction."""
    timeout: float | None = None
    idle_timeout: float | None = None
    stuck_after: float | None = None
    """Report a worker that has run one task for this many seconds, as an event `worker_stuck`. The worker is not stopped."""
    artifacts: str | None = None
    keep: int | None = None
    """How many artifact folders to keep in `artifacts`; None keeps all."""
    modules: str = "auto"
    """
    How modules run: "warm" in an interpreter that is kept running on the host, "cold" in a new interpreter for each module as stock
    Ansible does, "in-process" in this process where possible (local connection). "auto" is warm where programs can be started.
    """
    live_output: bool = False
    """
    Whether tasks tell what their programs print while they run, as events `runner_on_output`. Off unless asked for: it costs a little for
    each program. For engine="threads"; modules that run cold say nothing until they end.
    """
    ident: str | None = None
    command_line: tuple[str, ...] = field(default=(), repr=False)
    """The command and its arguments exactly as they were given, in place of all fields that become arguments: see `from_argv`."""

    if TYPE_CHECKING:
        # For type checkers: the dataclass's __init__ takes these names, and `__post_init__` converts each value.
        def __init__(self, **options: Unpack[SpecOptions]) -> None: ...

    @classmethod
    def from_argv(cls, command: str, argv: Sequence[str], **options: Unpack[RunOptions]) -> Self:
        """
        A run of `ansible-playbook`, `ansible` or `ansible-console` with these arguments.

        The arguments are kept as they are, so that parsing, abbreviations, messages and exit codes are Ansible's. `options` may be
        fields that do not become arguments, such as `cwd`, `env`, `timeout` and `ident`.
        """
        return cls(command_line=(command, *argv), **options)

    def __post_init__(self) -> None:
        fix = object.__setattr__
        fix(self, "cwd", _folder(self.cwd))
        fix(self, "playbook", _paths(self.playbook, "playbook"))
        fix(self, "inventory", _paths(self.inventory, "inventory"))
        fix(self, "tags", _words(self.tags, "tags"))
        fix(self, "skip_tags", _words(self.skip_tags, "skip_tags"))
        fix(self, "artifacts", None if self.artifacts is None else _path(self.artifacts, "artifacts"))
        fix(self, "args", _words(self.args, "args"))
        fix(self, "timeout", _seconds(self.timeout, "timeout"))
        fix(self, "idle_timeout", _seconds(self.idle_timeout, "idle_timeout"))
        fix(self, "stuck_after", _seconds(self.stuck_after, "stuck_after"))
        fix(self, "command_line", _words(self.command_line, "command_line"))
        if self.command_line:
            self._check_command_line()
        elif bool(self.playbook) == bool(self.module):
            raise SpecError("a run needs either a playbook or a module, and not both")
        if self.module and not self.hosts:
            raise SpecError(f"module '{self.module}' needs hosts= to run on, for example hosts='all'")
        if self.hosts and not self.module:
            raise SpecError("hosts= goes with module=; a playbook names its hosts itself (limit= narrows them)")
        if not isinstance(self.extra_vars, Mapping):
            raise SpecError(f"extra_vars must be a mapping, not {type(self.extra_vars).__name__}")
        try:
            json.dumps(self.extra_vars)
        except (TypeError, ValueError, RecursionError) as err:
            raise SpecError(f"extra_vars must hold what JSON can hold: {err}") from None
        for name in ("forks", "keep"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SpecError(f"{name} must be a whole number above zero, not {value!r}")
        if isinstance(self.verbosity, bool) or not isinstance(self.verbosity, int) or self.verbosity < 0:
            raise SpecError(f"verbosity must be a whole number, 0 or more, not {self.verbosity!r}")
        for key, value in self.env.items():
            if not isinstance(key, str) or not isinstance(value, str) or "=" in key or "\0" in key + value or not key:
                raise SpecError(f"env: {key!r} is not a variable that an environment can hold")
            try:
                os.fsencode(key + value)
            except UnicodeEncodeError:
                raise SpecError(f"env: {key!r} holds characters that an environment cannot hold") from None
        if self.modules not in ("auto", "warm", "cold", "in-process"):
            raise SpecError(f"modules must be 'auto', 'warm', 'cold' or 'in-process', not {self.modules!r}")
        Answers(self.answers)
        unknown = set(self.passwords) - {"conn_pass", "become_pass"}
        if unknown:
            raise SpecError(f"passwords has conn_pass and become_pass, not {', '.join(sorted(unknown))}")
        if self.ident is not None and not _IDENT.fullmatch(self.ident):
            raise SpecError(f"ident {self.ident!r} must be letters, digits, '.', '_' or '-', as it names a folder")

    def _check_command_line(self) -> None:
        command = self.command_line[0]
        if command not in _COMMANDS:
            raise SpecError(f"command_line must begin with one of {' and '.join(_COMMANDS)}, not with {command!r}")
        for name in _ARGUMENTS:
            if getattr(self, name) not in (None, (), {}, 0):
                raise SpecError(f"{name}= does not go with a command line, which has flags for it")

    @property
    def command(self) -> str:
        if self.command_line:
            return self.command_line[0]
        return "ansible" if self.module else "ansible-playbook"

    @property
    def playbooks(self) -> tuple[str, ...]:
        """The playbooks. Of a command line, all arguments that may be one: only Ansible's parser knows which are."""
        return tuple(one for one in self.command_line[1:] if one[:1] != "-") or self.playbook

    def argv(self, *, secret_free: bool = False) -> list[str]:
        """
        The run as arguments of its command.

        With `secret_free` the extra vars are left out, for callers that pass them in a file: every user of the machine can
        list the arguments of a process.
        """
        if self.command_line:
            return list(self.command_line[1:])
        argv: list[str] = []
        for source in self.inventory:
            argv += ["-i", source]
        for flag, value in (("--limit", self.limit), ("--forks", self.forks)):
            if value is not None:
                argv += [flag, str(value)]
        for flag, values in (("--tags", self.tags), ("--skip-tags", self.skip_tags)):
            for value in values:
                argv += [flag, value]
        if self.extra_vars and not secret_free:
            argv += ["-e", json.dumps(dict(self.extra_vars))]
        argv += [flag for flag, on in (("--check", self.check), ("--diff", self.diff), ("--become", self.become)) if on]
        if self.verbosity:
            argv.append("-" + "v" * self.verbosity)
        argv += self.args
        if self.module:
            argv += ["-m", self.module]
            if self.module_args is not None:
                given = self.module_args
                argv += ["-a", given if isinstance(given, str) else json.dumps(dict(given))]
            argv.append(str(self.hosts))
        else:
            argv += self.playbook
        return argv
