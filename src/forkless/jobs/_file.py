# SPDX-License-Identifier: GPL-3.0-or-later
"""
Records as files: `<state dir>/<host>/[<playbook>/]<job>.json`, for people and for hand-written roles to read.

The log lies beside it, in `.<job>.log/`: revision N is the file `N.json`, made by link(), which is atomic and exclusive
on local file systems and on NFS alike; no lock is held at any time, so none is left by a controller that dies. When
revision N is in place, it is copied to `<job>.json` and marked as shown (`N.shown`). Who finds it unmarked finishes
that work. Who finds it marked but `<job>.json` gone knows that a person removed it, and the name is free.

Limits: on a file system without hard links (some FUSE mounts, app storage on Android) the revision is made by an
exclusive open and written in place, so a crash at that moment leaves a torn file, which is reported and never written
over. File systems that are not coherent between machines (object stores mounted as folders) are for one machine only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import time
from typing import TYPE_CHECKING

from forkless._errors import StoreError
from forkless.jobs._store import Head, RevisionLog

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FileStore"]

_ENTRY = re.compile(r"(\d{8,})\.json")
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EACCES, errno.EMLINK}


class FileStore(RevisionLog):
    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(os.path.expanduser(folder))
        self.url = f"file:{self.folder}"

    def place(self, stem: str) -> str:
        return os.path.join(self.folder, stem + ".json")

    def stems(self, host: str = "") -> list[str]:
        with _told(self.folder, "be listed"):
            hosts = [host] if host else _entries(self.folder)
            found = set()
            for name in hosts:
                for stem in self._stems_below(name, 2):
                    found.add(stem)
            return sorted(found)

    def head(self, stem: str) -> Head | None:
        newest = super().head(stem)
        if newest is not None and not self._is_shown(stem, newest.revision):
            # Its writer is at work, or died before it got here. Finishing twice does no harm.
            self._try_to_show(stem, newest)
            return newest
        # Looked at last: a view that is missing now was missing after it had been shown.
        view = self._view(stem)
        if newest is None:
            return None if view is None else Head(0, view)
        if view is None:
            return newest if _forgotten(newest) else Head(newest.revision, None, newest.body)
        number = _revision_of(view)
        if number is None and not _is_json(view):
            self._keep_aside(stem)
        elif number is None or number >= newest.revision:
            # What a person or a hand-written role wrote over it is what now holds; mostly it is just what we wrote.
            return Head(newest.revision, view)
        # Damaged, or put there late by a writer who slept: the log knows better.
        self._try_to_show(stem, newest)
        return newest

    def append(self, stem: str, revision: int, body: bytes) -> None:
        if not self._numbers(stem) and (view := self._view(stem)) is not None and not _is_json(view):
            raise StoreError(_unreadable(self.place(stem), "it is not JSON"))
        super().append(stem, revision, body)
        self._show(stem, revision, body)

    # -- the four things that a log needs

    def _numbers(self, stem: str) -> list[int]:
        log = self._log(stem)
        with _told(log, "be listed"):
            return [int(match[1]) for name in _entries(log) if (match := _ENTRY.fullmatch(name))]

    def _get(self, stem: str, revision: int) -> bytes | None:
        path = self._entry(stem, revision)
        deadline = time.monotonic() + 2
        while True:
            with _told(path, "be read"):
                body = _read(path)
            # Only where there are no hard links can it be seen half written; then its writer is at work right now.
            if body is None or _is_json(body) or time.monotonic() > deadline:
                return body
            time.sleep(0.05)

    def _create(self, stem: str, revision: int, body: bytes) -> bool:
        path = self._entry(stem, revision)
        with _told(path, "be written"):
            self._make_folder(os.path.dirname(path))
            with _whole(path, body) as draft:
                try:
                    os.link(draft, path)
                except FileExistsError:
                    # A server's answer may have been lost: two names mean that the link is ours after all.
                    return os.stat(draft).st_nlink == 2
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    return _create_in_place(path, body)
            _sync_folder(os.path.dirname(path))
        return True

    def _erase(self, stem: str, revision: int) -> None:
        path = self._entry(stem, revision)
        if (body := _read(path)) is not None and not _is_json(body):
            return  # evidence of something that went wrong is not ours to throw away
        for old in (path, path.removesuffix(".json") + ".shown"):
            with contextlib.suppress(OSError):  # tidying up; the next writer tries again
                os.unlink(old)

    # -- the file that people read

    def _view(self, stem: str) -> bytes | None:
        path = self.place(stem)
        with _told(path, "be read"):
            return _read(path)

    def _show(self, stem: str, revision: int, body: bytes) -> None:
        path = self.place(stem)
        with _told(path, "be written"):
            if _forgotten(Head(revision, body)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            else:
                with _whole(path, body) as draft:
                    os.rename(draft, path)
            _sync_folder(os.path.dirname(path))
            mark = self._entry(stem, revision).removesuffix(".json") + ".shown"
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o600))

    def _try_to_show(self, stem: str, head: Head) -> None:
        """For those who only read: a full disk must not keep them from knowing what the log says."""
        with contextlib.suppress(StoreError):
            self._show(stem, head.revision, head.body or b"")

    def _is_shown(self, stem: str, revision: int) -> bool:
        return os.path.exists(self._entry(stem, revision).removesuffix(".json") + ".shown")

    def _keep_aside(self, stem: str) -> None:
        path = self.place(stem)
        with _told(path, "be kept aside"), contextlib.suppress(FileNotFoundError):
            os.rename(path, f"{path}.unreadable-{secrets.token_hex(4)}")

    # -- folders

    def _log(self, stem: str) -> str:
        above, _, name = stem.rpartition("/")
        return os.path.join(self.folder, above, f".{name}.log")

    def _entry(self, stem: str, revision: int) -> str:
        return os.path.join(self._log(stem), f"{revision:08d}.json")

    def _make_folder(self, path: str) -> None:
        """Every folder from the state folder down is for its owner alone, whatever the umask says."""
        if os.path.isdir(path):
            return
        if path != self.folder:
            self._make_folder(os.path.dirname(path))
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)

    def _stems_below(self, stem: str, depth: int) -> Iterator[str]:
        for name in _entries(os.path.join(self.folder, stem)):
            if name.startswith("."):
                if name.endswith(".log"):
                    yield f"{stem}/{name[1:-4]}"
            elif name.endswith(".json"):
                yield f"{stem}/{name[:-5]}"
            elif depth > 1 and os.path.isdir(os.path.join(self.folder, stem, name)):
                yield from self._stems_below(f"{stem}/{name}", depth - 1)


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        return []


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _whole(path: str, body: bytes) -> Iterator[str]:
    """A complete, synced draft beside `path`, to be linked or renamed into place; gone afterwards in any case."""
    draft = os.path.join(os.path.dirname(path), f".draft-{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            _write(fd, body)
        finally:
            os.close(fd)
        yield draft
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _write(fd: int, body: bytes) -> None:
    left = memoryview(body)
    while left:
        left = left[os.write(fd, left) :]
    os.fsync(fd)


def _create_in_place(path: str, body: bytes) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    try:
        _write(fd, body)
    finally:
        os.close(fd)
    return True


def _sync_folder(path: str) -> None:
    """A name is on the disk only when its folder is. Some file systems cannot; then nothing better can be done."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _is_json(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def _revision_of(view: bytes) -> int | None:
    """The revision that a view shows; None for one that we did not write."""
    try:
        number = json.loads(view)["revision"]
    except (ValueError, LookupError, TypeError):
        return None
    return number if isinstance(number, int) else None


def _forgotten(head: Head) -> bool:
    try:
        return bool(json.loads(head.body or b"")["state"] == "forgotten")
    except (ValueError, LookupError, TypeError):
        return False


def _unreadable(path: str, why: str) -> str:
    return (
        f"the job record {path} cannot be understood: {why}. It is left as it is, and nothing is started or saved under "
        "that name. Repair it; or, when you are sure that its job is over, move it away."
    )


@contextlib.contextmanager
def _told(path: str, what: str) -> Iterator[None]:
    """An operating system's error, as a sentence that cannot be taken for 'not found'."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"the job record {path} could not {what}: {error.strerror or error}.") from error
