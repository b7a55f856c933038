# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless shim: an `ansible-playbook` that is forkless, for programs that call it."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess

from forkless.cli.shim import files
from forkless.core.errors import SpecError

__all__ = ["main", "parser"]

EXAMPLES = """\
examples:
  forkless shim install                     and put the line that it prints into your shell's profile
  forkless shim install ~/bin/forkless      in another folder
  forkless shim status                      which ansible-playbook runs in this shell, and in what
  forkless shim remove
  FORKLESS=0 ansible-playbook site.yml      stock's, this once
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="forkless shim",
        description="Write ansible-playbook, ansible and ansible-console into a folder. With it first on PATH, programs that call them run "
        "in forkless, without being changed. Where forkless cannot run, stock's command does.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("what", choices=["install", "remove", "status"])
    made.add_argument("folder", metavar="DIR", nargs="?", help=f"the shim's folder (default: {files.default_folder()})")
    return made


def main(argv: list[str]) -> int:
    given = parser().parse_args(argv)
    folder = os.path.abspath(os.path.expanduser(given.folder)) if given.folder else None
    return {"install": _install, "remove": _remove, "status": _status}[given.what](folder)


def _install(folder: str | None) -> int:
    folder = folder or files.default_folder()
    if not os.path.isabs(folder):
        raise SpecError("this user has no home for the shim; name a folder: forkless shim install DIR")
    files.install(folder)
    print(f"the shim is in {folder}; put this line into your shell's profile (~/.profile, ~/.bashrc or ~/.zshrc):")
    print(f'export PATH={shlex.quote(folder)}:"$PATH"')
    return 0


def _remove(folder: str | None) -> int:
    if folder is None:
        folder = next(
            iter([one for one in (files.default_folder(),) if files.installed(one)] or files.folders_on_path()), None
        )
    removed = files.remove(folder) if folder is not None else []
    if not removed:
        raise SpecError(
            f"there is no shim in {folder}" if folder else "there is no shim in its usual folder, nor on PATH"
        )
    print(f"the shim was removed from {folder}; take the line with this folder out of your shell's profile")
    return 0


def _status(folder: str | None) -> int:
    """Exit code 0 if `ansible-playbook` is the shim in this shell, otherwise 1."""
    folders = files.folders_on_path()
    if folder is None and not folders and files.installed(files.default_folder()):
        folder = files.default_folder()
    for one in dict.fromkeys([folder] if folder else folders):
        there = files.installed(one)
        state = f"has {', '.join(there)}" if there else "has no shim"
        behind = (
            ""
            if not there or files.current(one)
            else "; written by another forkless: `forkless shim install` renews it"
        )
        print(f"shim       {one} {state}{behind}")
    used = shutil.which("ansible-playbook")
    in_use = used is not None and files.is_shim(used)
    stock = files.stock_commands("ansible-playbook")
    print(f"in use     {used or 'no ansible-playbook is on PATH'}{' (the shim)' if in_use else ''}")
    if used and not in_use and folders:
        print(f"           {os.path.dirname(used)} stands before the shim on PATH, so the shim is not used")
    print(f"replaces   {stock[0] if stock else 'nothing: there is no other ansible-playbook on PATH'}")
    if in_use and used is not None:
        environ = {**os.environ, "FORKLESS_SHIM_ASK": "1"}
        asked = subprocess.run(
            [used], env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        why = (asked.stdout or asked.stderr).strip().rpartition("\n")[2]
        print(f"runs in    {f'stock Ansible: {why}' if why else 'forkless'}")
    return 0 if in_use else 1
