# SPDX-License-Identifier: GPL-3.0-or-later
"""The command `forkless`. Each subcommand is a module of `commands` with `main(argv) -> int`, imported when it is called."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import sys
from typing import TYPE_CHECKING, NoReturn

from forkless.cli import terminal_text
from forkless.core.errors import ForklessError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["COMMANDS", "command", "guarded", "main"]

COMMANDS = {
    "playbook": "run a playbook, with ansible-playbook's own arguments",
    "adhoc": "run one module on hosts, with ansible's own arguments",
    "console": "run modules on hosts from a prompt, with ansible-console's own arguments",
    "exec": "run a command, such as make or molecule, whose ansible-playbook is forkless",
    "shim": "install an ansible-playbook that is forkless, for other programs; remove it; tell about it",
    "run": "run an ansible-runner folder (private_data_dir), as `ansible-runner run` does",
    "watch": "show a run of another process as it happens, from its artifact folder or its events",
    "jobs": "list, follow, stop and tidy up jobs that outlive their play",
    "launch": "queue a playbook for workers, on this or other machines",
    "worker": "carry out queued runs on this machine",
    "runs": "list, follow, cancel and relaunch queued runs",
    "schedule": "launch playbooks again and again, at set times",
    "serve": "a page that shows and steers queued runs, in a browser",
    "users": "who may use the page: names, roles, passwords",
    "queue": "the queue's database: create, upgrade, check",
    "doctor": "tell what this machine can do, and which engine will be used",
    "completion": "print completions for bash, zsh or fish",
}

WHAT = """\
forkless runs unmodified ansible-core in one process, with workers as threads: no fork, so nothing hangs on a lock that
a fork copied, and it works where no process can be started.

  forkless doctor                                     what this machine can do, and which engine will be used
  forkless playbook site.yml -i hosts.ini             what ansible-playbook does, with a live view at a terminal
  forkless playbook site.yml --report run.html        ... and one HTML file about where the time went
  forkless adhoc all -i hosts.ini -m ping             what ansible does
  forkless exec -- molecule test                      any program that calls ansible-playbook, without changing it
  forkless run DIR -p site.yml                        what ansible-runner run does
  forkless watch DIR                                  a run of another program, as it happens
  forkless jobs list                                  jobs that outlive their play
  forkless launch site.yml -i hosts.ini --follow      queue it; `forkless worker` carries it out, here or elsewhere
  forkless serve --project .                          see and steer runs in a browser
"""


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    return (
        f"{WHAT}\nusage: forkless COMMAND ...\n\ncommands:\n"
        + "\n".join(lines)
        + "\n\nforkless COMMAND --help tells more; forkless --version tells what is installed.\n"
    )


def _versions() -> str:
    from forkless import engines

    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    ours = version("forkless")
    if ours == "not installed":  # run from a source tree
        from forkless import __version__ as ours
    return (
        f"forkless {ours}\nansible-core {version('ansible-core')}\nPython {platform.python_version()} ({sys.executable})\n"
        f"engine {engines.choose(None)}\nansible-runner {version('ansible-runner')}\n"
    )


def _nearest(word: str) -> str:
    import difflib

    near = difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(COMMANDS)}"
    return f"forkless: there is no command '{word}'; {hint}\n"


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    return guarded(lambda: _main(words))


def command() -> NoReturn:
    """The process of `forkless`: executes the command in sys.argv, and ends with its exit code."""
    code = main()
    if sys.argv[1:2] in (["playbook"], ["adhoc"]):
        from forkless.cli.quick_exit import end_process

        end_process(code)
    sys.exit(code)


def guarded(command: Callable[[], int]) -> int:
    """Call a command that owns the process; what its streams and its folder cannot do becomes a sentence and an exit code."""
    _open_streams()
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe (`head`, `less`) has closed it. That is not an error of this command.
        code = 0
        _forget_stdout()
    except FileNotFoundError as err:  # os.getcwd() names no file
        sys.stderr.write(f"forkless: {err.filename or 'the working directory'} does not exist\n")
        code = 1
    except OSError as err:  # the disk is full at the last flush
        sys.stderr.write(f"forkless: the output could not be written: {err.strerror}\n")
        code = 120  # Python's own for this, and so that of ansible-playbook
        _forget_stdout()
    return code


def _main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(_usage())
        return 0
    if argv[0] in ("--version", "-V", "version"):
        sys.stdout.write(_versions())
        return 0
    if argv[0] not in COMMANDS:
        sys.stderr.write(_nearest(argv[0]))
        return 2
    try:
        command = importlib.import_module(f"forkless.cli.commands.{argv[0]}")
        code: int = command.main(argv[1:])
    except ForklessError as error:
        sys.stderr.write(f"forkless {argv[0]}: {terminal_text.escaped(str(error))}\n")
        return 2 if isinstance(error, ValueError) else 1
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()  # the command has ended, and its exit code stays
    return code


def _open_streams() -> None:
    """Open a missing stream on /dev/null: Python sets a closed stream (`>&-`) to None, and Ansible writes to it anyway."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open until the process ends


def _forget_stdout() -> None:
    """Redirect stdout to /dev/null: otherwise Python reports the error again when it closes the stream at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
