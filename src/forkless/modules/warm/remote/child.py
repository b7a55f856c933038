# SPDX-License-Identifier: GPL-3.0-or-later
"""
Runs in the forked child on the host: does what Ansible's wrapper does in an interpreter of its own.

Sent between importer.py and main.py; needs only the stdlib of 3.8.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import gc
import importlib
import importlib.machinery
import io
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
import types
from typing import TYPE_CHECKING, Any

from forkless.modules.warm.remote.importer import ROOT  # on the host, its text comes first
from forkless.modules.warm.remote.live_output import (  # sent before the first order with `live`
    OutputPipe,
    TappedFile,
    asks,
    secret_forms,
    tap,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class QuickPopen(subprocess.Popen):  # type: ignore[type-arg]
    """
    For AnsibleModule.run_command: drops a preexec_fn that does nothing, so that subprocess can use vfork.

    run_command always passes a preexec_fn, which sets the umask only if there is one. Gathering facts starts some
    twenty programs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if does_nothing(kwargs.get("preexec_fn")):
            del kwargs["preexec_fn"]
        super().__init__(*args, **kwargs)
        if LIVE.tell is not None and LIVE.running:
            tap(self, LIVE.tell, LIVE.secrets)

    def poll(self) -> int | None:
        """run_command calls it once a second while the program prints nothing: time to tell what did not fit before."""
        if LIVE.tell is not None and LIVE.running:
            LIVE.tell.tell_waiting()
        return super().poll()


class LiveProgram:
    """The pipe for the output of this module's programs while they run (None if the run has no listener), and what is masked in it."""

    def __init__(self) -> None:
        self.tell: OutputPipe | None = None
        self.secrets: list[bytes] = []
        self.running = 0
        """Calls of run_command under way. A program that the module starts itself is read in ways that a tap does not know."""


LIVE = LiveProgram()


def tell_output(fd: int, name: str, secrets: Iterable[object]) -> None:
    """From now on tell what the module's programs print. Only for a module's forked process, before the module starts."""
    try:
        basic: Any = importlib.import_module("ansible.module_utils.basic")
    except Exception:  # noqa: BLE001  # the module's own import reports it
        return
    start_programs_quickly()
    original = basic.AnsibleModule.run_command
    LIVE.tell = OutputPipe(fd)

    def run_command(self: Any, *args: Any, **kwargs: Any) -> Any:
        if asks(sys._getframe(1)):
            return original(self, *args, **kwargs)
        LIVE.secrets = secret_forms([*secrets, *self.no_log_values])
        LIVE.running += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            LIVE.running -= 1

    functools.update_wrapper(run_command, original)
    basic.AnsibleModule.run_command = run_command
    if name == "ansible.modules.expect":
        tell_expected(basic.AnsibleModule, LIVE.tell, list(secrets))


def tell_expected(module_class: type, tell: OutputPipe, secrets: list[object]) -> None:
    """The module `expect` reads its program by pexpect, which it has imported when it makes its AnsibleModule."""
    begin = module_class.__init__  # type: ignore[misc]

    def init(self: object, *args: object, **kwargs: object) -> None:
        begin(self, *args, **kwargs)
        spawn = getattr(sys.modules.get("pexpect"), "spawn", None)
        read = getattr(spawn, "read_nonblocking", None)
        if spawn is None or read is None:  # the module reports it
            return
        heard = TappedFile(None, b"o", tell, secret_forms([*secrets, *getattr(self, "no_log_values", ())]))

        def read_nonblocking(self: object, *args: object, **kwargs: object) -> object:
            data = read(
                self, *args, **kwargs
            )  # raises pexpect.EOF at the end, which the end of the module tells as well
            heard.heard(data)
            return data

        spawn.read_nonblocking = functools.update_wrapper(read_nonblocking, read)

    module_class.__init__ = functools.update_wrapper(init, begin)  # type: ignore[misc]


def does_nothing(function: Any) -> bool:
    return (
        getattr(function, "__qualname__", "") == "AnsibleModule.run_command.<locals>.preexec"
        and function.__code__.co_freevars == ("umask",)
        and set(function.__code__.co_names) == {"os", "umask"}
        and not function.__closure__[0].cell_contents
    )


