# SPDX-License-Identifier: GPL-3.0-or-later
"""
What in a playbook looks across its hosts, and so means something else if several processes run it, each on a part of them.

`why_not` and `Values` are used before a launch (slicing.py) and again in each slice, for what an include brings (patches/slices.py).
Templates count as what they may become: whether one would be harmless is known only when it is too late.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ansible.playbook.play import Play
    from ansible.playbook.role import Role
    from ansible.playbook.task import Task

__all__ = ["Values", "files_of_play", "of_files", "of_play", "of_role", "of_text", "why_not"]

_PLAY_HOSTS = re.compile(r"\b(ansible_play_hosts(_all)?|ansible_play_batch|play_hosts)\b")
# The variables of the host itself, which its slice has.
_OWN = re.compile(r"hostvars\s*(\[\s*inventory_hostname\s*\]|\.get\(\s*inventory_hostname\s*\))")
_OTHER = re.compile(r"\bhostvars\b(.{0,200})", re.DOTALL)
# Names that begin with ansible_ and are not facts: they stand in the inventory, or are the same for every host.
_NO_FACTS = (
    "host|port|user|password|connection|ssh_(?!host_key)|become|python_interpreter|private_key|network_os|httpapi|netconf|winrm|psrp|"
    "paramiko|shell|remote_tmp|pipelining|timeout|command_timeout|check_mode|diff_mode|version|inventory|parent_role|role_name|"
    "run_tags|skip_tags|config_file|forks|limit|verbosity|loop|index_var|search_path|play_name|collection|playbook_python|dependent"
)
_FACT = rf"ansible_(?!(?:{_NO_FACTS}))\w+"
_STRATEGIES = re.compile(r"(ansible\.(builtin|legacy)\.)?(linear|free|host_pinned)")
_BUILTIN = re.compile(r"^ansible\.(builtin|legacy)\.")
# Bytes of a file that is read for what it looks at. A larger one is data.
_MOST = 1 << 20

_BY_GROUP = "groups would have the hosts of the slice only, of those that group_by makes"
_ALONE = {
    "set_stats": "set_stats would count the hosts of each slice",
    "group_by": _BY_GROUP,
}
# What these do they do to every host of the play, as soon as one host reaches them.
_META_FOR_ALL = ("end_play", "end_batch", "clear_facts")
_META_NEVER = {
    "clear_host_errors": "clear_host_errors would not reach hosts of a slice in which all have failed",
    "refresh_inventory": "refresh_inventory may find hosts that are in no slice",
}


class Values:
    """Names of variables that hosts get during the run: hosts of other slices do not have them here."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, task: Task) -> None:
        if isinstance(task.register, str):
            self._names.add(task.register)
        elif task.register:  # since 2.21: what each name gets of the result
            self._names.update(map(str, task.register))
        if _plain(task.action) == "set_fact":
            self._names.update(str(name) for name in task.args if str(name).isidentifier() and name != "cacheable")

    def read_in(self, text: str) -> str:
        """The first of these names, or of a fact, that `text` reads from the variables of another host; "" if there is none."""
        if "hostvars" not in text:
            return ""
        names = "|".join([_FACT, *map(re.escape, sorted(self._names, key=len, reverse=True))])
        for after in _OTHER.findall(_OWN.sub("", text)):
            if found := re.search(rf"[.'\"\[]({names})\b", after):
                return found.group(1)
        return ""


def _plain(action: object) -> str:
    return _BUILTIN.sub("", str(action))


def of_text(text: str, values: Values) -> str:
    """Why a text with templates means something else in a slice; "" if it does not."""
    if found := _PLAY_HOSTS.search(text):
        return f"{found.group(1)} would have the hosts of the slice only"
    if name := values.read_in(text):
        return f"hostvars would lack {name} of hosts in other slices, which get it during the run"
    return ""


