# SPDX-License-Identifier: GPL-3.0-or-later
"""
A process and its descendants, found so that all of them can be ended.

Killing the process group is not enough: since ansible-core 2.19 every worker calls setsid(), so killpg of the first process
leaves the workers running.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

__all__ = [
    "OF_WHOLE_RUN",
    "ProcessGroup",
    "ProcessTree",
    "children_of_thread",
    "environ_of",
    "start_time",
    "wait_for_end",
]

# Ansible's async jobs must outlive the play that started them. Their environment contains this variable.
_OUTLIVES = b"ANSIBLE_ASYNC_DIR="

# Seconds in which processes that were stopped are expected to stand still. One that waits for a disk, or is another user's, does not.
_STILL = 0.5

# Process ids of children that a thread has started for others too, such as warm interpreters: they do not end with what the thread works for.
OF_WHOLE_RUN: set[int] = set()


# Linux: children that tell of their end by another signal than SIGCHLD are meant, too.
_ALL_KINDS = 0x40000000


def _has_children() -> bool:
    """Whether any thread of this process has children, or may have. Nothing is waited for, and none is reaped."""
    if sys.platform != "linux":
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _ALL_KINDS)
    except ChildProcessError:
        return False
    except OSError:  # a kernel that does not know one of these
        return True
    return True


def children_of_thread(number: int) -> set[int]:
    """
    The children that a thread of this process, by the kernel's number, has started in any way: by a library, or in C. Linux only; elsewhere empty.

    A child that has ended is among them until it is reaped, so none of these ids can be another process's meanwhile.
    """
    if not _has_children():
        return set()
    try:
        # Not open(), which asks five more questions: workers do this for every task, and each question lets another thread run.
        children = os.open(f"/proc/self/task/{number}/children", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = b""
            while part := os.read(children, 1 << 16):
                text += part
        finally:
            os.close(children)
    except OSError:  # no such file on this system, or the thread has ended
        return set()
    found = {int(pid) for pid in text.split()}
    tracker = sys.modules.get("multiprocessing.resource_tracker")  # the stdlib starts it once, for the whole program
    return found - OF_WHOLE_RUN - {getattr(getattr(tracker, "_resource_tracker", None), "_pid", None)}


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    group: int
    session: int
    born: str
    """Start time since boot. Process ids are reused; the pair of id and start time is unique."""
    ended: bool = False


def _read_proc(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The program's name is in brackets and may itself contain spaces and brackets: split after the last bracket.
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return _Process(int(fields[1]), int(fields[2]), int(fields[3]), fields[19].decode(), fields[0] in (b"Z", b"X"))


def start_time(pid: int) -> str | None:
    """When this process was started: with its id this names it for ever. None if there is no such process, or no /proc."""
    there = _read_proc(pid)
    return None if there is None else there.born


def _children(pid: int) -> set[int]:
    """The children of a process, of all its threads. Linux only; elsewhere empty."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{number}/children", "rb") as children:
                found |= {int(child) for child in children.read().split()}
    return found


def _descendants(pid: int, born: str | None, without: dict[int, str]) -> dict[int, _Process]:
    """The process that was started at `born` (None: whenever), and its descendants without those named. Linux only; elsewhere empty."""
    found: dict[int, _Process] = {}
    todo: list[tuple[int, int | None]] = [(pid, None)]
    while todo:
        one, parent = todo.pop()
        there = _read_proc(one)
        if there is None or one in found or without.get(one) == there.born:
            continue
        if (
            (born not in (None, there.born)) if parent is None else (there.parent != parent)
        ):  # another process has the id
            continue
        found[one] = there
        todo += [(child, one) for child in _children(one)]
    return found


def _stands_still(pid: int) -> bool:
    """Whether no thread of the process runs: it was stopped, or has ended. Linux only; elsewhere True."""
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{number}/stat", "rb") as stat:
                if stat.read().rpartition(b")")[2].split()[0] not in (b"T", b"t", b"Z", b"X"):
                    return False
    return True


