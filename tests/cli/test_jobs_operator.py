# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator needs at night, with real jobs: one play starts them, and every test asks about them, from a shell or in this process."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import pytest

from forkless import jobs
from forkless.cli.commands import jobs as jobs_command
from forkless.jobs import Key
from jobs_controller import Controller, role, start, until

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(900), pytest.mark.xdist_group("jobs-operator")]

SPEAKS = "printf 'one\\ntwo\\nthree\\n'; until [ -e {go} ]; do sleep 0.2; done; printf 'last \\303\\274'"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Jobs in every state on one host, and the record of one on a host that is down."""
    with Controller(tmp_path_factory.mktemp("operator")) as controller:
        tasks = []
        speaks = "exec > {{ load.async_dir }}/output.log; " + SPEAKS.format(go=controller.folder / "go")
        for name, command, limit in (
            ("speaks", speaks, 600), ("steady", "exec sleep 660", 600), ("quick", "echo done at once", 600),
            ("bad", "exit 7", 600), ("late", "exec sleep 661", 1), ("dead", "exec sleep 662", 600),
            ("orphan", "echo nobody saved me > {{ load.async_dir }}/output.log; exec sleep 663", 600),
        ):  # fmt: skip
            here = {"vars": {"ansible_async_dir": "{{ load.async_dir }}"}}
            tasks += [
                {"forkless.core.async_job": {"op": "load", "job_name": name, "claim": True}, "register": "load"},
                {**start("x", seconds=limit), "ansible.builtin.shell": command, **here},
            ]
            del tasks[-1]["ansible.builtin.command"]
            if name != "orphan":
                tasks.append(
                    {"forkless.core.async_job": {"op": "save", "job_name": name, "async_dir": "{{ load.async_dir }}",
                                                 "ansible_job_id": "{{ started.ansible_job_id }}"}}
                )  # fmt: skip
        controller.tasks(*tasks, engine="forkless")
        record = controller.record("dead")
        until(
            lambda: [pid for pid in controller.processes("662") if comm(pid) == "sleep"], what="the job that is to die"
        )
        # Its whole family at once, as the kernel does it when memory is short.
        for pid in job_family(controller, record["ansible_job_id"]) + controller.processes("662"):
            os.kill(pid, signal.SIGKILL)
        late = controller.record("late")
        until(lambda: "Timeout" in pathlib.Path(late["async_dir"], late["ansible_job_id"]).read_text(), what="the end")
        registry = jobs.JobRegistry(jobs.open_store(f"file:{controller.folder}/.ansible_async_state"))
        registry.save(Key("down", "far"), "j2.2")
        with (controller.folder / "local.ini").open("a") as inventory:
            inventory.write("down ansible_connection=ssh ansible_host=127.0.0.1 ansible_port=9 ansible_ssh_retries=0\n")
        yield controller


def comm(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def job_family(controller, jid):
    found = []
    for pid in controller.processes():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                argv = file.read()
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read()
        except OSError:
            continue
        if jid.split(".")[0].encode() in argv or controller.record("dead")["async_dir"].encode() in environ:
            found.append(pid)
    return found


def command(*arguments):
    return [sys.executable, "-m", "forkless", "jobs", *arguments]


def shell(controller, *arguments, inventory="local.ini", **more):
    environ = more.pop("environ", {})
    return subprocess.run(
        [*command(*arguments), *(["-i", inventory] if arguments[0] != "show" else [])], cwd=controller.folder,
        env=controller.environ(**environ), capture_output=True, text=True, check=False, timeout=600,
        **({"stdin": subprocess.DEVNULL} | more if "input" not in more else more),
    )  # fmt: skip


@pytest.fixture
def here(running, monkeypatch, capsys):
    """Calls the command in this process, which needs a fifth of the processor time, as a shell would in the controller's folder."""

    def call(*arguments, inventory="local.ini", environ=None):
        with monkeypatch.context() as surroundings:
            surroundings.chdir(running.folder)
            for name, value in running.environ(**(environ or {})).items():
                surroundings.setenv(name, value)
            code = jobs_command.main([*arguments, "-i", inventory])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call