class QuickSubprocess(types.ModuleType):
    """subprocess as ansible.module_utils.basic sees it: only Popen differs."""

    Popen = QuickPopen

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


def start_programs_quickly() -> None:
    basic: Any = sys.modules.get("ansible.module_utils.basic")
    if getattr(basic, "subprocess", None) is subprocess:
        basic.subprocess = QuickSubprocess("subprocess")


def look_again() -> None:
    """
    Invalidate the path finders' caches.

    importlib.invalidate_caches() also imports importlib.metadata, email and more.
    """
    for name, finder in list(sys.path_importer_cache.items()):
        if finder is None or not os.path.isabs(name):
            del sys.path_importer_cache[name]
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()
    for one in sys.meta_path:
        if one is not importlib.machinery.PathFinder and hasattr(one, "invalidate_caches"):
            one.invalidate_caches()


# What sudo, doas, su and the PAM modules below them read each time, in files and in folders of files.
ESCALATION = (
    "/etc/sudoers",
    "/etc/sudo.conf",
    "/etc/doas.conf",
    "/etc/login.defs",
    "/etc/default/locale",
    "/etc/locale.conf",
)
ESCALATION_FOLDERS = ("/etc/sudoers.d", "/etc/pam.d", "/etc/security", "/etc/security/limits.d", "/etc/profile.d")


def escalation_settings() -> list[object]:
    """The state of the files that sudo and PAM read: after a change, a become user has other limits or variables, or is refused."""
    seen: list[object] = []
    for path in (*ESCALATION, *ESCALATION_FOLDERS):
        with contextlib.suppress(OSError):
            found = os.stat(path)
            seen.append((path, found.st_mtime_ns, found.st_ino))
    for folder in ESCALATION_FOLDERS:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:  # not everybody may list sudoers.d
            files = [(entry.path, entry.stat()) for entry in entries]
            seen.append(sorted((path, found.st_mtime_ns, found.st_ino) for path, found in files))
    return seen


def forget_machine() -> None:
    """
    Empty what `platform` keeps: the import of ansible-core's facts asks it for the system, and it remembers the host's name, which a task may
    have changed since.
    """
    platform = sys.modules.get("platform")
    for name, empty in (("_uname_cache", None), ("_os_release_cache", None), ("_platform_cache", {})):
        if hasattr(platform, name):
            setattr(platform, name, empty)


def read_nothing() -> None:
    """Stdin is a pipe that has ended, as stock's is. A program may tell it from /dev/null, and search files only if nothing is piped in."""
    reading, writing = os.pipe()
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)


class TerminalOs(types.ModuleType):
    """os as Python's `_colorize` sees it: a file that is the module's stream counts as a terminal."""

    def __init__(self, stream: os.stat_result) -> None:
        super().__init__("os")
        self.__stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def isatty(self, fd: int) -> bool:
        return os.isatty(fd) or os.path.samestat(os.fstat(fd), self.__stream)


def colour_as_on_a_terminal() -> None:
    """From 3.13 on Python colours tracebacks and more on a terminal. Stock's stream without pipelining is one, and ours stands for it."""
    if "_colorize" in sys.modules:
        vars(sys.modules["_colorize"])["os"] = TerminalOs(os.fstat(2))


def limit(number: int) -> None:
    if number:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if min(hard, number) != soft:
            with contextlib.suppress(ValueError):  # some systems lie about their hard limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, number), hard))


def make_folder(wanted: list[str] | None, usable: set[str]) -> str | None:
    """
    Create the remote_tmp folder with mode 0700 if it is missing, as the user whose it is, and try to create a folder in it.
    Returns its full path if it was tried now and is this process's user's.

    Raises OSError where stock Ansible would find that it cannot create its folder for a task there. `wanted` is None or a
    path and the login user: "" for this process's user, "?" for the one who called sudo or doas. `usable`: places that
    were tried before; they are not tried again while they exist.
    """
    if not wanted:
        return None
    path, login = wanted
    if login == "?":
        login = os.environ.get("SUDO_USER") or os.environ.get("DOAS_USER") or ""
        if not login:
            return None
        path = path.replace("~/", "~%s/" % login, 1)
    place = os.path.expanduser(path)
    if not os.path.isabs(place) or (place in usable and os.path.isdir(place)):
        return None
    with contextlib.suppress(KeyError, ImportError):  # no such user is known here
        user = importlib.import_module("pwd").getpwnam(login) if login else None
        if user is None or user.pw_uid == os.geteuid():
            make_private(place)
        elif os.geteuid() == 0:
            make_as(login, user.pw_uid, user.pw_gid, place)
        usable.add(place)
    return None if login else place


