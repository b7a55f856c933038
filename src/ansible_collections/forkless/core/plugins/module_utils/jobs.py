# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The truth about an async job, from its file and its processes. Runs on the target: nothing but the standard library."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import time

from ansible_collections.forkless.core.plugins.module_utils import processes as ps

# A job's own async folder: one per name and claim, below the configured one.
SLOT = re.compile(r".*/forkless/[0-9a-f]{24}/(open|c-[0-9a-f]+)")
JOB_ID = re.compile(r"j?\d+\.\d+")
OUTPUT = "output.log"  # in the job's own async folder: where a job may write what it wants to be seen meanwhile


def absolute(async_dir):
    """
    The async folder, absolute. The wrapper expands ~ by $HOME and async_status by the passwd entry; where these differ,
    stock does not find its own jobs. The passwd entry is the same for every caller, so it is tried first.
    """
    if not async_dir.startswith("~"):
        return os.path.abspath(async_dir)
    who, _dummy, rest = async_dir[1:].partition("/")
    try:
        home = pwd.getpwnam(who).pw_dir if who else pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        home = ""
    if not who and not (os.path.isdir(home) and os.access(home, os.W_OK | os.X_OK)):
        home = os.environ.get("HOME") or home
    return os.path.join(home or "/", rest)


def folders(async_dir):
    """Every folder that may hold the file of a job that was started with this setting."""
    found = [absolute(async_dir)]
    for other in (os.path.expanduser(async_dir), os.path.abspath(os.path.expanduser(async_dir))):
        if os.path.isabs(other) and other not in found:
            found.append(other)
    return found


def where(jid, candidates):
    """The folder that holds this job's file; the first candidate if none does."""
    candidates = [folder for folder in candidates if folder]
    for folder in candidates:
        if os.path.exists(os.path.join(folder, jid)):
            return folder
    return candidates[0] if candidates else ""


def text_of(thing):
    """Text that every terminal and every JSON reader takes: half of a surrogate pair, which JSON allows, is replaced."""
    return str(thing or "").encode("utf-8", "replace").decode("utf-8")


def tail(text, lines):
    return "\n".join(text.splitlines()[-lines:]) if lines else ""


def iso(seconds):
    """A time for people; "" for none, and for what a damaged record has in its place."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else ""
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def _local(text):
    """The command module's own times have no zone: they are local to this host."""
    try:
        return iso(time.mktime(time.strptime(str(text).split(".", 1)[0], "%Y-%m-%d %H:%M:%S")))
    except (ValueError, OverflowError):
        return ""


def status(jid, candidates, recorded=None, lines=20):
    """The job's state (running, done, failed, killed, timed_out, dead or lost) and its details."""
    recorded = recorded or {}
    folder = where(jid, candidates)
    path = os.path.join(folder, jid)
    # In this order: a job writes its result before its last process ends. Looking at the file first could see a job
    # that has not written its result yet, then find no process, and report a finished job as dead.
    table = ps.snapshot()
    alive = ps.of_job(table, jid, own_slot(folder, jid), recorded)
    answer = {
        "state": "lost",
        "ansible_job_id": jid,
        "async_dir": folder,
        "results_file": path,
        "rc": None,
        "signal": None,
        "msg": "",
        "why": "",
        "start": iso(recorded.get("started")),
        "end": "",
        "stdout": "",
        "stderr": "",
        "pids": [p.pid for p in alive],
    }
    try:
        with open(path, "rb") as file:
            body = file.read()
        changed = os.stat(path).st_mtime
    except FileNotFoundError:
        if alive:
            answer.update(state="running", why="its file was removed, but its processes are alive")
        else:
            answer.update(
                why="there is no file of this job in %s: it was cleared, or the host was rebuilt"
                % (folder or "any folder")
            )
        return answer
    result = _object(body)
    if result is None or ("started" in result and not result.get("finished")):
        return _unfinished(answer, alive, table, jid, recorded, result, changed)
    return _finished(answer, result, changed, lines)


