# SPDX-License-Identifier: GPL-3.0-or-later
"""Never two, never lost: controllers killed at every step, two at the same moment, one that sleeps too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from forkless import jobs
from forkless.jobs import Key
from jobs_controller import ENGINES, MANY_ROUNDS, USUAL, Controller, role, until

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(1200)]

STEPS = ["before claim", "after claim", "after start", "after save"]
# Rounds for each step. One run of a playbook is a round on each of its hosts.
ROUNDS = int(os.environ.get("FORKLESS_ROUNDS", "2"))
HOSTS = min(5, ROUNDS)
# With few rounds, the step at which most can go wrong runs on stock, and all four on forkless.
CASES = [("stock", step) for step in (STEPS if MANY_ROUNDS else STEPS[2:3])] + [("forkless", step) for step in STEPS]


def die(step):
    return {
        "name": f"die {step}",
        "ansible.builtin.command": "kill -9 {{ controller }}",
        "when": f"die_at == '{step}'",
        "run_once": True,
    }


def pattern(backend, lease=120, between=(), forget=()):
    """The pattern of the scenarios, without the roles around the action: fewer tasks, more rounds."""
    where = {"job_name": "once", "backend": backend}
    load = {"op": "load", "claim": True, "claim_lease": lease, "forget": list(forget), **where}
    return [
        {
            "hosts": "all",
            "gather_facts": False,
            "vars": {"die_at": "never", "controller": 0},
            "tasks": [
                die("before claim"),
                {"forkless.core.async_job": load, "register": "load"},
                die("after claim"),
                *between,
                {
                    "vars": {"ansible_async_dir": "{{ load.async_dir }}"},
                    "when": "not load.found",
                    "block": [
                        {
                            "name": "start",
                            "ansible.builtin.command": {
                                "argv": ["sh", "-c", "echo started >> ran-{{ inventory_hostname }}; exec sleep 620"],
                                "chdir": "{{ playbook_dir }}",
                            },
                            "async": 600,
                            "poll": 0,
                            "register": "started",
                        },
                        die("after start"),
                        {
                            "forkless.core.async_job": {
                                "op": "save", "ansible_job_id": "{{ started.ansible_job_id }}",
                                "async_dir": "{{ load.async_dir }}", **where,
                            }
                        },
                    ],
                },
                die("after save"),
                {
                    "ansible.builtin.debug": {
                        "msg": "{{ inventory_hostname }} has {{ load.ansible_job_id or started.ansible_job_id }}"
                    }
                },
            ],
        }
    ]  # fmt: skip


def inventory(controller, hosts, backwards=False):
    path = controller.folder / f"many{'-backwards' if backwards else ''}.ini"
    lines = [
        f"h{n} ansible_connection=local ansible_python_interpreter={sys.executable} ansible_async_dir={controller.async_dir}"
        for n in (reversed(range(hosts)) if backwards else range(hosts))
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def run(controller, play, engine, hosts, *arguments, backwards=False, **variables):
    """A controller that knows its own pid, so that it can be told to die."""
    where = inventory(controller, hosts, backwards)
    command = controller.command(play, *arguments, engine=engine, inventory=where, **variables)
    return subprocess.Popen(
        ["sh", "-c", 'exec "$@" -e controller=$$', "sh", *command], cwd=controller.folder, env=controller.environ(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def finish(process):
    out, _ = process.communicate(timeout=600)
    return out


def run_whole(controller, play, engine, hosts):
    """A controller to which nothing happens; what it has printed."""
    return controller.play(play, engine=engine, inventory=inventory(controller, hosts)).out


def finish_well(*processes):
    """What controllers that run at the same time have printed; all of it is in the message if one of them failed."""
    outs = [finish(process) for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [0] * len(codes), "\n".join(f"-- exit code {code}\n{out}" for code, out in zip(codes, outs))
    return outs


def ids(out):
    """Which job each host ended up with, from the last message of a play."""
    found = {}
    for line in out.splitlines():
        if '"msg": "h' in line:
            host, _, jid = line.split('"')[3].split()
            found[host] = jid
    return found


def check_one_each(controller, hosts, out):
    assert sorted(ids(out)) == [f"h{n}" for n in range(hosts)], out
    for host, jid in ids(out).items():
        until(lambda host=host: (controller.folder / f"ran-{host}").exists(), what=f"the job on {host}")
        assert (controller.folder / f"ran-{host}").read_text() == "started\n", f"{host}: not exactly once\n{out}"
        record = controller.record("once", host)
        assert record["ansible_job_id"] == jid
        assert (controller.folder / "async").exists()
        assert os.path.exists(os.path.join(record["async_dir"], jid))
    assert len(controller.processes("sleep", "620")) == hosts, out


@pytest.mark.parametrize(("engine", "step"), CASES)
def test_a_controller_killed_at_any_step_leaves_one_job_and_the_next_one_finds_it(tmp_path, engine, step):
    for number in range(max(1, ROUNDS // HOSTS)):
        with Controller(tmp_path / str(number)) as controller:
            killed = run(controller, pattern("file:"), engine, HOSTS, die_at=step)
            out = finish(killed)
            assert killed.returncode == -9, out
            check_one_each(controller, HOSTS, run_whole(controller, pattern("file:"), engine, HOSTS))


def test_of_a_stock_and_a_forkless_controller_at_the_same_moment_one_starts_the_job(controller):
    outs = finish_well(*(run(controller, pattern("file:"), engine, 2) for engine in ENGINES))
    assert ids(outs[0]) == ids(outs[1])
    check_one_each(controller, 2, outs[0])


def test_controllers_that_come_to_the_hosts_in_opposite_orders_do_not_wait_for_each_other(controller):
    """One host after the other, from both ends, before either starts anything."""
    hosts = 3
    outs = finish_well(
        run(controller, pattern("file:"), "stock", hosts, "--forks=1"),
        run(controller, pattern("file:"), USUAL, hosts, "--forks=1", backwards=True),
    )
    assert ids(outs[0]) == ids(outs[1])
    check_one_each(controller, hosts, outs[0])


def over(controller, backend, host="h0"):
    """Let the job of this host have ended well, as its wrapper would have written it down."""
    store = jobs.open_store(backend, str(controller.folder / ".ansible_async_state"))
    record = jobs.JobRegistry(store).find(Key(host, "once"))
    store.close()
    until((controller.folder / f"ran-{host}").exists, what="the job's first act")
    for pid in controller.processes():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not controller.processes(), what="the end of the job")
    with open(os.path.join(record.async_dir, record.ansible_job_id), "w") as file:
        json.dump({"rc": 0, "changed": True, "stdout": ""}, file)
    (controller.folder / f"ran-{host}").unlink()
    return record.ansible_job_id


def start_anew_by_five(controller, backend):
    """Five controllers see the same job that is over: one starts it anew, the others find that one."""
    play = pattern(backend, forget=["done"])
    run_whole(controller, play, USUAL, 1)
    old = over(controller, backend)
    controllers = [run(controller, play, engine, 1) for engine in (*ENGINES, USUAL, USUAL, USUAL)]
    outs = finish_well(*controllers)
    found = {ids(out)["h0"] for out in outs}
    assert len(found) == 1, found
    assert old not in found
    return outs[0]


def test_of_five_controllers_that_start_a_job_anew_one_does_and_the_others_find_it(controller):
    check_one_each(controller, 1, start_anew_by_five(controller, "file:"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.matrix_ends
def test_who_loads_twice_before_it_starts_has_the_same_folder_and_does_not_wait_for_itself(controller, engine):
    load = {"forkless.core.async_job": {"op": "load", "job_name": "once", "claim": True, "claim_wait": 0}}
    said = controller.tasks({**load, "register": "one"}, {**load, "register": "two"}, engine=engine)
    assert said["one"]["claimed"] is said["two"]["claimed"] is True
    assert said["one"]["async_dir"] == said["two"]["async_dir"]


def test_a_controller_that_sleeps_past_its_lease_cannot_start_a_second_job(controller):
    """The first is not dead, only slow: it starts its job after the second has taken over, and must run into the fence."""
    sleepy = [
        {"ansible.builtin.file": {"path": "{{ playbook_dir }}/asleep", "state": "touch"}},
        {"ansible.builtin.wait_for": {"path": "{{ playbook_dir }}/wake", "timeout": 500, "sleep": 1}},
    ]
    slow = run(controller, pattern("file:", lease=1, between=sleepy), "stock", 1)
    until((controller.folder / "asleep").exists, 300, "the first claim")
    out = run_whole(controller, pattern("file:"), USUAL, 1)
    (controller.folder / "wake").touch()
    late = finish(slow)
    assert slow.returncode == 2, late
    assert "could not create directory" in late or "taken over by another controller" in late
    check_one_each(controller, 1, out)


def test_a_job_that_nobody_saved_is_found_with_no_record_at_all(controller):
    """The state folder went with the controller's machine; the host still knows the job by its name."""
    first = run(controller, pattern("file:"), "stock", 1, die_at="after start")
    finish(first)
    (controller.folder / ".ansible_async_state").rename(controller.folder / "gone")
    out = run_whole(controller, pattern("file:"), USUAL, 1)
    check_one_each(controller, 1, out)
    assert controller.record("once", "h0")["adopted"] is True


