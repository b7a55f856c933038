# SPDX-License-Identifier: GPL-3.0-or-later
"""The roles, as plays use them: odd names, loops, delegation, check mode, hosts without facts."""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import subprocess
import sys
import uuid

import pytest

from forkless import jobs
from forkless.jobs import Key
from jobs_controller import USUAL, heard, role, start, told, until

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(900)]

NAMES = ['a"b', "../../x", "ü", "n" * 300, "{{ 7 * 6 }}", "it's"]
LOADED = [
    f"async_job_load_{name}"
    for name in ("found", "ansible_job_id", "host", "metadata", "state", "async_dir", "adopted")
]


def unsafe(text):
    """A name that must not be read as a template, in a playbook written as JSON: by its characters."""
    return text if "{{" not in text else "{{ '{' ~ '{ 7 * 6 }' ~ '}' }}"


@pytest.mark.parametrize("engine", ["stock", "forkless"])
def test_saved_and_loaded_by_name_with_metadata_without_facts_in_one_loop(controller, engine):
    names = NAMES if engine == USUAL else NAMES[:2]
    (controller.folder / "one.yml").write_text(json.dumps([
        role("async_job_save", job_name="{{ item }}", ansible_job_id="123e4.{{ n }}", metadata={"n": "{{ n }}", "deep": [{"a": None}]}),
        role("async_job_load", job_name="{{ item }}"),
        told(*LOADED),
    ]))  # fmt: skip
    loop = {"loop": [unsafe(name) for name in names], "loop_control": {"index_var": "n"}}
    tasks = [{"ansible.builtin.include_tasks": str(controller.folder / "one.yml"), **loop}]
    answers = heard(controller.play([{"hosts": "here", "gather_facts": False, "tasks": tasks}], engine=engine))
    assert len(answers) == len(names)
    for number, found in enumerate(answers):
        assert found["async_job_load_found"] is True
        assert found["async_job_load_ansible_job_id"] == f"123e4.{number}"
        assert str(found["async_job_load_metadata"]["n"]) == str(number)
        assert found["async_job_load_metadata"]["deep"] == [{"a": None}]
        assert found["async_job_load_host"] == "here"
    folder = controller.folder / ".ansible_async_state" / "here"
    saved = sorted(json.loads(path.read_text())["job_name"] for path in folder.glob("*.json"))
    assert saved == sorted(names)
    assert sorted(os.listdir(controller.folder / ".ansible_async_state")) == ["here"]
    assert not (controller.folder.parent / "x.json").exists()


def test_nothing_of_an_earlier_load_is_left_when_a_job_is_not_found_or_the_load_fails(controller):
    (controller.folder / ".ansible_async_state/here").mkdir(parents=True)
    (controller.folder / ".ansible_async_state/here/damaged.json").write_text("{")
    keep = {"ansible.builtin.set_fact": {"kept": "{{ kept | default([]) + [[" + ", ".join(LOADED) + "]] }}"}}
    said = controller.tasks(
        role("async_job_save", job_name="known", ansible_job_id="j1.2", metadata={"a": 1}),
        role("async_job_load", job_name="known"), keep,
        role("async_job_load", job_name="unknown"), keep,
        role("async_job_load", job_name="known"), keep,
        {"block": [role("async_job_load", job_name="damaged")],
         "rescue": [{"ansible.builtin.set_fact": {"why": "{{ ansible_failed_result.msg }}"}}]}, keep,
        {"block": [{**start("touch second-start"), "vars": {"ansible_async_dir": "{{ async_job_load_async_dir }}"}}],
         "rescue": [{"ansible.builtin.set_fact": {"refused": True}}]},
        facts=["kept", "why", "refused"],
    )  # fmt: skip
    found, missing, again, damaged = said["kept"]
    assert found[:5] == again[:5] == [True, "j1.2", "here", {"a": 1}, "lost"]
    assert missing[:5] == [False, "", "", {}, "unknown"]
    assert damaged[:5] == [False, "", "", {}, "unknown"]
    assert "damaged.json cannot be understood" in said["why"]
    # And a play that goes on after that cannot start what may be running already.
    assert said["refused"] is True
    assert not (controller.folder / "second-start").exists()


