# SPDX-License-Identifier: GPL-3.0-or-later
"""The owner of a claim: identifies this controller among all others, and finds out whether an owner has ended."""

from __future__ import annotations

import multiprocessing.process
import os
import socket

from forkless.core.run_context import SCOPE, is_active

__all__ = ["current_run", "is_gone", "me", "run_has_ended", "words"]

# The run of a process that forkless does not run: ansible-playbook, which ends with its run.
_WHOLE_PROCESS = "process"


def me() -> dict[str, object]:
    """
    Identifies the process that runs the play, not the worker that runs the task: ansible-playbook forks one worker per
    task, and a claim must outlive that worker.
    """
    parent = multiprocessing.process.parent_process()
    pid = os.getpid()
    if parent is not None and parent.pid and parent.pid == os.getppid():
        pid = parent.pid
    return {"machine": socket.gethostname(), "boot": _boot(), "pids": _namespace(), "pid": pid, "start": _start(pid)}


def is_gone(owner: object) -> bool:
    """
    Whether that controller is known to have ended. False if this process cannot know: the controller is on another
    machine or in another container, or this system has no start times of processes. A different boot id with the same
    host name proves nothing, because machines that were created from one image can have the same name.
    """
    here = me()
    if (
        not isinstance(owner, dict)
        or not here["boot"]
        or not owner.get("start")
        or not isinstance(owner.get("pid"), int)
    ):
        return False
    if any(owner.get(name) != here[name] for name in ("machine", "boot", "pids")):
        return False
    return bool(_start(owner["pid"]) != owner["start"])


def current_run() -> str:
    """The run that the calling thread works for, unique in the process that `me` identifies. A run carries out one play at a time."""
    scope = SCOPE.get()
    return str(scope.run_number) if scope is not None and scope.run_number else _WHOLE_PROCESS


def run_has_ended(owner: object, run: object) -> bool:
    """Whether this was a run of this very process, and has ended. False for runs of other processes: only these know."""
    return isinstance(run, str) and run.isdecimal() and owner == me() and not is_active(int(run))


def words(owner: object) -> str:
    if not isinstance(owner, dict):
        owner = {}
    return f"process {owner.get('pid', '?')} on {owner.get('machine', 'an unknown machine')}"


def _boot() -> str:
    return _text("/proc/sys/kernel/random/boot_id").strip()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start(pid: int) -> str:
    """The start time of a process in kernel ticks, which clock changes do not affect; "" if there is no such process."""
    after_name = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return after_name[19] if len(after_name) > 19 and after_name[0] not in "ZX" else ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