def test_list_tells_what_has_become_of_every_job_and_a_host_that_is_down_hides_none(running):
    done = shell(running, "list", "--timeout", "240", "--format", "json")
    assert done.returncode == 0, done
    states = {job["job_name"]: job["state"] for job in json.loads(done.stdout)}
    assert states.pop("speaks") in ("running", "done")
    assert states == {
        "far": "unreachable", "steady": "running", "quick": "done", "bad": "failed", "late": "timed_out", "dead": "dead",
        "orphan": states["orphan"],
    }  # fmt: skip
    assert states["orphan"] in ("running", "killed")
    assert done.stderr.count("Connection refused") == 1
    records = json.loads(shell(running, "list", "--no-status", "--host", "here", "--format", "json").stdout)
    assert {job["state"] for job in records} == {"saved", "claimed"}
    assert [job["job_name"] for job in records if job["state"] == "claimed"] == ["orphan"]


def test_list_does_not_wait_for_a_host_that_is_connected_and_silent(running, tmp_path):
    registry = jobs.JobRegistry(jobs.open_store(f"file:{tmp_path}"))
    for host in ("here", "silent"):
        registry.save(Key(host, "j"), "j2.2")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (running.folder / "silent.ini").write_text(
            (running.folder / "local.ini").read_text()
            + f"silent ansible_connection=ssh ansible_host=127.0.0.1 ansible_port={listener.getsockname()[1]}\n"
        )
        done = shell(
            running, "list", "--store", f"file:{tmp_path}", "--timeout", "5", inventory="silent.ini",
            environ={"ANSIBLE_TIMEOUT": 500},
        )  # fmt: skip
    assert done.returncode == 0
    assert "silent did not answer in 5 s." in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["here", "silent"]
    assert done.stdout.splitlines()[2].endswith("unreachable")


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes the second try."""

    got = ()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Receiver.got = (*Receiver.got, (body, self.headers["X-Forkless-Signature"]))
        self.send_response(503 if len(Receiver.got) == 1 else 204)
        self.end_headers()

    def log_message(self, *words):
        """Nothing on the terminal."""


@pytest.fixture
def receiver():
    Receiver.got = ()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()
        thread.join()


def test_wait_takes_several_jobs_and_says_by_its_exit_code_how_they_ended(running, here, receiver):
    one = here("wait", "quick", "bad", "--host", "here")
    assert (one.returncode, sorted(one.stdout.splitlines())) == (
        1,
        ["bad on here: failed (rc 7)", "quick on here: done (rc 0)"],
    )
    worse = here(
        "wait", "quick", "dead", "--format", "json", "--notify", receiver,
        environ={"FORKLESS_NOTIFY_SECRET": "s3cret"},
    )  # fmt: skip
    assert worse.returncode == 4, worse
    assert [job["state"] for job in json.loads(worse.stdout)] == ["done", "dead"]
    (first, _), (again, signature) = Receiver.got
    assert first == again
    assert signature == "sha256=" + hmac.new(b"s3cret", again, hashlib.sha256).hexdigest()
    assert [(job["job_name"], job["state"]) for job in json.loads(again)["jobs"]] == [
        ("quick", "done"),
        ("dead", "dead"),
    ]
    assert json.loads(again)["exit_code"] == 4
    assert here("wait", "steady", "late", "--any").returncode == 5
    missing = here("wait", "steady", "nothing")
    assert missing.returncode == 2
    assert "there is no job 'nothing'" in missing.stderr


def test_logs_follow_a_running_job_to_its_end_and_tail_begins_near_it(running):
    output = pathlib.Path(running.record("speaks")["async_dir"], "output.log")
    until(lambda: output.exists() and output.read_text() == "one\ntwo\nthree\n", what="three lines")
    tail = shell(running, "logs", "speaks", "--tail", "2")
    assert (tail.returncode, tail.stdout) == (0, "two\nthree\n")
    said = running.tasks(role("async_job_output", job_name="speaks", tail=1), facts=["async_job_output_text"])
    assert said == {"async_job_output_text": "three\n"}
    with subprocess.Popen(
        command("logs", "speaks", "-f", "--tail", "1", "--interval", "0.2", "-i", "local.ini"), cwd=running.folder,
        env=running.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    ) as follower:  # fmt: skip
        try:
            assert follower.stdout.readline() == b"three\n"
            (running.folder / "go").touch()
            out, err = follower.communicate(timeout=300)
        finally:
            follower.kill()
    assert (follower.returncode, out, err) == (0, "last ü".encode(), b"")


def test_a_job_that_is_only_claimed_is_read_and_ended_by_its_folder_on_the_host(running, here):
    def asleep():
        return [pid for pid in running.processes("663") if comm(pid) == "sleep"]

    [sleeper] = until(asleep, what="the job")
    read = here("logs", "orphan")
    assert (read.returncode, read.stdout) == (0, "nobody saved me\n")
    dry = here("kill", "orphan", "--dry-run")
    assert dry.returncode == 0, dry
    assert f"would be signalled: {sleeper}; nothing was changed." in dry.stdout
    assert asleep() == [sleeper]
    killed = here("kill", "orphan")
    assert killed.returncode == 0, killed
    assert f"before: running; signalled: {sleeper}" in killed.stdout
    assert "orphan on here: killed" in killed.stdout
    assert not asleep()


def test_forget_takes_the_record_of_a_job_that_is_over_and_dry_runs_change_nothing(running, here):
    state = running.folder / ".ansible_async_state"

    def everything():
        return {str(path): path.read_bytes() for path in state.rglob("*") if path.is_file()}

    before = everything()
    dry = here("cleanup", "--host", "here", "--dry-run", "--format", "json")
    assert {"quick", "bad", "late", "dead"} <= {job["job_name"] for job in json.loads(dry.stdout)["removed"]}
    both = here("forget", "steady", "late", "--dry-run")
    assert both.returncode == 1
    assert [line.split()[:4] for line in both.stdout.splitlines()[1:]] == [
        ["here", "steady", "running", "kept:"], ["here", "late", "timed_out", "would"],
    ]  # fmt: skip
    unreachable = here("forget", "far")
    assert unreachable.returncode == 3
    assert "it is not known whether the job runs" in unreachable.stdout
    assert everything() == before
    registry = jobs.JobRegistry(jobs.open_store(f"file:{state}"))
    late = registry.find(Key("here", "late"))
    assert here("forget", "late").returncode == 0
    assert registry.find(Key("here", "late")) is None
    assert os.path.exists(os.path.join(late.async_dir, late.ansible_job_id))  # the record only
    # With --force no host is asked.
    assert here("forget", "far", "--force", inventory="nothing.ini").returncode == 0
    registry.save(Key("down", "far"), "j2.2")
    registry.save(Key("here", "late"), late.ansible_job_id, async_dir=late.async_dir, process=late.process)


SUDO = """#!/bin/sh
# As sudo -S: asks with the prompt after -p, reads a line, and runs what follows -u USER.
cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' >> {seen}
while [ $# -gt 0 ]; do
  case "$1" in
    -n) echo 'sudo: a password is required' >&2; exit 1;;
    -p) prompt=$2; shift 2;;
    -u) user=$2; shift 2;;
    -*) shift;;
    *) break;;
  esac
