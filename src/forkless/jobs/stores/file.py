# SPDX-License-Identifier: GPL-3.0-or-later
"""
Records as files: `<state dir>/<host>/[<playbook>/]<job>.json`, for people and for hand-written roles to read.

The log of a record is beside it, in `.<job>.log/`. Revision N is the file `N.json`, created by link(), which is atomic and
exclusive on local file systems and on NFS. No lock is ever held, so a controller that dies leaves none. After revision N
was created, it is copied to `<job>.json` (the view) and marked as shown (`N.shown`). If a reader finds a revision that is
not marked, it completes these steps. If the revision is marked but `<job>.json` is missing, a person has removed it, and
the name is free. Therefore forkless never deletes a view directly: it first moves the file into the log's folder
(`N.removed-...`), reads the log again, and moves the file back if the name is in use again.

Limits: on a file system without hard links (some FUSE mounts, app storage on Android) a revision is created by an
exclusive open and written in place, so a crash at that moment leaves an incomplete file, which is reported and never
overwritten. A file system that is not coherent between machines (a mounted object store) must be used by one machine only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from typing import TYPE_CHECKING

from forkless.core.errors import StoreError
from forkless.jobs.record import FORGOTTEN, decode
from forkless.jobs.stores.store import KEPT, Head, RevisionLog

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

    def revisions(self, host: str = "") -> dict[str, int | None]:
        with _told(self.folder, "be listed"):
            _refuse_dangling(os.path.join(self.folder, host))
            if os.path.exists(self.folder) and not os.path.isdir(self.folder):
                raise NotADirectoryError(errno.ENOTDIR, "it is not a folder")
            hosts = [host] if host else _entries(self.folder)
            return dict.fromkeys(sorted({stem for name in hosts for stem in self._stems_below(name, 2)}))

    def head(self, stem: str, newest: int | None = None) -> Head | None:
        with _told(self.place(stem), "be read"):
            _refuse_dangling(os.path.dirname(self.place(stem)))
        last = super().head(stem, newest)
        if last is not None and not self._is_shown(stem, last.revision):
            # Its writer is still active, or died before this step. The step may be done twice.
            self._try_to_show(stem, last)
            return last
        # The view is read after the mark: if it is missing now, it was removed after it had been shown.
        view = self._view(stem)
        if last is None:
            return None if view is None else Head(0, view)
        if view is None:
            if _forgotten(last):
                return last
            if self._was_taken(stem):
                self._try_to_show(stem, last)
                self._drop_taken(stem)
                return last
            return Head(last.revision, None, last.body)
        number = _revision_of(view)
        if number is None and not _is_json(view):
            self._keep_aside(stem)
        elif number is None or number >= last.revision:
            # A person or a hand-written role may have replaced the view; its content is valid. Mostly it is our own.
            return Head(last.revision, view)
        # The view is damaged, or a writer that was suspended has written it late: restore it from the log.
        self._try_to_show(stem, last)
        return last

    def append(self, stem: str, revision: int, body: bytes, *, keep: int = KEPT, gaps: bool = False) -> None:
        if not self._numbers(stem) and (view := self._view(stem)) is not None and not _is_json(view):
            raise StoreError(_unreadable(self.place(stem), "it is not JSON"))
        super().append(stem, revision, body, keep=keep, gaps=gaps)
        self._show(stem, revision, body)

    def purge(self, stem: str, revision: int) -> None:
        super().purge(stem, revision)
        log = self._log(stem)
        with contextlib.suppress(OSError):  # the folder is not empty if a writer has begun a new log
            for name in _entries(log):
                if name.endswith(".shown") and int(name.removesuffix(".shown")) <= revision:
                    os.unlink(os.path.join(log, name))
            os.rmdir(log)

    # -- what RevisionLog needs

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
            # Without hard links a revision can be read while it is being written; wait for its writer.
            if body is None or _is_json(body) or time.monotonic() > deadline:
                return body
            time.sleep(0.05)

    def _create(self, stem: str, revision: int, body: bytes) -> bool:
        path = self._entry(stem, revision)
        with _told(path, "be written"):
            for _ in range(9):
                self._make_folder(os.path.dirname(path))
                with contextlib.suppress(FileNotFoundError):  # the log's folder was purged after it was created
                    return self._link(path, body)
            return self._link(path, body)

    def _link(self, path: str, body: bytes) -> bool:
        with _whole(path, body) as draft:
            try:
                os.link(draft, path)
            except FileExistsError:
                # On NFS the response may be lost after link() succeeded: then the draft has two names.
                return os.stat(draft).st_nlink == 2
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return _create_in_place(path, body)
        _sync_folder(os.path.dirname(path))
        return True

    def _erase(self, stem: str, revision: int) -> None:
        path = self._entry(stem, revision)
        with contextlib.suppress(OSError):  # the next writer tries again
            if (body := _read(path)) is not None and not _is_json(body):
                return  # a damaged revision is kept for diagnosis
            for old in (path, path.removesuffix(".json") + ".shown"):
                with contextlib.suppress(FileNotFoundError):
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
                self._hide(stem, revision)
            else:
                with _whole(path, body) as draft:
                    os.rename(draft, path)
            _sync_folder(os.path.dirname(path))
            mark = self._entry(stem, revision).removesuffix(".json") + ".shown"
            with contextlib.suppress(FileNotFoundError):  # the whole log was purged meanwhile
                os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o600))

    def _hide(self, stem: str, revision: int) -> None:
        """
        Remove the view of a forgotten job, and of no other job: a missing view means that a person removed it, and frees
        the name. If the process is suspended or dies in here, `_was_taken` finds the file that it has moved.
        """
        if not self._is_forgotten(stem):
            return
        path = self.place(stem)
        taken = self._entry(stem, revision).removesuffix(".json") + f".removed-{secrets.token_hex(4)}"
        try:
            os.rename(path, taken)
        except FileNotFoundError:
            return
        if not self._is_forgotten(stem):
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.link(taken, path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(taken)

    def _is_forgotten(self, stem: str) -> bool:
        """Whether the log still says so: the name may have been given to another job since the log was last read."""
        last = super().head(stem)
        return last is not None and _forgotten(last)

    def _was_taken(self, stem: str) -> bool:
        """Whether the view is missing only because a process has moved it, and will move it back, or died before that."""
        # Both places are checked repeatedly: between two single checks the file could be moved from one to the other.
        return any(
            any(".removed-" in name for name in _entries(self._log(stem))) or self._view(stem) is not None
            for _ in range(3)
        )

    def _drop_taken(self, stem: str) -> None:
        with contextlib.suppress(OSError):
            for name in _entries(self._log(stem)):
                if ".removed-" in name:
                    os.unlink(os.path.join(self._log(stem), name))

    def _try_to_show(self, stem: str, head: Head) -> None:
        """Show the revision, but ignore errors: a reader must get the log's content even if the disk is full."""
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
        """Create the folder. Every folder from the state folder down has mode 0700, whatever the umask is."""
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
    except (FileNotFoundError, NotADirectoryError):
        return []


