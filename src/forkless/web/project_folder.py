# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder whose playbooks may be started from the page: what is in it, and what a request must be like."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import time
from typing import TYPE_CHECKING

import yaml

from forkless.core.errors import SpecError
from forkless.core.spec import RunSpec
from forkless.queue import QueueError, QueueRequestError
from forkless.queue import project as projects
from forkless.web import variables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forkless.web.answers import StartRequest

__all__ = ["GitProject", "ProjectFolder", "has_playbooks"]

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
_FETCH_EVERY = 60.0
# A start that takes longer than so many new commits finds its files gone, and says so.
_KEPT_COMMITS = 8
_PLAY = re.compile(rb"^(?:- |  )\s*(?:hosts|(?:ansible\.builtin\.)?import_playbook)\s*:", re.MULTILINE)
_INVENTORY_NAMES = re.compile(r"(hosts|inventory)([._-].*)?|.*\.ini|.*inventory\.ya?ml", re.IGNORECASE)


def has_playbooks(folder: str) -> bool:
    """Whether there are playbooks in the folder itself: it is meant as a project then."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        return any(
            one.name.endswith((".yml", ".yaml"))
            and not one.name.startswith(".")
            and one.is_file()
            and _is_playbook(one.path)
            for one in found
        )
    return False


def _is_playbook(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return _PLAY.search(file.read(1 << 20)) is not None
    except OSError:
        return False


class ProjectFolder:
    """Reads the folder anew each time. Any thread may call."""

    def __init__(self, root: str, name: str = "", home: str | None = None) -> None:
        self.root = os.path.realpath(root)
        if not os.path.isdir(self.root):
            raise SpecError(f"the project {root} is not a folder")
        self.name = name or os.path.basename(self.root)
        self.trouble = ""
        """Why the files may be old; empty if they are not."""
        self.home = home
        """What names the project for the records of its jobs; None: the folder."""

    def refresh(self) -> ProjectFolder:
        """The files of now, for a run that is to be started: those of a folder are as they are."""
        return self

    def hide(self, text: str) -> str:
        """Text without the place of the folder on this machine."""
        return text.replace(self.root + "/", "").replace(self.root, self.name)

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
        return _is_playbook(os.path.join(self.root, path))

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
        for what, value in (("limit", asked.limit), ("tags", asked.tags), ("skip_tags", asked.skip_tags)):
            if any(ord(char) < 32 for char in value):
                raise QueueRequestError(f"the {what} has a control character in it")
            if variables.has_template(value):
                raise QueueRequestError(f"the {what} has a template in it")
        if "@" in asked.limit or asked.limit.strip().startswith(
            "-"
        ):  # @FILE, in any part, would read a file of the worker
            raise QueueRequestError("the limit is a pattern of hosts, such as web*:!web3")
        self._check_plays(asked.playbook)
        if asked.slices != "auto" and not 1 <= asked.slices <= 1000:
            raise QueueRequestError("slices are 1 to 1000, or auto")
        return RunSpec(
            playbook=asked.playbook, inventory=asked.inventory or None, limit=asked.limit.strip() or None, tags=_words(asked.tags),
            skip_tags=_words(asked.skip_tags), check=asked.check, diff=asked.diff, cwd=self.root, live_output=True,
            extra_vars=variables.checked(self.variables(asked.playbook), asked.variables),
        )  # fmt: skip

    def variables(self, playbook: str) -> list[variables.Variable]:
        if playbook not in self.playbooks():
            raise QueueRequestError(f"there is no playbook '{playbook}' in the project {self.name}")
        return variables.of_playbook(self.root, playbook)

    def _check_plays(self, path: str) -> None:
        try:
            found = variables.load_yaml(os.path.join(self.root, path))
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


def _words(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


class GitProject(ProjectFolder):
    """
    A repository. It is fetched anew before each run that is started from here, and at most every minute for what is shown.

    Each commit lies in a folder of its own, BASE/COMMIT/NAME, which is not written to again: another start may be packing it.
    """

    def __init__(self, name: str, url: str, ref: str, base: str) -> None:
        self._base = os.path.realpath(base)
        nothing = os.path.join(self._base, "0", name)
        os.makedirs(nothing, mode=0o700, exist_ok=True)
        super().__init__(nothing, name, url)
        self._url, self._ref = url, ref
        self._kept: list[str] = []
        self._fetched = float("-inf")
        self._one_at_a_time = threading.Lock()

    def refresh(self) -> ProjectFolder:
        with self._one_at_a_time:
            commit = projects.resolve_commit(self._url, self._ref)
            folder = os.path.join(self._base, commit, self.name)
            if commit in self._kept:
                self._kept.remove(commit)
            else:
                projects.checkout(self._url, commit, folder)
            self._kept.append(commit)
            self.root = folder
            for old in self._kept[:-_KEPT_COMMITS]:
                shutil.rmtree(os.path.join(self._base, old), ignore_errors=True)
            del self._kept[:-_KEPT_COMMITS]
            self._fetched, self.trouble = time.monotonic(), ""
            return ProjectFolder(folder, self.name, self.home)

    def hide(self, text: str) -> str:
        whole = rf"{re.escape(self._base)}/[0-9a-f]+/{re.escape(self.name)}"
        return re.sub(whole, self.name, re.sub(whole + "/", "", text))

    def _shown(self) -> ProjectFolder:
        """One commit for the length of a look at it."""
        if time.monotonic() - self._fetched > _FETCH_EVERY:
            try:
                return self.refresh()
            except QueueError as err:
                self._fetched = time.monotonic()
                self.trouble = str(err)
        return ProjectFolder(self.root, self.name, self.home)

    def playbooks(self) -> list[str]:
        return self._shown().playbooks()

    def inventories(self) -> list[str]:
        return self._shown().inventories()

    def variables(self, playbook: str) -> list[variables.Variable]:
        return self._shown().variables(playbook)
