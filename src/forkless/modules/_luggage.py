# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder for temporary files on a host, with what is to lie in it: named here, and made there by the order that needs it."""

from __future__ import annotations

import base64
import contextlib
import functools
import sys
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless.modules._hearth import Hearth

__all__ = ["MOST", "Luggage", "instead", "of"]

MOST = 1 << 20  # bytes in one order; what is larger has a transfer of its own
_USES = ("exec_command", "put_file", "fetch_file")


def of(connection: Any) -> Luggage | None:
    """What this connection has to carry."""
    found: Luggage | None = getattr(connection._shell, "_forkless_luggage", None)
    return found


class Luggage:
    """
    Of one connection, and with it of one worker.

    As long as something of it is only here, whatever else would use the connection is kept waiting until it is there: it may be about to look at it.
    """

    def __init__(self, connection: Any, folder: str, make: Callable[[], Any], fix: Callable[[list[str]], Any]) -> None:
        self.folder = folder
        self.hearth: Hearth | None = None
        self.made = False
        self.needed = False  # by a module that may write to it
        self._carried: set[str] = set()
        self._executable: set[str] = set()
        self._connection = connection
        self._make, self._fix = make, fix  # Ansible's own ways: to make the folder, and to see to the modes
        self._files: dict[str, bytes] = {}
        connection._shell._forkless_luggage = self
        self.watch()

    def make_executable(self, paths: list[str]) -> bool:
        """Whether this is all that is needed: they are not there yet, or there with that mode."""
        ours = {self.folder} if self.hearth is not None or not self.made else set()
        if not ours.union(self._files, self._carried & self._executable).issuperset(paths):
            return False
        self._executable.update(paths)
        return True

    def has_room(self, size: int) -> bool:
        return size + sum(map(len, self._files.values())) <= MOST

    def pack(self, path: str, data: bytes) -> None:
        self._files[path] = data
        self._executable.discard(path)
        self.watch()

    def order(self) -> dict[str, Any] | None:
        """What a hearth is to lay down before it runs the next module."""
        if not self._files and (self.made or not self.needed):
            return None
        files = [
            (path, base64.b64encode(data).decode(), 0o700 if path in self._executable else 0o600)
            for path, data in self._files.items()
        ]
        return {"folder": self.folder, "make": not self.made, "files": files}

    def arrived(self, hearth: Hearth) -> None:
        self.made, self.hearth = True, hearth
        self._carried.update(self._files)
        self._files.clear()
        self._unwatch()

    def unpack(self) -> None:
        """In Ansible's own way: for whoever cannot wait for the next order, and where no hearth takes one."""
        self._unwatch()
        try:
            self._unpack()
        finally:
            self.watch()  # over what is still here, if there was a failure

    def _unpack(self) -> None:
        shell = self._connection._shell
        if not self.made:
            shell._generate_temp_dir_name = lambda: self.folder.rstrip("/").rpartition("/")[2]
            try:
                self._make()
            finally:
                del shell._generate_temp_dir_name
            self.made = True
        for path, data in self._files.items():
            with tempfile.NamedTemporaryFile(dir=sys.modules["ansible.constants"].DEFAULT_LOCAL_TMP) as file:
                file.write(data)
                file.flush()
                self._connection.put_file(file.name, path)
        fix = [path for path in (self.folder, *self._files) if path in self._executable]
        self._files.clear()
        if fix:
            self._fix(fix)

    def drop(self) -> None:
        """It is not wanted any more."""
        self._files.clear()
        self._unwatch()
        self._connection._shell._forkless_luggage = None

    def watch(self) -> None:
        if self._files or not self.made:
            for name in _USES:
                setattr(self._connection, name, functools.partial(self._first, name))

    def _unwatch(self) -> None:
        for name in _USES:
            self._connection.__dict__.pop(name, None)

    def _first(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.unpack()
        return getattr(self._connection, name)(*args, **kwargs)


@contextlib.contextmanager
def instead(connection: Any, function: Callable[..., Any]) -> Iterator[None]:
    """The connection's command goes to this function."""
    connection.exec_command = function
    try:
        yield
    finally:
        connection.__dict__.pop("exec_command", None)
        luggage = of(connection)
        if luggage is not None:
            luggage.watch()
