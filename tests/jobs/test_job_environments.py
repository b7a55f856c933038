# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs where things are as they are in production: a full disk, another user, another home, five hundred of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest

from forkless import jobs
from forkless.jobs import Key
from jobs_controller import SOURCE, Controller, role, start, until

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(900)]

# How many jobs the heavy test asks a host about; `make faults` asks for five hundred.
MANY = 500 if int(os.environ.get("FORKLESS_ROUNDS", "2")) >= 5 else 40

ON_A_SMALL_DISK = """
import errno, os, sys
from forkless import StoreError, jobs
from forkless.jobs import Key

folder = sys.argv[1]
registry = jobs.JobRegistry(jobs.open_store("file:" + folder + "/state"))
registry.save(Key("h", "old"), "j1.1", metadata={"kept": True})

def fill():
    with open(folder + "/ballast", "ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC

fill()
attempts = {
    "save anew": lambda: registry.save(Key("h", "new"), "j2.2"),
    "save again": lambda: registry.save(Key("h", "old"), "j3.3", metadata={"kept": False, "more": "x" * 9000}),
    "claim": lambda: registry.claim(Key("h", "claimed"), wait=0),
}
for name, attempt in attempts.items():
    try:
        attempt()
    except StoreError as error:
        assert "No space left on device" in str(error), error
        assert "\\n" not in str(error)
    else:
        raise AssertionError(name + " went through")
problems = []
assert [(r.key.job_name, r.ansible_job_id) for r in registry.jobs(problems=problems)] == [("old", "j1.1")]
assert registry.find(Key("h", "old")).metadata == {"kept": True}
assert problems == []
assert not [name for _, _, names in os.walk(folder) for name in names if "draft" in name]
os.unlink(folder + "/ballast")
registry.save(Key("h", "new"), "j2.2")
assert registry.claim(Key("h", "claimed"), wait=0).state == jobs.CLAIMED
print("through")
"""


def apart(folder, *command):
    """A command in a mount namespace of its own, where `folder` is a small disk."""
    mounted = 'mount -t tmpfs -o size=96k,nr_inodes=200 none "$0" && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, str(folder), *command]


def test_a_full_disk_loses_no_record_and_is_said_in_one_sentence(tmp_path):
    if os.geteuid() != 0:
        pytest.xfail("only root may mount; the store's own tests have this with a disk that only pretends to be full")
    done = subprocess.run(
        apart(tmp_path, sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path)),
        env=os.environ | {"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "through\n"), done.stderr


def test_on_a_full_disk_a_play_ends_before_it_starts_anything(controller):
    if os.geteuid() != 0:
        pytest.xfail("only root may mount")
    state = controller.folder / ".ansible_async_state"
    state.mkdir()
    tasks = [
        {"ansible.builtin.shell": f"cat /dev/zero > {state}/ballast; true"},
        role("async_job_load", job_name="j", claim=True),
        start("touch started-all-the-same"),
    ]
    command = controller.command([{"hosts": "here", "gather_facts": False, "tasks": tasks}], engine="stock")
    done = subprocess.run(
        apart(state, *command), cwd=controller.folder, env=controller.environ(), capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout
    assert "No space left on device" in done.stdout
    assert not (controller.folder / "started-all-the-same").exists()


@pytest.fixture
def open_controller():
    """A folder for playbooks that other users reach. Pytest's are not: whenever a session begins, pytest closes the one above all of them."""
    with tempfile.TemporaryDirectory(prefix="forkless-") as folder:
        os.chmod(folder, 0o711)
        with Controller(os.path.join(folder, "stage")) as made:
            os.chmod(made.folder, 0o711)
            yield made


def test_a_job_of_another_user_is_started_found_ended_and_cleaned_up_with_become_though_home_is_another(
    open_controller,
):
    controller = open_controller
    python = "/usr/bin/python3"  # one that the other user may run
    if os.geteuid() != 0 or not os.path.exists(python):
        pytest.xfail("only root may become another user without a password")
    shared = controller.folder / "shared"
    shared.mkdir()
    os.chown(shared, 65534, 65534)
    inventory = controller.folder / "other.ini"
    inventory.write_text(
        f"here ansible_connection=local ansible_python_interpreter={python} ansible_async_dir={shared} "
        "ansible_become=true ansible_become_user=nobody ansible_remote_tmp=/tmp ansible_pipelining=true\n"
    )
    options = {"inventory": inventory, "environ": {"HOME": str(controller.home)}}
    found = ["async_job_load_found", "async_job_load_ansible_job_id", "async_job_load_async_dir"]
    told = ["async_job_status_state", "async_job_kill_state", "async_job_cleanup_removed"]
    first = controller.tasks(
        role("async_job_load", job_name="theirs", claim=True),
        {**start("sleep 660"), "vars": {"ansible_async_dir": "{{ async_job_load_async_dir }}"}},
        role("async_job_save", job_name="theirs", ansible_job_id="{{ started.ansible_job_id }}"),
        facts=found, **options,
    )  # fmt: skip
    assert first["async_job_load_found"] is False
    slot = first["async_job_load_async_dir"]
    assert os.stat(slot).st_uid == 65534
    until(lambda: controller.processes("660"), what="the job")
    second = controller.tasks(
        role("async_job_load", job_name="theirs", claim=True),
        role("async_job_status", job_name="theirs"),
        role("async_job_kill", job_name="theirs", grace=1),
        role("async_job_cleanup"),
        facts=found + told, **options,
    )  # fmt: skip
    assert second["async_job_load_found"] is True
    assert second["async_job_load_ansible_job_id"] == first["started"]["ansible_job_id"]
    assert second["async_job_status_state"] == "running"
    assert second["async_job_kill_state"] == "killed"
    assert [job["job_name"] for job in second["async_job_cleanup_removed"]] == ["theirs"]
    assert not os.path.exists(slot)
    assert not controller.processes("660")


def test_many_jobs_are_listed_asked_about_and_cleaned_up_and_one_odd_one_among_them_is_named(controller):
    registry = jobs.JobRegistry(jobs.open_store(f"file:{controller.folder}/.ansible_async_state"))
    controller.async_dir.mkdir()
    for number in range(MANY):
        registry.save(Key("here", f"job {number:03}"), f"j{number}.1", async_dir=str(controller.async_dir))
        (controller.async_dir / f"j{number}.1").write_text(json.dumps({"rc": number % 2, "failed": bool(number % 2)}))
    (controller.async_dir / "j7.1").write_text("[]")
    (controller.folder / ".ansible_async_state/here/odd.json").write_text("[" * 10_000 + "]" * 10_000)

    def shell(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "forkless", "jobs", *arguments, "--format", "json"], cwd=controller.folder, text=True,
            env=controller.environ(), capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=800,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout)

    code, listed = shell("list")
    assert (code, len(listed)) == (1, MANY + 1)
    code, rows = shell("status", "-i", "local.ini")
    states = [row["state"] for row in rows]
    assert code == 1
    assert {state: states.count(state) for state in set(states)} == {
        "done": MANY // 2, "failed": MANY // 2 - 1, "dead": 1, "unreadable": 1,
    }  # fmt: skip
    code, swept = shell("cleanup", "-i", "local.ini", "--state", "done", "--state", "dead")
    assert code == 1
    assert (len(swept["removed"]), len(swept["kept"])) == (MANY // 2 + 1, MANY // 2 - 1)
    assert shell("list")[1][-1]["state"] == "unreadable"
    assert len(registry.jobs(problems=[])) == MANY // 2 - 1