def _refuse_dangling(folder: str) -> None:
    """A link that leads nowhere, as to a file system that is not mounted, must not be taken for a folder without records."""
    while not os.path.lexists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    if os.path.islink(folder) and not os.path.exists(folder):
        raise OSError(errno.ENOENT, f"{folder} is a link to {os.readlink(folder)}, which does not exist")


def _read(path: str) -> bytes | None:
    """The content of a regular file. A pipe or a device at this path is an error; opening it does not block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


@contextlib.contextmanager
def _whole(path: str, body: bytes) -> Iterator[str]:
    """A complete, synced draft beside `path`, to be linked or renamed by the caller; removed on exit."""
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
    """Sync the folder, without which a new name may be lost in a crash. Errors of file systems that cannot are ignored."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _is_json(body: bytes) -> bool:
    try:
        decode(body)
    except ValueError:
        return False
    return True


def _revision_of(view: bytes) -> int | None:
    """The revision that a view shows; None if forkless did not write the view."""
    try:
        number = decode(view).get("revision")
    except ValueError:
        return None
    return number if isinstance(number, int) else None


def _forgotten(head: Head) -> bool:
    try:
        return bool(decode(head.body or b"").get("state") == FORGOTTEN)
    except ValueError:
        return False


def _unreadable(path: str, why: str) -> str:
    return (
        f"the job record {path} cannot be understood: {why}. It is left as it is, and nothing is started or saved under "
        "that name. Repair it; or, when you are sure that its job is over, move it away."
    )


@contextlib.contextmanager
def _told(path: str, what: str) -> Iterator[None]:
    """Turns OSError into a StoreError, so that it cannot be mistaken for 'not found'."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"the job record {path} could not {what}: {error.strerror or error}.") from error
