# SPDX-License-Identifier: GPL-3.0-or-later
"""
Forbids this process to start other processes, permanently, and then runs a Python program or module in it.

    python tests/sealing.py -m forkless playbook site.yml

There are two layers. The kernel (seccomp) returns EPERM for fork, vfork, execve, execveat and a clone that is not a thread. In
Python, the modules that do not exist on a phone cannot be imported. The program runs in this same process, without an exec.
"""

from __future__ import annotations

import ctypes
import errno
import os
import runpy
import struct
import subprocess  # it imports _posixsubprocess unless sys.platform is a phone's, so it is imported before the seal
import sys

ABSENT = (
    "_multiprocessing", "_posixshmem", "_posixsubprocess", "pwd", "grp", "readline", "syslog", "_curses", "curses", "resource",
)  # fmt: skip
STARTERS = ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "execv", "execve")

CLONE_THREAD = 0x00010000
ALLOW, DENY, NO_SUCH_CALL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
# machine: (audit architecture, seccomp, clone, clone3, calls that start a process or replace this one)
MACHINES = {
    "x86_64": (0xC000003E, 317, 56, 435, (57, 58, 59, 322)),
    "aarch64": (0xC00000B7, 277, 220, 435, (221, 281)),
}
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06


def program(machine):
    """
    The filter as BPF instructions. A filter cannot read the flags of clone3, which are behind a pointer, so clone3 returns
    ENOSYS, and libc uses clone for threads.
    """
    architecture, _, clone, clone3, denied = MACHINES[machine]
    tests = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, DENY), (LOAD, 0, 0, 0)]
    for number in denied:
        tests += [(EQUAL, 0, 1, number), (RETURN, 0, 0, DENY)]
    tests += [(EQUAL, 0, 1, clone3), (RETURN, 0, 0, NO_SUCH_CALL)]
    tests += [(EQUAL, 0, 3, clone), (LOAD, 0, 0, 16), (ANY_BIT, 1, 0, CLONE_THREAD), (RETURN, 0, 0, DENY)]
    return [*tests, (RETURN, 0, 0, ALLOW)]


def deny_unshare():
    """From now on unshare(2) returns EPERM, as under the default profiles of Docker and Kubernetes."""
    machine = _machine()
    number = {"x86_64": 272, "aarch64": 97}[machine]
    _filter(machine, [(LOAD, 0, 0, 0), (EQUAL, 0, 1, number), (RETURN, 0, 0, DENY), (RETURN, 0, 0, ALLOW)])


def _machine():
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"no filter is written for {machine}")
    return machine


def seal_kernel():
    machine = _machine()
    _filter(machine, program(machine))


def _filter(machine, instructions):
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in instructions))

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    wanted = Filter(len(instructions), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    word = ctypes.c_ulong
    if libc.prctl(38, word(1), word(0), word(0), word(0)):  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    # SECCOMP_SET_MODE_FILTER with TSYNC applies to all threads of the process.
    if libc.syscall(ctypes.c_long(MACHINES[machine][1]), word(1), word(1), ctypes.byref(wanted)):
        raise OSError(ctypes.get_errno(), "seccomp")


def seal_python():
    def cannot(*_args, **_kwargs):
        raise OSError(errno.ENOTSUP, "sealed: no processes here")

    subprocess._fork_exec, subprocess._can_fork_exec = cannot, False
    subprocess._USE_POSIX_SPAWN = subprocess._USE_VFORK = False
    for name in ABSENT:
        sys.modules[name] = None
    for name in STARTERS:
        for module in (os, sys.modules["posix"]):
            if hasattr(module, name):
                delattr(module, name)


def seal():
    seal_python()
    seal_kernel()


if __name__ == "__main__":
    argv = sys.argv[1:]
    seal()
    print("sealed", flush=True)
    if argv[0] == "-m":
        sys.argv = argv[1:]
        sys.path[0] = ""
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
        runpy.run_path(argv[0], run_name="__main__")