def _ask_ps() -> dict[int, _Process]:
    """The process table from ps(1), for systems without /proc: macOS and the BSDs."""
    asked = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid=,sess=,stat=,lstart="], capture_output=True, text=True, check=False
    )
    found = {}
    for line in asked.stdout.splitlines():
        words = line.split(None, 5)
        with contextlib.suppress(ValueError, IndexError):
            session = int(words[3]) if words[3].isdigit() else 0
            found[int(words[0])] = _Process(int(words[1]), int(words[2]), session, words[5], words[4].startswith("Z"))
    return found


def _everyone() -> dict[int, _Process]:
    if not os.path.exists("/proc/self/stat"):
        return _ask_ps()
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return {pid: found for pid in numbers if (found := _read_proc(pid)) is not None}


def _one(pid: int) -> _Process | None:
    return _read_proc(pid) if os.path.exists("/proc/self/stat") else _ask_ps().get(pid)


def _environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return environ.read()
    except OSError:  # the process ended, or belongs to another user
        return b""


def environ_of(pid: int) -> dict[str, str]:
    pairs = (line.partition(b"=") for line in _environ(pid).split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}


def _signal(pid: int, born: str, number: signal.Signals) -> None:
    """Send a signal to the process that was started at `born`, never to another process that reused its id."""
    with contextlib.suppress(OSError):
        if hasattr(os, "pidfd_open"):
            handle = os.pidfd_open(pid)
            try:
                there = _one(pid)
                if there is not None and there.born == born:
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)
        else:
            there = _one(pid)
            if there is not None and there.born == born:
                os.kill(pid, number)


def wait_for_end(pid: int, seconds: float) -> bool:
    """Whether `pid` ended within `seconds`. A zombie counts as ended."""
    deadline = time.monotonic() + seconds
    if hasattr(os, "pidfd_open"):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        except OSError:  # no descriptors left, or the kernel has no pidfd_open: poll the process table
            pass
        else:
            try:
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                return bool(poll.poll(max(0, int(seconds * 1000))))
            finally:
                os.close(handle)
    pause = 0.001
    while True:
        there = _one(pid)
        if there is None or there.ended:
            return True
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(pause * 2, 0.05)


