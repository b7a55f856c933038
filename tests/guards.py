# SPDX-License-Identifier: GPL-3.0-or-later
"""What the two guards in conftest.py check."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

FORKS = ("os.fork", "os.forkpty")
SPAWNS = ("subprocess.Popen", "os.posix_spawn", "os.system", "os.exec", "pty.spawn")

# The most seconds that something may take to end (a thread after its last statement, a child that is being reaped).
# A clean test does not wait, so a slow machine does not make it fail.
GRACE = 30.0

# Names that this project, or a project that it replaces, is known to patch.
WATCHED = (
    "builtins:open",
    "?concurrent.futures.process:os",
    "os:_exit",
    "os:chdir",
    "os:dup2",
    "os:environ",
    "os:fork",
    "os:getpid",
    "os:kill",
    "os:setsid",
    "os:umask",
    "signal:alarm",
    "signal:setitimer",
    "signal:signal",
    "subprocess:Popen",
    "sys:stderr",
    "sys:stdin",
    "sys:stdout",
    "threading:Thread.run",
    "threading:Thread.start",
    "threading:current_thread",
    "time:sleep",
    # checked only if this test, or an earlier one, has imported them
    "?_multiprocessing:SemLock",
    "?ansible.context:CLIARGS",
    "?ansible.executor.process.worker:WorkerProcess",
    "?ansible.executor.task_queue_manager:os",
    "?ansible.executor.task_queue_manager:signal",
    "?ansible.plugins.strategy:WorkerProcess",
    "?ansible.utils.display:Display.set_queue",
    "?ansible_runner.runner:pexpect",
    "?multiprocessing.context:_concrete_contexts",
    "?multiprocessing.process:current_process",
    "?multiprocessing.synchronize:SemLock",
    "?multiprocessing:current_process",
    "?multiprocessing:get_context",
    "?pexpect:spawn",
)


class ForkWatch:
    """Records forks and program starts. An audit hook cannot be removed, so there is one hook for all tests."""

    def __init__(self) -> None:
        self._log: list[tuple[str, str]] = []
        self._pid = os.getpid()
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if event in FORKS or event in SPAWNS:
            if os.getpid() != self._pid:
                return
            where = "".join(traceback.format_stack(limit=6)[:-1])
            self._log.append((event, f"{event} in thread {threading.current_thread().name}:\n{where}"))

    def clear(self) -> None:
        self._log.clear()

    def seen(self, events: tuple[str, ...]) -> list[str]:
        return [text for event, text in self._log if event in events]


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor with which the folder was listed
            continue
    return found


def _children() -> set[int]:
    found: set[int] = set()
    for task in pathlib.Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (task / "children").read_text().split()))
        except OSError:  # the thread has ended
            continue
    return found


# A variable in the environment of every program that tests start, unless a test gives the program a new environment.
MARK = "FORKLESS_TESTS"


def mark_what_is_started() -> None:
    os.environ[MARK] = f"{os.getpid()}.{time.time_ns()}"


def end_what_is_left() -> list[str]:
    """Kills programs with the mark of this process that still run after the grace time; returns their command lines."""
    deadline = time.monotonic() + GRACE
    while (left := _marked(os.environ[MARK])) and time.monotonic() < deadline:
        time.sleep(0.1)
    _kill(left)
    return [f"{pid}: {words}" for pid, words in left.items()]


def end_what_is_started_with_us() -> None:
    """
    Have programs with the mark of this process killed when it has ended, however it did. A time limit ends it on the spot, and `forkless serve`,
    its workers and their PostgreSQL would go on.
    """
    watch = subprocess.Popen(
        [sys.executable, __file__, os.environ[MARK]], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != MARK}, start_new_session=True,
    )  # fmt: skip
    _ends_with_us.append(watch.stdin)
    watch.wait()  # it goes on in a fork, which is nobody's child: a test may look at all children of this process


_ends_with_us: list[object] = []


def _watch(mark: str) -> None:
    """The program that `end_what_is_started_with_us` starts."""
    if os.fork():
        return
    sys.stdin.buffer.read()  # ends with the process that has the other end
    # What a program starts while it is killed has the mark as well.
    deadline = time.monotonic() + 60.0
    while (left := _marked(mark)) and time.monotonic() < deadline:
        _kill(left)
        time.sleep(0.05)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _marked(value: str) -> dict[int, str]:
    mark = f"{MARK}={value}\0".encode()
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
    return found


def _umask() -> str:
    status = pathlib.Path("/proc/thread-self/status").read_text()
    return next(line.split()[1] for line in status.splitlines() if line.startswith("Umask"))


def _resolve(site: str) -> object:
    optional, site = site.startswith("?"), site.lstrip("?")
    module, _, path = site.partition(":")
    if optional and module not in sys.modules:
        return None
    thing: object = importlib.import_module(module)
    for part in path.split("."):
        thing = getattr(thing, part, None)
    return thing


def _identity(site: str) -> tuple[object, object]:
    """The module object and the object at a site. If the module was imported again, a new object is not a patch."""
    thing = _resolve(site)
    module = sys.modules.get(site.lstrip("?").partition(":")[0])
    # A function can be patched by replacing its code; the object stays the same.
    code = getattr(thing, "__code__", None)
    return id(module), dict(thing) if isinstance(thing, dict) else (id(thing), code)


@dataclass
class Belongings:
    threads: set[threading.Thread]
    descriptors: dict[int, str]
    children: set[int]
    names: dict[str, tuple[object, object]]
    cwd: str
    environ: dict[str, str]
    umask: str
    signals: dict[int, object]
    collector: tuple[int, int, int]

    @classmethod
    def now(cls) -> Belongings:
        return cls(
            threads=set(threading.enumerate()),
            descriptors=_descriptors(),
            children=_children(),
            names={site: _identity(site) for site in WATCHED},
            cwd=os.getcwd(),
            environ=dict(os.environ),
            umask=_umask(),
            signals={number: signal.getsignal(number) for number in signal.valid_signals()},
            collector=gc.get_threshold(),
        )

    def what_is_left(self, excused: set[str]) -> list[str]:
        deadline, pause = time.monotonic() + GRACE, 0.01
        while True:
            left = [f"{what}: {text}" for what, text in self._differences() if what not in excused]
            if not left or time.monotonic() > deadline:
                return left
            # Most threads end in a moment: a collection after every test took a third of the time of all tests.
            if pause > 0.05:
                gc.collect()
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _differences(self) -> list[tuple[str, str]]:
        new = Belongings.now()
        # pytest sets this variable, and changes it during a test.
        for environ in (self.environ, new.environ):
            environ.pop("PYTEST_CURRENT_TEST", None)
        out: list[tuple[str, str]] = []
        for thread in new.threads - self.threads:
            if thread.is_alive() and not isinstance(thread, threading._DummyThread):
                frame = sys._current_frames().get(thread.ident or 0)
                where = "".join(traceback.format_stack(frame)[-3:]) if frame else ""
                out.append(("threads", f"{thread.name} is still alive\n{where}"))
        for fd, target in new.descriptors.items():
            if self.descriptors.get(fd) != target and not target.startswith("/proc/"):
                out.append(("descriptors", f"{fd} -> {target} is open"))
        out += [("children", f"process {pid} is still there") for pid in new.children - self.children]
        for site, was in self.names.items():
            is_now = new.names[site]
            if was[0] == is_now[0] and was[1] != is_now[1]:
                out.append(("names", f"{site.lstrip('?')} was replaced"))
        if new.cwd != self.cwd:
            out.append(("cwd", f"{self.cwd} became {new.cwd}"))
        for key in sorted(set(self.environ) | set(new.environ)):
            if self.environ.get(key) != new.environ.get(key):
                out.append(("environ", f"{key}: {self.environ.get(key)!r} became {new.environ.get(key)!r}"))
        if new.umask != self.umask:
            out.append(("umask", f"{self.umask} became {new.umask}"))
        for number, action in self.signals.items():
            if new.signals[number] != action:
                out.append(("signals", f"{signal.Signals(number).name} is handled by {new.signals[number]!r}"))
        if new.collector != self.collector:
            out.append(("collector", f"the thresholds {self.collector} became {new.collector}"))
        return out


if __name__ == "__main__":
    _watch(sys.argv[1])
