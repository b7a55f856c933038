# SPDX-License-Identifier: GPL-3.0-or-later
"""Never two, never lost: controllers killed at every step, two at the same moment, one that sleeps too long."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jobs_stage import ENGINES, until

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(1200)]

STEPS = ["before claim", "after claim", "after start", "after save"]
# Rounds for each step. One run of a playbook is a round on each of its hosts.
ROUNDS = int(os.environ.get("FORKLESS_ROUNDS", "2"))
HOSTS = min(5, ROUNDS)
# With few rounds, the step at which most can go wrong runs on forkless, and all four on stock.
CASES = [("stock", step) for step in STEPS] + [("forkless", step) for step in (STEPS if ROUNDS >= 5 else STEPS[2:3])]


def die(step):
    return {
        "name": f"die {step}",
        "ansible.builtin.command": "kill -9 {{ controller }}",
        "when": f"die_at == '{step}'",
        "run_once": True,
    }


def pattern(backend, lease=120, between=()):
    """The pattern of the scenarios, without the roles around the action: fewer tasks, more rounds."""
    where = {"job_name": "once", "backend": backend}
    return [
        {
            "hosts": "all",
            "gather_facts": False,
            "vars": {"die_at": "never", "controller": 0},
            "tasks": [
                die("before claim"),
                {"forkless.core.async_job": {"op": "load", "claim": True, "claim_lease": lease, **where}, "register": "load"},
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


def inventory(stage, hosts):
    path = stage.folder / "many.ini"
    lines = [
        f"h{n} ansible_connection=local ansible_python_interpreter={sys.executable} ansible_async_dir={stage.async_dir}"
        for n in range(hosts)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def run(stage, play, engine, hosts, **variables):
    """A controller that knows its own pid, so that it can be told to die."""
    command = stage.command(play, engine=engine, inventory=inventory(stage, hosts), **variables)
    return subprocess.Popen(
        ["sh", "-c", 'exec "$@" -e controller=$$', "sh", *command], cwd=stage.folder, env=stage.environ(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def finish(controller):
    out, _ = controller.communicate(timeout=600)
    return out


def ids(out):
    """Which job each host ended up with, from the last message of a play."""
    found = {}
    for line in out.splitlines():
        if '"msg": "h' in line:
            host, _, jid = line.split('"')[3].split()
            found[host] = jid
    return found


def check_one_each(stage, hosts, out):
    assert sorted(ids(out)) == [f"h{n}" for n in range(hosts)], out
    for host, jid in ids(out).items():
        until(lambda host=host: (stage.folder / f"ran-{host}").exists(), what=f"the job on {host}")
        assert (stage.folder / f"ran-{host}").read_text() == "started\n", f"{host}: not exactly once\n{out}"
        record = stage.record("once", host)
        assert record["ansible_job_id"] == jid
        assert (stage.folder / "async").exists()
        assert os.path.exists(os.path.join(record["async_dir"], jid))
    assert len(stage.processes("sleep", "620")) == hosts, out


@pytest.mark.parametrize(("engine", "step"), CASES)
def test_a_controller_killed_at_any_step_leaves_one_job_and_the_next_one_finds_it(tmp_path, engine, step):
    from jobs_stage import Stage

    for number in range(max(1, ROUNDS // HOSTS)):
        with Stage(tmp_path / str(number)) as stage:
            killed = run(stage, pattern("file:"), engine, HOSTS, die_at=step)
            out = finish(killed)
            assert killed.returncode == -9, out
            second = run(stage, pattern("file:"), engine, HOSTS)
            out = finish(second)
            assert second.returncode == 0, out
            check_one_each(stage, HOSTS, out)


def test_of_a_stock_and_a_forkless_controller_at_the_same_moment_one_starts_the_job(stage):
    controllers = [run(stage, pattern("file:"), engine, 2) for engine in ENGINES]
    outs = [finish(controller) for controller in controllers]
    assert [controller.returncode for controller in controllers] == [0, 0], outs
    assert ids(outs[0]) == ids(outs[1])
    check_one_each(stage, 2, outs[0])


def test_a_controller_that_sleeps_past_its_lease_cannot_start_a_second_job(stage):
    """The first is not dead, only slow: it starts its job after the second has taken over, and must run into the fence."""
    sleepy = [
        {"ansible.builtin.file": {"path": "{{ playbook_dir }}/asleep", "state": "touch"}},
        {"ansible.builtin.wait_for": {"path": "{{ playbook_dir }}/wake", "timeout": 500, "sleep": 1}},
    ]
    slow = run(stage, pattern("file:", lease=1, between=sleepy), "stock", 1)
    until((stage.folder / "asleep").exists, 300, "the first claim")
    second = run(stage, pattern("file:"), "stock", 1)
    out = finish(second)
    assert second.returncode == 0, out
    (stage.folder / "wake").touch()
    late = finish(slow)
    assert slow.returncode == 2, late
    assert "could not create directory" in late or "taken over by another controller" in late
    check_one_each(stage, 1, out)


def test_a_job_that_nobody_saved_is_found_with_no_record_at_all(stage):
    """The state folder went with the controller's machine; the host still knows the job by its name."""
    first = run(stage, pattern("file:"), "stock", 1, die_at="after start")
    finish(first)
    (stage.folder / ".ansible_async_state").rename(stage.folder / "gone")
    second = run(stage, pattern("file:"), "stock", 1)
    out = finish(second)
    assert second.returncode == 0, out
    check_one_each(stage, 1, out)
    assert stage.record("once", "h0")["adopted"] is True


def test_a_store_that_cannot_be_reached_ends_the_play_and_starts_nothing(stage):
    controller = run(stage, pattern("ara+http://127.0.0.1:9?claims=file:claims"), "stock", 1)
    out = finish(controller)
    assert controller.returncode == 2
    assert "could not be reached" in out
    assert not stage.processes("sleep")
    assert not [name for name in os.listdir(stage.folder) if name.startswith("ran-")]


@pytest.mark.xdist_group("jobs-servers")
@pytest.mark.parametrize("where", ["s3", "ara+file"])
def test_the_pattern_holds_on_a_server_as_it_does_in_a_folder(stage, where, weed, ara, make_url, tmp_path):
    url = make_url(where, {"s3": weed, "ara+file": ara}[where], tmp_path)
    outs = []
    for _ in range(2):
        controller = run(stage, pattern(url), "stock", 1)
        outs.append(finish(controller))
        assert controller.returncode == 0, outs[-1]
    assert ids(outs[0]) == ids(outs[1])
    assert sorted(ids(outs[0])) == ["h0"]
    until((stage.folder / "ran-h0").exists, what="the job")
    assert (stage.folder / "ran-h0").read_text() == "started\n"
