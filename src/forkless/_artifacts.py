# SPDX-License-Identifier: GPL-3.0-or-later
"""
The folder that ansible-runner would have left: `<ident>/{command,stdout,stderr,rc,status,job_events/*.json}`.

One thing is missing from it on purpose: ansible-runner writes the whole environment into `command`, with every secret
that is in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from typing import TYPE_CHECKING

from forkless._errors import SpecError

if TYPE_CHECKING:
    from forkless._events import Status
    from forkless._spec import RunSpec

__all__ = ["Artifacts"]


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)


def _write(path: str, text: str) -> None:
    with open(_open(path), "w", encoding="utf-8") as file:
        file.write(text)


class Artifacts:
    """
    One run's folder, claimed when made. The folder stays locked while the run lasts, so that no rotation takes it.

    A disk that is full never stops a run: the first trouble is kept in `trouble`, and nothing more is written.
    """

    def __init__(self, spec: RunSpec, ident: str) -> None:
        parent = os.path.join(str(spec.cwd), os.fspath(spec.artifacts or ""))
        self.path = os.path.join(parent, ident)
        self.trouble = ""
        self._keep = spec.keep
        try:
            with contextlib.suppress(FileExistsError):  # a file, perhaps; the next line says so
                os.makedirs(parent, mode=0o700, exist_ok=True)
            os.mkdir(self.path, 0o700)
            os.mkdir(os.path.join(self.path, "job_events"), 0o700)
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except FileExistsError:
            raise SpecError(
                f"there is a run '{ident}' in {parent} already; give another ident, or none to get a fresh one"
            ) from None
        except OSError as err:
            raise SpecError(f"artifacts cannot be written to {self.path}: {err.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._stdout = _open(os.path.join(self.path, "stdout"))
        except OSError as err:
            os.close(self._lock)
            raise SpecError(f"artifacts cannot be written to {self.path}: {err.strerror}") from None
        with self._noting_trouble():
            _write(os.path.join(self.path, "stderr"), "")
            _write(os.path.join(self.path, "command"), json.dumps(self._command(spec)))
            _write(os.path.join(self.path, "status"), "running")

    @staticmethod
    def _command(spec: RunSpec) -> dict[str, object]:
        words = [spec.command, *spec.argv(secret_free=True)]
        if "-a" in words and spec.module:
            words[words.index("-a") + 1] = "(not written down)"
        return {"command": words, "cwd": spec.cwd, "env": {}}

    def _noting_trouble(self) -> contextlib.AbstractContextManager[None]:
        @contextlib.contextmanager
        def noting():  # type: ignore[no-untyped-def]  # noqa: ANN202
            try:
                yield
            except OSError as err:
                self.trouble = self.trouble or f"the artifacts in {self.path} are incomplete: {err.strerror}"

        return noting()

    def write_stdout(self, piece: bytes) -> None:
        if self.trouble:
            return
        with self._noting_trouble():
            while piece:
                piece = piece[os.write(self._stdout, piece) :]

    def write_event(self, line: bytes) -> None:
        if self.trouble:
            return
        event = json.loads(line)
        path = os.path.join(self.path, "job_events", f"{event['counter']}-{os.path.basename(event['uuid'])}.json")
        with self._noting_trouble():
            # Readers list this folder while we write to it: a name appears when its file is whole.
            try:
                with open(_open(path + ".tmp"), "wb") as file:
                    file.write(line)
                os.rename(path + ".tmp", path)
            except OSError:
                with contextlib.suppress(
                    OSError
                ):  # half of it is of use to nobody, and takes the room of what could still be written
                    os.unlink(path + ".tmp")
                raise

    def finish(self, status: Status, rc: int) -> None:
        with self._noting_trouble():
            _write(os.path.join(self.path, "rc"), str(rc))
            _write(os.path.join(self.path, "status"), str(status))
        self.close()
        if self._keep is not None:
            with self._noting_trouble():
                _rotate(os.path.dirname(self.path), self._keep)

    def close(self) -> None:
        os.close(self._stdout)
        os.close(self._lock)


def _rotate(parent: str, keep: int) -> None:
    """Remove the oldest run folders but `keep`; never one whose run is under way, in this program or another."""
    with os.scandir(parent) as entries:
        found = [
            (entry.stat().st_mtime_ns, entry.path)
            for entry in entries
            # Only what looks like a run: the folder may be shared with other things.
            if entry.is_dir(follow_symlinks=False) and os.path.isdir(os.path.join(entry.path, "job_events"))
        ]
    for _, path in sorted(found)[: max(0, len(found) - keep)]:
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
