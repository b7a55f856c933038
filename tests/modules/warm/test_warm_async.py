# SPDX-License-Identifier: GPL-3.0-or-later
"""`async` tasks start through the warm interpreter: the same results, files and processes as with stock, and they outlive it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

import forkless
import sshd_targets
from ansible_collections.forkless.core.plugins.module_utils import jobs as target_jobs
from ansible_collections.forkless.core.plugins.module_utils import processes
from forkless.core import versions
from forkless.patching import seams

HERE = pathlib.Path(__file__).parents[1]
SOURCE = HERE.parent.parent / "src"
STOCK = [str(pathlib.Path(sys.executable).parent / "ansible-playbook")]
OURS = [sys.executable, "-m", "forkless", "playbook"]
SOON = 120

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600)]


def wait_for(condition):
    deadline = time.monotonic() + SOON
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def plain(value, work):
    """Without what no two runs have in common: times, ids, and the place of async_wrapper in its own tracebacks."""
    if isinstance(value, dict):
        left_out = {"start", "end", "delta", "ansible_job_id", "jid", "results_file", "child_pid", "stderr_lines"}
        return {key: plain(one, work) for key, one in value.items() if key not in left_out}
    if isinstance(value, list):
        return [plain(one, work) for one in value]
    if isinstance(value, str):
        value = re.sub(r"ansible-tmp-[\d.-]+", "FOLDER", value.replace(str(work), "WORK"))
        return re.sub(r"Traceback.*?(?=\n\w)", "Traceback", value, flags=re.DOTALL)
    return value


@pytest.mark.matrix_newest
def test_what_becomes_of_odd_modules_is_what_becomes_of_them_on_stock(one_python_for_each_minor, tmp_path):
    found = {}
    for name, command in (("theirs", STOCK), ("ourown", OURS)):
        work = tmp_path / name
        work.mkdir()
        extra = {"work": str(work), "ansible_python_interpreter": sys.executable}
        done = subprocess.run(
            [*command, "-vvv", "-i", "localhost,", "-e", json.dumps(extra), str(HERE / "odd" / "odd_async.yml")],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "ANSIBLE_LOCALHOST_WARNING": "0"},
            capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        found[name] = plain(json.loads(pathlib.Path(f"{work}.json").read_text()), work)
    assert found["ourown"] == found["theirs"]
    warm = [line for line in done.stdout.splitlines() if "EXEC (warm)" in line and "async_wrapper" in line]
    assert len(warm) == 8, done.stdout  # each of them, also a module that is no Python


@pytest.mark.matrix
def test_a_path_of_python_that_a_shell_quotes_changes_nothing(tmp_path):
    """Since 2.21 ansible-core quotes the whole command; before that such a module runs cold."""
    python = tmp_path / "py~3"
    python.symlink_to(os.path.realpath(sys.executable))
    task = "- hosts: localhost\n  gather_facts: false\n  tasks: [{command: echo hi, async: 100, poll: 1}]\n"
    (tmp_path / "play.yml").write_text(task)
    variables = {"ansible_python_interpreter": str(python), "ansible_async_dir": str(tmp_path / "jobs")}
    result = forkless.run(
        playbook="play.yml", inventory="localhost,", cwd=tmp_path, verbosity=3, engine="threads",
        extra_vars={**variables, "ansible_connection": "local"},
    )  # fmt: skip
    assert result.rc == 0, result.stdout
    was_warm = any("EXEC (warm)" in line and "async_wrapper" in line for line in result.stdout.splitlines())
    assert was_warm == (seams.minor(seams.version()) in versions.since("2.21")), result.stdout


WAITS = """
- hosts: all
  gather_facts: false
  tasks:
    - name: start
      shell: until [ -e {{ go }} ]; do sleep 0.1; done; echo done by $(id -un)
      async: 600
      poll: 0
      register: job
    - debug: {msg: "{{ job.results_file }}"}
