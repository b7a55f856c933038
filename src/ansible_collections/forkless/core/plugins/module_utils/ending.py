# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ending a job, and reading what it has printed so far. Runs on the target."""

from __future__ import annotations

import os
import signal
import time

from ansible_collections.forkless.core.plugins.module_utils import jobs
from ansible_collections.forkless.core.plugins.module_utils import processes as ps


def kill(jid, candidates, recorded, number, grace):
    """
    End a job: first what its module has started, so that Ansible can write down how it ended; then, after `grace`
    seconds, everything that is left of it, by SIGKILL. Says what was there, what got a signal, and what is left.
    """
    before = jobs.status(jid, candidates, recorded)
    seen = {"before": before["state"], "signalled": [], "killed": [], "left": []}
    if before["state"] != "running":
        return before, seen
    slot = jobs.own_slot(before["async_dir"], jid)

    def alive():
        table = ps.snapshot()
        return table, ps.of_job(table, jid, slot, recorded)

    table, mine = alive()
    first = _below_module(table, mine, jid)
    for process in first:
        if _signal(process.pid, number):
            seen["signalled"].append(process.pid)
    deadline = time.time() + grace
    while mine and time.time() < deadline:
        time.sleep(0.1)
        table, mine = alive()
        if first and not any(process.pid in table and table[process.pid].start == process.start for process in first):
            if jobs.status(jid, candidates, recorded)["state"] != "running":
                break
    table, mine = alive()
    if mine and jobs.status(jid, candidates, recorded)["state"] == "running":
        for group in sorted({p.group for p in mine}):
            if group in [p.pid for p in mine]:  # never a group that is not the job's own
                _signal(-group, signal.SIGKILL)
        for process in mine:
            if _signal(process.pid, signal.SIGKILL) or process.pid not in ps.snapshot():
                seen["killed"].append(process.pid)
    deadline = time.time() + 10
    while mine and time.time() < deadline:
        table, mine = alive()
        if not mine or jobs.status(jid, candidates, recorded)["state"] != "running":
            break
        time.sleep(0.1)
    after = jobs.status(jid, candidates, recorded)
    if after["state"] == "dead":
        # Ansible could not write it down any more, and its async_status would say "running" for ever.
        last = int(signal.SIGKILL) if seen["killed"] else number
        jobs.write_result(
            after["results_file"],
            {
                "failed": True,
                "ansible_job_id": jid,
                "forkless_signal": last,
                "changed": True,
                "msg": "ended on request, with signal %d" % last,
            },
        )
        after = jobs.status(jid, candidates, recorded)
    seen["left"] = after["pids"] if after["state"] == "running" else []
    return after, seen


def _below_module(table, mine, jid):
    """What the module has started; the module itself if it has started nothing; all there is if there is no wrapper."""
    wrappers = {p.pid for p in ps.wrappers(table, jid)}
    modules = {p.pid for p in mine if p.ppid in wrappers and p.pid not in wrappers}
    below = [p for p in mine if p.pid not in wrappers and p.pid not in modules]
    return below or [p for p in mine if p.pid in modules] or mine


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def output(jid, candidates, recorded, path, offset, limit):
    """What a job has printed so far, from `offset` on: its file, or where its processes' standard output goes."""
    state = jobs.status(jid, candidates, recorded, lines=0)
    sources = [path] if path else []
    sources.append(os.path.join(state["async_dir"], jobs.OUTPUT))
    if state["state"] == "running":
        sources += _redirected(state["pids"])
    for source in sources:
        text, size = _part(source, offset, limit)
        if size is not None:
            return state, {
                "source": source,
                "output": text,
                "offset": offset + len(text.encode("utf-8", "surrogateescape")),
                "size": size,
            }
    result = jobs.result_of(state["results_file"]) if state["state"] != "running" else None
    if result is not None:
        whole = "".join(
            str(part) + ("" if str(part).endswith("\n") else "\n")
            for part in (result.get("stdout"), result.get("stderr"))
            if part
        ).encode("utf-8", "surrogateescape")
        part = whole[offset : offset + limit] if offset >= 0 else whole[offset:]
        start = offset if offset >= 0 else max(0, len(whole) + offset)
        return state, {
            "source": state["results_file"],
            "output": _text(part),
            "offset": start + len(part),
            "size": len(whole),
        }
    return state, {"source": "", "output": "", "offset": 0, "size": 0}


def _redirected(pids):
    """Files that processes of the job have as standard output or error."""
    found = []
    for pid in pids:
        for fd in (1, 2):
            try:
                path = os.readlink("/proc/%d/fd/%d" % (pid, fd))
            except OSError:
                continue
            if os.path.isfile(path) and path not in found:
                found.append(path)
    return found


def _part(path, offset, limit):
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(offset if offset >= 0 else max(0, size + offset))
            return _text(file.read(limit)), size
    except OSError:
        return "", None


def _text(part):
    return part.decode("utf-8", "replace")