def test_a_store_that_cannot_be_reached_ends_the_play_and_starts_nothing(controller):
    process = run(controller, pattern("ara+http://127.0.0.1:9?claims=file:claims"), USUAL, 1)
    out = finish(process)
    assert process.returncode == 2
    assert "could not be reached" in out
    assert not controller.processes("sleep")
    assert not [name for name in os.listdir(controller.folder) if name.startswith("ran-")]


@pytest.mark.xdist_group("jobs-servers")
@pytest.mark.parametrize("where", ["s3", "ara+file"])
def test_the_pattern_holds_on_a_server_as_it_does_in_a_folder(controller, where, weed, ara, make_url, tmp_path):
    url = make_url(where, {"s3": weed, "ara+file": ara}[where], tmp_path)
    outs = [run_whole(controller, pattern(url), engine, 1) for engine in ("stock", USUAL)]
    assert ids(outs[0]) == ids(outs[1])
    assert sorted(ids(outs[0])) == ["h0"]
    until((controller.folder / "ran-h0").exists, what="the job")
    assert (controller.folder / "ran-h0").read_text() == "started\n"


# -- a controller killed at every event that it tells of

KILL_AT = """
import os, signal
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "kill_at"
    told = 0

    def _tell(self, event, what):
        CallbackModule.told += 1
        with open(os.environ["TOLD"], "a") as file:
            file.write("%s %s\\n" % (event, what))
        if CallbackModule.told == int(os.environ["KILL_AT"]):
            os.kill(os.getpid(), signal.SIGKILL)

    def v2_playbook_on_task_start(self, task, is_conditional):
        self._tell("task", task.get_name())

    def v2_runner_on_start(self, host, task):
        self._tell("start", task.get_name())

    def v2_runner_on_ok(self, result):
        self._tell("ok", getattr(result, "task", None) or result._task.get_name())
"""


