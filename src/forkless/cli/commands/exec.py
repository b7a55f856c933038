# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless exec: a command that finds the shim first on PATH."""

from __future__ import annotations

import argparse
import os
import sys

from forkless.cli.shim import files

__all__ = ["main", "parser"]

EXAMPLES = """\
examples:
  forkless exec -- make deploy
  forkless exec -- molecule test
  FORKLESS=0 forkless exec -- make deploy       the same with stock's ansible-playbook
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="forkless exec",
        description="Run a command whose ansible-playbook, ansible and ansible-console are forkless. It replaces this process: signals, "
        "descriptors and the exit code are its own.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "command", metavar="CMD", nargs=argparse.REMAINDER, help="the command and its arguments, after --"
    )
    return made


def main(argv: list[str]) -> int:
    made = parser()
    words: list[str] = made.parse_args(argv).command
    if words[:1] == ["--"]:
        del words[0]
    if not words:
        made.error("which command? forkless exec -- make deploy")
    environ = dict(os.environ)
    folder = files.ready_folder()
    if folder is None:
        sys.stderr.write("forkless exec: no folder for the shim can be written, so the command runs with stock's\n")
    else:
        environ["PATH"] = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
    sys.stdout.flush()
    try:
        os.execvpe(words[0], words, environ)
    except OSError as err:
        missing = isinstance(err, FileNotFoundError | NotADirectoryError)
        sys.stderr.write(
            f"forkless exec: {words[0]} {'was not found' if missing else f'cannot be run: {err.strerror}'}\n"
        )
        return 127 if missing else 126
