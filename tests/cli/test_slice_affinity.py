# SPDX-License-Identifier: GPL-3.0-or-later
"""Slices of `forkless playbook --slices` on cores of their own: their threads stay there, and what they start does not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from forkless.cli import slice_affinity
from forkless.core import platform

pytestmark = pytest.mark.spawns
CORES = platform.core_numbers()
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="this machine has one core, or lets no process choose")


def test_slices_have_cores_only_if_every_core_has_a_slice(monkeypatch):
    assert slice_affinity.choose([2, 5], 2) == [2, 5]
    assert slice_affinity.choose([2, 5], 3) == [2, 5, 2]
    assert slice_affinity.choose([2, 5, 7], 2) == [None, None]
    assert slice_affinity.choose([2], 2) == [None, None]
    assert slice_affinity.choose([], 2) == [None, None]
    monkeypatch.setenv("FORKLESS_DISABLE", slice_affinity.NAME)
    assert slice_affinity.choose([2, 5], 2) == [None, None]


KEPT = """
import json, os, subprocess, sys, threading
from forkless.cli import slice_affinity

ASK = "import os; print(len(os.sched_getaffinity(0)))"
OUT = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
kernel = os.sched_getaffinity
early = threading.Event()
waits = threading.Thread(target=early.wait)
waits.start()
slice_affinity.keep_to(int(sys.argv[1]))
found = {"early": sorted(kernel(waits.native_id)), "asked": len(os.sched_getaffinity(0)), "by pid": len(os.sched_getaffinity(os.getpid()))}
found["another process"] = len(os.sched_getaffinity(os.getppid()))
found["counted"] = getattr(os, "process_cpu_count", lambda: found["asked"])()
found["subprocess"] = int(subprocess.check_output([sys.executable, "-c", ASK]))
found["not closing"] = int(subprocess.check_output([sys.executable, "-c", ASK], close_fds=False))
os.dup2(OUT, 1)
os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", ASK], dict(os.environ)), 0)
os.waitpid(os.posix_spawnp(sys.executable, [sys.executable, "-c", ASK], dict(os.environ)), 0)
os.system(f"{sys.executable} -c '{ASK}'")
if not (child := os.fork()):
    os.write(OUT, b"%d\\n" % len(kernel(0)))
    os._exit(0)
os.waitpid(child, 0)
found["others"] = [int(line) for line in open(sys.argv[2])]
late = []
thread = threading.Thread(target=lambda: late.extend(kernel(0)))
thread.start()
thread.join()
early.set()
print(json.dumps(found | {"mine": sorted(kernel(0)), "late": late}), file=sys.stderr)
"""


@needs_two_cores
@pytest.mark.matrix
def test_threads_stay_on_a_core_and_programs_have_all_cores(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", KEPT, str(CORES[-1]), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    all_cores = len(CORES)
    assert json.loads(done.stderr) == {
        **dict.fromkeys(("early", "mine", "late"), [CORES[-1]]),
        **dict.fromkeys(("asked", "by pid", "another process", "counted", "subprocess", "not closing"), all_cores),
        "others": [all_cores] * 4,
    }


FREED = """
import json, os, subprocess, sys, threading, time
from forkless.cli import slice_affinity

core, kernel = int(sys.argv[1]), os.sched_getaffinity
everything = len(kernel(0))
start = subprocess._fork_exec

def start_and_be_freed(*args):
    kept.free()
    return start(*args)

subprocess._fork_exec = start_and_be_freed
kept = slice_affinity.keep_to(core)
subprocess.run([sys.executable, "-c", ""])  # the slice is freed in the midst of that
found = {"that starts a program": len(kernel(0))}

kept.back({core})
found["that comes back later"] = len(kernel(0))

# A thread starts another one after the threads were listed, and before its own turn.
late, go_on, ended, listed = [], threading.Event(), threading.Event(), os.listdir
def start_another():
    go_on.wait()
    late.append(threading.Thread(target=ended.wait))
    late[0].start()
    done.set()
first, done = threading.Thread(target=start_another), threading.Event()
first.start()
def list_threads(path):
    answer = listed(path)
    if not late:
        os.sched_setaffinity(first.native_id, {core})
        go_on.set()
        done.wait()
    return answer
os.listdir = list_threads
kept.free()
found["started meanwhile"] = len(kernel(late[0].native_id))
ended.set()
print(json.dumps(found))
"""


@needs_two_cores
def test_no_thread_stays_on_its_core_whatever_it_does_while_its_slice_is_freed():
    command = [sys.executable, "-W", "ignore", "-c", FREED, str(CORES[-1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    all_cores = len(CORES)
    assert json.loads(done.stdout or "{}") == {
        "that starts a program": all_cores,
        "that comes back later": all_cores,
        "started meanwhile": all_cores,
    }, done.stderr


LACKING = """
import os, subprocess, sys
from forkless.cli import slice_affinity

