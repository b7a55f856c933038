# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""
The async folders of one job name on this host: one per claim, and one for jobs that are started without a claim.

A fence is a plain file in the place of such a folder. The wrapper makes its folder before it does anything, and writes
its first file before it runs the module; it can do neither where a fence stands. So after fence() has answered, either a
job is there to be seen, or none will ever be started in that place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from ansible_collections.forkless.core.plugins.module_utils import jobs
from ansible_collections.forkless.core.plugins.module_utils import processes as ps

A_DAY = 86400


def fence(path):
    """True if no job can be started in this folder any more; False if a job was started there before."""
    text = (
        b"A controller that had claimed this job was replaced by another one; nothing may be started here any more.\n"
    )
    while True:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            if not os.path.isdir(path):
                return True
            try:
                os.rmdir(path)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    if _really_started(path):
                        return False
                elif error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    raise
            continue
        os.write(fd, text)
        os.close(fd)
        return True


def _really_started(path):
    """Whether there is a job's file; a draft of one becomes a file at once, or was left by a wrapper that was killed."""
    deadline = time.monotonic() + 5
    while True:
        names = os.listdir(path)
        if any(jobs.JOB_ID.fullmatch(name) for name in names):
            return True
        drafts = [name for name in names if name.endswith(".tmp")]
        if not drafts:
            return bool(names)
        table = ps.snapshot()
        if time.monotonic() > deadline or not any(ps.wrappers(table, name[:-4]) for name in drafts):
            for name in drafts:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(path, name))
        time.sleep(0.05)


def look(folder, mine="", fences=(), raise_fences=False, lines=20):
    """The jobs in all slots of one name, the running ones first, then the newest; after raising the fences asked for."""
    found, fenced = [], []
    if raise_fences:
        _make(folder)
        for token in fences:
            path = os.path.join(folder, "c-" + token)
            if token and path != mine and fence(path):
                fenced.append(path)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in names:
        slot = os.path.join(folder, name)
        if not os.path.isdir(slot):
            continue
        # In a claim's own folder there is a job only if the same controller claims again after it has started one.
        if raise_fences and slot != mine and name != "open" and not jobs.job_files(slot) and fence(slot):
            continue
        for jid in jobs.job_files(slot):
            if not jobs.JOB_ID.fullmatch(jid):
                continue
            answer = jobs.status(jid, [slot], lines=lines)
            running = answer["state"] == "running"
            answer["process"] = ps.identity(ps.snapshot(), jid, jobs.own_slot(slot, jid)) if running else {}
            try:
                answer["changed"] = os.stat(answer["results_file"]).st_mtime
            except OSError:
                answer["changed"] = 0
            found.append(answer)
    found.sort(key=lambda job: (job["state"] != "running", -job.pop("changed")))
    return {"jobs": found, "fenced": fenced}


def _make(folder):
    """
    The folder of a name. What is above it, and below the async folder, is shared by all names: where the async folder is
    one of all users (/var/tmp, say), it must be so, too.
    """
    shared = os.path.dirname(folder)
    base = os.path.dirname(shared)
    os.makedirs(base, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(shared)
        os.chmod(shared, stat.S_IMODE(os.stat(base).st_mode))
    os.makedirs(folder, exist_ok=True)


def sweep(slot, jid):
    """Remove the files of a finished job in its own slot, and fences that no controller can meet any more."""
    if not jobs.SLOT.fullmatch(slot):
        return []
    gone = _unlink(os.path.join(slot, jid + ".tmp"))
    if not [name for name in jobs.job_files(slot) if name != jid]:  # otherwise the output belongs to a later job
        gone += _unlink(os.path.join(slot, jobs.OUTPUT))
    _rmdir(slot)
    folder = os.path.dirname(slot)
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if name.startswith("c-") and os.path.isfile(path) and time.time() - os.stat(path).st_mtime > A_DAY:
            gone += _unlink(path)
    _rmdir(folder)
    return gone


def _unlink(path):
    try:
        os.unlink(path)
    except OSError:
        return []
    return [path]


def _rmdir(path):
    with contextlib.suppress(OSError):
        os.rmdir(path)