def with_roles():
    """Load, start and save as the scenarios do it."""
    begin = {
        "name": "begin", "ansible.builtin.shell": "echo started >> ran-{{ inventory_hostname }}; exec sleep 620",
        "args": {"chdir": "{{ playbook_dir }}"}, "async": 600, "poll": 0, "register": "started",
    }  # fmt: skip
    found = "{{ started.ansible_job_id | default(async_job_load_ansible_job_id) }}"
    return [
        {
            "hosts": "all",
            "gather_facts": False,
            "tasks": [
                role("async_job_load", job_name="once", claim=True),
                {
                    "when": "not async_job_load_found",
                    "vars": {"ansible_async_dir": "{{ async_job_load_async_dir }}"},
                    "block": [
                        begin,
                        role("async_job_save", job_name="once", ansible_job_id="{{ started.ansible_job_id }}"),
                    ],
                },
                {"name": "tell", "ansible.builtin.debug": {"msg": "{{ inventory_hostname }} has " + found}},
            ],
        }
    ]


def run_until(controller, event, engine):
    """A controller that is killed at the event of this number; what it told of until then."""
    plugins = controller.folder / "plugins"
    plugins.mkdir(exist_ok=True)
    (plugins / "kill_at.py").write_text(KILL_AT)
    told = controller.folder / "told"
    told.unlink(missing_ok=True)
    more = {"ANSIBLE_CALLBACK_PLUGINS": str(plugins), "TOLD": str(told), "KILL_AT": str(event)}
    command = controller.command(with_roles(), inventory=inventory(controller, 1), engine=engine)
    process = subprocess.Popen(
        command, cwd=controller.folder, env=controller.environ(**more), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    out = finish(process)
    return process, out, told.read_text().splitlines()


def in_session(number):
    """What is left of a controller: its workers, which do not notice at once that it is dead. Jobs have sessions of their own."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == number and fields[0] not in "ZX":
                found.append(int(entry))
    return found


def test_a_controller_killed_at_any_event_between_load_and_save_leaves_one_job_and_the_next_one_finds_it(tmp_path):
    with Controller(tmp_path / "whole") as controller:
        whole, out, events = run_until(controller, 0, USUAL)
        assert whole.returncode == 0, out
    start = events.index("start begin")
    saved = max(number for number, event in enumerate(events) if "async_job_save" in event)
    # All of them with many rounds; else the second one after the start, and the one before the save. That before the start is a step above.
    # The first of the two on stock; both engines tell of the same events.
    chosen = range(1, len(events) + 1) if MANY_ROUNDS else [start + 2, saved - 1]
    for event in chosen:
        with Controller(tmp_path / str(event)) as controller:
            killed, out, told = run_until(controller, event, "stock" if event == chosen[0] else USUAL)
            assert killed.returncode == -9, out
            assert told == events[:event]
            out = run_whole(controller, with_roles(), "forkless" if event % 2 else USUAL, 1)
            until(lambda pid=killed.pid: not in_session(pid), what="the end of the first controller's workers")
            check_one_each(controller, 1, out)


# The same controllers race in a folder above; on S3 forty claims race in test_job_stores.py, and one controller after the other runs above.
@pytest.mark.skipif(not MANY_ROUNDS, reason="make faults runs it: it takes long")
@pytest.mark.xdist_group("jobs-servers")
def test_of_five_controllers_on_a_real_s3_server_one_starts_the_job_anew_and_the_others_find_it(
    controller, weed, make_url, tmp_path
):
    url = make_url("s3", weed, tmp_path)
    start_anew_by_five(controller, url)
    assert (controller.folder / "ran-h0").read_text() == "started\n"


OUT_OF_DATE = """
from types import SimpleNamespace
from ansible_collections.forkless.core.plugins.action.async_job import ActionModule

old, new = SimpleNamespace(ansible_job_id="old", attempts=[]), SimpleNamespace(ansible_job_id="new", attempts=[])
found = iter([old, new, new])
action = object.__new__(ActionModule)
action._registry = SimpleNamespace(find=lambda key: next(found))
action._key = lambda asked: "key"
# Another controller has removed the files of the job that was done, and has started it anew.
action._status_of = lambda record, asked: {"state": "lost" if record is old else "running"}
action._found = lambda record, asked: record.ansible_job_id
print(action._load({"claim": True, "retries": 0, "forget": ["done"]}))
"""


def test_a_job_that_another_controller_starts_anew_while_the_host_is_asked_is_the_one_that_is_found():
    done = subprocess.run([sys.executable, "-c", OUT_OF_DATE], capture_output=True, text=True, check=False, timeout=240)
    assert (done.stdout, done.stderr) == ("new\n", "")


REMOVED_BY_ANOTHER = """
from types import SimpleNamespace
from ansible.errors import AnsibleError
from ansible_collections.forkless.core.plugins.action.async_job import ActionModule

action = object.__new__(ActionModule)
action._vars, action._probe = {}, lambda **asked: {}
for msg in ("could not find job", "Permission denied"):
    action._execute_module = lambda *args, **more: {"failed": True, "msg": msg}
    try:
        action._remove_files(SimpleNamespace(ansible_job_id="j1.1"), {}, {"state": "done", "async_dir": "/async"})
        print("went on")
    except AnsibleError as error:
        print(error)
"""


def test_a_file_that_another_controller_removed_first_keeps_nobody_from_starting_the_job_anew():
    done = subprocess.run(
        [sys.executable, "-c", REMOVED_BY_ANOTHER], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout == "went on\nthe host could not be asked about the job: Permission denied\n", done.stderr
