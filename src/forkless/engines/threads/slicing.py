# SPDX-License-Identifier: GPL-3.0-or-later
"""
Which hosts a playbook would run on, and whether its meaning would change if it ran on parts of them at the same time.

Read with ansible-core's own loader: in a process of its own, `python -m forkless.engines.threads.slicing`, with the arguments of
ansible-playbook as JSON on stdin and the answer as JSON on stdout, or in a slice that has not begun (cli/slice_process.py). Nothing is run. What
only shows at run time, in an include, is refused there (patches/slices.py).
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import re
import sys
from typing import TYPE_CHECKING

from forkless.core import switches
from forkless.engines.threads import across_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.playbook.block import Block
    from ansible.playbook.play import Play
    from ansible.playbook.role import Role
    from ansible.playbook.task import Task
    from ansible.vars.manager import VariableManager

    from forkless.engines.threads.across_hosts import Values

__all__ = ["answer_about", "examine"]

_INCLUDES = re.compile(r"(ansible\.builtin\.|ansible\.legacy\.)?(include_tasks|include_role)")
_LOCAL = ("localhost", "127.0.0.1", "::1")


def _tasks(block: Block) -> Iterator[Task]:
    for one in (*block.block, *block.rescue, *block.always):
        if hasattr(one, "always"):
            yield from _tasks(one)
        else:
            yield one


def _blocks(play: Play) -> Iterator[Block]:
    yield from play.compile()
    yield from play.handlers
    for role in play.roles:
        yield from role.get_handler_blocks(play)


def _on_localhost(inventory: InventoryManager, pattern: object) -> bool:
    hosts = inventory.get_hosts(pattern)
    if not hosts:
        return str(pattern).strip("[]'\" ") in _LOCAL
    return all(getattr(host, "implicit", False) or host.name in _LOCAL for host in hosts)


def _of_play(play: Play, roles: dict[str, Role], values: Values) -> Iterator[tuple[str, str]]:
    """What stands against slices of one play: file with line, and why. Its roles are added to `roles`."""
    where = play.get_path()
    for reason in across_hosts.of_play(play):
        yield where, reason
    given = (play.get_vars(), [(one.get_default_vars(), one.get_vars()) for one in play.roles])
    if reason := across_hosts.of_text(repr(given), values):
        yield where, reason
    for block in _blocks(play):
        for task in _tasks(block):
            if reason := across_hosts.why_not(task, play, values):
                yield task.get_path(), reason
            if task._role is not None:
                roles[str(task._role._role_path)] = task._role


def _of_order(plays: list[tuple[Play, set[str]]]) -> Iterator[tuple[str, str]]:
    """
    Ansible begins no later play if all hosts of a play have failed, and a slice sees its own hosts only. That is the same as long as each play
    has no hosts but those of the plays before it: a slice that stops has none left then.
    """
    for place, (play, hosts) in enumerate(plays):
        for before, theirs in plays[:place]:
            if theirs and not hosts <= theirs:  # without hosts it cannot fail
                other = os.path.basename(before.get_path())
                yield (
                    play.get_path(),
                    f"it has other hosts than the play at {other}; Ansible does not begin it if all hosts of that one have failed, and a slice sees its own only",
                )
                break


def _of_command(plays: int) -> Iterator[tuple[str, str]]:
    """What stands against slices in the arguments and the configuration."""
    from ansible import constants, context

    if constants.RETRY_FILES_ENABLED:
        yield "retry_files_enabled", "the file would have the failed hosts of one slice only"
    if context.CLIARGS["forks"] == 1:
        yield "forks", "one host at a time would be one in every slice"
    if context.CLIARGS.get("start_at_task") and plays > 1:
        yield "--start-at-task", "a slice without hosts in the task's play would run nothing"


def examine(loader: DataLoader, inventory: InventoryManager, variables: VariableManager) -> dict[str, object]:
    """
    The hosts of an `ansible-playbook` whose arguments are parsed, after its limit; those that it has without an inventory (localhost);
    what stands against slices; and includes that cannot be looked into.
    """
    from ansible import context
    from ansible.cli import CLI
    from ansible.playbook import Playbook
    from ansible.template import Templar

    CLI.get_host_list(inventory, context.CLIARGS["subset"])
    against: dict[str, str] = {}
    unseen: list[str] = []
    hosts: dict[str, None] = {}
    implicit: dict[str, None] = {}
    plays: list[tuple[str, Play]] = []
    by_play: list[tuple[Play, set[str]]] = []
    values = across_hosts.Values()
    sources = [os.path.abspath(one) for one in inventory._sources if "," not in one]
    beside = [one if os.path.isdir(one) else os.path.dirname(one) for one in sources]
    for path in context.CLIARGS["args"]:
        folder = os.path.dirname(os.path.abspath(path))
        loader.set_basedir(folder)
        for play in Playbook.load(path, variable_manager=variables, loader=loader).get_plays():
            plays.append((folder, play))
            templar = Templar(loader=loader, variables=variables.get_vars(play=play))
            pattern = templar.template(play.hosts)
            found = inventory.get_hosts(pattern)
            for host in found:
                (implicit if host.implicit else hosts)[str(host.name)] = None
            by_play.append((play, {str(host.name) for host in found if not host.implicit}))
            if _on_localhost(inventory, pattern):
                against.setdefault(play.get_path(), "a play on localhost would be left out, or run in every slice")
            for block in _blocks(play):
                for task in _tasks(block):
                    values.add(task)
                    if _INCLUDES.fullmatch(str(task.action)):
                        unseen.append(task.get_path())
    # Only now: a task may read what a later play sets, in the next round of a loop over hosts.
    roles: dict[str, Role] = {}
    files: dict[str, None] = {}  # each once, however many plays have it
    for folder, play in plays:
        for where, why in _of_play(play, roles, values):
            against.setdefault(where, why)
        files |= dict.fromkeys(across_hosts.files_of_play(list(dict.fromkeys([folder, *beside])), play))
    for where, why in itertools.chain(
        *(across_hosts.of_role(role, values) for role in roles.values()),
        across_hosts.of_files(files, values),
        _of_order(by_play),
        _of_command(len(plays)),
    ):
        against.setdefault(where, why)
    return {
        "hosts": list(hosts),
        "implicit": list(implicit),
        "against": [list(one) for one in against.items()],
        "unseen": unseen,
    }


def answer_about(loader: DataLoader, inventory: InventoryManager, variables: VariableManager) -> dict[str, object]:
    """What `examine` says, or Ansible's own message, whatever the error is."""
    try:
        return examine(loader, inventory, variables)
    except Exception as err:  # noqa: BLE001  # plugins of the inventory and templates raise anything
        return _error(err)


