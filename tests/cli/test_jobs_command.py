# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless jobs: what it prints, what it asks, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from forkless import jobs
from forkless.cli import jobs as command
from forkless.jobs import Key
from jobs_stage import Stage, start, until


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with records in it. The leak guard looks at the folder before this and after."""
    store = jobs.open_store(f"file:{tmp_path}/state")
    book = jobs.JobBook(store)
    book.save(Key("web1", "rebuild"), "j1.1", metadata={"why": "ü"})
    book.save(Key("web1", "new\nline", "site"), "j2.2")
    book.save(Key("web2", "rebuild"), "j3.3")
    book.claim(Key("web2", "soon"))
    return f"file:{tmp_path}/state"


def call(*arguments, capsys):
    try:
        code = command.main(list(arguments))
    except SystemExit as error:
        code = error.code
    said = capsys.readouterr()
    return code, said.out, said.err


def test_list_shows_every_record_on_a_line_of_its_own(folder, capsys):
    code, out, _ = call("list", "--store", folder, capsys=capsys)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["HOST", "JOB", "PLAYBOOK", "ID", "SAVED", "STATE"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["web1", "rebuild"], ["web1", "new\\nline"], ["web2", "rebuild"], ["web2", "soon"],
    ]  # fmt: skip
    assert lines[4].endswith("claimed")


def test_list_as_json_is_the_records(folder, capsys):
    code, out, _ = call("list", "rebuild", "--store", folder, "--format", "json", capsys=capsys)
    assert code == 0
    assert [(job["host"], job["ansible_job_id"]) for job in json.loads(out)] == [("web1", "j1.1"), ("web2", "j3.3")]
    assert json.loads(out)[0]["metadata"] == {"why": "ü"}


def test_an_empty_folder_has_an_empty_list(tmp_path, capsys):
    assert call("list", "--store", f"file:{tmp_path}", "--format", "json", capsys=capsys)[:2] == (0, "[]\n")


def test_show_needs_to_know_which_one(folder, capsys):
    code, _, err = call("show", "rebuild", "--store", folder, capsys=capsys)
    assert code == 1
    assert "several jobs 'rebuild' (web1, web2); say which with --host" in err
    code, out, _ = call("show", "rebuild", "--host", "web2", "--store", folder, capsys=capsys)
    assert code == 0
    assert "ansible_job_id: j3.3" in out


def test_a_job_that_is_not_there_is_said_so(folder, capsys):
    code, _, err = call("show", "nothing", "--store", folder, capsys=capsys)
    assert code == 1
    assert "there is no job 'nothing' in file:" in err


def test_a_damaged_record_is_named_and_the_others_are_listed(folder, capsys):
    path = folder.removeprefix("file:") + "/web1/broken.json"
    with open(path, "w") as file:
        file.write("{")
    code, out, err = call("list", "--store", folder, capsys=capsys)
    assert code == 1
    assert "broken.json cannot be understood" in err
    assert len(out.splitlines()) == 5


def test_a_store_that_cannot_be_reached_is_an_error(capsys):
    code, _, err = call("list", "--store", "ara+http://127.0.0.1:9", capsys=capsys)
    assert code == 1
    assert "could not be reached" in err


@pytest.mark.parametrize(
    "arguments", [["dance"], ["wait"], ["cleanup", "--older-than", "soon"], ["cleanup", "--state", "running"], []]
)
def test_arguments_that_make_no_sense_are_refused(arguments, capsys):
    assert call(*arguments, capsys=capsys)[0] == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("30s", 30), ("10m", 600), ("12h", 43200), ("7d", 604800), ("2w", 1209600)],
)
def test_times_are_read_as_people_write_them(text, seconds):
    assert command._seconds(text) == seconds


def test_every_command_explains_itself(capsys):
    code, out, _ = call("--help", capsys=capsys)
    assert code == 0
    assert "forkless jobs cleanup -i hosts.ini --older-than 7d" in out
    for name in ("list", "show", "status", "wait", "kill", "cleanup", "output"):
        assert name in out
        assert call(name, "--help", capsys=capsys)[0] == 0


@pytest.mark.spawns
@pytest.mark.timeout(900)
def test_a_job_is_followed_ended_and_forgotten_from_a_shell(tmp_path):
    with Stage(tmp_path / "stage") as stage:
        begin = []
        for name, argv in (("long", "sleep 650"), ("quick", "echo done at once"), ("bad", "sh -c 'exit 7'")):
            begin += [
                {"forkless.core.async_job": {"op": "load", "job_name": name}, "register": "load"},
                {**start(argv), "vars": {"ansible_async_dir": "{{ load.async_dir }}"}},
                {"forkless.core.async_job": {"op": "save", "job_name": name, "ansible_job_id": "{{ started.ansible_job_id }}",
                                             "async_dir": "{{ load.async_dir }}"}},
            ]  # fmt: skip
        stage.tasks(*begin)

        def shell(*arguments):
            return subprocess.run(
                [sys.executable, "-m", "forkless", "jobs", *arguments, *(["-i", "local.ini"] if arguments[0] not in ("list", "show") else [])],
                cwd=stage.folder, env=stage.environ(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=600,
            )  # fmt: skip

        def states(done):
            return {row["job_name"]: (row["state"], row.get("rc")) for row in json.loads(done.stdout)}

        until(lambda: len(stage.processes("650")) == 1, what="the long job")
        until(lambda: not stage.processes("exit 7"), what="the end of the others")
        asked = shell("status", "--format", "json")
        assert (asked.returncode, asked.stderr) == (0, "")
        assert states(asked) == {"long": ("running", None), "quick": ("done", 0), "bad": ("failed", 7)}
        waited = shell("wait", "bad")
        assert (waited.returncode, waited.stdout) == (1, "bad on here: failed (rc 7)\n")
        printed = shell("output", "quick")
        assert (printed.returncode, printed.stdout) == (0, "done at once\n")
        late = shell("wait", "long", "--timeout", "1", "--interval", "1")
        assert late.returncode == 1
        assert "still running after 1 s" in late.stderr
        killed = shell("kill", "long")
        assert killed.returncode == 0, killed
        assert "long on here: killed (rc -15; signal 15" in killed.stdout
        swept = shell("cleanup", "--state", "done", "--state", "killed", "--format", "json")
        assert sorted(job["job_name"] for job in json.loads(swept.stdout)["removed"]) == ["long", "quick"]
        assert [job["why"] for job in json.loads(swept.stdout)["kept"]] == ["it is failed"]
        assert [job["job_name"] for job in json.loads(shell("list", "--format", "json").stdout)] == ["bad"]


@pytest.mark.spawns
@pytest.mark.timeout(900)
def test_a_host_that_is_in_no_inventory_or_cannot_be_reached_is_said_so(tmp_path):
    with Stage(tmp_path / "stage") as stage:
        book = jobs.JobBook(jobs.open_store(f"file:{stage.folder}/.ansible_async_state"))
        book.save(Key("nowhere", "j"), "j1.1")
        book.save(Key("down", "j"), "j2.2")
        (stage.folder / "down.ini").write_text(
            "down ansible_connection=ssh ansible_host=127.0.0.1 ansible_port=9 ansible_ssh_retries=0\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "forkless", "jobs", "status", "-i", "down.ini"],
            cwd=stage.folder, env=stage.environ(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 1
        assert "there is no host 'nowhere' in the inventory" in done.stderr
        assert "Connection refused" in done.stderr
        assert [line.split()[:3] for line in done.stdout.splitlines()[1:]] == [
            ["down", "j", "unreachable"], ["nowhere", "j", "unreachable"],
        ]  # fmt: skip
