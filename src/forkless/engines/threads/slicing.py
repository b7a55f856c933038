# SPDX-License-Identifier: GPL-3.0-or-later
"""
Which hosts a playbook would run on, and whether its meaning would change if it ran on parts of them at the same time.

Read with ansible-core's own loader, in a process of its own: `python -m forkless.engines.threads.slicing`, with the arguments of
ansible-playbook as JSON on stdin and the answer as JSON on stdout. Nothing is run. What only shows at run time, in an include, is refused there
(patches/slices.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ansible.inventory.manager import InventoryManager
    from ansible.playbook.block import Block
    from ansible.playbook.play import Play
    from ansible.playbook.task import Task

__all__ = ["examine", "why_not"]

_PLAY_HOSTS = re.compile(r"\b(ansible_play_hosts(_all)?|ansible_play_batch|play_hosts)\b")
_INCLUDES = re.compile(r"(ansible\.builtin\.|ansible\.legacy\.)?(include_tasks|include_role)")
_LOCAL = ("localhost", "127.0.0.1", "::1")


def why_not(task: Task) -> str:
    """Why a task means something else in a slice; "" if it does not. A template counts as what it may become."""
    from ansible.plugins.loader import action_loader

    if task.run_once:
        return "run_once would run once in every slice"
    action = str(task.action)
    plugin = action_loader.get(action, class_only=True)
    if getattr(plugin, "BYPASS_HOST_LOOP", False):
        return f"{action} would run once in every slice"
    # A condition and the variables of a block are its tasks' as well.
    return _of_play_hosts((task.get_ds(), task.when, task.get_vars()))


def _of_play_hosts(found_in: object) -> str:
    found = _PLAY_HOSTS.search(repr(found_in))
    return f"{found.group(1)} would have the hosts of the slice only" if found else ""


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


def _of_play(play: Play, inventory: InventoryManager, pattern: object) -> Iterator[tuple[str, str]]:
    where = play.get_path()
    if play.serial:
        yield where, "serial would count the hosts of each slice"
    if play.max_fail_percentage is not None:
        yield where, "max_fail_percentage would count the hosts of each slice"
    if play.vars_prompt:
        yield where, "vars_prompt would ask for every slice"
    hosts = inventory.get_hosts(pattern)
    if (hosts and all(getattr(host, "implicit", False) or host.name in _LOCAL for host in hosts)) or (
        not hosts and str(pattern).strip("[]'\" ") in _LOCAL
    ):
        yield where, "a play on localhost would be left out, or run in every slice"
    if reason := _of_play_hosts((play.get_vars(), [(one.get_default_vars(), one.get_vars()) for one in play.roles])):
        yield where, reason
    if play.any_errors_fatal:
        yield where, "any_errors_fatal would stop the slice only"
    for block in _blocks(play):
        for task in _tasks(block):
            if task.any_errors_fatal and not play.any_errors_fatal:
                yield task.get_path(), "any_errors_fatal would stop the slice only"
            if reason := why_not(task):
                yield task.get_path(), reason


def examine(argv: list[str]) -> dict[str, object]:
    """
    The hosts of `ansible-playbook ARGV` after its limit, those that it has without an inventory (localhost), what stands against slices,
    and includes that cannot be looked into.
    """
    from ansible import context
    from ansible.cli.playbook import PlaybookCLI
    from ansible.playbook import Playbook
    from ansible.plugins.loader import init_plugin_loader
    from ansible.template import Templar

    init_plugin_loader()
    cli = PlaybookCLI(["ansible-playbook", *argv])
    cli.parse()
    loader, inventory, variables = cli._play_prereqs()
    cli.get_host_list(inventory, context.CLIARGS["subset"])
    against: dict[str, str] = {}
    unseen: list[str] = []
    hosts: dict[str, None] = {}
    implicit: dict[str, None] = {}
    for path in context.CLIARGS["args"]:
        loader.set_basedir(os.path.dirname(os.path.abspath(path)))
        for play in Playbook.load(path, variable_manager=variables, loader=loader).get_plays():
            templar = Templar(loader=loader, variables=variables.get_vars(play=play))
            pattern = templar.template(play.hosts)
            for host in inventory.get_hosts(pattern):
                (implicit if host.implicit else hosts)[str(host.name)] = None
            for where, why in _of_play(play, inventory, pattern):
                against.setdefault(where, why)
            for block in _blocks(play):
                unseen += [task.get_path() for task in _tasks(block) if _INCLUDES.fullmatch(str(task.action))]
    return {
        "hosts": list(hosts),
        "implicit": list(implicit),
        "against": [list(one) for one in against.items()],
        "unseen": unseen,
    }


def main() -> int:
    asked = json.load(sys.stdin)
    os.chdir(asked["cwd"])
    stdout = os.dup(1)
    os.dup2(2, 1)  # Ansible's warnings must not get into the answer
    try:
        with contextlib.redirect_stdout(sys.stderr):
            answer = examine(asked["argv"])
    except SystemExit:
        return 1
    except Exception as err:  # noqa: BLE001  # the answer contains Ansible's own message, whatever the error is
        answer = {"error": str(err).strip() or type(err).__name__}
    with os.fdopen(stdout, "w") as stream:
        json.dump(answer, stream)
    return 0


if __name__ == "__main__":
    sys.exit(main())