def _error(err: Exception) -> dict[str, object]:
    return {"error": str(err).strip() or type(err).__name__}


def _read(argv: list[str]) -> tuple[DataLoader, InventoryManager, VariableManager]:
    from ansible.cli.playbook import PlaybookCLI
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()
    cli = PlaybookCLI(["ansible-playbook", *argv])
    cli.parse()
    made: tuple[DataLoader, InventoryManager, VariableManager] = cli._play_prereqs()
    return made


def main() -> int:
    # Importing and parsing make many objects that stay: looking at all of them again and again took a fifth of the time.
    if not switches.disabled("gc-tuning"):
        gc.set_threshold(20_000, 20, 20)
    asked = json.load(sys.stdin)
    os.chdir(asked["cwd"])
    stdout = os.dup(1)
    os.dup2(2, 1)  # Ansible's warnings must not get into the answer
    try:
        with contextlib.redirect_stdout(sys.stderr):
            answer = answer_about(*_read(asked["argv"]))
    except SystemExit:
        return 1
    except Exception as err:  # noqa: BLE001  # the answer contains Ansible's own message, whatever the error is
        answer = _error(err)
    with os.fdopen(stdout, "w") as stream:
        json.dump(answer, stream)
    return 0


if __name__ == "__main__":
    sys.exit(main())
