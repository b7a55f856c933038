# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which processes belong to an async job on this host. Runs on the target: nothing but the standard library."""

from __future__ import annotations

import os
import signal
import subprocess
import time

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Process(object):
    def __init__(self, pid, ppid, group, session, start, argv):
        self.pid = pid
        self.ppid = ppid
        self.group = group
        self.session = session
        self.start = start  # text; the same for as long as the process lives, and never twice with the same pid
        self.argv = argv


def boot_id():
    """The boot id, which changes only when the host is rebooted."""
    text = _read(BOOT_ID)
    if text:
        return text.decode().strip()
    for name in ("kern.bootsessionuuid", "kern.boottime"):
        try:
            return _printed("sysctl", "-n", name).strip()
        except (OSError, subprocess.CalledProcessError):
            continue
    return ""


def snapshot():
    """Every living process that can be seen, by its pid."""
    return _from_proc() if os.path.exists("/proc/self/stat") else _from_ps()


def hidden():
    """Whether this host shows us only our own processes (hidepid)."""
    return os.path.exists("/proc/self/stat") and not os.path.exists("/proc/1/stat")


def started_at(process):
    """When a process was started, in seconds since the epoch; None if it cannot be told."""
    try:
        for line in _read("/proc/stat").decode().splitlines():
            if line.startswith("btime "):
                return int(line.split()[1]) + int(process.start) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, ValueError, OSError):
        pass
    return None


def wrappers(processes, jid):
    """The supervisor and the runner: both are async_wrapper, with the job's own random number on their command line."""
    number = jid.split(".")[0]
    # The word after the program: an id that somebody made up, such as 600, must not be taken for another job's time limit.
    return [p for p in processes.values() if number in [p.argv[at + 1] for at in _wrapper_words(p.argv)]]


def _wrapper_words(argv):
    return [at for at, word in enumerate(argv[:-1]) if "async_wrapper" in word]


def of_job(processes, jid, slot="", recorded=None, known=None):
    """
    All processes of a job: its wrappers, those that were recorded or are `known` ({pid: start}), what shares a session with
    one of these, what descends from them, and what carries the job's own async folder in its environment.

    A number alone proves nothing: pids and sessions are given out again, in a container from the first one on after each
    restart, while the boot id stays. So a recorded process counts only if it has the recorded start time as well, and a
    session only if such a process is in it. The number at the end of the job id is of no use: that process ends as soon as
    the job has been started.
    """
    seeds = {p.pid for p in wrappers(processes, jid)}
    witnesses = _recorded(recorded or {})
    witnesses.update(known or {})
    seeds.update(pid for pid, start in witnesses.items() if pid in processes and processes[pid].start == start)
    sessions = {processes[pid].session for pid in seeds} - {0, os.getsid(0)}
    mine = seeds | {p.pid for p in processes.values() if p.session in sessions}
    if slot:
        word = b"ANSIBLE_ASYNC_DIR=" + os.fsencode(slot)
        mine.update(
            p.pid for p in processes.values() if word in (_read("/proc/%d/environ" % p.pid) or b"").split(b"\0")
        )
    mine.discard(os.getpid())
    grown = True
    while grown:
        more = {p.pid for p in processes.values() if p.ppid in mine} - mine - {os.getpid()}
        mine |= more
        grown = bool(more)
    return [processes[pid] for pid in sorted(mine)]


def _recorded(recorded):
    """The pids and start times that a record holds, if it was made since this host was started."""
    if not recorded.get("boot") or recorded["boot"] != boot_id():
        return {}
    found = {}
    for name in ("pids", "members"):
        pairs = recorded.get(name)
        for pair in pairs if isinstance(pairs, list) else []:
            if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int):
                found[pair[0]] = str(pair[1])
    return found


def started_anew(recorded):
    """Whether this host, or the container that we see as one, was started anew since the record was made."""
    boot, init = boot_id(), _init()
    return bool(
        (recorded.get("boot") and boot and recorded["boot"] != boot)
        or (recorded.get("init") and init and recorded["init"] != init)
    )


def _init():
    """When the first process was started: of a container, that is when the container was."""
    first = _one("1")
    return first.start if first else ""


def identity(processes, jid, slot=""):
    """What a record keeps about a running job's processes, so that they can be recognised later."""
    found = wrappers(processes, jid)
    if not found:
        return {}
    # The runner leads a group of its own, made by the supervisor, so that all of the job can be signalled at once.
    runner = [p for p in found if p.group == p.pid] or found
    began = started_at(found[0])
    return {
        "boot": boot_id(),
        "init": _init(),
        "session": found[0].session,
        "group": runner[0].group,
        "pids": [[p.pid, p.start] for p in found],
        "members": [[p.pid, p.start] for p in of_job(processes, jid, slot)],
        "started": int(began) if began else int(time.time()),
    }


def send(process, number):
    """Signal this process, and never another one that was given its pid since; whether it was there to be signalled."""
    try:
        fd = os.pidfd_open(process.pid)
    except AttributeError:  # Python 3.8, or no Linux
        fd = None
    except OSError:
        # ESRCH: it has ended. Otherwise the kernel or a sandbox has no pidfds, and the start time is only compared before the signal.
        fd = None
    try:
        there = _one(str(process.pid)) if os.path.exists("/proc/self/stat") else _from_ps().get(process.pid)
        if there is None or there.start != process.start:
            return False
        # What was looked at after the descriptor was opened is what the descriptor refers to.
        if fd is not None:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(process.pid, number)
    except OSError:
        return False
    finally:
        if fd is not None:
            os.close(fd)
    return True


def _from_proc():
    found = (_one(name) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def _one(pid):
    """A process that lives, by the text of its pid."""
    stat = _read("/proc/%s/stat" % pid)
    fields = stat.rpartition(b")")[2].split() if stat else []
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    argv = [word.decode("utf-8", "replace") for word in (_read("/proc/%s/cmdline" % pid) or b"").split(b"\0")]
    return Process(int(pid), int(fields[1]), int(fields[2]), int(fields[3]), fields[19].decode(), argv)


def _from_ps():
    """Where there is no /proc. Sessions and environments cannot be seen there; processes are found by group and parent only."""
    out = _printed("ps", "-A", "-ww", "-o", "pid=,ppid=,pgid=,state=,lstart=,command=")
    found = {}
    for line in out.splitlines():
        words = line.split()
        if len(words) > 9 and not words[3].startswith("Z"):
            pid = int(words[0])
            found[pid] = Process(pid, int(words[1]), int(words[2]), 0, " ".join(words[4:9]), words[9:])
    return found


def _printed(*argv):
    # There is no module object here whose run_command could be called: this is read by more than one program.
    out = subprocess.check_output(argv, stderr=subprocess.DEVNULL)  # pylint: disable=ansible-bad-function
    return out.decode("utf-8", "replace")


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError):
        return None
