# SPDX-License-Identifier: GPL-3.0-or-later
"""The one value that says what to run. Checked when it is made, so that an engine never has to."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forkless._answers import Answers
from forkless._errors import SpecError

__all__ = ["RunSpec"]

_IDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def _paths(value: object, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str | os.PathLike):
        return (os.fspath(value),)
    if isinstance(value, Sequence) and all(isinstance(one, str | os.PathLike) for one in value):
        return tuple(os.fspath(one) for one in value)
    raise SpecError(f"{what} must be a path or a list of paths, not {value!r}")


def _words(value: object, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise SpecError(f"{what} must be a string or a list of strings, not {value!r}")


def _seconds(value: object, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise SpecError(f"{what} must be a number of seconds above zero, not {value!r}")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """
    A playbook (or one module on a pattern of hosts), the inventory, and how to run it.

    Names are those of ansible-playbook's flags. What has no field of its own goes into `args`, as on the command line.
    Relative paths count from `cwd`, which is the folder that the run sees as its current one; the program's own
    is never changed.
    """

    playbook: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None
    module: str | None = None
    module_args: str | Mapping[str, Any] | None = None
    hosts: str | None = None
    inventory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None
    limit: str | None = None
    tags: str | Sequence[str] | None = None
    skip_tags: str | Sequence[str] | None = None
    extra_vars: Mapping[str, Any] = field(default_factory=dict)
    check: bool = False
    diff: bool = False
    become: bool = False
    forks: int | None = None
    verbosity: int = 0
    vault_password: str | None = field(default=None, repr=False)
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    """`{"conn_pass": ..., "become_pass": ...}`: what -k and -K would have asked for."""
    answers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """
    What to answer when the run asks: a regular expression that is looked for in the question, and the answer, as in
    ansible-runner's passwords. For `vars_prompt`, `pause`, -k, -K and --ask-vault-password; the first that matches counts.
    """
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment for this run only: ANSIBLE_* settings, and what its child processes see on top of the program's own."""
    cwd: str | os.PathLike[str] | None = None
    timeout: float | None = None
    idle_timeout: float | None = None
    stuck_after: float | None = None
    """Name a worker that has been at one task for this many seconds, in an event `worker_stuck`. It is not stopped."""
    artifacts: str | os.PathLike[str] | None = None
    keep: int | None = None
    """How many artifact folders to keep in `artifacts`; None keeps all."""
    modules: str = "auto"
    """
    How modules run: "warm" in an interpreter that is kept warm on the host, "cold" each in one of its own as Ansible does it,
    "in-process" in this process where it can be (local connection); "auto" is warm where a program can be started.
    """
    ident: str | None = None

    def __post_init__(self) -> None:
        fix = object.__setattr__
        fix(self, "cwd", os.path.abspath(os.fspath(self.cwd) if self.cwd is not None else os.getcwd()))
        fix(self, "playbook", _paths(self.playbook, "playbook"))
        fix(self, "inventory", _paths(self.inventory, "inventory"))
        fix(self, "tags", _words(self.tags, "tags"))
        fix(self, "skip_tags", _words(self.skip_tags, "skip_tags"))
        fix(self, "args", _words(self.args, "args"))
        fix(self, "timeout", _seconds(self.timeout, "timeout"))
        fix(self, "idle_timeout", _seconds(self.idle_timeout, "idle_timeout"))
        fix(self, "stuck_after", _seconds(self.stuck_after, "stuck_after"))
        if bool(self.playbook) == bool(self.module):
            raise SpecError("a run needs either a playbook or a module, and not both")
        if self.module and not self.hosts:
            raise SpecError(f"module '{self.module}' needs hosts= to run on, for example hosts='all'")
        if self.hosts and not self.module:
            raise SpecError("hosts= goes with module=; a playbook names its hosts itself (limit= narrows them)")
        if not isinstance(self.extra_vars, Mapping):
            raise SpecError(f"extra_vars must be a mapping, not {type(self.extra_vars).__name__}")
        try:
            json.dumps(self.extra_vars)
        except (TypeError, ValueError) as err:
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
        if self.modules not in ("auto", "warm", "cold", "in-process"):
            raise SpecError(f"modules must be 'auto', 'warm', 'cold' or 'in-process', not {self.modules!r}")
        Answers(self.answers)
        unknown = set(self.passwords) - {"conn_pass", "become_pass"}
        if unknown:
            raise SpecError(f"passwords has conn_pass and become_pass, not {', '.join(sorted(unknown))}")
        if self.ident is not None and not _IDENT.fullmatch(self.ident):
            raise SpecError(f"ident {self.ident!r} must be letters, digits, '.', '_' or '-', as it names a folder")

    @property
    def command(self) -> str:
        return "ansible" if self.module else "ansible-playbook"

    def argv(self, *, secret_free: bool = False) -> list[str]:
        """
        The run as arguments of its command.

        With `secret_free` the extra vars are left out, for callers that hand them over by a file: an argument list is
        there for everyone to read.
        """
        argv: list[str] = []
        for source in self.inventory:  # type: ignore[union-attr]  # __post_init__ made it a tuple
            argv += ["-i", str(source)]
        for flag, value in (("--limit", self.limit), ("--forks", self.forks)):
            if value is not None:
                argv += [flag, str(value)]
        for flag, values in (("--tags", self.tags), ("--skip-tags", self.skip_tags)):
            for value in values or ():
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
            argv += [str(book) for book in self.playbook]  # type: ignore[union-attr]  # a tuple, as above
        return argv
