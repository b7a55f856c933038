# SPDX-License-Identifier: GPL-3.0-or-later
"""What a store says is data: a name or a piece of metadata that looks like a template is never evaluated on the controller."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from forkless import jobs
from forkless.jobs import Key
from jobs_controller import BIN, ENGINES, Controller, role

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600)]

ODD = "ü\x7f\u2028😀 \"quoted\" {% raw %} \\ 'x' #"


@pytest.fixture
def controller(tmp_path):
    with Controller(tmp_path / "stage") as made:
        yield made


@pytest.fixture
def evil(controller):
    """A text that leaves a file behind if anybody evaluates it."""
    return f"{{{{ lookup('ansible.builtin.pipe', 'touch {controller.folder}/evaluated') }}}}"


def assert_nothing_was_evaluated(controller, *done):
    assert not (controller.folder / "evaluated").exists(), [str(one) for one in done]


@pytest.mark.parametrize(
    ("command", "more"),
    [("status", []), ("wait", []), ("kill", []), ("output", ["--path", "{{ nothing_of_that_name }}"]), ("cleanup", [])],
)
def test_no_command_evaluates_what_a_record_says(controller, evil, command, more):
    folder = controller.folder / "state {{ nothing_of_that_name }}"
    book = jobs.JobRegistry(jobs.open_store(f"file:{folder}"))
    names = ["kill", "output", "wait"]
    names = [evil] if command in names else [evil, ODD]
    for name in names:
        book.save(
            Key("here", name, evil),
            "j1.{{ nothing_of_that_name }}",
            metadata={"command": evil, evil: [evil]},
            async_dir=f"/tmp/{evil}",
        )
    wanted = [evil] if command != "cleanup" else []
    done = subprocess.run(
        [sys.executable, "-m", "forkless", "jobs", command, *wanted, "--store", f"file:{folder}", "-i", "local.ini", *more],
        cwd=controller.folder, env=controller.environ(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=300,
    )  # fmt: skip
    assert_nothing_was_evaluated(controller, done)
    assert "nothing_of_that_name' is undefined" not in done.stdout + done.stderr, done
    if command == "cleanup":  # nothing runs under that id any more
        assert book.jobs("here") == [], done


def test_a_name_with_odd_characters_is_the_same_name_on_the_other_side(controller):
    book = jobs.JobRegistry(jobs.open_store(f"file:{controller.folder}/state"))
    book.save(Key("here", ODD), "j1.1")
    done = subprocess.run(
        [sys.executable, "-m", "forkless", "jobs", "status", "--store", f"file:{controller.folder}/state", "-i", "local.ini", "--format", "json"],
        cwd=controller.folder, env=controller.environ(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=300,
    )  # fmt: skip
    assert [(row["job_name"], row["state"]) for row in json.loads(done.stdout)] == [(ODD, "lost")], done


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.matrix_newest
def test_the_roles_hand_out_what_a_record_says_and_nobody_evaluates_it(controller, evil, engine):
    book = jobs.JobRegistry(jobs.open_store(f"file:{controller.folder}/.ansible_async_state"))
    book.save(
        Key("here", "known"),
        "j1.{{ nothing_of_that_name }}",
        metadata={"command": evil, "list": [{"deep": evil}]},
        async_dir=f"/{evil}",
    )
    book.save(Key("here", evil, evil), "j2.2", metadata={"command": evil})
    say = [
        "async_job_load_metadata.command",
        "async_job_load_metadata.list[0].deep",
        "async_job_load_ansible_job_id",
        "async_job_load_output_file",
        "async_job_status_job",
        "async_job_list_jobs",
        "async_job_cleanup_removed",
        "async_job_cleanup_kept",
    ]
    plays = [
        {
            "hosts": "here",
            "gather_facts": False,
            "tasks": [
                role("async_job_load", job_name="known"),
                role("async_job_status", job_name="known"),
                role("async_job_list"),
                {**role("async_job_status", job_name="{{ one.job_name }}", playbook_name="{{ one.playbook_name }}"),
                 "loop": "{{ async_job_list_jobs }}", "loop_control": {"loop_var": "one", "label": "{{ one.metadata }}"}},
                {"ansible.builtin.set_fact": {"again": "{{ async_job_load_metadata | combine({'x': 1}) }}"}},
                {"name": "{{ again.command }}", "ansible.builtin.debug": {"msg": "{{ again.command }} {{ again.list }}"}},
                {"ansible.builtin.debug": {"msg": "was {{ async_job_load_metadata.command }}"}, "vars": {"x": "{{ again.command }}"}},
                role("async_job_cleanup"),
                *({"ansible.builtin.debug": {"msg": f"{{{{ {name} }}}}"}} for name in say),
            ],
        }
    ]  # fmt: skip
    done = controller.play(plays, engine=engine)
    assert_nothing_was_evaluated(controller, done)
    assert "was {{ lookup('ansible.builtin.pipe'" in done.out, str(done)


@pytest.mark.matrix_ends
def test_what_the_vault_protects_is_not_in_a_record(controller):
    """Neither as a value nor within one, also of a variable that only another one uses."""
    (controller.folder / "password").write_text("pass\n")
    vault = ["--vault-password-file", "password"]
    made = subprocess.run(
        [BIN / "ansible-vault", "encrypt_string", *vault, "--name", "secret", "hunter2"],
        cwd=controller.folder, env=controller.environ(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True, timeout=300,
    )  # fmt: skip
    (controller.folder / "vars.yml").write_text(made.stdout + "url: 'https://me:{{ secret }}@db'\n")
    metadata = {"whole": "{{ secret }}", "within": ["{{ url }}"], "other": {"n": 7, "text": "plain"}}
    play = {
        "hosts": "here",
        "gather_facts": False,
        "vars_files": ["vars.yml"],
        "tasks": [role("async_job_save", job_name="dump", ansible_job_id="j1.2", metadata=metadata)],
    }
    done = controller.play([play], *vault)
    masked = {"whole": "********", "within": ["https://me:********@db"], "other": {"n": 7, "text": "plain"}}
    assert controller.record("dump")["metadata"] == masked
    files = [path for path in (controller.folder / ".ansible_async_state").rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"hunter2" in path.read_bytes()]
    assert "were masked" in " ".join(str(done).split())


def test_a_name_in_a_record_does_not_act_on_the_terminal(controller):
    folder, name = controller.folder / "state", "\x1b[2Jgone\u202etxt"
    jobs.JobRegistry(jobs.open_store(f"file:{folder}")).save(Key(name, name), f"j1{name}.2")
    for command in (["list"], ["show", name]):
        done = subprocess.run(
            [sys.executable, "-m", "forkless", "jobs", *command, "--store", f"file:{folder}"],
            cwd=controller.folder, env=controller.environ(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=300,
        )  # fmt: skip
        assert not {"\x1b", "\u202e"} & set(done.stdout + done.stderr), done