def make_private(place: str) -> None:
    before = os.umask(0o77)
    try:
        os.makedirs(place, exist_ok=True)
        os.rmdir(tempfile.mkdtemp(prefix="ansible-tmp-", dir=place))
    finally:
        os.umask(before)


def make_as(login: str, uid: int, gid: int, place: str) -> None:
    """In a child that has become this user: root would follow the user's symbolic links to any place."""
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1] != 0:
            raise OSError("its user cannot create a folder in " + place)
        return
    code = 1
    try:
        os.initgroups(login, gid)
        os.setgid(gid)
        os.setuid(uid)
        make_private(place)
        code = 0
    finally:
        os._exit(code)


def remove_folder(path: str) -> None:
    """As rm -rf: what somebody else has removed meanwhile is no error, and does not keep the rest."""

    def seen(error: BaseException) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    if sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=lambda _function, _path, error: seen(error))
    else:
        shutil.rmtree(path, onerror=lambda _function, _path, info: seen(info[1]))


def write_files(lay: dict[str, Any]) -> None:
    """Write files with a private mode, into a new folder if one is to be made; after a failure a new folder is removed."""
    before = os.umask(0o77)
    try:
        if lay["make"]:
            os.makedirs(os.path.dirname(lay["folder"].rstrip("/")), exist_ok=True)
            os.mkdir(lay["folder"])
        try:
            for path, data, mode in lay["files"]:
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                    os.fchmod(file.fileno(), mode)
                    file.write(base64.b64decode(data))
        except OSError:
            remove_files(lay)
            raise
    finally:
        os.umask(before)


def remove_files(lay: dict[str, Any]) -> None:
    if lay["make"]:
        shutil.rmtree(lay["folder"], ignore_errors=True)


def call(order: dict[str, Any], files: dict[str, Any], finder: Any) -> int:
    """Run the module as Ansible's wrapper would. Returns the interpreter's exit status."""
    sys.argv = list(order["argv"]) or [""]
    try:
        start(order, files, finder.settle() if order["archive"] else ROOT)
    except SystemExit as leaving:
        if leaving.code is None:
            return 0
        if isinstance(leaving.code, int):
            return leaving.code & 0xFF
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001  # as the interpreter does
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        # An interpreter that ends by a KeyboardInterrupt kills itself with SIGINT; this is what the shell above it says then.
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def start(order: dict[str, Any], files: dict[str, Any], place: str) -> None:
    params, name = order["params"].encode(), order["fqn"]
    if "ansible.module_utils._internal._ansiballz._loader" in files:
        loader = importlib.import_module("ansible.module_utils._internal._ansiballz._loader")
        since_2_22 = {"secrets": frozenset(order["secrets"])} if "secrets" in order else {}
        loader.run_module(
            json_params=params,
            profile=order["profile"],
            module_fqn=name,
            modlib_path=place,
            extensions={},
            **since_2_22,
        )
        return
    basic: Any = importlib.import_module("ansible.module_utils.basic")
    basic._ANSIBLE_ARGS = params
    runpy.run_module(name, {"_module_fqn": name, "_modlib_path": place}, "__main__", alter_sys=True)
    print('{"msg": "New-style module did not handle its own exit", "failed": true}')
    sys.exit(1)


def exit_now(code: int) -> None:
    """Exit like an interpreter (threads, atexit, flush), but skip the slow teardown of inherited objects."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        # Flush open files, text layers before their buffers: the collector closes them in any order.
        for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            for thing in [one for one in gc.get_objects() if type(one) is kind]:
                if not thing.closed:
                    with contextlib.suppress(OSError, ValueError):
                        thing.flush()
        gc.collect()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except BaseException:  # noqa: BLE001  # as an interpreter that cannot flush
        code = code or 120
    finally:
        os._exit(code)
