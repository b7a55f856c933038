# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a file of the shim calls: the command in forkless, or a reason why stock's must run.

`run_stock(reason)` is the file's own function; it replaces the process and does not return. It may be called until the run begins.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from forkless import cli
from forkless.core import platform, versions

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main", "starts_ansible_only", "why_not"]

# All that the scripts of pip, uv, pipx, distlib and others use besides the function that they call.
_USED = {"__name__", "argv", "endswith", "exit", "main", "re", "removesuffix", "sub", "sys", "SystemExit"}
_OWN_FILES = tuple(f"/ansible/cli/{name}.py" for name in ("adhoc", "console", "playbook", "pull"))
_OWN_FILES += ("/ansible_test/_util/target/cli/ansible_test_cli_stub.py",)
_LONGEST_SCRIPT = 1 << 16


def main(command: str, stock: str, shim: str, run_stock: Callable[[str], NoReturn]) -> int:
    """
    Run the command that `stock` is the path of, with the arguments in sys.argv. `shim` is the file that was called.

    Main thread only. The exit code is returned.
    """
    if command in ("ansible-pull", "ansible-test"):
        if not stock or not starts_ansible_only(stock):
            run_stock("")
        return _tell_of_shim(command, stock, shim)
    try:
        why = why_not()
        if not why and stock and not starts_ansible_only(stock):
            why = f"{stock} may do more than start Ansible"
    except Exception as error:  # noqa: BLE001  # packages that are half there: what stock can do without them is not cut short
        why = f"forkless cannot tell what is installed ({type(error).__name__}: {error})"
    if why or os.environ.get("FORKLESS_SHIM_ASK"):
        run_stock(why)
    sys.argv[0] = stock or sys.argv[0]
    from forkless.cli import ansible_command

    return cli.guarded(lambda: ansible_command.run_command(command, sys.argv[1:], unable=run_stock))


def why_not() -> str:
    """
    Why forkless cannot replace stock's command in this environment; "" if it can.

    What this cannot know without importing ansible-core is found when the run is set up, and ends at stock's command as well.
    """
    try:
        full = importlib.metadata.version("ansible-core")
    except importlib.metadata.PackageNotFoundError:
        return f"ansible-core is not a package of {sys.executable}"
    if os.environ.get("FORKLESS_ALLOW_UNKNOWN") != "1":
        if versions.minor_of(full) not in versions.KNOWN:
            return f"forkless does not know ansible-core {full}"
        unsupported = versions.unsupported(sys.version_info[:2], full)
        if unsupported:
            return unsupported
    return "" if platform.can_thread() else "no thread can be started here"


def starts_ansible_only(path: str) -> bool:
    """
    Whether the command is a script as installers write it, or ansible-core's own file: these only call Ansible's `main`.

    A script that somebody wrote may set variables first or call another program, and an archive (zipapp, pex) has packages of its own:
    these are run as they are.
    """
    if os.path.realpath(path).endswith(_OWN_FILES):
        return True
    try:
        with open(path, "rb") as file:
            text = file.read(_LONGEST_SCRIPT).decode("utf-8")
        nodes = list(ast.walk(ast.parse(text)))
    except (OSError, ValueError, SyntaxError, RecursionError):  # ValueError: it is no text
        return False
    if "# EASY-INSTALL-ENTRY-SCRIPT: 'ansible" in text:
        return True
    imported = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    return len(imported) == 1 and imported.pop().startswith(("ansible.cli.", "ansible_test.")) and used <= _USED


def _tell_of_shim(command: str, stock: str, shim: str) -> int:
    """Run stock's own script in this process; the `ansible-playbook` that it calls is the one beside `shim`."""
    folder = os.path.dirname(shim)
    sys.argv[0] = stock
    if command == "ansible-pull":
        sys.argv[0] = shim  # ansible-pull calls what lies beside its own argv[0]
    else:
        _copied_by_ansible_test(folder)
    with open(stock, encoding="utf-8") as file:
        code = compile(file.read(), stock, "exec")
    exec(code, {"__name__": "__main__", "__file__": stock, "__builtins__": __builtins__})  # noqa: S102  # it is the command
    return 0


def _copied_by_ansible_test(folder: str) -> None:
    """
    ansible-test copies commands from ansible-core's package into a folder that it puts first on PATH. Its table of them is relative to
    the package; an absolute path behind the prefix leads to the shim. Without such a table stock's commands are copied.
    """
    try:
        table = importlib.import_module("ansible_test._internal.constants").ANSIBLE_BIN_SYMLINK_MAP
        for name in ("ansible", "ansible-console", "ansible-playbook"):
            if name in table:
                table[name] = f"../lib/ansible/{os.path.join(folder, name)}"
    except (ImportError, AttributeError, TypeError):
        pass