del subprocess._fork_exec
ask = os.sched_getaffinity
slice_affinity.keep_to(int(sys.argv[1]))
print(len(ask(0)), os.sched_getaffinity is ask)
"""


@needs_two_cores
def test_a_python_that_starts_programs_in_another_way_keeps_all_cores():
    command = [sys.executable, "-c", LACKING, str(CORES[-1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.stdout == f"{len(CORES)} True\n", done.stderr


# Two cores only, so that two slices have all of them, whatever this machine has.
ON_TWO = """
import os, sys
os.sched_setaffinity(0, {int(one) for one in sys.argv[1].split(",")})
os.execv(sys.executable, [sys.executable, "-m", "forkless", "playbook", "--slices", "2", "-i", "hosts.ini", "site.yml"])
"""
STATUS = "lookup('file', '/proc/thread-self/status')"


def sliced(folder, tasks, off="", inventory=""):
    (folder / "hosts.ini").write_text(
        inventory or f"h1\nh2\n[all:vars]\nansible_connection=local\nansible_python_interpreter={sys.executable}\n"
    )
    (folder / "hosts.ini").chmod(0o755 if inventory else 0o644)
    (folder / "site.yml").write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}")
    cores = ",".join(map(str, CORES[:2]))
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO, cores], cwd=folder, env={**os.environ, "FORKLESS_DISABLE": off},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_two_cores
@pytest.mark.parametrize("off", [pytest.param("", marks=pytest.mark.matrix), slice_affinity.NAME])
def test_each_slice_has_a_core_and_its_programs_have_all_unless_it_is_switched_off(tmp_path, off):
    # Each slice waits until the other has looked: one that has ended leaves its core.
    said = sliced(
        tmp_path,
        f"""\
    - debug: {{msg: "thread {{{{ {STATUS} | regex_search('Cpus_allowed_list:.*') | split | last }}}} of it"}}
    - setup: {{gather_subset: ["!all", hardware]}}
    - command: "{{{{ ansible_python_interpreter }}}} -c 'import os; print(len(os.sched_getaffinity(0)))'"
      register: started
    - debug: {{msg: "fact {{{{ ansible_facts.processor_nproc }}}} program {{{{ started.stdout }}}} of it"}}
    - raw: "touch {tmp_path}/{{{{ inventory_hostname }}}}; while [ ! -e {tmp_path}/h1 ] || [ ! -e {tmp_path}/h2 ]; do sleep 0.1; done"
""",
        off,
    )
    seen = sorted(re.findall("thread (.*) of it", said))
    both = [",".join(map(str, CORES[:2])), f"{CORES[0]}-{CORES[1]}"]
    assert seen == [str(one) for one in CORES[:2]] if not off else set(seen) <= set(both)
    assert re.findall("fact (.*) program (.*) of it", said) == [("2", "2")] * 2


def until_all_cores(retries, delay):
    """Tasks that end the first host's slice, and on the second host wait until its slice may use all cores."""
    return f"""\
    - meta: end_host
      when: inventory_hostname == 'h1'
    - debug:
      until: {STATUS} | regex_search('Cpus_allowed_list:.*') is search('[,-]')
      retries: {retries}
      delay: {delay}
"""


@needs_two_cores
def test_a_slice_may_use_all_cores_when_another_has_ended(tmp_path):
    said = sliced(tmp_path, until_all_cores(retries=300, delay=0.5))
    assert "ok: [h2]" in said


# The slices read the inventory at the same time; the second one has it when the first one has ended.
INVENTORY = """#!{python}
import json, os, sys, time
if sys.argv[1] == "--list":
    folder, slice = {folder!r}, os.getppid()
    with open(f"/proc/{{slice}}/cmdline") as file:
        answer = file.read().split("\\0")[4]
    if answer != "-1":
        with open(folder + "/written", "w") as file:
            file.write(str(slice))
        os.rename(folder + "/written", folder + "/first")
    else:
        while not os.path.exists(folder + "/first"):
            time.sleep(0.01)
        with open(folder + "/first") as file:
            first = file.read()
        while os.path.exists("/proc/" + first):
            time.sleep(0.01)
    variables = dict(ansible_connection="local", ansible_python_interpreter={python!r})
    print(json.dumps(dict(all=dict(hosts=["h1", "h2"], vars=variables), _meta=dict(hostvars={{}}))))
"""


@needs_two_cores
def test_a_slice_that_begins_when_another_has_ended_may_use_all_cores(tmp_path):
    said = sliced(
        tmp_path,
        until_all_cores(retries=3, delay=1),
        inventory=INVENTORY.format(python=sys.executable, folder=str(tmp_path)),
    )
    assert "ok: [h2]" in said
