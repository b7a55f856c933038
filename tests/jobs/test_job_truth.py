# SPDX-License-Identifier: GPL-3.0-or-later
"""
What has become of a job: real jobs, really killed, and what Ansible's own async_status says beside it.

One playbook starts them all, the test does to each what its name says, and one playbook asks.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys

import pytest

from jobs_controller import ENGINES, USUAL, until

# In one worker: all of them ask the same jobs.
pytestmark = [pytest.mark.spawns, pytest.mark.timeout(900), pytest.mark.xdist_group("jobs-truth")]

# name: command, time limit, what the truth is, what Ansible says (finished, failed)
CASES = {
    "running": ("sleep 601", 600, "running", (False, False)),
    "done": ("echo good", 600, "done", (True, False)),
    "failed": ("sh -c 'echo out; echo err >&2; exit 3'", 600, "failed", (True, True)),
    "command got SIGTERM": ("sleep 602", 600, "killed", (True, True)),
    "command under a shell got SIGTERM": ("sh -c 'sleep 603; exit $?'", 600, "killed", (True, True)),
    "command got SIGKILL": ("sleep 604", 600, "killed", (True, True)),
    "module got SIGKILL": ("sleep 605", 600, "killed", (True, True)),
    "everything got SIGKILL": ("sleep 606", 600, "dead", (False, False)),
    "wrappers got SIGKILL": ("sleep 607", 600, "running", (False, False)),
    "supervisor got SIGKILL": ("sleep 608", 600, "running", (False, False)),
    "started anew": ("sleep 609", 600, "dead", (False, False)),
    "file removed after the end": ("true", 600, "lost", (True, True)),
    "file removed while running": ("sleep 610", 600, "running", (True, True)),
    "time limit passed": ("sleep 611", 2, "timed_out", (True, True)),
    "result unreadable": ("sleep 612", 600, "dead", (False, False)),
    "no such program": ("/nonexistent/program", 600, "failed", (True, True)),
}


def pids_of(controller, jid, role_):
    """The processes of a job by what they are: wrappers (supervisor, runner), module, command."""
    number = jid.split(".")[0]
    table = {}
    for pid in controller.processes():
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            argv = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        table[pid] = (int(stat[1]), int(stat[2]), argv)
    wrappers = {pid for pid, (_, _, argv) in table.items() if number in argv}
    runner = {pid for pid in wrappers if table[pid][1] == pid}
    module = {pid for pid, (parent, _, _) in table.items() if parent in runner}
    command = {pid for pid, (parent, _, _) in table.items() if parent in module}
    leaves = {pid for pid, (parent, _, _) in table.items() if parent in command}
    return {
        "wrappers": wrappers, "supervisor": wrappers - runner, "module": module, "command": command,
        "leaf": leaves or command, "all": wrappers | module | command | leaves,
    }[role_]  # fmt: skip


def kill(controller, jid, what, number):
    pids = until(lambda: pids_of(controller, jid, what), what=f"the {what} of {jid}")
    # At once: one that is still there when another is gone would write down what it saw. Only if it is all of them: when some of a group
    # have stopped and the one above is gone, the kernel hangs up on the others.
    if number == signal.SIGKILL and what == "all":
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, number)


def do(controller, name, jid, folder):
    path = os.path.join(folder, jid)
    if name == "command got SIGTERM":
        kill(controller, jid, "command", signal.SIGTERM)
    elif name == "command under a shell got SIGTERM":
        kill(controller, jid, "leaf", signal.SIGTERM)
    elif name == "command got SIGKILL":
        kill(controller, jid, "command", signal.SIGKILL)
    elif name == "module got SIGKILL":
        until(lambda: pids_of(controller, jid, "command"), what="the command")
        kill(controller, jid, "module", signal.SIGKILL)
    elif name in ("everything got SIGKILL", "started anew", "result unreadable"):
        until(lambda: pids_of(controller, jid, "command"), what="the command")
        kill(controller, jid, "all", signal.SIGKILL)
        until(lambda: not pids_of(controller, jid, "all"), what="the end")
    elif name == "wrappers got SIGKILL":
        until(lambda: pids_of(controller, jid, "command"), what="the command")
        kill(controller, jid, "wrappers", signal.SIGKILL)
    elif name == "supervisor got SIGKILL":
        kill(controller, jid, "supervisor", signal.SIGKILL)
    elif name == "file removed after the end":
        until(
            lambda: not pids_of(controller, jid, "all") and "started" not in json.loads(pathlib.Path(path).read_text()),
            what="the end",
        )
        os.unlink(path)
    elif name == "file removed while running":
        os.unlink(path)
    if name == "started anew":
        for file in (controller.folder / ".ansible_async_state").rglob("*.json"):
            if jid in file.read_text():
                what = json.loads(file.read_text())
                what["process"]["boot"] = "another life"
                file.write_text(json.dumps(what))
    if name == "result unreadable":
        open(path, "w").close()


def over(controller, name, jid, folder):
    path = os.path.join(folder, jid)
    if CASES[name][3] == (False, False) or name.startswith("file removed"):
        return True
    try:
        return "started" not in json.loads(pathlib.Path(path).read_text())
    except ValueError:
        return False


# The target's side is the same whoever asks; so on the other engine a few stand for all.
ON_THE_OTHER = ["running", "failed", "everything got SIGKILL", "time limit passed"]


def make_answers(controller, names, engine):
    """Start a job for each name, do to it what the name says, and ask what has become of it."""
    loop = {"loop": [{"name": name, "command": CASES[name][0], "limit": CASES[name][1]} for name in names]}
    loop["loop_control"] = {"index_var": "n", "label": "{{ item.name }}"}
    controller.tasks(
        {"forkless.core.async_job": {"op": "load", "job_name": "{{ item.name }}"}, "register": "loads", **loop},
        {"ansible.builtin.command": "{{ item.command }}", "async": "{{ item.limit }}", "poll": 0, "register": "started",
         "vars": {"ansible_async_dir": "{{ loads.results[n].async_dir }}"}, **loop},
        {"forkless.core.async_job": {"op": "save", "job_name": "{{ item.name }}", "async_dir": "{{ loads.results[n].async_dir }}",
                                     "ansible_job_id": "{{ started.results[n].ansible_job_id }}"}, **loop},
        engine=engine,
    )  # fmt: skip
    records = {}
    for file in (controller.folder / ".ansible_async_state/here").glob("*.json"):
        record = json.loads(file.read_text())
        records[record["job_name"]] = record
    for name in names:
        do(controller, name, records[name]["ansible_job_id"], records[name]["async_dir"])
    for name in names:
        record = records[name]
        until(
            lambda name=name, record=record: over(controller, name, record["ansible_job_id"], record["async_dir"]),
            what=name,
        )
    said = controller.tasks(
        {"forkless.core.async_job": {"op": "status", "job_name": "{{ item }}"}, "loop": names, "register": "truth"},
        {"ansible.builtin.async_status": {"jid": "{{ item.record.ansible_job_id }}"}, "loop": "{{ truth.results }}",
         "register": "stock", "ignore_errors": True, "vars": {"ansible_async_dir": "{{ item.record.async_dir }}"},
         "loop_control": {"label": "x"}},
        engine=engine,
    )  # fmt: skip
    return {
        name: (truth["job"], stock)
        for name, truth, stock in zip(names, said["truth"]["results"], said["stock"]["results"], strict=True)
    }


@pytest.fixture(scope="module")
def answers(shared_controller):
    return make_answers(shared_controller, list(CASES), USUAL)


def test_the_truth_is_told_on_the_other_engine_too(controller):
    [other] = set(ENGINES) - {USUAL}
    answers = make_answers(controller, ON_THE_OTHER, other)
    assert {name: truth["state"] for name, (truth, _) in answers.items()} == {
        name: CASES[name][2] for name in ON_THE_OTHER
    }
    for name, (_, stock) in answers.items():
        assert (bool(stock["finished"]), bool(stock["failed"])) == CASES[name][3], stock


@pytest.mark.parametrize("name", CASES)
def test_the_truth_about_a_job_is_told_where_stock_cannot(answers, name):
    truth, stock = answers[name]
    assert truth["state"] == CASES[name][2], truth
    assert (bool(stock["finished"]), bool(stock["failed"])) == CASES[name][3], stock


@pytest.mark.parametrize(
    ("name", "rc", "number"),
    [
        ("done", 0, None),
        ("failed", 3, None),
        ("command got SIGTERM", -15, 15),
        ("command under a shell got SIGTERM", 143, 15),
        ("command got SIGKILL", -9, 9),
        ("module got SIGKILL", None, None),
        ("time limit passed", None, None),
    ],
)
def test_code_and_signal_are_told(answers, name, rc, number):
    truth, _ = answers[name]
    assert (truth["rc"], truth["signal"]) == (rc, number)


def test_start_end_and_the_tails_of_the_output_are_told(answers):
    truth, _ = answers["failed"]
    assert (truth["stdout"], truth["stderr"]) == ("out", "err")
    assert truth["start"].endswith("Z")
    assert truth["start"] <= truth["end"]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("started anew", "started anew"),
        ("everything got SIGKILL", "left no result"),
        ("wrappers got SIGKILL", "will not be recorded"),
        ("supervisor got SIGKILL", "without a time limit"),
        ("file removed while running", "its processes are alive"),
        ("file removed after the end", "no file of this job"),
        ("result unreadable", "disk may have been full"),
        ("module got SIGKILL", "before it could answer"),
    ],
)
def test_the_reason_is_told(answers, name, word):
    assert word in answers[name][0]["why"]


def test_a_job_in_a_process_table_read_by_ps_is_found_as_in_proc(controller, monkeypatch):
    sys.path.insert(0, str(__import__("jobs_controller").SOURCE))
    try:
        from ansible_collections.forkless.core.plugins.module_utils import processes
    finally:
        sys.path.pop(0)
    controller.tasks({"ansible.builtin.command": "sleep 613", "async": 100, "poll": 0, "register": "s"}, engine="stock")
    jid = until(
        lambda: [name for name in os.listdir(controller.async_dir) if name.startswith("j")], what="the job's file"
    )[0]
    until(lambda: len(processes.of_job(processes._from_proc(), jid)) == 4, what="all four processes")
    by_proc = {p.pid for p in processes.of_job(processes._from_proc(), jid)}
    by_ps = {p.pid for p in processes.of_job(processes._from_ps(), jid)}
    assert by_ps == by_proc
    assert {p.group for p in processes._from_ps().values() if p.pid in by_ps} == {
        p.group for p in processes._from_proc().values() if p.pid in by_proc
    }
