# SPDX-License-Identifier: GPL-3.0-or-later
"""
How the files of a run reach a worker: as an archive named by its content, as a git URL and commit, or as a folder that both see.

The archive has its names sorted, no owner and no time, so the same files give the same bytes and are sent once.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import shutil
import stat
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkless.queue import programs
from forkless.queue.errors import QueueError, QueueRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Literal

__all__ = ["MOST_BYTES", "Bundle", "Needed", "checkout", "head_of", "inside", "pack", "printable", "unpack"]

# An archive above this size is refused: it is held in memory as a whole, by the launcher, the database and the worker.
MOST_BYTES = 64 << 20
# Reading stops here, so that a launch in a home folder ends with a sentence and not with a full memory.
_MOST_UNPACKED = 512 << 20

_ALWAYS = (
    ".git/", ".hg/", ".svn/", ".venv/", "venv/", "__pycache__/", "*.pyc", ".tox/", ".nox/", ".cache/", ".mypy_cache/", ".ruff_cache/",
    ".pytest_cache/", "node_modules/", ".ansible/", ".ansible_async_state/", "artifacts/", "*.retry", ".DS_Store",
)  # fmt: skip
_IGNORE_FILES = (".gitignore", ".forklessignore")


class _IgnoreRules:
    """Patterns as in .gitignore, of one folder, applied to paths below it. `source` is the file that they stand in."""

    def __init__(self, folder: str, lines: list[str], source: str) -> None:
        self._folder = folder
        self.source = source
        self._rules: list[tuple[bool, bool, re.Pattern[str]]] = []
        for line in lines:
            text = line.rstrip("\n\r")
            text = text if text.endswith("\\ ") else text.rstrip()
            if not text or text.startswith("#"):
                continue
            negated = text.startswith("!")
            text = text.removeprefix("!").removeprefix("\\")
            only_folders = text.endswith("/")
            text = text.rstrip("/")
            anchored = "/" in text
            text = text.removeprefix("/")
            self._rules.append((negated, only_folders, re.compile(("" if anchored else "(?:.*/)?") + _regex(text))))

    def verdict(self, path: str, is_folder: bool) -> bool | None:
        """True to leave `path` out, False to keep it, None if no pattern is about it."""
        relative = path[len(self._folder) + 1 :] if self._folder else path
        found = None
        for negated, only_folders, pattern in self._rules:
            if (is_folder or not only_folders) and pattern.fullmatch(relative):
                found = not negated
        return found


def _regex(pattern: str) -> str:
    out, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        elif char == "*":
            out, at = out + "[^/]*", at + 1
        elif char == "?":
            out, at = out + "[^/]", at + 1
        elif char == "[" and (end := pattern.find("]", at + 2)) > 0:
            inner = pattern[at + 1 : end]
            inner = "^" + inner[1:] if inner.startswith("!") else inner
            out, at = out + "[" + inner.replace("\\", "\\\\") + "]", end + 1
        elif char == "\\" and at + 1 < len(pattern):
            out, at = out + re.escape(pattern[at + 1]), at + 2
        else:
            out, at = out + re.escape(char), at + 1
    return out


@dataclass(frozen=True)
class Needed:
    """A file or folder of the project that a run needs: without it, the run would have other hosts, variables or tasks, or none."""

    what: str
    path: str
    """Relative to the project."""
    contents: Literal["none", "entries", "all"] = "none"
    """What of a folder's contents is needed: of one with roles each role, but not each file of it."""
    by_choice: bool = False
    """Whether it may be left out by .forklessignore: a run that names it itself cannot do without it. Contents always may."""


@dataclass(frozen=True)
class Bundle:
    """A packed project. `sha256` is that of `content`."""

    sha256: str
    content: bytes
    files: int


def inside(path: str, root: str, what: str) -> str:
    """`path` relative to the project. Raises if it lies outside, where the worker would not find it."""
    whole = os.path.normpath(os.path.join(root, os.path.expanduser(path)))
    relative = os.path.relpath(whole, root)
    if relative == ".." or relative.startswith("../"):
        raise QueueRequestError(
            f"{what} {path} is outside of the project {root}, so workers would not have it; name a folder that has both with "
            "--project, or say --shared-folder if workers see the same files"
        )
    return relative


@dataclass
class _Files:
    """What of a project travels, and what does not, with the ignore file that leaves it out ("" for the list that always counts)."""

    found: list[tuple[str, os.stat_result]]
    left_out: dict[str, str]


