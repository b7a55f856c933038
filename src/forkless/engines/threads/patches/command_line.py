# SPDX-License-Identifier: GPL-3.0-or-later
"""
What the command line gives to one run: its arguments, extra variables, passwords and vault secrets.

Ansible reads them once in a process, and keeps them in singletons and function attributes (see `run_state`).
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from forkless.engines.threads import context
from forkless.engines.threads.patches import stdlib_views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forkless.engines.threads.context import RunContext

__all__: list[str] = []


class _CliArgs(Mapping[str, object]):
    """ansible.context.CLIARGS: the arguments of the calling thread's run."""

    def __init__(self, outside: object) -> None:
        self._outside = outside

    def _args(self) -> Any:
        run_context = context.current()
        return self._outside if run_context is None else run_context.state.get("cliargs", self._outside)

    def __getitem__(self, key: str) -> object:
        return self._args()[key]

    def get(self, key: str, default: object = None) -> object:  # asked some twenty times for every task
        return self._args().get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._args())

    def __len__(self) -> int:
        return len(self._args())

    def __getattr__(self, name: str) -> object:
        return getattr(self._args(), name)

    def __reduce__(self) -> Any:
        return type(self), (self._args(),)


def cli_args(original: object, _site: str) -> object:
    return _CliArgs(original)


def init_cli_args(_original: object, _site: str) -> object:
    from ansible.utils.context_objects import CLIArgs

    def init(options: object) -> None:
        run_context = context.current()
        if run_context is None:
            raise RuntimeError("the command line was read outside of a run")
        run_context.state["cliargs"] = CLIArgs.from_options(options)

    return init


def use_limit(run_context: RunContext, limit: str) -> None:
    """From now on the run's --limit is another one."""
    from ansible.utils.context_objects import CLIArgs

    run_context.state["cliargs"] = CLIArgs({**run_context.state["cliargs"], "subset": limit})


def not_cached(attribute: str) -> Callable[[Any, str], object]:
    """load_extra_vars and load_options_vars cache the first run's result in a function attribute; here each run has its own."""

    def stand_in(original: Callable[..., object], _site: str) -> object:
        @functools.wraps(original)
        def load(*args: object, **kwargs: object) -> object:
            run_context = context.current()
            if run_context is None:
                return original(*args, **kwargs)
            with run_context.vars_lock:
                if attribute not in run_context.state:
                    # A copy of the function, so that it sets the attribute on the copy.
                    space = dict(original.__globals__)
                    twin = types.FunctionType(original.__code__, space, original.__name__, original.__defaults__)
                    space[original.__name__] = twin
                    if attribute == "extra_vars" and run_context.extra_vars:
                        # Not through CLIARGS, which a callback prints at -vvvv. The arguments come later, so they take precedence.
                        said = space["context"].CLIARGS.get("extra_vars", ())
                        space["context"] = types.SimpleNamespace(
                            CLIARGS={"extra_vars": (run_context.extra_vars, *said)}
                        )
                    run_context.state[attribute] = twin(*args, **kwargs)
                return run_context.state[attribute]

        return load

    return stand_in


def print_message(original: Callable[..., object], _site: str) -> object:
    """Help and errors of argparse go to the run's output."""

    @functools.wraps(original)
    def say(parser: object, message: str, file: object = None) -> None:
        if file is None or file is sys.stderr:
            file = stdlib_views.sys_view.stderr
        elif file is sys.stdout:
            file = stdlib_views.sys_view.stdout
        original(parser, message, file)

    return say


def register_secrets(values: Iterable[str | None]) -> None:
    """Mask secrets that were passed to the run as if they had been typed. Before 2.22 there is no masker."""
    secrets = sys.modules.get("ansible.module_utils.secrets")
    if secrets is not None:
        secrets.register_secrets([value for value in values if value])


def ask_passwords(original: Any, _site: str) -> object:
    """-k and -K of a run that was given its passwords."""
    real = original.__func__ if isinstance(original, staticmethod) else original

    @functools.wraps(real)
    def ask() -> tuple[object, object]:
        run_context = context.current()
        conn, become = real()
        if run_context is None or not run_context.passwords:
            return conn, become
        register_secrets(run_context.passwords.values())
        return run_context.passwords.get("conn_pass", conn), run_context.passwords.get("become_pass", become)

    return staticmethod(ask)


def vault_secrets(original: Any, _site: str) -> object:
    """Adds the run's vault password to those that its arguments name."""
    real = original.__func__ if isinstance(original, staticmethod) else original

    @functools.wraps(real)
    def setup(*args: Any, **kwargs: Any) -> object:
        from ansible.parsing.vault import VaultSecret

        secrets = real(*args, **kwargs)
        run_context = context.current()
        if run_context is not None and run_context.vault_password is not None:
            register_secrets([run_context.vault_password])
            secret = VaultSecret(run_context.vault_password.encode())
            secret.load()
            secrets.append(("default", secret))
            loader = args[0] if args else kwargs["loader"]
            loader.set_vault_secrets(secrets)
        return secrets

    return staticmethod(setup)


def vault_initialize(_original: object, _site: str) -> object:
    def initialize(_kind: type, value: object) -> None:
        run_context = context.current()
        if run_context is None:
            raise RuntimeError("vault secrets were set outside of a run")
        run_context.state["vault"] = value

    return classmethod(initialize)


def vault_current(original: Any, _site: str) -> object:
    def current(kind: type, optional: bool = False) -> object:
        run_context = context.current()
        if run_context is None:
            return original.__func__(kind, optional)
        value = run_context.state.get("vault")
        if value is None and not optional:
            raise ReferenceError(f"A required {kind.__name__} context is not active.")
        return value

    return classmethod(current)