def test_in_check_mode_nothing_is_written_or_claimed_and_the_next_run_starts_the_job(controller):
    tasks = [
        role("async_job_load", job_name="j", claim=True),
        {"vars": {"ansible_async_dir": "{{ async_job_load_async_dir }}"}, "block": [
            {**start("sleep 630"), "when": "not async_job_load_found"},
            role("async_job_save", job_name="j", ansible_job_id="{{ started.ansible_job_id }}"),
        ]},
        role("async_job_status", job_name="j"),
        role("async_job_cleanup"),
    ]  # fmt: skip
    play = [{"hosts": "here", "gather_facts": False, "tasks": tasks}]
    controller.play(play, "--check")
    assert not (controller.folder / ".ansible_async_state").exists()
    assert not controller.processes("sleep")
    controller.play(play)
    assert controller.record("j")["ansible_job_id"]
    assert not controller.record("j")["adopted"]
    until(lambda: controller.processes("sleep", "630"), what="the job")


def test_a_delegated_job_is_kept_under_the_host_it_is_for_and_found_where_it_runs(controller):
    far_dir = controller.folder / "far-async"
    with (controller.folder / "local.ini").open("a") as inventory:
        inventory.write(
            f"there ansible_connection=local ansible_python_interpreter={sys.executable} ansible_async_dir={far_dir}\n"
        )

    def far(task):
        task = dict(task)
        name = task["ansible.builtin.include_role"]["name"]
        task["ansible.builtin.include_role"] = {"name": name, "apply": {"delegate_to": "there"}}
        return task

    said = controller.tasks(
        far(role("async_job_load", job_name="d", claim=True)),
        # A delegated task reads connection variables as the other host sees them.
        {
            **start("sleep 631"),
            "delegate_to": "there",
            "vars": {"ansible_async_dir": "{{ hostvars['here'].async_job_load_async_dir }}"},
        },  # fmt: skip
        far(role("async_job_save", job_name="d", ansible_job_id="{{ started.ansible_job_id }}")),
        far(role("async_job_status", job_name="d")),
        facts=["async_job_status_state", "async_job_load_async_dir"],
        engine="stock",
    )
    assert said["async_job_status_state"] == "running"
    assert said["async_job_load_async_dir"].startswith(str(far_dir))
    assert controller.record("d")["async_dir"].startswith(str(far_dir))
    # Asked without the delegation, the host would say that there is no such job. Nobody believes it.
    near = controller.tasks(
        role("async_job_load", job_name="d"),
        role("async_job_cleanup"),
        {"block": [role("async_job_status", job_name="d")],
         "rescue": [{"ansible.builtin.set_fact": {"refused": "{{ ansible_failed_result.msg }}"}}]},
        facts=["async_job_load_found", "async_job_load_state", "async_job_cleanup_kept", "refused"],
    )  # fmt: skip
    assert (near["async_job_load_found"], near["async_job_load_state"]) == (True, "unknown")
    assert [(job["job_name"], job["state"]) for job in near["async_job_cleanup_kept"]] == [("d", "unknown")]
    assert "job 'd' on here runs on there, and this task talks to here" in near["refused"]
    shown = subprocess.run(
        [sys.executable, "-m", "forkless", "jobs", "status", "-i", "local.ini", "--format", "json"],
        cwd=controller.folder, env=controller.environ(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=300,
    )  # fmt: skip
    assert [(job["host"], job["state"]) for job in json.loads(shown.stdout)] == [("here", "running")], shown


def test_no_host_is_asked_about_a_job_of_another_one(controller):
    """A play on one host that names another one in `..._host`: the first knows nothing of the second's jobs."""
    registry = jobs.JobRegistry(jobs.open_store(f"file:{controller.folder}/.ansible_async_state"))
    registry.save(Key("there", "j"), "j1.1")
    calls = {"status": {}, "kill": {}, "output": {}}
    tasks = [
        {"block": [role(f"async_job_{op}", job_name="j", host="there", **more)],
         "rescue": [{"ansible.builtin.set_fact": {op: "{{ ansible_failed_result.msg }}"}}]}
        for op, more in calls.items()
    ]  # fmt: skip
    anew = [role("async_job_load", job_name="j", host_filter="there", claim=True, forget=["lost"])]
    said = controller.tasks(
        role("async_job_cleanup", host="there"),
        *tasks,
        {"block": anew, "rescue": [{"ansible.builtin.set_fact": {"load": "{{ ansible_failed_result.msg }}"}}]},
        facts=["async_job_cleanup_removed", "async_job_cleanup_kept", *calls, "load"],
    )
    assert said["async_job_cleanup_removed"] == []
    assert [job["state"] for job in said["async_job_cleanup_kept"]] == ["unknown"]
    for op in (*calls, "load"):
        assert "job 'j' on there runs on there, and this task talks to here" in said[op], said
    assert registry.find(Key("there", "j")).ansible_job_id == "j1.1"


def test_where_home_is_not_the_passwd_home_the_job_is_found_all_the_same(controller):
    """Without the folder that load gives out, Ansible does not find its own job here."""
    # The home is the user's own: what a killed test left there must not be this one's.
    homeless = f"homeless-{uuid.uuid4().hex[:8]}"
    inventory = controller.folder / "home.ini"
    inventory.write_text(f"here ansible_connection=local ansible_python_interpreter={sys.executable}\n")
    said = controller.tasks(
        role("async_job_load", job_name=homeless),
        {**start("sleep 632"), "vars": {"ansible_async_dir": "{{ async_job_load_async_dir }}"}},
        role("async_job_save", job_name=homeless, ansible_job_id="{{ started.ansible_job_id }}"),
        {"ansible.builtin.async_status": {"jid": "{{ started.ansible_job_id }}"}, "register": "told",
         "vars": {"ansible_async_dir": "{{ async_job_load_async_dir }}"}},
        start("sleep 633", "plain"),
        {"ansible.builtin.async_status": {"jid": "{{ plain.ansible_job_id }}"}, "register": "stock", "ignore_errors": True},
        # A job that was started without it is found by the roles as well: they look in both places.
        role("async_job_save", job_name="plain", ansible_job_id="{{ plain.ansible_job_id }}", async_dir=""),
        role("async_job_status", job_name="plain"),
        inventory=inventory,
        environ={"HOME": str(controller.home)},
        facts=["async_job_load_async_dir", "async_job_status_state"],
        engine="stock",
    )  # fmt: skip
    try:
        real_home = pwd.getpwuid(os.geteuid()).pw_dir
        assert said["async_job_load_async_dir"].startswith(real_home)
        assert not said["told"]["finished"]
        assert said["stock"]["msg"] == "could not find job"  # ansible/ansible#81805
        assert said["async_job_status_state"] == "running"
    finally:
        controller.tasks(
            role("async_job_kill", job_name=homeless, grace=1), role("async_job_kill", job_name="plain", grace=1),
            role("async_job_cleanup"), inventory=inventory, environ={"HOME": str(controller.home)},
        )  # fmt: skip
    assert not os.path.exists(said["async_job_load_async_dir"])


def test_kill_says_what_it_saw_and_cleanup_spares_what_runs(controller):
    # Numbers that no job id, time or pid has in it.
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(634.634634)"
    begin = []
    for name, argv in (
        ("soft", ["sleep", "635.635635"]),
        ("stubborn", [sys.executable, "-c", stubborn]),
        ("stays", ["sleep", "636.636636"]),
    ):
        begin += [
            role("async_job_load", job_name=name),
            {"ansible.builtin.command": {"argv": argv}, "async": 600, "poll": 0, "register": "started",
             "vars": {"ansible_async_dir": "{{ async_job_load_async_dir }}"}},
            role("async_job_save", job_name=name, ansible_job_id="{{ started.ansible_job_id }}"),
        ]  # fmt: skip
    controller.tasks(*begin)
    until(lambda: len(controller.processes("634.634634")) == 1, what="the stubborn one")
    keep = {
        "ansible.builtin.set_fact": {
            "ends": "{{ ends | default([]) + [[async_job_kill_state, async_job_kill_job.signal, async_job_kill_seen]] }}"
        }
    }
    said = controller.tasks(
        role("async_job_kill", job_name="soft"), keep,
        role("async_job_kill", job_name="stubborn", grace=1), keep,
        role("async_job_kill", job_name="stubborn", grace=1), keep,
        {"ansible.builtin.async_status": {"jid": "{{ async_job_kill_job.ansible_job_id }}"}, "register": "stock",
         "ignore_errors": True, "vars": {"ansible_async_dir": "{{ async_job_kill_job.async_dir }}"}},
        role("async_job_list"),
        role("async_job_cleanup", states=["killed"], older_than=3600),
        {"ansible.builtin.set_fact": {"young": "{{ async_job_cleanup_kept }}"}},
        role("async_job_cleanup"),
        facts=["ends", "async_job_list_jobs", "async_job_cleanup_removed", "async_job_cleanup_kept", "young"],
    )  # fmt: skip
    soft, stubborn, again = said["ends"]
    assert soft[:2] == ["killed", 15]
    assert (soft[2]["before"], len(soft[2]["signalled"]), soft[2]["killed"], soft[2]["left"]) == ("running", 1, [], [])
    assert stubborn[:2] == ["killed", 9]
    assert stubborn[2]["killed"]
    assert stubborn[2]["left"] == []
    assert again[2] == {"before": "killed", "signalled": [], "killed": [], "left": []}
    assert said["stock"]["finished"]  # stock is told, too: it would have said "running" for ever
    assert not controller.processes("634.634634")
    assert [job["job_name"] for job in said["async_job_list_jobs"]] == ["soft", "stays", "stubborn"]
    assert {job["job_name"]: job["why"] for job in said["young"]} == {
        "soft": "it is not old enough", "stubborn": "it is not old enough", "stays": "it is running",
    }  # fmt: skip
    assert sorted(job["job_name"] for job in said["async_job_cleanup_removed"]) == ["soft", "stubborn"]
    assert [(job["job_name"], job["why"]) for job in said["async_job_cleanup_kept"]] == [("stays", "it is running")]
    left = [path for path in (controller.async_dir / "forkless").rglob("*") if path.is_file()]
    assert [path.name for path in left] == [controller.record("stays")["ansible_job_id"]]
    assert len(controller.processes("636.636636")) == 1


def test_a_finished_job_is_started_anew_if_the_play_says_so(controller):
    once = [
        role("async_job_load", job_name="again", claim=True, forget=["done"]),
        {**start("sh -c 'echo x >> {{ playbook_dir }}/times'"), "when": "not async_job_load_found",
         "vars": {"ansible_async_dir": "{{ async_job_load_async_dir }}"}},
        {**role("async_job_save", job_name="again", ansible_job_id="{{ started.ansible_job_id }}"),
         "when": "started.ansible_job_id is defined"},
    ]  # fmt: skip
    first = controller.tasks(*once)
    path = os.path.join(controller.record("again")["async_dir"], controller.record("again")["ansible_job_id"])
    until(lambda: "started" not in json.loads(pathlib.Path(path).read_text()), what="the end")
    second = controller.tasks(*once)
    assert second["started"]["ansible_job_id"] != first["started"]["ansible_job_id"]
    assert not os.path.exists(path)
    until(lambda: (controller.folder / "times").read_text() == "x\nx\n", what="the second run")


def test_a_job_that_fails_is_retried_as_often_as_asked_and_every_attempt_is_recorded(controller):
    (controller.folder / "one.yml").write_text(json.dumps([
        role("async_job_load", job_name="flaky", claim=True, retries=1),
        told("async_job_load_found", "async_job_load_state", "async_job_load_attempts"),
        {"when": "not async_job_load_found", "vars": {"ansible_async_dir": "{{ async_job_load_async_dir }}"}, "block": [
            {**start("sh -c 'echo again >> runs; exit 7'"), "args": {"chdir": str(controller.folder)}},
            role("async_job_save", job_name="flaky", ansible_job_id="{{ started.ansible_job_id }}"),
            {"ansible.builtin.async_status": {"jid": "{{ started.ansible_job_id }}"}, "register": "job",
             "until": "job is finished", "retries": 600, "delay": 0.1, "failed_when": False},
        ]},
    ]))  # fmt: skip
    tasks = [
        {"ansible.builtin.include_tasks": str(controller.folder / "one.yml"), "loop": [1, 2, 3]},
        role("async_job_load", job_name="flaky", retries=1),
    ]
    done = controller.play([{"hosts": "here", "gather_facts": False, "tasks": tasks}], engine="forkless", rc=2)
    assert "retries need a claim" in done.out
    loads = [(said["async_job_load_found"], said["async_job_load_state"]) for said in heard(done)]
    assert loads == [(False, "claimed"), (False, "claimed"), (True, "failed")]
    assert (controller.folder / "runs").read_text() == "again\n" * 2
    first, second, third = (said["async_job_load_attempts"] for said in heard(done))
    assert first == []
    assert second == third
    assert [(one["state"], one["rc"]) for one in third] == [("failed", 7)]
    assert third[0]["ansible_job_id"] != controller.record("flaky")["ansible_job_id"]
