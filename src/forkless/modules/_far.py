# SPDX-License-Identifier: GPL-3.0-or-later
"""
The far side of warm modules: one clean interpreter with one thread, which runs each module in a fork of itself.

Its text travels over the wire and is never installed, so it needs nothing but a stdlib of 3.8. It is started by the very command
that would start a module (same shell, same user, same environment), and what it forks is what that command would have become:
a session of its own, its own folder, environment and streams. Sources come by content; ansible-core's own module_utils are
imported before the fork, everything else after it. It ends when its input does.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import select
import shutil
import signal
import site
import stat
import struct
import sys
import tempfile
import threading
import time
from typing import Any

from forkless.modules._forked import (  # there: its text comes first
    call,
    leave,
    limit,
    look_again,
    start_programs_quickly,
)
from forkless.modules._parcel import Finder, Source  # so does this

HEAD = struct.Struct(">IIc")  # length of the body, number of the task, kind
MAGIC = b"\0\0forkless-warm\0"
INSIST = 0.3  # seconds between SIGTERM and SIGKILL

# What a login reads: changed by one task, it must be seen by the next.
LOGIN = (
    "/etc/environment", "/etc/security/pam_env.conf", "/etc/profile", "/etc/bash.bashrc", "/etc/bashrc", "/etc/zshenv",
    "~/.pam_environment", "~/.ssh/environment", "~/.ssh/rc", "~/.bashrc", "~/.bash_profile", "~/.profile", "~/.zshenv",
)  # fmt: skip


class Task:
    def __init__(self, number: int, pid: int, out: int, err: int) -> None:
        self.number, self.pid = number, pid
        self.pipes = {out: b"O", err: b"E"}
        self.kill_at: float | None = None


def ours(name: str) -> bool:
    return name in ("ansible", "ansible_collections") or name.startswith(("ansible.", "ansible_collections."))


def lay_down(lay: dict[str, Any]) -> None:
    """A folder and files for nobody but this user: all of it, or nothing."""
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
            take_up(lay)
            raise
    finally:
        os.umask(before)


def take_up(lay: dict[str, Any]) -> None:
    if lay["make"]:
        shutil.rmtree(lay["folder"], ignore_errors=True)


class Far:
    def __init__(self, inp: int, out: int, ask_groups: bool) -> None:
        self.inp, self.out = inp, out
        self.poll = select.poll()
        self.tasks: dict[int, Task] = {}
        self.sources: dict[str, Source] = {}
        self.payloads: dict[str, dict[str, Any]] = {}
        self.finder = Finder()
        self.loaded: dict[str, str] = {}
        self.ask_groups = ask_groups
        self.cwd = self._cwd()
        self.places = self._places()
        self.seen = self.look()

    @staticmethod
    def _cwd() -> str | None:
        try:
            return os.getcwd()
        except OSError:
            return None

    @staticmethod
    def _places() -> list[str]:
        places = [sys.executable, os.__file__]
        with contextlib.suppress(Exception):
            places += site.getsitepackages()
        with contextlib.suppress(Exception):
            places.append(site.getusersitepackages())
        return [os.path.expanduser(place) for place in (*places, *LOGIN) if place]

    def look(self) -> Any:
        """What a fresh interpreter would find: if any of it has changed, this one is too old to be forked."""
        seen: list[Any] = []
        for place in self.places:
            try:
                found = os.stat(place)
                seen.append((found.st_mtime_ns, found.st_ino))
            except OSError:
                seen.append(None)
        if self.ask_groups:
            try:
                import pwd  # here: the near side imports this file, too, and may have no list of users

                user = pwd.getpwuid(os.geteuid())
                seen.append((tuple(user), sorted(os.getgrouplist(user.pw_name, user.pw_gid))))
            except (KeyError, OSError):
                seen.append(None)
        return seen

    # -- the wire

    def say(self, kind: bytes, number: int = 0, body: bytes = b"") -> None:
        left = memoryview(HEAD.pack(len(body), number, kind) + body)
        while left:
            left = left[os.write(self.out, left) :]

    def serve(self) -> None:
        self.poll.register(self.inp, select.POLLIN)
        waiting = bytearray()
        while True:
            leaving = [task for task in self.tasks.values() if not task.pipes or task.kill_at is not None]
            for fd, _ in self.poll.poll(20 if leaving else None):
                if fd == self.inp:
                    chunk = os.read(fd, 1 << 20)
                    if not chunk:
                        return
                    waiting += chunk
                    while len(waiting) >= HEAD.size:
                        length, number, kind = HEAD.unpack_from(waiting)
                        if len(waiting) < HEAD.size + length:
                            break
                        body = bytes(waiting[HEAD.size : HEAD.size + length])
                        del waiting[: HEAD.size + length]
                        self.hear(kind, number, body)
                else:
                    self.relay(fd)
            self.reap()

    def hear(self, kind: bytes, number: int, body: bytes) -> None:
        if kind == b"F":
            self.take_files(body)
        elif kind == b"P":
            order = json.loads(body)
            self.payloads[order["digest"]] = {
                name: (bool(package), key, self.sources[key]) for name, package, key in order["files"]
            }
            self.warm_up(self.payloads[order["digest"]], order["core"])
        elif kind == b"R":
            self.run(number, json.loads(body))
        elif kind == b"L" and not self.tasks:
            os._exit(0)
        elif kind == b"C":
            self.carry(number, json.loads(body))
        elif kind == b"K" and number in self.tasks:
            task = self.tasks[number]
            self.kill(task, signal.SIGTERM)
            task.kill_at = time.monotonic() + INSIST

    def take_files(self, body: bytes) -> None:
        line, _, rest = body.partition(b"\n")
        at = 0
        for key, path, text, code in json.loads(line):
            packed = rest[at + text : at + text + code] or None
            self.sources[key] = Source(path, rest[at : at + text], packed)
            at += text + code

    def relay(self, fd: int) -> None:
        task = next(one for one in self.tasks.values() if fd in one.pipes)
        chunk = os.read(fd, 1 << 18)
        if chunk:
            self.say(task.pipes[fd], task.number, chunk)
        else:
            self.drop(task, fd)

    def drop(self, task: Task, fd: int) -> None:
        self.poll.unregister(fd)
        os.close(fd)
        del task.pipes[fd]

    def kill(self, task: Task, number: int) -> None:
        try:
            os.killpg(task.pid, number)
        except OSError:  # not yet the leader of its group, or gone
            with contextlib.suppress(OSError):
                os.kill(task.pid, number)

    def reap(self) -> None:
        """A task is over when it has ended and nobody holds its streams any more; so it is for who starts a program."""
        for task in list(self.tasks.values()):
            if task.kill_at is not None and time.monotonic() >= task.kill_at:
                self.kill(task, signal.SIGKILL)
                task.kill_at = None
                for fd in list(task.pipes):  # who left the group keeps its life, but is not listened to
                    self.drop(task, fd)
            if task.pipes or task.kill_at is not None:  # while it is not reaped, its group's number is nobody else's
                continue
            pid, status = os.waitpid(task.pid, os.WNOHANG)
            if pid:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                del self.tasks[task.number]
                self.say(b"X", task.number, str(code).encode())

    # -- before the fork

    def warm_up(self, files: dict[str, Any], core: list[str]) -> None:
        """Import what is ansible-core's own. What says something while it is imported is left to the module."""
        if any(self.loaded.get(name, files[name][1]) != files[name][1] for name in files):
            return
        self.finder.serve(files)
        for name in core:
            if name in sys.modules:
                continue
            before, said = set(sys.modules), self.said()
            try:
                importlib.import_module(name)
                quiet = self.said() == said and threading.active_count() == 1
            except BaseException:  # noqa: BLE001  # the module will meet it again, and say so
                quiet = False
            if not quiet:
                for new in set(sys.modules) - before:
                    if ours(new):
                        self.forget(new)
                self.unsay(said)
        for _, _, source in files.values():  # what is left to the module is made ready, and not run
            with contextlib.suppress(Exception):
                source.code()
        start_programs_quickly()
        for name in filter(ours, list(sys.modules)):
            self.loaded.setdefault(name, files[name][1] if name in files else "")
        gc.collect()
        gc.freeze()  # what is here now is never looked at again by a collector: fewer pages are copied, and exits are quick

    @staticmethod
    def said() -> tuple[int, int]:
        notes: Any = sys.modules.get("ansible.module_utils.common.warnings")
        return (len(notes._global_warnings), len(notes._global_deprecations)) if notes else (0, 0)

    @staticmethod
    def unsay(said: tuple[int, int]) -> None:
        notes: Any = sys.modules.get("ansible.module_utils.common.warnings")
        for kept, count in zip((notes._global_warnings, notes._global_deprecations) if notes else (), said):
            while len(kept) > count:
                kept.popitem() if isinstance(kept, dict) else kept.pop()

    @staticmethod
    def forget(name: str) -> None:
        sys.modules.pop(name, None)
        above, _, leaf = name.rpartition(".")
        if above in sys.modules:
            sys.modules[above].__dict__.pop(leaf, None)

    def run(self, number: int, order: dict[str, Any]) -> None:
        files = self.payloads.get(order["digest"])
        cwd = order["cwd"] or self.cwd
        if files is None or self.look() != self.seen or (cwd and not self.there(cwd)):
            self.say(b"N", number, b"stale")
            return
        try:
            if order["lay"]:
                lay_down(order["lay"])
        except OSError as error:
            self.say(b"N", number, str(error).encode())
            return
        try:
            out, out_end = os.pipe()
            err, err_end = os.pipe()
            pid = os.fork()
        except OSError as error:
            if order["lay"]:
                take_up(order["lay"])
            self.say(b"N", number, str(error).encode())
            return
        if pid == 0:
            self.become_the_module(order, files, cwd, out_end, err_end)
        os.close(out_end)
        os.close(err_end)
        self.tasks[number] = Task(number, pid, out, err)
        self.poll.register(out, select.POLLIN | select.POLLHUP)
        self.poll.register(err, select.POLLIN | select.POLLHUP)

    def carry(self, number: int, errand: dict[str, Any]) -> None:
        """What a shell would be started for."""
        try:
            if "lay" in errand:
                lay_down(errand["lay"])
            elif "remove" in errand:
                shutil.rmtree(errand["remove"])
            else:
                self.say(b"O", number, os.path.expanduser(errand["expand"]).encode(errors="surrogateescape"))
        except OSError as error:
            self.say(b"N", number, str(error).encode())
        else:
            self.say(b"X", number, b"0")

    @staticmethod
    def there(cwd: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(cwd).st_mode)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # who may not look at it may still have been put into it

    # -- after the fork

    def become_the_module(
        self, order: dict[str, Any], files: dict[str, Any], cwd: str | None, out: int, err: int
    ) -> None:
        code = 1
        try:
            os.setsid()
            os.dup2(out, 1)
            os.dup2(err, 2)
            for fd in (out, err, self.inp, self.out, *(fd for task in self.tasks.values() for fd in task.pipes)):
                if fd > 2:
                    os.close(fd)
            self.tasks.clear()
            if cwd:
                with contextlib.suppress(OSError):
                    os.chdir(cwd)
            if order["cwd"] and "PWD" in os.environ:
                os.environ["PWD"] = order["cwd"]
            os.environ.update(order["environ"])
            time.tzset()
            tempfile.tempdir = None
            look_again()
            limit(order["rlimit"])
            self.fit(files)
            archive = self.finder.serve(files, order["module"])
            try:
                code = call(order, files, archive)
            finally:
                archive.remove()
        except BaseException:  # noqa: BLE001  # nothing may come back into the loop of the parent
            sys.excepthook(*sys.exc_info())
        leave(code)

    def fit(self, files: dict[str, Any]) -> None:
        """Leave in sys.modules only what this payload has, as it has it."""
        there = [name for name in sys.modules if ours(name)]
        other = any(name in files and self.loaded.get(name) != files[name][1] for name in there)
        for name in there:
            if other or name not in files:
                self.forget(name)


def main(ask_groups: bool) -> None:
    inp, out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if null > 2:
        os.close(null)
    sys.path[:] = [path for path in sys.path if path not in ("", ".")]
    far = Far(inp, out, ask_groups)
    sys.meta_path.insert(0, far.finder)
    hello = {"magic": importlib.util.MAGIC_NUMBER.hex()}
    os.write(out, MAGIC)
    far.say(b"H", 0, json.dumps(hello).encode())
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        far.serve()
    for task in far.tasks.values():
        if task.kill_at is not None:  # it was to be ended, and there is no more time to be kind
            far.kill(task, signal.SIGKILL)
    os._exit(0)