def why_not(task: Task, play: Play | None, values: Values) -> str:
    """Why a task means something else in a slice; "" if it does not. `play` is its play, if that is known."""
    from ansible.plugins.loader import action_loader

    if task.run_once:
        return "run_once would run once in every slice"
    if task.any_errors_fatal:
        return "any_errors_fatal would stop the slice only"
    if task.throttle:
        return "throttle would count the hosts of each slice"
    if task.delegate_facts:
        return "delegate_facts would set facts in its own slice only"
    if task.debugger not in (None, "never"):
        return "debugger would ask in every slice"
    action = str(task.action)
    if reason := _ALONE.get(_plain(action), ""):
        return reason
    if _plain(action) == "meta":
        return _of_meta(task, play)
    plugin = action_loader.get(action, class_only=True)
    if getattr(plugin, "BYPASS_HOST_LOOP", False):
        return f"{action} would run once in every slice"
    # A condition and the variables of a block are its tasks' as well.
    return of_text(repr((task.get_ds(), task.when, task.get_vars())), values)


def _of_meta(task: Task, play: Play | None) -> str:
    what = str(task.args.get("_raw_params"))
    if what in _META_NEVER:
        return _META_NEVER[what]
    if what in _META_FOR_ALL and not _reached_by_all(task, play):
        return f"{what} would be for the hosts of its slice only, and not every host of the play reaches it"
    return of_text(repr((task.get_ds(), task.when, task.get_vars())), Values())


def _reached_by_all(task: Task, play: Play | None) -> bool:
    """Whether all hosts of the play that have not failed come to this task, and at the same time."""
    from ansible.playbook.handler import Handler
    from ansible.playbook.task_include import TaskInclude

    if task.when or isinstance(task, Handler) or (play is not None and _plain(play.strategy) != "linear"):
        return False
    above = task._parent
    while above is not None:
        # A host that failed in the block goes on in its rescue or always section, while others come to the task.
        if getattr(above, "rescue", None) or getattr(above, "always", None):
            return False
        if isinstance(above, TaskInclude) and not above.statically_loaded:
            return False
        above = above._parent
    return True


def of_play(play: Play) -> Iterator[str]:
    """Why a play means something else in a slice, by its own keywords and variables."""
    if play.serial:
        yield "serial would count the hosts of each slice"
    if play.max_fail_percentage is not None:
        yield "max_fail_percentage would count the hosts of each slice"
    if play.vars_prompt:
        yield "vars_prompt would ask for every slice"
    if play.any_errors_fatal:
        yield "any_errors_fatal would stop the slice only"
    if play.throttle:
        yield "throttle would count the hosts of each slice"
    if not _STRATEGIES.fullmatch(str(play.strategy)):
        yield f"strategy {play.strategy} would know the hosts of the slice only"


def of_role(role: Role, values: Values) -> Iterator[tuple[str, str]]:
    """File with line, and why: what a role's templates and variables look at."""
    for folder in ("templates", "vars", "defaults"):
        yield from of_files(_files(os.path.join(str(role._role_path), folder)), values)


def of_files(paths: Iterable[str], values: Values) -> Iterator[tuple[str, str]]:
    """File with line, and why: the files as they are, each up to the first line that looks across hosts."""
    for path in paths:
        try:
            if os.path.getsize(path) > _MOST:
                continue
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue  # Ansible says so, if it needs the file
        if not of_text(text, values):
            continue
        lines = text.splitlines()
        # A loop over hosts may have several lines; then the file is named by the line of its `hostvars`.
        line = next((number for number, one in enumerate(lines, 1) if of_text(one, values)), 0)
        line = line or next((number for number, one in enumerate(lines, 1) if "hostvars" in one), 1)
        yield f"{path}:{line}", of_text(text, values)


def _files(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (os.path.join(place, name) for name in sorted(names))


def files_of_play(folders: Iterable[str], play: Play) -> Iterator[str]:
    """The files with variables and templates beside a playbook or an inventory (`folders`, the playbook's first), and the play's vars_files."""
    for number, folder in enumerate(folders):
        if not number:
            yield from _files(os.path.join(folder, "templates"))
            for one in play.get_vars_files():
                yield from (os.path.join(folder, str(path)) for path in (one if isinstance(one, list) else [one]))
        for kind in ("group_vars", "host_vars"):
            yield from _files(os.path.join(folder, kind))
