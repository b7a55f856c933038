# SPDX-License-Identifier: GPL-3.0-or-later
"""
Decides which runs may be active at the same time.

ansible-core reads its configuration once, when it is imported, and copies it into many default values. So runs are active together
only if ansible.cfg and ANSIBLE_* are equal. A run with another configuration waits until no run is active, and then uses an
ansible-core that is imported with its configuration.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import stat
import sys
import threading
from typing import TYPE_CHECKING, Any

from forkless.core import platform
from forkless.core.errors import EngineBusyError, UnsupportedError
from forkless.engines.threads import absent_modules, importing
from forkless.patching import thread_environ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from forkless.core.stop import Stop

__all__ = ["ConfigGate", "configuration"]

# The number of imported ansible-cores, each with another configuration, that are kept for later runs.
WORLDS = 8
_TRIES = 3


_PREFIXES = ("ANSIBLE_", "_ANSIBLE_")


def _key(config: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(config.items()))


# Variables that ansible-core's settings read although they are not named ANSIBLE_*.
_OTHER_NAMES = ("EDITOR", "HOME", "NO_COLOR", "PAGER")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)


def configuration(environ: Mapping[str, str], cwd: str, playbooks: Sequence[str]) -> dict[str, str]:
    """
    Everything that ansible-core would read when it is imported, by name. Runs with equal results may be active together.

    Files are compared by content. The working directory is included only if a setting is resolved against it, so that projects
    without such a setting run at the same time.
    """
    found = {key: value for key, value in environ.items() if key.startswith(_PREFIXES) or key in _OTHER_NAMES}
    texts = [value for key, value in found.items() if key.startswith(_PREFIXES)]
    for path in _candidates(environ, cwd):
        content = _read(path)
        if content is not None:
            found[path] = hashlib.sha256(content).hexdigest()
            texts.append(content.decode("utf-8", "replace"))
    for text in texts:
        # Paths may contain variables, which ansible-core expands from the environment when it reads the configuration.
        for match in _VARIABLE.finditer(text):
            name = match[1] or match[2]
            found[f"${name}"] = environ.get(name, "")
    if any("{{CWD}}" in text for text in texts) or _relative(found):
        found["folder"] = cwd
    if os.path.join(cwd, "ansible.cfg") in found and _open_to_all(cwd):
        found[f"{cwd} can be written by every user"] = "so its ansible.cfg is not taken"
    for book in playbooks:
        beside = os.path.join(os.path.dirname(os.path.join(cwd, book)), "collections")
        if os.path.isdir(beside):
            found[f"collections in {beside}"] = "there"
    return found


def _candidates(environ: Mapping[str, str], cwd: str) -> list[str]:
    """The paths at which ansible-core looks for ansible.cfg, in its order. All are compared; ansible-core decides which one it reads."""
    home = environ.get("HOME", os.path.expanduser("~"))
    asked = environ.get("ANSIBLE_CONFIG")
    found = []
    if asked:
        with thread_environ.variables_of_this_thread(environ):
            path = os.path.join(cwd, os.path.expanduser(os.path.expandvars(asked)))
        found.append(os.path.join(path, "ansible.cfg") if os.path.isdir(path) else path)
    return [*found, os.path.join(cwd, "ansible.cfg"), os.path.join(home, ".ansible.cfg"), "/etc/ansible/ansible.cfg"]


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        # Ansible takes the first path that exists and that it may read. If that is a folder, Ansible does not start, so such a run must not share the ansible-core
        # of a run without a file.
        return str(error).encode(errors="surrogateescape") if os.access(path, os.R_OK) else None


def _open_to_all(folder: str) -> bool:
    try:
        return bool(os.stat(folder).st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _relative(found: Mapping[str, str]) -> bool:
    """Whether a setting is, or contains, a path relative to the working directory."""
    named = [name for name, value in found.items() if name.startswith(_PREFIXES) and _may_be_relative(value)]
    if not named:
        return False
    paths = _path_settings()
    return paths is None or not paths.isdisjoint(named)


def _may_be_relative(value: str) -> bool:
    return any(part and part[0] not in "/~" for part in map(str.strip, re.split("[:,]", value)))


@functools.cache
def _path_settings() -> frozenset[str] | None:
    """The variables whose settings are paths, from ansible-core's base.yml; None if that cannot be read: then any may be a path."""
    spec = importlib.util.find_spec("ansible")
    if spec is None or not spec.submodule_search_locations:
        return None
    import yaml  # ansible-core needs it

    try:
        with open(os.path.join(spec.submodule_search_locations[0], "config", "base.yml"), encoding="utf-8") as file:
            settings = yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  # both are safe
        return frozenset(
            variable["name"]
            for setting in settings.values()
            if str(setting.get("type")).startswith(("path", "tmp", "temp"))
            for variable in setting.get("env", ())
        )
    except (OSError, ValueError, AttributeError, KeyError, TypeError, yaml.YAMLError):
        return None


def difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The names that differ, for error messages. Values may be secrets and are left out."""
    return ", ".join(sorted(key for key in set(one) | set(other) if one.get(key) != other.get(key)))


class ConfigGate:
    """Admits runs in the order of their arrival. All methods may be called from any thread."""

    def __init__(self, install: Callable[[Callable[[], bool]], object]) -> None:
        self._install = install
        # Guards the fields. Held while ansible-core is imported and seams are installed or undone: no run may start then.
        self._changed = threading.Condition()
        self._queue: collections.deque[object] = collections.deque()
        self._active_runs = 0
        self._config: dict[str, str] = {}
        """The configuration of the active runs."""
        self._seams: Any = None
        self._left_behind: list[Any] = []
        self._set_aside = False
        self._absent: Callable[[], None] = lambda: None
        self._give_back: Callable[[], None] = lambda: None
        self._worlds: collections.OrderedDict[object, dict[str, Any]] = collections.OrderedDict()

    @contextlib.contextmanager
    def passed(self, read: Callable[[], dict[str, str]], *, stop: Stop, wait: bool, ours: bool) -> Iterator[None]:
        """Wait until a run with the configuration that `read` returns may be active, and keep it active for the length of the block."""
        ticket = object()
        config = read()
        with self._changed:
            if not wait and not self._free(config, alone=True):
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
                    config = read()  # ansible.cfg may have been edited while this run waited
                if self._active_runs == 0:
                    self._open(read, ours=ours)
                self._active_runs += 1
        finally:
            forget()
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._active_runs -= 1
                if self._active_runs == 0:
                    self._close()
                self._changed.notify_all()

    def left_behind(self, thread: object) -> None:
        """
        Register a run's thread that was abandoned inside the current ansible-core. Called before its run leaves the gate.

        If the thread is still alive when the last run leaves, that ansible-core is discarded with its seams installed, so that the
        thread finds consistent modules when it continues and ends. The next run imports another ansible-core.
        """
        with self._changed:
            self._left_behind.append(thread)

    def _stir(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _free(self, config: dict[str, str], *, alone: bool = False) -> bool:
        return self._active_runs == 0 or (config == self._config and not (alone and self._queue))

    def _open(self, read: Callable[[], dict[str, str]], *, ours: bool) -> None:
        # The program imported its ansible-core with its own environment. It is restored unchanged after the runs, and the
        # program's objects are never mixed with those of a run.
        self._give_back = importing.set_aside()
        if not platform.has_sem_open() or not hasattr(os, "fork"):
            from forkless import multiprocessing

            multiprocessing.install()
        self._absent = absent_modules.fill_in()
        try:
            self._enter_world(read, ours=ours)
            self._seams = self._install(lambda: self._set_aside)
            self._seams.__enter__()
        except BaseException:  # on any error the program's modules must be restored
            self._absent()
            importing.purge()
            self._give_back()
            raise

    def _enter_world(self, read: Callable[[], dict[str, str]], *, ours: bool) -> None:
        """
        Restore the ansible-core that was imported with this configuration, or import one.

        A service that alternates between two configurations imports each once. Only WORLDS are kept, because each import takes
        memory of which Python never frees a part (some 9 MB).
        """
        for _ in range(_TRIES):
            self._config = read()
            known = self._worlds.pop(_key(self._config), None)
            if known is not None:
                sys.modules.update(known)
                return
            importlib.invalidate_caches()
            importing.import_ansible(ours=ours)
            if read() == self._config:
                return
            importing.purge()  # a configuration file was written during the import, so it is unknown which version was read
        raise UnsupportedError(
            "ansible.cfg changed again and again while it was read; start the run when it has been written"
        )

    def _close(self) -> None:
        self._set_aside = any(thread.alive for thread in self._left_behind)
        self._left_behind.clear()
        seams, self._seams = self._seams, None
        seams.__exit__(None, None, None)
        self._absent()
        importing.close_log()
        world = importing.purge()
        if not self._set_aside:
            self._worlds[_key(self._config)] = world
        while len(self._worlds) > WORLDS:
            self._worlds.popitem(last=False)
        self._give_back()
        importing.forget_files()
