# SPDX-License-Identifier: GPL-3.0-or-later
"""
Which runs may be on stage together.

ansible-core reads its configuration once, as it is imported, and copies it into defaults all over the place. So runs
share the stage only where ansible.cfg and ANSIBLE_* are the same; one with another configuration waits until the stage is empty, and
finds an ansible-core that was imported anew.
"""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from forkless import _platform
from forkless._errors import EngineBusyError
from forkless.engines import _absent, _quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from forkless._stop import Stop

__all__ = ["Gate", "configuration"]

# How many imports of ansible-core, under configurations other than the last, are kept for when they are wanted again.
WORLDS = 8


def _key(config: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(config.items()))


def configuration(environ: Mapping[str, str], cwd: str, books: Sequence[str]) -> dict[str, str]:
    """What ansible-core would read, by name: two runs with the same may be on stage together."""
    found = {key: value for key, value in environ.items() if key.startswith("ANSIBLE_") or key in ("HOME", "NO_COLOR")}
    home = environ.get("HOME", os.path.expanduser("~"))
    asked = environ.get("ANSIBLE_CONFIG")
    candidates = [os.path.join(asked, "ansible.cfg") if asked and os.path.isdir(asked) else asked] if asked else []
    candidates += [os.path.join(cwd, "ansible.cfg"), os.path.join(home, ".ansible.cfg"), "/etc/ansible/ansible.cfg"]
    for path in candidates:
        with contextlib.suppress(OSError):
            stat = os.stat(path)
            found["ansible.cfg"] = f"{os.path.abspath(path)} ({stat.st_mtime_ns}, {stat.st_size} bytes)"
            break
    for book in books:
        beside = os.path.join(os.path.dirname(os.path.join(cwd, book)), "collections")
        if os.path.isdir(beside):
            found[f"collections in {beside}"] = "there"
    return found


def difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The names that differ, for people. Values may be secrets, so only names."""
    return ", ".join(sorted(key for key in set(one) | set(other) if one.get(key) != other.get(key)))


class Gate:
    """Lets runs in, in the order of their coming."""

    def __init__(self, install: Callable[[], Any]) -> None:
        self._install = install
        # Guards the fields. Held while ansible-core is imported and the seams go in or out: nobody else may look then.
        self._changed = threading.Condition()
        self._queue: collections.deque[object] = collections.deque()
        self._on_stage = 0
        self._config: dict[str, str] | None = None
        self._seams: Any = None
        self._absent: Callable[[], None] = lambda: None
        self._hosts_own: dict[str, Any] = {}
        self._hosts_collections: dict[str, Any] = {}
        self._worlds: collections.OrderedDict[Any, dict[str, Any]] = collections.OrderedDict()

    @contextlib.contextmanager
    def passed(self, config: dict[str, str], *, stop: Stop, wait: bool, ours: bool) -> Iterator[None]:
        ticket = object()
        with self._changed:
            if not wait and not self._free(config, alone=True):
                assert self._config is not None  # noqa: S101  # someone is on stage
                raise EngineBusyError(
                    "another run is under way in this process with a different configuration "
                    f"({difference(self._config, config) or 'others are waiting'}); "
                    "ansible-core holds one at a time. Leave out wait=False to queue, or use engine='runner'."
                )
            self._queue.append(ticket)
            forget = stop.listen(self._stir)
        try:
            with self._changed:
                while not (self._queue[0] is ticket and self._free(config)):
                    if stop.requested:
                        raise KeyboardInterrupt
                    self._changed.wait()
                if self._on_stage == 0:
                    self._open(config, ours=ours)
                self._on_stage += 1
        finally:
            forget()
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._on_stage -= 1
                if self._on_stage == 0:
                    self._close()
                self._changed.notify_all()

    def _stir(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _free(self, config: dict[str, str], *, alone: bool = False) -> bool:
        return self._on_stage == 0 or (config == self._config and not (alone and self._queue))

    def _open(self, config: dict[str, str], *, ours: bool) -> None:
        # What the program imported of collections was imported without Ansible's finder, which would not know it. First of all:
        # an ansible-core that is put aside takes every collection with it.
        self._hosts_collections = _quiet.take_collections()
        if self._config is None and "ansible.constants" in sys.modules:
            # The program imported Ansible itself, under its own environment.
            own = configuration(os.environ, os.getcwd(), ())
            if own != config:
                self._hosts_own = _quiet.purge()
        elif self._config is not None and self._config != config:
            self._change_world(config)
        if not _platform.has_sem_open() or not hasattr(os, "fork"):
            from forkless import multiprocessing

            multiprocessing.install()
        self._absent = _absent.fill_in()
        try:
            _quiet.import_ansible(ours=ours)
            self._config = config
            self._seams = self._install()
            self._seams.__enter__()
        except BaseException:  # whatever it was, the program gets back what is its own
            self._absent()
            sys.modules.update(self._hosts_collections)
            raise

    def _change_world(self, config: dict[str, str]) -> None:
        """
        Put the ansible-core of the last configuration aside, and take out that of the new one, if it was here before.

        A service that alternates between two configurations imports each once. Not more than a few are kept: Python gives
        back only part of what an import took (some 9 MB of each are lost).
        """
        assert self._config is not None  # noqa: S101  # for the type checker: checked by who calls
        self._worlds[_key(self._config)] = _quiet.purge()
        while len(self._worlds) > WORLDS:
            self._worlds.popitem(last=False)
        sys.modules.update(self._worlds.pop(_key(config), {}))

    def _close(self) -> None:
        seams, self._seams = self._seams, None
        seams.__exit__(None, None, None)
        self._absent()
        _quiet.forget_collections()
        sys.modules.update(self._hosts_collections)
        _quiet.forget_files()
        if self._hosts_own:
            _quiet.purge()
            sys.modules.update(self._hosts_own)
            self._hosts_own = {}
            self._config = None
