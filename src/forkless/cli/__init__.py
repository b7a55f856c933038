# SPDX-License-Identifier: GPL-3.0-or-later
"""The command. Each subcommand is a module of this folder with `main(argv) -> int`, loaded when it is called."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import sys

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "playbook": "run a playbook, with ansible-playbook's own arguments",
    "adhoc": "run one module on hosts, with ansible's own arguments",
    "run": "run an ansible-runner folder (private_data_dir), as `ansible-runner run` does",
    "jobs": "list, follow, stop and tidy up jobs that outlive their play",
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
  forkless run DIR -p site.yml                        what ansible-runner run does
  forkless jobs list                                  jobs that outlive their play
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
    if ours == "not installed":  # run from its sources
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
    argv = sys.argv[1:] if argv is None else argv
    _open_streams()
    try:
        code = _main(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read along has seen enough. That is no failure of ours.
        code = 0
        _forget_stdout()
    except OSError as err:  # a disk that is full, at the last flush
        sys.stderr.write(f"forkless: the output could not be written: {err.strerror}\n")
        code = 1
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
    command = importlib.import_module(f"forkless.cli.{argv[0]}")
    code: int = command.main(argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()  # the command came to its end, and its code says how
    return code


def _open_streams() -> None:
    """Started with a stream closed (`>&-`), Python has None in its place, and Ansible writes to it all the same."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # for as long as we run


def _forget_stdout() -> None:
    """Python would complain again when it closes the stream."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
