# SPDX-License-Identifier: GPL-3.0-or-later
"""
Python implementations of tar, unzip and zipinfo, as far as the module `unarchive` uses them.

They are used only if no program can be started. Each takes the program's arguments and returns its exit status, stdout
and stderr, in the wording that the module parses.
"""

from __future__ import annotations

import copy
import fnmatch
import os
import stat
import tarfile
import time
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["OURS", "run"]

Said = tuple[int, str, str]


def run(arguments: list[object]) -> Said:
    """Run the implementation of `arguments[0]`. An unreadable or damaged file gives exit status 2, as from the program."""
    words = [os.fsdecode(one) if isinstance(one, bytes) else str(one) for one in arguments]
    try:
        return OURS[words[0]](words[1:])
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as err:
        return 2, "", f"{words[0]}: {err}\n"


# -- tar ----------------------------------------------------------------------------------------------------------


@dataclass
class _Tar:
    mode: str = ""
    folder: str = "."
    archive: str = ""
    excluded: list[str] = field(default_factory=list)
    included: list[str] = field(default_factory=list)
    strip: int = 0
    keep_newer: bool = False

    @classmethod
    def read(cls, words: list[str]) -> _Tar:
        options, rest = cls(), iter(words)
        for word in rest:
            name, _, value = word.partition("=")
            if word in ("--list", "--diff", "--extract", "--version"):
                options.mode = word
            elif word == "-C":
                options.folder = next(rest)
            elif word == "-f":
                options.archive = next(rest)
            elif name == "--exclude":
                options.excluded.append(value)
            elif name == "--strip-components":
                options.strip = int(value or next(rest))
            elif word == "--keep-newer-files":
                options.keep_newer = True
            elif not word.startswith("-"):
                options.included.append(word)
            elif word not in ("-z", "-j", "-J", "--show-transformed-names") and name not in ("--owner", "--group"):
                # tarfile detects the compression; the module sets owner and group itself.
                raise ValueError(
                    f"the option {word} needs the real tar, and this system does not let us start programs"
                )
        return options

    def members(self, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        for member in archive:
            name = member.name.lstrip("/")
            if any(fnmatch.fnmatch(name, one) or fnmatch.fnmatch(os.path.basename(name), one) for one in self.excluded):
                continue
            if self.included and not any(
                name == one or name.startswith(one.rstrip("/") + "/") for one in self.included
            ):
                continue
            parts = name.split("/")[self.strip :]
            if parts and any(parts):
                yield _changed(member, name="/".join(parts))


def _changed(member: tarfile.TarInfo, **attributes: object) -> tarfile.TarInfo:
    """A copy of the member with other attributes; TarInfo.replace is there from Python 3.11.4 on."""
    made = copy.copy(member)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def tar(words: list[str]) -> Said:
    options = _Tar.read(words)
    if options.mode == "--version":
        return 0, "tar (GNU tar) as far as unarchive needs it, in this process\n", ""
    with tarfile.open(options.archive, "r:*") as archive:
        if options.mode == "--list":
            return 0, "".join(f"{m.name}{'/' if m.isdir() else ''}\n" for m in options.members(archive)), ""
        if options.mode == "--diff":
            return _compare(options, archive)
        return _extract(options, archive)


def _compare(options: _Tar, archive: tarfile.TarFile) -> Said:
    out, err = [], []
    for member in options.members(archive):
        path = os.path.join(options.folder, member.name)
        try:
            now = os.lstat(path)
        except OSError:
            err.append(f"tar: {member.name}: Warning: Cannot stat: No such file or directory\n")
            continue
        differs = []
        if member.issym():
            differs += ["Symlink differs"] * (not stat.S_ISLNK(now.st_mode) or os.readlink(path) != member.linkname)
        else:
            differs += ["Mode differs"] * (stat.S_IMODE(now.st_mode) != member.mode & 0o7777)
        if member.isreg():
            differs += ["Mod time differs"] * (int(now.st_mtime) != int(member.mtime))
            differs += ["Size differs"] * (now.st_size != member.size)
            if now.st_size == member.size:
                differs += ["Contents differ"] * (not _same(archive.extractfile(member), path))
        differs += ["Uid differs"] * (now.st_uid != member.uid) + ["Gid differs"] * (now.st_gid != member.gid)
        out += [f"{member.name}: {one}\n" for one in differs]
    return (1 if out or err else 0), "".join(out), "".join(err)


def _same(inside: Any, path: str) -> bool:
    with inside, open(path, "rb") as outside:
        while True:
            one, two = inside.read(1 << 20), outside.read(1 << 20)
            if one != two:
                return False
            if not one:
                return True


def _extract(options: _Tar, archive: tarfile.TarFile) -> Said:
    mask = os.umask(0o022)
    os.umask(mask)
    root = os.geteuid() == 0

    def with_mode(member: tarfile.TarInfo, mode: int) -> tarfile.TarInfo:
        """By tar's rule root keeps the member's mode, and other users get it with the umask."""
        return _changed(member, mode=mode if root else mode & ~mask)

    def keep(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        # The stdlib's filter refuses members outside of the folder. It also masks modes, so tar's rule is applied after it.
        return with_mode(tarfile.tar_filter(member, folder), member.mode)

    above = os.path.realpath(options.folder)

    def inside(path: str) -> bool:
        return os.path.commonpath([above, os.path.realpath(path)]) == above

    for member in list(options.members(archive)):
        path = os.path.join(options.folder, member.name)
        if options.keep_newer and os.path.lexists(path) and os.lstat(path).st_mtime > member.mtime:
            continue
        if not inside(path) or (member.islnk() and not inside(os.path.join(options.folder, member.linkname))):
            raise ValueError(f"{member.name} would be extracted outside of {options.folder}")
        if hasattr(tarfile, "tar_filter"):
            archive.extract(member, options.folder, filter=keep)
        else:  # Python before 3.11.4
            archive.extract(with_mode(member, member.mode), options.folder)
    return 0, "", ""


# -- zip ----------------------------------------------------------------------------------------------------------


def _entries(archive: zipfile.ZipFile, included: list[str], excluded: list[str]) -> list[zipfile.ZipInfo]:
    return [
        entry
        for entry in archive.infolist()
        if not any(fnmatch.fnmatch(entry.filename, one) for one in excluded)
        and (not included or any(fnmatch.fnmatch(entry.filename, one) for one in included))
    ]


def _mode(entry: zipfile.ZipInfo) -> int:
    """The entry's Unix mode, from the upper 16 bits of the attributes; if there is none, the mode that unzip would set."""
    return entry.external_attr >> 16 or (stat.S_IFDIR | 0o755 if entry.is_dir() else stat.S_IFREG | 0o644)


def _split(words: list[str]) -> tuple[str, list[str], list[str], str]:
    """Split the arguments into archive, included names, excluded names and target folder."""
    archive, folder = "", "."
    included: list[str] = []
    excluded: list[str] = []
    target, rest = included, iter(words)
    for word in rest:
        if word == "-d":
            folder = next(rest)
        elif word == "-x":
            target = excluded
        elif word.startswith("-"):
            continue
        elif not archive:
            archive = word
        else:
            target.append(word)
    return archive, included, excluded, folder


def zipinfo(words: list[str]) -> Said:
    path, included, excluded, _ = _split(words)
    with zipfile.ZipFile(path) as archive:
        lines = [
            f"{stat.filemode(_mode(entry))} {entry.create_version / 10:.1f} unx {entry.file_size} bx "
            f"{'stor' if entry.compress_type == zipfile.ZIP_STORED else 'defN'} "
            "{:04}{:02}{:02}.{:02}{:02}{:02} ".format(*entry.date_time)
            + entry.filename
            + "\n"
            for entry in _entries(archive, included, excluded)
        ]
    return 0, "".join(lines), ""


def unzip(words: list[str]) -> Said:
    path, included, excluded, folder = _split(words)
    with zipfile.ZipFile(path) as archive:
        if "-l" in words or "-v" in words:
            return 0, "".join(f"{name}\n" for name in archive.namelist()), ""
        for entry in _entries(archive, included, excluded):
            mode = _mode(entry)
            if stat.S_ISLNK(mode):
                _link(archive, entry, folder)
                continue
            made = archive.extract(entry, folder)  # never writes outside of the folder
            os.chmod(made, stat.S_IMODE(mode))
            when = time.mktime((*entry.date_time, 0, 0, -1))
            os.utime(made, (when, when))
    return 0, "", ""


def _link(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: str) -> None:
    target, path = archive.read(entry).decode(), os.path.join(folder, entry.filename)
    above = os.path.realpath(folder)
    if os.path.commonpath([above, os.path.realpath(os.path.join(os.path.dirname(path), target))]) != above:
        raise ValueError(f"{entry.filename} is a link to {target}, which is outside of the folder")
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    if os.path.islink(path):
        os.unlink(path)
    os.symlink(target, path)


OURS: dict[str, Callable[[list[str]], Said]] = {"tar": tar, "unzip": unzip, "zipinfo": zipinfo}