done
printf '%s' "$prompt" >&2
read -r given
[ "$given" = pa55word ] || {{ echo 'Sorry, try again.' >&2; exit 1; }}
echo "$user" > {user}
exec "$@"
"""


@pytest.mark.matrix_ends
def test_passwords_and_vault_options_are_taken_as_ansible_playbook_takes_them_and_shown_nowhere(running):
    sudo, seen, user = (running.folder / name for name in ("sudo", "seen", "user"))
    sudo.write_text(SUDO.format(seen=seen, user=user))
    sudo.chmod(0o755)
    project = running.folder / "project"
    (project / "host_vars").mkdir(parents=True)
    (project / "hosts.ini").write_text((running.folder / "local.ini").read_text())
    (project / "host_vars/here.yml").write_text(f"ansible_become_exe: {sudo}\n")
    subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "ansible-vault"), "encrypt", str(project / "host_vars/here.yml"),
         "--vault-password-file", "/dev/stdin"],
        input="vaultw0rd", text=True, check=True, env=running.environ(), capture_output=True,
    )  # fmt: skip
    # Without a terminal, passwords are read from standard input.
    asked = shell(
        running, "status", "quick", "-b", "-K", "-J", "--become-user", "nobody", inventory="project/hosts.ini",
        input="pa55word\nvaultw0rd\n", start_new_session=True,
    )  # fmt: skip
    assert asked.returncode == 0, asked
    assert asked.stdout.splitlines()[1].split()[:4] == ["here", "quick", "done", "0"]
    assert user.read_text() == "nobody\n"
    for text in (asked.stderr, seen.read_text(errors="replace")):
        assert "pa55word" not in text
        assert "vaultw0rd" not in text