"""


@pytest.fixture
def shared():
    """A folder that every user, and every host of the tests, can reach; `go` in it is what the jobs wait for."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fk-async-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def run(tmp_path, shared):
    """Starts a run of WAITS."""
    (tmp_path / "play.yml").write_text(WAITS)

    def start(hosts, **more):
        extra = {"go": str(shared / "go"), "ansible_python_interpreter": "/usr/bin/python3"}
        (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
        options = {
            "playbook": "play.yml",
            "inventory": "hosts.yml",
            "extra_vars": extra,
            "engine": "threads",
            "verbosity": 3,
        }
        return forkless.start(**{**options, "cwd": tmp_path, **more})

    # The tests that fail end their jobs as well.
    yield start
    (shared / "go").touch()


def jobs_of(run):
    """The results file of each host's job, as soon as all are known."""
    return {
        event.event_data["host"]: event.event_data["res"]["results_file"]
        for event in run.wait().events
        if event.event == "runner_on_ok" and event.event_data["task"] == "start"
    }


def ended_with(path):
    return wait_for(lambda: (found := json.loads(path.read_text())).get("finished", "rc" in found) and found)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users without a password")
def test_a_job_outlives_interpreter_and_run_and_is_seen_as_the_one_that_stock_starts(run, shared):
    with sshd_targets.targets(1, more=sshd_targets.QUICK_KEY_EXCHANGE) as up:
        ssh = {
            "ansible_host": up.hosts[0].address,
            "ansible_port": up.hosts[0].port,
            "ansible_user": up.user,
            "ansible_private_key_file": str(up.key),
            "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ControlMaster=no",
            "ansible_host_key_checking": False,
        }
        become = {"ansible_become": True, "ansible_become_method": "sudo"}
        hosts = {
            "here": {"ansible_connection": "local"},
            "here-nobody": {"ansible_connection": "local", **become, "ansible_become_user": "nobody"},
            "ssh": {"ansible_connection": "ssh", **ssh},
            "ssh-root": {"ansible_connection": "ssh", **ssh, **become},
            "ours": {"ansible_connection": "forkless.core.ssh", **ssh},
        }
        going = run({name: {**host, "ansible_async_dir": str(shared / name)} for name, host in hosts.items()})
        found = jobs_of(going)
        result = going.wait()
        result.raise_for_failures()
        assert set(found) == set(hosts)
        warm = [line for line in result.stdout.splitlines() if "EXEC (warm)" in line and "async_wrapper" in line]
        assert len(warm) == len(hosts), result.stdout
        for name, results_file in found.items():
            path = pathlib.Path(results_file)
            jid = path.name
            table = processes.snapshot()
            supervisor, runner = sorted(processes.wrappers(table, jid), key=lambda one: one.pid)
            assert runner.group == runner.pid != supervisor.group
            assert runner.session == supervisor.session == supervisor.group
            # Below the runner are the module, with the command line that it has on stock, the shell and its `sleep`.
            module = next(one for one in table.values() if one.ppid == runner.pid)
            assert [word for word in module.argv if word][-1].endswith("/AnsiballZ_command.py"), name
            environ = pathlib.Path(f"/proc/{module.pid}/environ").read_bytes().split(b"\0")
            assert environ[0].startswith(b"ANSIBLE_ASYNC_DIR="), name
            assert target_jobs.status(jid, [str(path.parent)])["state"] == "running"
        (shared / "go").touch()
        users = {"here": "root", "here-nobody": "nobody", "ssh": up.user, "ssh-root": "root", "ours": up.user}
        for name, results_file in found.items():
            assert ended_with(pathlib.Path(results_file))["stdout"] == f"done by {users[name]}"


def test_a_run_that_is_cancelled_leaves_its_jobs_alone(run, shared, tmp_path):
    (tmp_path / "play.yml").write_text(WAITS + "    - {name: waits, wait_for: {path: /nowhere, timeout: 3000}}\n")
    going = run({"here": {"ansible_connection": "local"}})
    for event in going.events():
        if event.event == "runner_on_start" and event.event_data["task"] == "waits":
            going.cancel()
    [results_file] = jobs_of(going).values()
    assert going.wait().status == "canceled"
    jid = os.path.basename(results_file)
    assert len(processes.wrappers(processes.snapshot(), jid)) == 2
    (shared / "go").touch()
    assert ended_with(pathlib.Path(results_file))["stdout"].startswith("done by ")


def test_a_job_whose_command_line_cannot_be_shown_starts_cold(run, shared, tmp_path):
    """Whether it is alive is told by its command line; an interpreter has only so much room for that."""
    far = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 24)
    here = {"ansible_connection": "local", "ansible_remote_tmp": str(far)}
    (shared / "go").touch()
    going = run({"here": here})
    [results_file] = jobs_of(going).values()
    assert going.wait().ok
    assert ended_with(pathlib.Path(results_file))["rc"] == 0
    cold = [line for line in going.wait().stdout.splitlines() if "EXEC" in line and "async_wrapper.py j" in line]
    assert len(cold) == 1, going.wait().stdout


def test_an_interpreter_is_no_process_of_a_job_that_it_started(run, shared, tmp_path):
    """A job's processes are found by ANSIBLE_ASYNC_DIR; LANG is a variable that an interpreter must be started with."""
    book = WAITS.replace("      async: 600", "      environment: {LANG: C, ONLY: here}\n      async: 600")
    (tmp_path / "play.yml").write_text(book + "    - {name: waits, wait_for: {path: /nowhere, timeout: 3000}}\n")
    folder = shared / "jobs"
    going = run({"here": {"ansible_connection": "local", "ansible_async_dir": str(folder)}})
    mine, others = [], []
    for event in going.events():
        if event.event == "runner_on_start" and event.event_data["task"] == "waits":
            [jid] = (one.name for one in folder.iterdir())
            table = processes.snapshot()
            session = processes.wrappers(table, jid)[0].session
            for one in table.values():
                try:
                    environ = pathlib.Path(f"/proc/{one.pid}/environ").read_bytes()
                except OSError:  # it has ended
                    continue
                if f"ANSIBLE_ASYNC_DIR={folder}".encode() in environ:
                    (mine if one.session == session else others).append(one.argv)
            going.cancel()
    (shared / "go").touch()
    assert ended_with(folder / jid)["rc"] == 0
    assert (len(mine) >= 2, others) == (True, [])


LEAVES_PROCESS = """
#!/usr/bin/python
import multiprocessing, time
from ansible.module_utils.basic import AnsibleModule

def main():
    module = AnsibleModule({})
    multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,), daemon=True).start()
    module.exit_json(sum=3)

if __name__ == '__main__':
    main()
"""


def test_a_job_ends_the_processes_of_its_module_as_python_does(run, shared, tmp_path):
    """A daemonic process has the module's stdout, which async_wrapper reads to its end."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "leaves_process.py").write_text(LEAVES_PROCESS.lstrip())
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: start, leaves_process: , async: 60, poll: 1}\n"
    )
    result = run({"here": {"ansible_connection": "local", "ansible_async_dir": str(shared)}}).wait()
    assert result.ok, result.stdout
    [sums] = [event.event_data["res"]["sum"] for event in result.events if event.event == "runner_on_ok"]
    assert sums == 3