def _walk(root: str, without: frozenset[str]) -> _Files:
    found: list[tuple[str, os.stat_result]] = []
    left_out: dict[str, str] = {}
    total = 0

    def visit(folder: str, rules: tuple[_IgnoreRules, ...]) -> None:
        nonlocal total
        place = os.path.join(root, folder)
        for name in _IGNORE_FILES:
            with (
                contextlib.suppress(OSError),
                # Names of files need not be UTF-8, and a pattern is compared with them.
                open(os.path.join(place, name), encoding="utf-8", errors="surrogateescape") as file,
            ):
                rules = (*rules, _IgnoreRules(folder, file.readlines(), name))
        for name in sorted(os.listdir(place)):
            path = os.path.join(folder, name) if folder else name
            about = os.lstat(os.path.join(root, path))
            is_folder = stat.S_ISDIR(about.st_mode)
            verdicts = [
                (verdict, rule.source) for rule in rules if (verdict := rule.verdict(path, is_folder)) is not None
            ]
            if path in without:
                continue
            if verdicts and verdicts[-1][0]:
                left_out[path] = verdicts[-1][1]
                continue
            if not (is_folder or stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)):
                continue  # sockets and devices
            found.append((path, about))
            if is_folder:
                visit(path, rules)
            elif stat.S_ISREG(about.st_mode):
                total += about.st_size
                if total > _MOST_UNPACKED:
                    raise QueueRequestError(_too_large(root, found, f"more than {_MOST_UNPACKED >> 20} MB"))

    try:
        visit("", (_IgnoreRules("", list(_ALWAYS), ""),))
    except OSError as err:
        raise QueueRequestError(
            f"the project {root} cannot be read: {printable(str(err.filename))}: {err.strerror}"
        ) from None
    return _Files(found, left_out)


def _check_needed(root: str, files: _Files, needed: Sequence[Needed], without: frozenset[str]) -> None:
    """Raise if a file that the run needs is left out: a run without its inventory has no hosts, and ends as successful."""
    travels = {path for path, _ in files.found}
    for one in needed:
        missing = _missing(root, one.path, travels) or _missing_in(one, files.left_out)
        source = files.left_out.get(missing, "")
        if not missing or missing in without or (one.by_choice and source == ".forklessignore"):
            continue
        raise QueueRequestError(
            f"{one.what} {printable(one.path)} would not reach the workers: {printable(missing)} is left out by "
            f"{source or 'the list of what never travels'}; keep it with a line !{printable(missing)} in .forklessignore"
        )


def _missing_in(needed: Needed, left_out: Mapping[str, str]) -> str:
    """The first of a folder's needed contents that .gitignore leaves out; "" if there is none."""
    below = needed.path.rstrip("/") + "/"
    for path, source in left_out.items() if needed.contents != "none" else ():
        # What .forklessignore names was left out for the workers, and what never travels, compiled files for example, is no loss.
        entry = path.startswith(below) and (needed.contents == "all" or "/" not in path[len(below) :])
        if entry and source == ".gitignore":
            return path
    return ""


def _missing(root: str, path: str, travels: set[str]) -> str:
    """The first part of a path that does not travel, or what a link on the way leads to; "" if a worker finds the path."""
    parts = path.split("/")
    at = ""
    for _ in range(1000):  # links may lead in a circle
        if not parts:
            return ""
        part = parts.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            at = os.path.dirname(at)
            continue
        at = f"{at}/{part}" if at else part
        if at not in travels:
            return at
        whole = os.path.join(root, at)
        if os.path.islink(whole):
            parts = os.readlink(whole).split("/") + parts
            at = os.path.dirname(at)
    return path


def printable(path: str) -> str:
    """A path as text for a sentence: names of files may have bytes that are no text."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _too_large(root: str, found: list[tuple[str, os.stat_result]], size: str) -> str:
    by_folder: dict[str, int] = {}
    for path, about in found:
        if stat.S_ISREG(about.st_mode):
            top = path.split("/")[0] + ("/" if "/" in path else "")
            by_folder[top] = by_folder.get(top, 0) + about.st_size
    largest = sorted(by_folder.items(), key=lambda one: -one[1])[:3]
    names = ", ".join(f"{name} ({bytes_ / (1 << 20):.0f} MB)" for name, bytes_ in largest)
    return (
        f"the project {root} is too large to travel: {size}, and {MOST_BYTES >> 20} MB compressed is the most. Largest: {names}. "
        "Name what workers do not need in .forklessignore, or launch from git (--git), or say --shared-folder"
    )


def pack(
    root: str, *, without: frozenset[str] = frozenset(), needed: Sequence[Needed] = (), most: int = MOST_BYTES
) -> Bundle:
    """
    Pack the project. `without` are paths that must not travel, such as files with passwords. Raises if a file that is `needed` is left out by
    an ignore file.
    """
    files = _walk(root, without)
    _check_needed(root, files, needed, without)
    found = files.found
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, about in found:
            entry = tarfile.TarInfo(path)
            entry.mtime = 0
            whole = os.path.join(root, path)
            try:
                if stat.S_ISDIR(about.st_mode):
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(entry)
                elif stat.S_ISLNK(about.st_mode):
                    entry.type, entry.mode, entry.linkname = tarfile.SYMTYPE, 0o777, os.readlink(whole)
                    target = os.path.normpath(os.path.join(os.path.dirname(path), entry.linkname))
                    if os.path.isabs(entry.linkname) or target == ".." or target.startswith("../"):
                        raise QueueRequestError(
                            f"{printable(path)} is a link to {printable(entry.linkname)}, outside of the project, so workers would not have it; "
                            "name it in .forklessignore, or copy what it leads to"
                        )
                    archive.addfile(entry)
                else:
                    with open(whole, "rb") as file:
                        content = file.read()
                    entry.size, entry.mode = len(content), _mode(about.st_mode)
                    archive.addfile(entry, io.BytesIO(content))
            except OSError as err:
                raise QueueRequestError(
                    f"the project's file {printable(whole)} cannot be read: {err.strerror}"
                ) from None
    content = gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)
    if len(content) > most:
        raise QueueRequestError(_too_large(root, found, f"{len(content) / (1 << 20):.0f} MB"))
    return Bundle(hashlib.sha256(content).hexdigest(), content, len(found))


def _mode(mode: int) -> int:
    """
    A program stays executable, for its owner or for all as before: Ansible reads an inventory that is not executable as text. A file of its owner alone stays so: ssh does
    not use a key that others may read.
    """
    return (0o755 if mode & 0o111 else 0o644) & (0o777 if mode & 0o077 else 0o700)


def unpack(content: bytes, sha256: str, folder: str) -> None:
    """Unpack into `folder`, which is emptied first. Paths that lead outside are refused."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise QueueError(f"the project's archive does not have the hash {sha256}")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, mode=0o700)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content)), mode="r:") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:  # Python before 3.11.4
            archive.extractall(folder, members=_checked(archive, os.path.realpath(folder)))  # noqa: S202  # each is checked