class ProcessTree:
    """
    All descendants of `pid`, and all processes in its process group and session.

    `mark` is an environment variable (`NAME=value`) that only this run's processes have. It finds orphans: a process whose
    parent ended is adopted by init, and its parent id no longer leads to `pid`. `born` is the start time of the process that is meant, if
    that may have ended: the tree of another one with its id is empty.
    """

    def __init__(self, pid: int, mark: str = "", *, born: str | None = None) -> None:
        self.pid = pid
        self._born = born
        name, _, value = mark.partition("=")
        # If this program is itself part of a run, it and its parents have that run's mark: then the mark proves nothing.
        inherited = not mark or os.environ.get(name) == value or environ_of(os.getpid()).get(name) == value
        self._mark = b"" if inherited else mark.encode() + b"\0"
        self._known: dict[int, str] = {}
        self.look()

    def look(self) -> set[int]:
        """Scan the process table; return the process ids that were not known before."""
        everyone = _everyone()
        me = everyone.get(os.getpid())
        root = everyone.get(self.pid)
        if root is not None and self._born not in (None, root.born):
            root = None
        ours = {pid for pid, born in self._known.items() if pid in everyone and everyone[pid].born == born}
        if root is not None and (not self._known or self.pid in ours):
            ours.add(self.pid)
            # A child that was started without a new process group shares this program's group, which must not be signalled.
            if me is not None:
                ours.update(
                    pid
                    for pid, one in everyone.items()
                    if (one.group == root.group != me.group) or (one.session == root.session != me.session)
                )
        while True:
            more = {pid for pid, one in everyone.items() if one.parent in ours and pid not in ours}
            if not more:
                break
            ours |= more
        if self._mark:
            for pid in everyone.keys() - ours:
                environ = _environ(pid)
                if self._mark in environ and _OUTLIVES not in environ:
                    ours.add(pid)
        ours.discard(os.getpid())
        fresh = {pid for pid in ours if self._known.get(pid) != everyone[pid].born}
        self._known.update({pid: everyone[pid].born for pid in fresh})
        return fresh

    def alive(self) -> list[int]:
        """The process ids of the tree that still run."""
        self.look()
        return [
            pid
            for pid, born in self._known.items()
            if (there := _one(pid)) is not None and there.born == born and not there.ended
        ]

    def ask(self, number: signal.Signals) -> None:
        """Send a signal to the first process only, so that it can end its own children."""
        if self.pid in self._known:
            _signal(self.pid, self._known[self.pid], number)

    def ask_all(self, number: signal.Signals) -> None:
        """
        Send a signal to every process of the tree, also to one that another was just starting: once its parent has ended by the signal, it
        could not be found.
        """
        self.freeze()
        for again in (number, signal.SIGCONT):
            for pid, born in self._known.items():
                _signal(pid, born, again)

    def freeze(self) -> None:
        """Stop all processes (SIGSTOP), until a scan finds no new one: a stopped process cannot start another."""
        fresh = set(self._known) | self.look()
        leader = _one(self.pid)
        if leader is not None and leader.born == self._known.get(self.pid) and leader.group == self.pid != os.getpgrp():
            with contextlib.suppress(OSError):
                os.killpg(
                    self.pid, signal.SIGSTOP
                )  # all at once: some may start the next one and end, faster than they are scanned
            fresh |= self.look()
        limit = time.monotonic() + 5.0  # other users' processes cannot be stopped, and may start more for ever
        while fresh and time.monotonic() < limit:
            for pid in fresh:
                _signal(pid, self._known[pid], signal.SIGSTOP)
            deadline = time.monotonic() + _STILL
            while not all(map(_stands_still, fresh)) and time.monotonic() < deadline:
                time.sleep(0.001)
            fresh = self.look()

    def kill(self) -> None:
        """
        Kill every process of the tree. Blocks until they have ended, at most 5 seconds for each.

        They are killed when all stand still, because the children of a killed process are adopted by init and no longer found by parent id.
        """
        self.freeze()
        for pid, born in self._known.items():
            _signal(pid, born, signal.SIGKILL)
        for pid, born in self._known.items():
            there = _one(pid)
            if there is not None and there.born == born:
                wait_for_end(pid, 5.0)
        # A program that is process 1 of a container, or a subreaper, inherits the orphans and must reap them. The first
        # process is left to the code that started it, which needs its exit status.
        for pid in self._known.keys() - {self.pid}:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def end(self, grace: float, number: signal.Signals | None = signal.SIGTERM) -> None:
        """
        Send `number` to the first process, wait up to `grace` seconds for it, then kill what is left of the tree. None: the process
        has been asked already.
        """
        if grace > 0:
            if number is not None:
                self.ask(number)
            wait_for_end(self.pid, grace)
        self.kill()


class ProcessGroup:
    """
    The process group that a child of this process leads, as `pid` since `born` (None: not known).

    A process that was in the group when it was asked to end is killed with it, although it may have left it since (setsid), as is what it
    has started since. One that had left before is a daemon, which is to stay.
    """

    def __init__(self, pid: int, born: str | None = None) -> None:
        self.pid, self._born = pid, born
        self._members: dict[int, str] = {}
        self._daemons: dict[int, str] = {}

    def ask(self, number: signal.Signals) -> bool:
        """Send a signal to all; False if there is none."""
        for pid, found in _descendants(self.pid, self._born, {}).items():
            (self._members if found.group == self.pid else self._daemons)[pid] = found.born
        return self._send(number)

    def kill(self) -> None:
        """Kill all. Blocks until those that have left the group have ended, at most 5 seconds for each."""
        self._send(signal.SIGSTOP)
        for pid, born in tuple(self._members.items()):
            self._members |= {one: found.born for one, found in _descendants(pid, born, self._daemons).items()}
        self._send(signal.SIGKILL)
        for pid, born in self._members.items():
            there = _read_proc(pid)
            if there is not None and there.born == born and there.group != self.pid and not there.ended:
                ProcessTree(pid, born=born).kill()

    def _send(self, number: signal.Signals) -> bool:
        now = start_time(self.pid)
        if None not in (now, self._born) and now != self._born:  # all have ended, and another process has the id
            return False
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True
