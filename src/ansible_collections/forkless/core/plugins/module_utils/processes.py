# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which processes belong to an async job on this host. Runs on the target: nothing but the standard library."""

from __future__ import annotations

import os
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
    """What changes when the host is started anew, and only then."""
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
    return [p for p in processes.values() if number in p.argv and any("async_wrapper" in word for word in p.argv)]


def of_job(processes, jid, slot="", recorded=None):
    """
    All processes of a job: its wrappers, what shares their session, what descends from them, and what carries the job's
    own async folder in its environment.

    The number at the end of the job id is of no use: that process ends as soon as the job has been started.
    """
    recorded = recorded or {}
    sessions = {p.session for p in wrappers(processes, jid) if p.session}
    if recorded.get("session") and recorded.get("boot") == boot_id():
        # The leader of the job's session ended when it became a daemon. One that is alive has been given its number since.
        if recorded["session"] not in processes:
            sessions.add(recorded["session"])
    mine = {p.pid for p in wrappers(processes, jid)}
    mine.update(p.pid for p in processes.values() if p.session in sessions)
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


def identity(processes, jid):
    """What to remember of a running job, to know it again later."""
    found = wrappers(processes, jid)
    if not found:
        return {}
    # The runner leads a group of its own, made by the supervisor, so that all of the job can be signalled at once.
    runner = [p for p in found if p.group == p.pid] or found
    began = started_at(found[0])
    return {
        "boot": boot_id(),
        "session": found[0].session,
        "group": runner[0].group,
        "pids": [[p.pid, p.start] for p in found],
        "started": int(began) if began else int(time.time()),
    }


def _from_proc():
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        stat = _read("/proc/%s/stat" % name)
        if not stat:
            continue
        fields = stat.rpartition(b")")[2].split()
        if len(fields) < 20 or fields[0] in (b"Z", b"X"):
            continue
        argv = [word.decode("utf-8", "replace") for word in (_read("/proc/%s/cmdline" % name) or b"").split(b"\0")]
        pid = int(name)
        found[pid] = Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[19].decode(), argv)
    return found


def _from_ps():
    """Where there is no /proc. Sessions and environments cannot be seen there; groups and descent must do."""
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