def own_slot(folder, jid):
    """The folder, if only this job uses it: then every process with the folder's name in its environment belongs to the job."""
    if not SLOT.fullmatch(folder):
        return ""
    return folder if list(job_files(folder)) in ([], [jid]) else ""


def job_files(folder):
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted({name[:-4] if name.endswith(".tmp") else name for name in names if JOB_ID.match(name)})


def _unfinished(answer, alive, table, jid, recorded, result, changed):
    if alive:
        answer["state"] = "running"
        found = ps.wrappers(table, jid)
        began = ps.started_at(found[0] if found else alive[0])
        answer["start"] = answer["start"] or iso(began)
        if not found:
            answer["why"] = (
                "Ansible's wrapper of the job has ended, but the job's command still runs; its result will not be recorded"
            )
        elif not any(p.group == p.pid for p in found):
            answer["why"] = "only its supervisor is left"
        elif len(found) == 1 and "session" in recorded and len(recorded.get("pids", [])) > 1:
            answer["why"] = "the supervisor of the job has ended: the job still runs, without a time limit"
        return answer
    if ps.hidden() and os.geteuid() != 0 and os.stat(answer["results_file"]).st_uid != os.geteuid():
        raise RuntimeError(
            "this host hides the processes of other users, so it cannot be told whether job %s is alive; "
            "ask as the user who started it, or with become." % jid
        )
    answer["state"] = "dead"
    answer["start"] = answer["start"] or iso(changed)
    if ps.started_anew(recorded):
        answer["why"] = "the host was started anew since"
    elif result is None:
        answer["why"] = "the job's processes have ended and its result is unreadable: the disk may have been full"
    else:
        answer["why"] = (
            "the job's processes have ended and left no result: they were killed, or the host ran out of memory or was started anew"
        )
    return answer


def _finished(answer, result, changed, lines):
    rc = result.get("rc")
    answer.update(
        rc=rc if isinstance(rc, int) else None,
        msg=text_of(result.get("msg")),
        start=_local(result["start"]) if result.get("start") else answer["start"],
        end=_local(result["end"]) if result.get("end") else iso(changed),
        stdout=tail(text_of(result.get("stdout") or result.get("module_stdout")), lines),
        stderr=tail(text_of(result.get("stderr") or result.get("module_stderr")), lines),
    )
    number = None
    if isinstance(rc, int) and rc < 0:
        number = -rc
    elif isinstance(rc, int) and rc > 128 and rc - 128 in {int(s) for s in signal.Signals}:
        number = rc - 128  # how a shell reports it
    if "child_pid" in result and answer["msg"] == "Timeout exceeded":
        answer.update(state="timed_out", why="it passed the time limit of its async task")
    elif result.get("forkless_signal"):
        answer.update(state="killed", signal=result["forkless_signal"], why=answer["msg"])
    elif number is not None:
        answer.update(state="killed", signal=number, why="it was ended by signal %d" % number)
    elif (
        result.get("failed") and "data" in result and not result.get("data") and not result.get("stderr") and rc is None
    ):
        answer.update(state="killed", why="its module was ended before it could answer")
    elif result.get("failed") or (
        isinstance(rc, int) and rc != 0 and "failed" not in result and "changed" not in result
    ):
        answer.update(state="failed")
    else:
        answer.update(state="done")
    return answer


def result_of(path):
    try:
        with open(path, "rb") as file:
            return _object(file.read())
    except OSError:
        return None


def _object(body):
    """
    The object that a job's file holds; None for anything else, however odd.

    Since ansible-core 2.22 a result names the secrets in it, which are masked where it is shown.
    """
    try:
        thing = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(thing, dict):
        return None
    secrets = thing.pop("_ansible_new_secrets", None)
    if secrets:
        try:
            from ansible.module_utils.secrets import register_secrets
        except ImportError:  # the job was started by a newer one
            register_secrets = None
        if register_secrets is not None:
            register_secrets(secrets)  # this module's own result names them then
    return thing


def write_result(path, result):
    """The file is written completely or not at all, as the wrapper does."""
    draft = path + ".tmp"
    with open(draft, "w") as file:
        file.write(json.dumps(result))
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, path)
