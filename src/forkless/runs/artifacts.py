# SPDX-License-Identifier: GPL-3.0-or-later
"""
The folder that ansible-runner would have left: `<ident>/{command,stdout,stderr,rc,status,job_events/*.json}`.

Unlike ansible-runner, `command` does not contain the environment, which would put every secret in it on disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from typing import TYPE_CHECKING

from forkless.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forkless.core.events import Status
    from forkless.core.spec import RunSpec

__all__ = ["Artifacts"]


# -e and -a: alone, joined with their value, at the end of other short flags, or as an abbreviated long flag that argparse accepts.
_HAS_SECRETS = re.compile(r"(-[CDJKbkov]*[ea]|--(?:e|ex|ext|extr|extra[a-z-]*|ar|arg|args)(?:=|$))(.*)", re.DOTALL)
_HIDDEN = "(not written down)"
MOST_OUTPUTS = 1000  # events about the output of one task on one host; those after them are not written, the result is


def _without_values(words: list[str]) -> Iterator[str]:
    """The command's arguments with the values of variables and module arguments hidden; a file name (@file) is kept."""
    value_follows = False
    for word in words:
        flag = None if value_follows else _HAS_SECRETS.fullmatch(word)
        if value_follows:
            yield word if word.startswith("@") else _HIDDEN
        elif flag and flag[2]:
            yield flag[1] + (flag[2] if flag[2].startswith("@") else _HIDDEN)
        else:
            yield word
        value_follows = flag is not None and not flag[2]


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)


def _write(path: str, text: str) -> None:
    with open(_open(path), "w", encoding="utf-8") as file:
        file.write(text)


class Artifacts:
    """
    One run's artifact folder, created by the constructor and locked (flock) until `close()`, so that no rotation removes it.

    A full disk never stops a run: the first OSError is recorded in `trouble`, and nothing more is written. Only the run's
    artifact thread writes; `finish()` is called after that thread has ended.
    """

    def __init__(self, spec: RunSpec, ident: str) -> None:
        parent = os.path.join(str(spec.cwd), os.fspath(spec.artifacts or ""))
        self.path = os.path.join(parent, ident)
        self.trouble = ""
        self._keep = spec.keep
        self._outputs: dict[tuple[str, str], int] = {}
        try:
            with contextlib.suppress(FileExistsError):  # if `parent` is a file, mkdir below raises the error
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
        return {"command": [spec.command, *_without_values(spec.argv(secret_free=True))], "cwd": spec.cwd, "env": {}}

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
        if event["event"] == "runner_on_output":
            about = event["event_data"]
            key = (about["host"], about["task_uuid"])
            self._outputs[key] = number = self._outputs.get(key, 0) + 1
            if number > MOST_OUTPUTS:
                return
        path = os.path.join(self.path, "job_events", f"{event['counter']}-{os.path.basename(event['uuid'])}.json")
        with self._noting_trouble():
            # Readers list this folder during the run: rename makes a file visible only when it is complete.
            try:
                with open(_open(path + ".tmp"), "wb") as file:
                    file.write(line)
                os.rename(path + ".tmp", path)
            except OSError:
                # A partial file is useless, and takes space that smaller files could still use.
                with contextlib.suppress(OSError):
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
    """Remove the oldest run folders except `keep`; never one that is locked by a run in this process or another."""
    with os.scandir(parent) as entries:
        found = [
            (entry.stat().st_mtime_ns, entry.path)
            for entry in entries
            # Only folders that look like a run's: the parent folder may hold other files.
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
