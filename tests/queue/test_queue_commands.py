# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless launch, worker, runs and queue, as a user types them."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import get_args

import psycopg
import pytest

from forkless.cli import main
from forkless.queue import schema
from forkless.queue.records import RunState
from queue_support import playbook, wait_until

pytestmark = pytest.mark.spawns


@pytest.fixture
def forkless(url, tmp_path, project):
    def call(*argv, **environment):
        env = dict(os.environ) | {"FORKLESS_DATABASE": url, "XDG_STATE_HOME": str(tmp_path / "state")} | environment
        return subprocess.run(
            [sys.executable, "-m", "forkless", *argv], cwd=project, capture_output=True, text=True, env=env, timeout=120
        )

    return call


@pytest.fixture
def worker(url, tmp_path):
    """`forkless worker`, started and ended as systemd does it."""
    env = dict(os.environ) | {"FORKLESS_DATABASE": url, "XDG_STATE_HOME": str(tmp_path / "state")}
    with open(tmp_path / "worker.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "forkless", "worker", "--name", "w"], stdout=log, stderr=log, env=env
        )
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=240) == 0, (tmp_path / "worker.log").read_text()


def test_the_help_of_runs_names_every_state_of_a_run(capsys):
    with pytest.raises(SystemExit):
        main(["runs", "list", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"only those in this state: {', '.join(get_args(RunState))} (may be repeated)" in said


def test_launch_follow_list_show_and_relaunch(forkless, worker, project, database):
    playbook(project, tasks=["- debug: msg=hello-{{ name }}"])
    wait_until(lambda: database.one("SELECT forkless.worker_key()"), "the worker's key")
    done = forkless("launch", "site.yml", "-i", "hosts.ini", "-e", "name=queue", "--follow")
    assert done.returncode == 0, done.stderr
    assert "hello-queue" in done.stdout
    assert "PLAY RECAP" in done.stdout
    listed = json.loads(forkless("runs", "list", "--format", "json").stdout)
    assert [(run["status"], run["worker_name"]) for run in listed] == [("successful", "w-1")]
    shown = forkless("runs", "show", str(listed[0]["id"])).stdout
    assert "successful" in shown
    assert "web1" in shown
    again = forkless("runs", "relaunch", str(listed[0]["id"]), "--follow")
    assert again.returncode == 0, again.stderr
    assert "hello-queue" in again.stdout
    failed = forkless("runs", "relaunch", str(listed[0]["id"]), "--failed")
    assert failed.returncode == 2
    assert "no host of run" in failed.stderr


def test_a_relaunch_of_what_failed_is_shown_with_its_hosts(forkless, worker, project, database):
    (project / "hosts.ini").write_text("".join(f"h{n} ansible_connection=local\n" for n in range(6)))
    playbook(project, tasks=["- fail:\n  when: inventory_hostname != 'h0'"])
    assert forkless("launch", "site.yml", "-i", "hosts.ini", "--follow").returncode == 2
    number = forkless("runs", "relaunch", "1", "--failed").stdout.strip()
    database.wait_for(int(number), "failed")
    shown = forkless("runs", "show", number).stdout
    assert "limit:     h1,h2,h3 and 2 more\nagain:     after run 1\n" in shown
    listed = forkless("runs", "list").stdout.splitlines()
    assert [("h1,h2,h3 and 2 more" in line, line.split()[0]) for line in listed[1:]] == [(True, number), (False, "1")]


def test_a_failing_play_gives_its_exit_code_and_sentence(forkless, worker, project, database):
    playbook(project, tasks=["- fail: msg=no"])
    done = forkless("launch", "site.yml", "-i", "hosts.ini", "--follow")
    assert done.returncode == 2
    assert "is failed: failed on web1" in done.stderr


@pytest.mark.parametrize(
    ("argv", "environment", "sentence", "code"),
    [
        (["launch", "site.yml"], {"FORKLESS_DATABASE": "postgresql://x@127.0.0.1:1/x"}, "cannot be used", 1),
        (["launch", "site.yml"], {"FORKLESS_DATABASE": "nowhere"}, "is not the address of a database", 1),
        (["launch", "none.yml"], {}, "none.yml does not exist", 2),
        (["launch", "/etc/passwd"], {}, "is outside of the project", 2),
        (["launch", "site.yml", "--label", "moon"], {}, "has the label 'moon'; no worker has a label", 2),
        (["launch", "site.yml", "--label", "a b"], {}, "is not a label", 2),
        (["launch", "site.yml", "--at", "soon"], {}, "--at 'soon' is neither", 2),
        (["launch", "site.yml", "--secret", "vault=hunter2"], {}, "env:NAME, file:PATH or cmd:COMMAND", 2),
        (["launch", "site.yml", "--secret", "wallet=env:X"], {}, "there is no secret 'wallet'", 2),
        (["launch", "site.yml", "-e", "a=1"], {}, "travel sealed for the workers' key, and this queue has none yet", 2),
        (["launch", "site.yml", "--step"], {}, "--step asks before each task", 2),
        (["launch", "site.yml", "--webhook", "ftp://x"], {}, "is not an http(s) address", 2),
        (["launch", "site.yml", "--at", "2020-01-31T03:00Z"], {}, "--at 2020-01-31 03:00 UTC is over; leave --at out", 2),
        (["launch", "site.yml", "--at", "+-5h"], {}, "is over; leave --at out", 2),
        (["launch", "site.yml", "--retries", "99999999999"], {}, "retries must be a whole number, 0 or more", 2),
        (["runs", "list", "-n", "-1"], {}, "'-1' is not a number of runs above zero", 2),
        (["runs", "show", "99999999999999999999"], {}, "is not the number of a run", 2),
        (["worker", "--shutdown-after", "-1"], {}, "--shutdown-after must be 0 or more", 2),
        (["worker", "--shutdown-after", "nan"], {}, "--shutdown-after must be 0 or more", 2),
        (["launch", "site.yml", "--lock", ""], {}, "the lock has no name", 2),
        (["launch", "site.yml", "--slices", "0"], {}, "'0' is neither a whole number above zero nor auto", 2),
        (["launch", "site.yml", "--priority", "high"], {}, "argument --priority: invalid int value: 'high'", 2),
        (["launch", "site.yml", "--sliced", "2"], {}, "unrecognized arguments: --sliced 2; `forkless launch --help`", 2),
        (["launch"], {}, "the following arguments are required: playbook", 2),
        (["queue", "limit", "site=fra"], {}, "say how many runs with the label site=fra", 2),
        (["queue", "prune", "--older-than", "-1"], {}, "--older-than is a number of days, 0 or more", 2),
        (["queue", "prune", "--older-than", "nan"], {}, "--older-than is a number of days, 0 or more", 2),
        (["queue", "keep", "--events", "-3"], {}, "the days that something is kept are 0 (for ever) or more", 2),
        (["schedule"], {}, "the following arguments are required: COMMAND", 2),
        (["schedule", "add", "n", "--cron", "0 0 31 2 *", "site.yml"], {}, "'0 0 31 2 *' never happens", 2),
        (["launch", "once.yml", "-i", "hosts.ini", "--slices", "2"], {}, "once.yml:4: run_once would run once in every slice", 2),
        (["runs", "show", "web"], {}, "'web' is not the number of a run", 2),
        (["runs", "show", "99"], {}, "there is no run 99", 1),
        (["runs", "list", "--status", "done"], {}, "there is no state 'done'", 2),
        (["worker", "--processes", "0"], {}, "--processes must be 1 or more", 2),
        (["worker", "--lost-after", "1"], {}, "--lost-after must be 4 or more", 2),
        (["worker", "--lost-after", "nan"], {}, "--lost-after must be 4 or more", 2),
        (["launch", "site.yml", "--at", "0001-01-01T00:00"], {}, "--at '0001-01-01T00:00' is neither", 2),
        (["launch", "site.yml", "--git", "https://hunter2@example.org/x"], {}, "has a password in it", 2),
        (["launch", "site.yml", "--git", "HTTPS://me:hunter2@example.org/x"], {}, "has a password in it", 2),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_queues_nothing(
    url, project, database, monkeypatch, capsys, tmp_path, argv, environment, sentence, code
):
    playbook(project, tasks=["- debug:"])
    playbook(project, "once.yml", tasks=["- debug:\n  run_once: true"])
    monkeypatch.chdir(project)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, value in ({"FORKLESS_DATABASE": url} | environment).items():
        monkeypatch.setenv(name, value)
    try:
        ended = main(argv)
    except SystemExit as leaving:  # argparse
        ended = leaving.code
    said = capsys.readouterr()
    assert (ended, said.out) == (code, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1, "one sentence"
    assert "hunter2" not in said.err
    for table in ("run", "schedule", "procrastinate_jobs"):
        assert database.one(f"SELECT count(*) FROM forkless.{table}") == 0


def test_a_project_that_is_too_large_is_one_sentence_and_queues_nothing(url, project, database, monkeypatch, capsys):
    playbook(project, tasks=["- debug:"])
    (project / "image").write_bytes(bytes(2 << 20))
    monkeypatch.chdir(project)
    monkeypatch.setenv("FORKLESS_DATABASE", url)
    monkeypatch.setattr("forkless.queue.project._MOST_UNPACKED", 1 << 20)
    assert main(["launch", "site.yml", "-i", "hosts.ini"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1), said.err
    assert "is too large to travel: more than 1 MB" in said.err
    assert "image (2 MB)" in said.err
    for table in ("run", "bundle", "procrastinate_jobs"):
        assert database.one(f"SELECT count(*) FROM forkless.{table}") == 0


def test_limits_and_runs_for_later_are_shown(url, project, monkeypatch, capsys):
    playbook(project, tasks=["- debug:"])
    monkeypatch.chdir(project)
    monkeypatch.setenv("FORKLESS_DATABASE", url)
    for argv in (["queue", "limit"], ["queue", "limit", "site=fra", "4"], ["queue", "limit"]):
        assert main(argv) == 0
    assert capsys.readouterr().out == "no label: no limit\nsite=fra: 4\nsite=fra: 4\n"
    assert main(["launch", "site.yml", "-i", "hosts.ini", "--at", "2126-01-31T03:00Z"]) == 0
    assert main(["runs", "list"]) == 0
    assert "waiting (begins 2126-01-31 03:00 UTC)" in capsys.readouterr().out
    assert main(["launch", "site.yml", "-i", "hosts.ini", "--at", "+0s", "--lock", "none"]) == 0
    assert main(["runs", "list", "-n", "1"]) == 0
    assert "begins" not in capsys.readouterr().out
    for argv in (
        ["runs", "cancel", "1"],
        ["queue", "prune", "--older-than", "0"],
        ["queue", "prune", "--older-than", "0"],
    ):
        assert main(argv) == 0
    assert capsys.readouterr().out == "run 1 is canceled\n1 run deleted\n0 runs deleted\n"


def test_a_wrong_password_and_a_role_without_rights_are_one_sentence(
    server, url, project, monkeypatch, capsys, tmp_path
):
    playbook(project, tasks=["- debug:"])
    monkeypatch.chdir(project)
    rules = pathlib.Path(server._data, "pg_hba.conf")
    before = rules.read_text()
    rules.write_text(f"local all forkless_stranger scram-sha-256\n{before}")
    reload = "SELECT pg_reload_conf()"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE forkless_stranger LOGIN PASSWORD 'right'; {reload}")
    try:
        for password, sentence in (("hunter2", "refused the login"), ("right", "the database user may not do that")):
            monkeypatch.setenv("FORKLESS_DATABASE", url.replace("forkless@", f"forkless_stranger:{password}@"))
            assert main(["launch", "site.yml"]) == 1
            said = capsys.readouterr()
            assert (said.out, said.err.count("\n"), "hunter2" in said.err) == ("", 1, False), said.err
            assert sentence in said.err
    finally:
        rules.write_text(before)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP ROLE forkless_stranger; {reload}")


def test_a_database_without_tables_or_with_newer_ones_says_what_to_do(forkless, database, project):
    playbook(project, tasks=["- debug:"])
    assert forkless("queue", "check").stdout.startswith(f"version {schema.VERSION}\nPostgreSQL ")
    database.all("DELETE FROM forkless.schema_version")
    done = forkless("launch", "site.yml")
    assert done.returncode == 1
    assert "run `forkless queue init`" in done.stderr
    database.all("DROP SCHEMA forkless CASCADE")
    assert "run `forkless queue init`" in forkless("launch", "site.yml").stderr
    assert f"created, version {schema.VERSION}" in forkless("queue", "init").stdout
    assert "are there already" in forkless("queue", "init").stdout
    assert forkless("queue", "upgrade").stdout == f"version {schema.VERSION}, as needed\n"
    assert forkless("launch", "site.yml").stdout == "1\n"


@pytest.mark.parametrize("argv", [["launch", "site.yml"], ["schedule", "list"], ["worker"], ["runs", "list"]])
def test_without_the_extra_a_command_says_what_to_install_and_its_help_is_there(argv, tmp_path):
    (tmp_path / "psycopg.py").write_text("raise ImportError('not installed')")
    env = dict(os.environ) | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    for arguments, code in ((argv, 1), ([argv[0], "--help"], 0)):
        done = subprocess.run(
            [sys.executable, "-m", "forkless", *arguments],
            capture_output=True,
            text=True,
            env=env,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stderr
    assert "usage: forkless" in done.stdout
