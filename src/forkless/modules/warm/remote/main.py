# SPDX-License-Identifier: GPL-3.0-or-later
"""
The warm interpreter on the host: a single-threaded process that runs each module in a fork of itself.

Sent as text and never installed; needs only the stdlib of 3.8. The command that would start a module starts it (same
shell, user and environment), and each fork is what that command would have become: its own session, folder, environment
and streams. ansible-core's own module_utils are imported before the fork, everything else after it. The process ends
when its stdin does.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.machinery
import json
import os
import select
import signal
import site
import stat
import struct
import sys
import tempfile
import threading
import time
import zlib
from typing import Any

from forkless.modules.warm.remote.async_job import (  # its text is sent before the first order that has `argv`
    CommandLine,
    command_line,
    fork_in_place_of,
)
from forkless.modules.warm.remote.child import (  # on the host, its text comes first
    call,
    colour_as_on_a_terminal,
    escalation_settings,
    exit_now,
    forget_machine,
    limit,
    look_again,
    make_folder,
    read_nothing,
    remove_files,
    remove_folder,
    start_programs_quickly,
    tell_output,
    write_files,
)
from forkless.modules.warm.remote.importer import Importer, SourceFile  # likewise
from forkless.modules.warm.remote.live_output import OutputReader  # its text is sent before the first order with `live`

HEAD = struct.Struct(">IIc")  # length of the body, number of the task, kind
MAGIC = b"\0\0forkless-warm\0"  # precedes the greeting, which BOOT on the controller's side writes
INSIST = 0.3  # seconds between SIGTERM and SIGKILL

# Files that a login reads: if a task changes one, the next task must see it.
LOGIN = (
    "/etc/environment", "/etc/security/pam_env.conf", "/etc/profile", "/etc/bash.bashrc", "/etc/bashrc", "/etc/zshenv",
    "~/.pam_environment", "~/.ssh/environment", "~/.ssh/rc", "~/.bashrc", "~/.bash_profile", "~/.profile", "~/.zshenv",
)  # fmt: skip


class ModuleProcess:
    def __init__(self, number: int, pid: int, out: int, err: int, *, starts_job: bool) -> None:
        self.number, self.pid, self.starts_job = number, pid, starts_job
        self.pipes = {out: b"O", err: b"E"}
        self.kill_at: float | None = None


def ours(name: str) -> bool:
    return name in ("ansible", "ansible_collections") or name.startswith(("ansible.", "ansible_collections."))


class RemoteServer:
    def __init__(self, inp: int, out: int, ask_groups: bool) -> None:
        self.inp, self.out = inp, out
        self.poll = select.poll()
        self.tasks: dict[int, ModuleProcess] = {}
        # Output of modules' programs, by the number of the order, if the run has a listener. That of a job outlives its order.
        self.live: dict[int, OutputReader] = {}
        self.sources: dict[str, SourceFile] = {}
        self.payloads: dict[str, dict[str, Any]] = {}
        self.finder = Importer()
        self.loaded: dict[str, str] = {}
        self.ask_groups = ask_groups
        self.shows: CommandLine | None = None
        self.usable: set[str] = set()  # remote_tmp folders
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
        """State that a fresh interpreter would read: if it has changed, this process is stale and must not fork."""
        seen: list[Any] = []
        for place in self.places:
            try:
                found = os.stat(place)
                seen.append((found.st_mtime_ns, found.st_ino))
            except OSError:
                seen.append(None)
        if self.ask_groups:
            try:
                import pwd  # not at the top: the controller imports this file and may have no pwd

                user = pwd.getpwuid(os.geteuid())
                seen.append((tuple(user), sorted(os.getgrouplist(user.pw_name, user.pw_gid))))
            except (KeyError, OSError):
                seen.append(None)
            seen.append(escalation_settings())
        return seen

    # -- frames

    def say(self, kind: bytes, number: int = 0, body: bytes = b"") -> None:
        left = memoryview(HEAD.pack(len(body), number, kind) + body)
        while left:
            left = left[os.write(self.out, left) :]

    def serve(self) -> None:
        self.poll.register(self.inp, select.POLLIN)
        waiting = bytearray()
        while True:
            leaving = [task for task in self.tasks.values() if not task.pipes or task.kill_at is not None]
            ready = self.poll.poll(20 if leaving else self.until_due())
            # Orders last: they may close a pipe that is ready, and a new task's pipe may get its number.
            for fd, _ in sorted(ready, key=lambda one: one[0] == self.inp):
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
            self.tell_live()
            self.reap()

    # -- output while a task runs

    def until_due(self) -> float | None:
        """Milliseconds until the next lines are due; None if none wait."""
        due = [one.lines.due for one in self.live.values() if one.lines.due is not None]
        return max(0.0, (min(due) - time.monotonic()) * 1000 + 1) if due else None

    def hear_live(self, fd: int, number: int) -> None:
        self.live[number].read()
        if self.live[number].fd is None:
            self.poll.unregister(fd)
            if number not in self.tasks:  # a job's
                self.end_live(number)

    def tell_live(self) -> None:
        """Send the lines that are due."""
        now = time.monotonic()
        for number, reader in self.live.items():
            if reader.lines.due is not None and reader.lines.due <= now:
                self.say_lines(number, reader)

    def say_lines(self, number: int, reader: OutputReader) -> None:
        for stream, dropped, text in reader.lines.take(time.monotonic()):
            self.say(b"V", number, struct.pack(">cI", stream, dropped) + text)

    def end_live(self, number: int) -> None:
        """The module has ended, or nobody listens any more."""
        reader = self.live.pop(number, None)
        if reader is not None:
            if reader.fd is not None:
                self.poll.unregister(reader.fd)
            reader.read_rest()
            self.say_lines(number, reader)

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
            self.answer_request(number, json.loads(body))
        elif kind == b"B":  # another file of this program
            exec(zlib.decompress(body), globals())  # noqa: S102  # the sender may run any code here anyway
        elif kind == b"K" and number in self.tasks:
            task = self.tasks[number]
            self.kill(task, signal.SIGTERM)
            task.kill_at = time.monotonic() + INSIST

    def take_files(self, body: bytes) -> None:
        line, _, rest = body.partition(b"\n")
        at = 0
        for key, path, text, code in json.loads(line):
            packed = rest[at + text : at + text + code] or None
            self.sources[key] = SourceFile(path, rest[at : at + text], packed)
            at += text + code

    def relay(self, fd: int) -> None:
        for number, reader in self.live.items():
            if fd == reader.fd:
                self.hear_live(fd, number)
                return
        task = next(one for one in self.tasks.values() if fd in one.pipes)
        chunk = os.read(fd, 1 << 18)
        if chunk:
            self.say(task.pipes[fd], task.number, chunk)
        else:
            self.drop(task, fd)

    def drop(self, task: ModuleProcess, fd: int) -> None:
        self.poll.unregister(fd)
        os.close(fd)
        del task.pipes[fd]

    def kill(self, task: ModuleProcess, number: int) -> None:
        try:
            os.killpg(task.pid, number)
        except OSError:  # it has not called setsid yet, or has ended
            with contextlib.suppress(OSError):
                os.kill(task.pid, number)

    def reap(self) -> None:
        """A task is over when it has ended and no process holds its streams, as with subprocess.communicate."""
        for task in list(self.tasks.values()):
            if task.kill_at is not None and time.monotonic() >= task.kill_at:
                self.kill(task, signal.SIGKILL)
                task.kill_at = None
                for fd in list(task.pipes):  # a process outside the group survives unread
                    self.drop(task, fd)
            if task.pipes or task.kill_at is not None:  # unreaped, so its pid is not reused
                continue
            pid, status = os.waitpid(task.pid, os.WNOHANG)
            if pid:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                reader = self.live.get(task.number)
                if reader is not None and (reader.fd is None or not task.starts_job):
                    self.end_live(task.number)
                del self.tasks[task.number]
                self.say(b"X", task.number, str(code).encode())

    # -- before the fork

    def warm_up(self, files: dict[str, Any], core: list[str]) -> None:
        """Import ansible-core's own files. An import that warns or starts a thread is undone and left to the module."""
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
            except BaseException:  # noqa: BLE001  # the module's own import reports it
                quiet = False
            if not quiet:
                for new in set(sys.modules) - before:
                    if ours(new):
                        self.forget(new)
                self.unsay(said)
        for _, _, source in files.values():  # compile the rest, without running it
            with contextlib.suppress(Exception):
                source.code()
        start_programs_quickly()
        for name in filter(ours, list(sys.modules)):
            self.loaded.setdefault(name, files[name][1] if name in files else "")
        # The collector skips frozen objects: fewer pages are copied after fork, and exits are fast. Collecting before would cost more than all
        # the garbage of these imports is worth.
        gc.freeze()

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
        if order["argv"]:
            self.shows = command_line()
            # A job is found by async_wrapper's command line, as far as the job's id.
            if self.shows is None or not self.shows.has_room([*order["interpreter"], *order["argv"][:2]]):
                self.say(b"N", number, b"the command line of a job cannot be shown here")
                return
        try:
            place = make_folder(order["remote_tmp"], self.usable)
            if place is not None:  # nobody needs to ask
                self.say(b"T", number, json.dumps([order["remote_tmp"][0], place]).encode())
        except OSError:
            self.say(b"N", number, b"remote_tmp cannot be used")
            return
        try:
            if order["lay"]:
                write_files(order["lay"])
        except OSError as error:
            self.say(b"N", number, str(error).encode())
            return
        if order["one_stream"] and sys.version_info >= (3, 13):
            with contextlib.suppress(ImportError):  # it is CPython's own
                importlib.import_module("_colorize")  # once for all modules: it takes longer than a small module
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            if order.get("live"):
                ends += os.pipe()
            pid = os.fork()
        except OSError as error:
            for fd in ends:
                os.close(fd)
            if order["lay"]:
                remove_files(order["lay"])
            self.say(b"N", number, str(error).encode())
            return
        out, out_end, err, err_end, *live = ends
        if pid == 0:
            self.become_the_module(order, files, cwd, out_end, err_end, live)
        os.close(out_end)
        os.close(err_end)
        self.tasks[number] = ModuleProcess(number, pid, out, err, starts_job=order["job"] is not None)
        if live:
            os.close(live[1])
            self.live[number] = OutputReader(live[0])
            self.poll.register(live[0], select.POLLIN | select.POLLHUP)
        self.poll.register(out, select.POLLIN | select.POLLHUP)
        self.poll.register(err, select.POLLIN | select.POLLHUP)

    def answer_request(self, number: int, request: dict[str, Any]) -> None:
        """Do what stock Ansible starts a shell for."""
        try:
            if "lay" in request:
                write_files(request["lay"])
            elif "remove" in request:
                remove_folder(request["remove"])
            elif "end_live" in request:
                self.end_live(request["end_live"])
            else:
                self.say(b"O", number, os.path.expanduser(request["expand"]).encode(errors="surrogateescape"))
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
            return True  # an unreadable folder can still be the current one

    # -- after the fork

    def become_the_module(
        self, order: dict[str, Any], files: dict[str, Any], cwd: str | None, out: int, err: int, live: list[int]
    ) -> None:
        code = 1
        try:
            gc.enable()  # BOOT disabled it
            os.setsid()
            os.dup2(out, 1)
            os.dup2(out if order["one_stream"] else err, 2)
            if order["one_stream"]:
                sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
                colour_as_on_a_terminal()
            else:
                read_nothing()
            others = [fd for task in self.tasks.values() for fd in task.pipes]
            others += [reader.fd for reader in self.live.values() if reader.fd is not None]
            for fd in (out, err, self.inp, self.out, *live[:1], *others):
                if fd > 2:
                    os.close(fd)
            self.tasks.clear()
            self.live.clear()
            if cwd:
                with contextlib.suppress(OSError):
                    os.chdir(cwd)
            if order["cwd"] and "PWD" in os.environ:
                os.environ["PWD"] = order["cwd"]
            os.environ.update(order["environ"])
            time.tzset()
            tempfile.tempdir = None
            forget_machine()
            look_again()
            limit(order["rlimit"])
            self.fit(files if order["job"] is None else self.payloads[order["job"]["digest"]])
            archive = self.finder.serve(files, order["module"])
            if live and order["job"] is None:
                tell_output(live[1], order["fqn"], order.get("secrets", ()))
            if order["argv"] and self.shows is not None:
                self.shows.show([*order["interpreter"], *order["argv"]])
            if order["job"] is not None and self.shows is not None:
                start = functools.partial(self.start_job, order["job"], set(sys.modules), live[1:])
                fork_in_place_of([*order["job"]["interpreter"], *order["job"]["argv"]], self.shows, start)
            try:
                code = call(order, files, self.finder)
            finally:
                archive.remove()
        except BaseException:  # noqa: BLE001  # the child must never return into the server's loop
            sys.excepthook(*sys.exc_info())
        exit_now(code)

    def start_job(self, order: dict[str, str], before: set[str], live: list[int]) -> int:
        """The module that async_wrapper starts, in its own process; `before`: what was imported when async_wrapper was not."""
        for name in filter(ours, set(sys.modules) - before):
            self.forget(name)
        files = self.payloads[order["digest"]]
        archive = self.finder.serve(files, order["module"])
        if live:
            tell_output(live[0], order["fqn"], order.get("secrets", ()))
        try:
            return call(order, files, self.finder)
        finally:
            archive.remove()

    def fit(self, files: dict[str, Any]) -> None:
        """Remove Ansible modules from sys.modules that this payload lacks or has in another version."""
        there = [name for name in sys.modules if ours(name)]
        other = any(name in files and self.loaded.get(name) != files[name][1] for name in there)
        for name in there:
            if other or name not in files:
                self.forget(name)


def main(ask_groups: bool) -> None:
    signal.alarm(0)  # the command line's, for a program that does not come
    handler, blocked = globals().get("alarm", (signal.SIG_DFL, ()))  # as they were before, which modules inherit
    signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    inp, out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if null > 2:
        os.close(null)
    sys.path[:] = [path for path in sys.path if path not in ("", ".")]
    far = RemoteServer(inp, out, ask_groups)
    sys.meta_path.insert(0, far.finder)
    sys.excepthook = globals().get("excepthook", sys.excepthook)  # the command line's own says that this program failed
    far.say(b"S")  # until here no order can have started anything
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        far.serve()
    for task in far.tasks.values():
        # A task that was already sent SIGTERM is killed. The others lost their connection, which for a program on a
        # terminal means SIGHUP.
        far.kill(task, signal.SIGHUP if task.kill_at is None else signal.SIGKILL)
    os._exit(0)
