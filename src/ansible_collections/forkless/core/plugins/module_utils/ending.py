# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ending a job, and reading what it has printed so far. Runs on the target."""

from __future__ import annotations

import io
import os
import signal
import time

from ansible_collections.forkless.core.plugins.module_utils import jobs
from ansible_collections.forkless.core.plugins.module_utils import processes as ps


# A program that prints a file from a byte on, and what is added to it, until the processes have ended, or the time or the bytes are used up.
FOLLOW = """
import os, sys, time

path, at, left, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
pids, deadline = [int(pid) for pid in sys.argv[5:]], time.monotonic() + seconds


def runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


with open(path, "rb") as file:
    while left > 0:
        ended = time.monotonic() >= deadline or not any(runs(pid) for pid in pids)  # asked before the last look
        if os.fstat(file.fileno()).st_size < at:
            at = 0  # it was begun anew
        file.seek(at)
        part = file.read(min(left, 65536))
        at, left = at + len(part), left - len(part)
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        if not part:
            if ended:
                break
            time.sleep(0.2)
"""


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
    known = {}

    def alive():
        table = ps.snapshot()
        # A process that was found to belong to the job stays in the list after the processes by which it was found have ended.
        found = ps.of_job(table, jid, slot, recorded, known)
        known.update((process.pid, process.start) for process in found)
        return table, found

    def is_running():
        return jobs.status(jid, candidates, recorded)["state"] == "running"

    table, mine = alive()
    first = _below_module(table, mine, jid)
    for process in first:
        if ps.send(process, number):
            seen["signalled"].append(process.pid)
    # The monotonic clock: if the wall clock were set back, this loop would wait for that much longer.
    deadline = time.monotonic() + grace
    while mine and time.monotonic() < deadline:
        time.sleep(0.1)
        table, mine = alive()
        if first and not any(process.pid in table and table[process.pid].start == process.start for process in first):
            if not is_running():
                break
    table, mine = alive()
    if mine and is_running():
        seen["killed"] = _kill_all(alive)
    deadline = time.monotonic() + 10
    while mine and time.monotonic() < deadline:
        table, mine = alive()
        if not mine or not is_running():
            break
        time.sleep(0.1)
    after = jobs.status(jid, candidates, recorded)
    if after["state"] == "dead":
        # Ansible's wrapper could not write the result any more, and async_status would say "running" for ever.
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


def would_kill(jid, candidates, recorded):
    """What kill() would find, and which processes would get its first signal."""
    state = jobs.status(jid, candidates, recorded)
    seen = {"before": state["state"], "signalled": [], "killed": [], "left": [], "would_signal": []}
    if state["state"] == "running":
        table = ps.snapshot()
        mine = ps.of_job(table, jid, jobs.own_slot(state["async_dir"], jid), recorded)
        seen["would_signal"] = [process.pid for process in _below_module(table, mine, jid)]
    return state, seen


def _below_module(table, mine, jid):
    """The processes that the module has started; the module itself if it has started none; all processes if there is no wrapper."""
    wrappers = {p.pid for p in ps.wrappers(table, jid)}
    modules = {p.pid for p in mine if p.ppid in wrappers and p.pid not in wrappers}
    below = [p for p in mine if p.pid not in wrappers and p.pid not in modules]
    return below or [p for p in mine if p.pid in modules] or mine


def _kill_all(alive):
    """SIGKILL for all processes, which are stopped first: a process that is stopped cannot start another one meanwhile."""
    stopped = set()
    while True:
        found = [process for process in alive()[1] if process.pid not in stopped]
        if not found:
            break
        for process in found:
            ps.send(process, signal.SIGSTOP)
            stopped.add(process.pid)
    return [process.pid for process in alive()[1] if ps.send(process, signal.SIGKILL)]


def output(jid, candidates, recorded, path, offset, limit, tail=None):
    """
    What a job has printed so far, from `offset` on, or its last `tail` lines: its file, or where its processes' standard
    output goes.

    `offset` counts bytes, and the next one is given back. A file that is shorter than that was begun anew, and is read from
    its start. A character that is not complete yet is left for the next time while the job runs; bytes that are no
    character are shown as a replacement, and counted as the bytes that they are.
    """
    state = jobs.status(jid, candidates, recorded, lines=0)
    running = state["state"] == "running"
    sources = [path] if path else []
    sources.append(os.path.join(state["async_dir"], jobs.OUTPUT))
    if running:
        sources += _redirected(state["pids"])
    for source in sources:
        found = _part(source, offset, limit, running, tail)
        if found is not None:
            return state, dict(found, source=source)
    result = jobs.result_of(state["results_file"]) if not running else None
    if result is not None:
        texts = [jobs.text_of(result.get(name)) for name in ("stdout", "stderr")]
        whole = "".join(text if text.endswith("\n") else text + "\n" for text in texts if text).encode("utf-8")
        start = _start(offset, len(whole)) if tail is None else _tail_start(io.BytesIO(whole), len(whole), tail)
        return state, dict(shown(whole[start : start + limit], start, len(whole), False), source=state["results_file"])
    return state, {"source": "", "output": "", "start": 0, "offset": 0, "size": 0}


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


def _part(path, offset, limit, running, tail):
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(_start(offset, size) if tail is None else _tail_start(file, size, tail))
            return shown(file.read(limit), start, size, running)
    except OSError:
        return None


def _start(offset, size):
    if offset < 0:
        return max(0, size + offset)
    return offset if offset <= size else 0


def _tail_start(file, size, lines, block=65536):
    """At which byte the last `lines` lines begin; read from the end, as the file may be large."""
    if lines <= 0:
        return size
    # The end of the last line is not the beginning of another one.
    wanted, end = lines, size
    if size:
        file.seek(size - 1)
        wanted += file.read(1) == b"\n"
    while end > 0:
        begin = max(0, end - block)
        file.seek(begin)
        part = file.read(end - begin)
        here = part.count(b"\n")
        if here >= wanted:
            at = len(part)
            for _dummy in range(wanted):
                at = part.rindex(b"\n", 0, at)
            return begin + at + 1
        wanted -= here
        end = begin
    return 0


def shown(part, start, size, running):
    """A part of the output as text. `running`: the last character may be continued by what the job prints next."""
    end = len(part)
    if start + end < size:
        end -= _incomplete(part) if _incomplete(part) < end else 0  # a limit of less than a character would never end
    elif running:
        end -= _incomplete(part)
    return {
        "output": part[:end].decode("utf-8", "replace"),
        "start": start,
        "offset": start + end,
        "size": size,
    }


def _incomplete(part):
    """How many bytes at the end are the beginning of a character that is not there as a whole."""
    for back in range(1, min(3, len(part)) + 1):
        byte = part[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            wanted = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2
            return back if back < wanted and byte < 0xF5 else 0
    return 0
