# SPDX-License-Identifier: GPL-3.0-or-later
"""
The files of the shim: written, found and removed.

Each file is `command.sh` with two words filled in. It needs nothing else: it still runs stock's command after forkless was removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import os
import stat
import sys
import tempfile
from typing import TYPE_CHECKING

from forkless.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "COMMANDS",
    "default_folder",
    "folders_on_path",
    "install",
    "installed",
    "ready_folder",
    "remove",
    "stock_commands",
]

# Run in forkless, and then stock's own commands that look for `ansible-playbook` in other places than PATH: ansible-pull beside itself,
# ansible-test in ansible-core's package. These two are stock's code, told of the shim's folder.
COMMANDS = ("ansible-playbook", "ansible", "ansible-console", "ansible-pull", "ansible-test")
MARK = b"# forkless shim"
_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # the folder below them is looked at before it is used


def default_folder() -> str:
    """Below the user's home. It is no absolute path if there is no HOME and the user is not in the system's list of users."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(data, "forkless", "shim")


def _cache_folders() -> Iterator[str]:
    """
    Where `forkless exec` may keep its shim, best first: one folder for each text, so that two environments do not share one.

    Behind the cache in the home, which an account of a service need not have, stand places for temporary files.
    """
    digest = hashlib.sha256("".join(map(_text, COMMANDS)).encode()).hexdigest()[:12]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(cache):
        yield os.path.join(cache, "forkless", f"shim-{digest}")
    for place in (os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), *_PLACES):
        own = os.path.join(place or "", f"forkless-shim-{os.geteuid()}")
        if os.path.isabs(own) and _is_ours_alone(own):
            yield os.path.join(own, digest)


def _is_ours_alone(folder: str) -> bool:
    """In a place for everybody's files somebody else could own a folder of this name, and so the commands in it."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        about = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022


def ready_folder() -> str | None:
    """A folder with the shim, written now if it is not there. None: no place can be written to."""
    for folder in _cache_folders():
        try:
            if not current(folder):
                install(folder)
        except SpecError:
            continue
        return folder
    return None


def _text(command: str) -> str:
    template = importlib.resources.files("forkless.cli.shim").joinpath("command.sh").read_text(encoding="utf-8")
    python = sys.executable
    if any(character in python for character in "\"'$`\\\n"):
        python = ""  # a path that neither sh nor Python would read as it is; it is only the last resort
    return template.replace("@COMMAND@", command).replace("@PYTHON@", python)


def is_shim(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(200).partition(b"\n")[2].startswith(MARK)
    except OSError:
        return False


def install(folder: str) -> list[str]:
    """Write the shim into a folder, and return the paths. A file that is no shim is not replaced, and then none is written."""
    for command in COMMANDS:
        path = os.path.join(folder, command)
        if os.path.lexists(path) and not is_shim(path):
            raise SpecError(f"{path} is not a shim, and is not replaced; name a folder of its own for the shim")
    written = []
    try:
        os.makedirs(folder, exist_ok=True)
        for command in COMMANDS:
            written.append(os.path.join(folder, command))
            _write(written[-1], _text(command))
    except OSError as err:
        raise SpecError(f"the shim cannot be written to {folder}: {err.strerror}") from None
    return written


def _write(path: str, text: str) -> None:
    """Whole or not at all: a command may be started at this moment."""
    descriptor, draft = tempfile.mkstemp(prefix=".forkless-", dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(draft, 0o755)  # noqa: S103  # a command, for everybody who may enter the folder
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def installed(folder: str) -> list[str]:
    return [command for command in COMMANDS if is_shim(os.path.join(folder, command))]


def current(folder: str) -> bool:
    """Whether all files are there, as this forkless would write them."""
    for command in COMMANDS:
        try:
            with open(os.path.join(folder, command), encoding="utf-8") as file:
                if file.read() != _text(command):
                    return False
        except (OSError, ValueError):
            return False
    return True


def remove(folder: str) -> list[str]:
    """Remove the shim's files, and the folder if nothing else is in it. Other files stay."""
    removed = [os.path.join(folder, command) for command in installed(folder)]
    try:
        for path in removed:
            os.unlink(path)
    except OSError as err:
        raise SpecError(f"{err.filename} cannot be removed: {err.strerror}") from None
    with contextlib.suppress(OSError):
        os.rmdir(folder)
    return removed


def _path() -> list[str]:
    return [folder or "." for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)]


def folders_on_path() -> list[str]:
    """The shim's folders on PATH, in order, each once however often and by whatever links it stands there."""
    seen: dict[str, str] = {}
    for folder in _path():
        if installed(folder):
            seen.setdefault(os.path.realpath(folder), folder)
    return list(seen.values())


def stock_commands(command: str) -> list[str]:
    """The commands of this name on PATH that are no shim, in order."""
    paths = [os.path.join(folder, command) for folder in _path()]
    return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK) and not is_shim(path)]