def _checked(archive: tarfile.TarFile, root: str) -> Iterator[tarfile.TarInfo]:
    """The members one by one; each is checked after those before it were written, because one of them may be a link."""
    for one in archive:
        whole = os.path.realpath(os.path.join(root, one.name))
        target = os.path.realpath(os.path.join(os.path.dirname(whole), one.linkname)) if one.issym() else whole
        inside_both = all(f"{path}/".startswith(f"{root}/") for path in (whole, target))
        if not (one.isreg() or one.isdir() or one.issym()) or os.path.isabs(one.linkname) or not inside_both:
            raise QueueError(f"the project's archive has a path that leads outside: {one.name}")
        one.mode &= 0o755
        yield one


_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_GIT_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"}


def _git(folder: str, *arguments: str, patience: float = 600, stopping: Callable[[], object] | None = None) -> str:
    try:
        done = programs.call(
            ["git", "-c", "protocol.ext.allow=never", "-C", folder, *arguments],
            seconds=patience,
            env=dict(os.environ) | _GIT_ENVIRONMENT,
            stopping=stopping,
        )
    except FileNotFoundError:
        raise QueueError("the project is a git repository, and there is no program git here") from None
    except OSError as err:
        raise QueueError(f"git could not be started: {err.strerror}") from None
    except programs.TooSlowError:
        raise QueueError(f"git {arguments[0]} did not end within {patience:.0f} s") from None
    if done.code:
        raise QueueError(f"git {arguments[0]} failed: {done.last_line() or 'it did not say why'}")
    return done.stdout.decode("utf-8", "replace").strip()


def head_of(folder: str) -> str:
    """The commit of a git checkout, for people: short, and "with changes" where files differ from it. Empty if it is none."""
    if not os.path.exists(os.path.join(folder, ".git")):
        return ""
    with contextlib.suppress(QueueError):
        commit = _git(folder, "rev-parse", "--short=12", "HEAD", patience=10)
        return commit + (" with changes" if _git(folder, "status", "--porcelain", patience=10) else "")
    return ""


def resolve_commit(url: str, wanted: str) -> str:
    """The commit that a branch, tag or commit of a repository names now. The run, and each relaunch of it, uses this commit."""
    _check_url(url)
    if _COMMIT.fullmatch(wanted):
        return wanted
    for line in _git(
        "/", "ls-remote", "--", url, wanted, f"refs/heads/{wanted}", f"refs/tags/{wanted}^{{}}", patience=60
    ).splitlines():
        return line.split()[0]
    raise QueueRequestError(f"the repository has no branch, tag or full commit '{wanted}'")


def _check_url(url: str) -> None:
    if url.startswith("-") or re.match(r"[a-z]+::", url):
        raise QueueRequestError(f"'{url}' is not the address of a git repository")
    if re.match(r"(?i)[a-z+]+://[^/@]*:[^/@]+@|https?://[^/]*@", url):
        raise QueueRequestError(
            "the address of the git repository has a password in it, which would be stored as it is; let git on the workers have "
            "the credentials (a deploy key, a credential helper)"
        )


def checkout(url: str, commit: str, folder: str, stopping: Callable[[], object] | None = None) -> None:
    """Fetch one commit into `folder`, which is emptied first. Raises StoppedError once `stopping()` is true."""
    _check_url(url)
    if not _COMMIT.fullmatch(commit):
        raise QueueError(f"'{commit}' is not a commit")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, mode=0o700)
    _git(folder, "init", "--quiet", stopping=stopping)
    _git(folder, "fetch", "--quiet", "--depth", "1", "--", url, commit, stopping=stopping)
    _git(folder, "checkout", "--quiet", "--detach", "FETCH_HEAD", stopping=stopping)
