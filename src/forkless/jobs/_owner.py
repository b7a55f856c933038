# SPDX-License-Identifier: GPL-3.0-or-later
"""Who claims a job: this controller, told apart from every other one, and whether such a one is still there."""

from __future__ import annotations

import multiprocessing.process
import os
import socket
from typing import Any

__all__ = ["is_gone", "me", "words"]


def me() -> dict[str, Any]:
    """
    The program that runs the play, not the worker that runs the task: ansible-playbook forks one worker per task, and a
    claim must outlive it.
    """
    parent = multiprocessing.process.parent_process()
    pid = os.getpid()
    if parent is not None and parent.pid and parent.pid == os.getppid():
        pid = parent.pid
    return {"machine": socket.gethostname(), "boot": _boot(), "pids": _namespace(), "pid": pid, "start": _start(pid)}


def is_gone(owner: dict[str, Any]) -> bool:
    """
    Whether that controller is known to have ended. False when it cannot be known from here: it lives on another machine
    or in another container, or this system does not tell when a process was started.
    """
    here = me()
    if not here["boot"] or not owner.get("start") or owner.get("machine") != here["machine"]:
        return False
    if owner.get("boot") != here["boot"]:
        return True  # the same machine, started anew since
    if owner.get("pids") != here["pids"] or not isinstance(owner.get("pid"), int):
        return False
    return bool(_start(owner["pid"]) != owner["start"])


def words(owner: dict[str, Any]) -> str:
    return f"process {owner.get('pid', '?')} on {owner.get('machine', 'an unknown machine')}"


def _boot() -> str:
    return _text("/proc/sys/kernel/random/boot_id").strip()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start(pid: int) -> str:
    """When a process was started, in the kernel's own ticks: a number that no clock jump changes. "" if it is not there."""
    after_name = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return after_name[19] if len(after_name) > 19 and after_name[0] not in "ZX" else ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
