# SPDX-License-Identifier: GPL-3.0-or-later
"""A temporary folder on a host and its pending uploads: named by the controller, created by the order that needs it."""

from __future__ import annotations

import base64
import contextlib
import functools
import sys
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless.modules.warm.interpreter import WarmInterpreter

__all__ = ["MOST", "RemoteTempDir", "instead", "of_connection"]

MOST = 1 << 20  # bytes of files in one order; a larger file is transferred separately
_USES = ("exec_command", "put_file", "fetch_file")


def of_connection(connection: Any) -> RemoteTempDir | None:
    """The connection's temporary folder, or None."""
    found: RemoteTempDir | None = getattr(connection._shell, "_forkless_remote_temp_dir", None)
    return found


class RemoteTempDir:
    """
    The temporary folder of one connection. Only the worker's thread that owns the connection uses it.

    While uploads are pending, the connection's methods are replaced so that any other command or transfer first uploads
    them: the command may read the files.
    """

    def __init__(self, connection: Any, folder: str, make: Callable[[], Any], fix: Callable[[list[str]], Any]) -> None:
        self.folder = folder
        self.interpreter: WarmInterpreter | None = None
        self.made = False
        self.needed = False  # the next module may write to it
        self._uploaded: set[str] = set()
        self._executable: set[str] = set()
        self._connection = connection
        self._make, self._fix = make, fix  # Ansible's own methods that create the folder and fix the modes
        self._files: dict[str, bytes] = {}
        connection._shell._forkless_remote_temp_dir = self
        self.watch()

    def make_executable(self, paths: list[str]) -> bool:
        """Make pending files executable. False if Ansible must do it: a path is unknown or was uploaded without it."""
        ours = {self.folder} if self.interpreter is not None or not self.made else set()
        if not ours.union(self._files, self._uploaded & self._executable).issuperset(paths):
            return False
        self._executable.update(paths)
        return True

    def has_room(self, size: int) -> bool:
        return size + sum(map(len, self._files.values())) <= MOST

    def add_file(self, path: str, data: bytes) -> None:
        self._files[path] = data
        self._executable.discard(path)
        self.watch()

    def order(self) -> dict[str, Any] | None:
        """The files that a warm interpreter must write before it runs the next module, or None."""
        if not self._files and (self.made or not self.needed):
            return None
        files = [
            (path, base64.b64encode(data).decode(), 0o700 if path in self._executable else 0o600)
            for path, data in self._files.items()
        ]
        return {"folder": self.folder, "make": not self.made, "files": files}

    def uploaded(self, interpreter: WarmInterpreter) -> None:
        self.made, self.interpreter = True, interpreter
        self._uploaded.update(self._files)
        self._files.clear()
        self._unwatch()

    def upload_now(self) -> None:
        """Upload the pending files as stock Ansible does, for a command that bypasses the warm interpreter."""
        self._unwatch()
        try:
            self._upload()
        finally:
            self.watch()  # after a failure, files are still pending

    def _upload(self) -> None:
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
        """Discard the pending uploads and detach from the connection."""
        self._files.clear()
        self._unwatch()
        self._connection._shell._forkless_remote_temp_dir = None

    def watch(self) -> None:
        if self._files or not self.made:
            for name in _USES:
                setattr(self._connection, name, functools.partial(self._first, name))

    def _unwatch(self) -> None:
        for name in _USES:
            self._connection.__dict__.pop(name, None)

    def _first(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.upload_now()
        return getattr(self._connection, name)(*args, **kwargs)


@contextlib.contextmanager
def instead(connection: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Call `function` in place of the connection's exec_command until the block ends."""
    connection.exec_command = function
    try:
        yield
    finally:
        connection.__dict__.pop("exec_command", None)
        remote_temp_dir = of_connection(connection)
        if remote_temp_dir is not None:
            remote_temp_dir.watch()
