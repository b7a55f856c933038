# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder whose playbooks may be started from the page: what is in it, and what a request must be like."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import yaml

from forkless.core.errors import SpecError
from forkless.core.spec import RunSpec
from forkless.queue import QueueRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forkless.web.answers import StartRequest

__all__ = ["ProjectFolder"]

_SKIPPED = frozenset(
    {
        "roles",
        "group_vars",
        "host_vars",
        "node_modules",
        "__pycache__",
        "collections",
        "venv",
        "templates",
        "files",
        "tasks",
        "handlers",
    }
)
_MOST_FILES = 2000
_DEPTH = 3
_PLAY = re.compile(rb"^(?:- |  )\s*(?:hosts|(?:ansible\.builtin\.)?import_playbook)\s*:", re.MULTILINE)
_INVENTORY_NAMES = re.compile(r"(hosts|inventory)([._-].*)?|.*\.ini|.*inventory\.ya?ml", re.IGNORECASE)


class ProjectFolder:
    """Reads the folder anew each time. Any thread may call."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        if not os.path.isdir(self.root):
            raise SpecError(f"the project {root} is not a folder")
        self.name = os.path.basename(self.root)

    def _files(self) -> Iterator[str]:
        seen = 0
        for folder, folders, names in os.walk(self.root):
            relative = os.path.relpath(folder, self.root)
            depth = 0 if relative == "." else relative.count(os.sep) + 1
            folders[:] = (
                sorted(one for one in folders if one not in _SKIPPED and not one.startswith("."))
                if depth < _DEPTH
                else []
            )
            for name in sorted(names):
                path = os.path.join(folder, name)
                # A link that leads outside of the project is not part of it.
                if name.startswith(".") or not self._is_inside(path) or not os.path.isfile(path):
                    continue
                seen += 1
                if seen > _MOST_FILES:
                    return
                yield os.path.normpath(os.path.join(relative, name))

    def _is_inside(self, path: str) -> bool:
        return os.path.realpath(path).startswith(self.root.rstrip(os.sep) + os.sep)

    def playbooks(self) -> list[str]:
        return [path for path in self._files() if path.endswith((".yml", ".yaml")) and self._has_a_play(path)]

    def _has_a_play(self, path: str) -> bool:
        try:
            with open(os.path.join(self.root, path), "rb") as file:
                return _PLAY.search(file.read(1 << 20)) is not None
        except OSError:
            return False

    def inventories(self) -> list[str]:
        return [
            path for path in self._files()
            if os.path.basename(path) != "ansible.cfg" and (_INVENTORY_NAMES.fullmatch(os.path.basename(path)) or path.startswith("inventor"))
            and not (path.endswith((".yml", ".yaml")) and self._has_a_play(path))
        ]  # fmt: skip

    def spec(self, asked: StartRequest) -> RunSpec:
        """The run that is asked for. Raises QueueRequestError with a sentence if any part of it cannot be."""
        if asked.playbook not in self.playbooks():
            raise QueueRequestError(f"there is no playbook '{asked.playbook}' in the project {self.name}")
        if asked.inventory and asked.inventory not in self.inventories():
            raise QueueRequestError(f"there is no inventory '{asked.inventory}' in the project {self.name}")
        for what, value in (("limit", asked.limit), ("tags", asked.tags)):
            if any(ord(char) < 32 for char in value):
                raise QueueRequestError(f"the {what} has a control character in it")
        if "@" in asked.limit or asked.limit.strip().startswith(
            "-"
        ):  # @FILE, in any part, would read a file of the worker
            raise QueueRequestError("the limit is a pattern of hosts, such as web*:!web3")
        self._check_plays(asked.playbook)
        return RunSpec(
            playbook=asked.playbook, inventory=asked.inventory or None, limit=asked.limit.strip() or None,
            tags=[one.strip() for one in asked.tags.split(",") if one.strip()], check=asked.check, diff=asked.diff, cwd=self.root,
        )  # fmt: skip

    def _check_plays(self, path: str) -> None:
        try:
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                found = yaml.load(file, Loader=_Lenient)  # noqa: S506  # a SafeLoader
        except (OSError, UnicodeDecodeError):
            raise QueueRequestError(f"the playbook {path} cannot be read") from None
        except yaml.YAMLError as err:
            mark = getattr(err, "problem_mark", None)
            line = f":{mark.line + 1}" if mark is not None else ""
            raise QueueRequestError(
                f"{path}{line} is not YAML: {getattr(err, 'problem', None) or 'it cannot be read'}"
            ) from None
        if not isinstance(found, list) or not all(isinstance(play, dict) for play in found):
            raise QueueRequestError(f"{path} is not a list of plays")


class _Lenient(yaml.SafeLoader):
    """Ansible's own tags, such as !vault, stand for nothing here."""


_Lenient.add_multi_constructor("!", lambda *_: None)
