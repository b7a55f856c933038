# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless jobs: what it prints, what it asks, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from forkless import StoreError, jobs
from forkless.cli import jobs_client, jobs_lookup
from forkless.cli.commands import jobs as command
from forkless.jobs import Key
from jobs_controller import Controller, start, until


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with records in it. The leak guard looks at the folder before this and after."""
    store = jobs.open_store(f"file:{tmp_path}/state")
    registry = jobs.JobRegistry(store)
    registry.save(Key("web1", "rebuild"), "j1.1", metadata={"why": "ü"})
    registry.save(Key("web1", "new\nline", "site"), "j2.2")
    registry.save(Key("web2", "rebuild"), "j3.3")
    registry.claim(Key("web2", "soon"))
    return f"file:{tmp_path}/state"


def call(*arguments, capsys):
    try:
        code = command.main(list(arguments))
    except SystemExit as error:
        code = error.code
    said = capsys.readouterr()
    return code, said.out, said.err


def test_list_shows_every_record_on_a_line_of_its_own(folder, capsys):
    code, out, _ = call("list", "--no-status", "--store", folder, capsys=capsys)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["HOST", "JOB", "PLAYBOOK", "ID", "SAVED", "STATE"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["web1", "rebuild"], ["web1", "new\\nline"], ["web2", "rebuild"], ["web2", "soon"],
    ]  # fmt: skip
    assert lines[4].endswith("claimed")


def test_list_as_json_is_the_records(folder, capsys):
    code, out, _ = call("list", "rebuild", "--no-status", "--store", folder, "--format", "json", capsys=capsys)
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
    code, out, err = call("list", "--no-status", "--store", folder, capsys=capsys)
    assert code == 1
    assert "broken.json cannot be understood" in err
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["rebuild", "new\\nline", "rebuild", "soon", "broken"]
    assert out.splitlines()[-1].endswith("unreadable")
    out = call("list", "--no-status", "--store", folder, "--format", "json", capsys=capsys)[1]
    assert [(job["state"], job["path"]) for job in json.loads(out) if "path" in job] == [("unreadable", path)]


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
    for name in ("list", "show", "status", "wait", "kill", "cleanup", "forget", "logs", "output"):
        assert name in out
        code, own, _ = call(name, "--help", capsys=capsys)
        assert code == 0
        assert f"  forkless jobs {name} " in own.partition("examples:")[2]
        assert "4  `wait`: the job is dead, lost or killed" in own


# -- what the hosts say, without hosts


@pytest.fixture
def answering(monkeypatch):
    """Answers of the hosts, one after the other; the last one again and again. Returns what they were asked."""

    def answer(*results):
        asked, left = [], list(results)

        def ask(op, items, reach, **arguments):
            asked.append(arguments)
            result = left.pop(0) if len(left) > 1 else left[0]
            trouble = str(result["msg"]) if result.get("failed") or result.get("unreachable") else ""
            return [jobs_client.HostAnswer(item["host"], item, result, trouble) for item in items]

        monkeypatch.setattr(jobs_client, "ask", ask)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        return asked

    return answer


def job(state, **more):
    return {"job": {"state": state, "results_file": "/async/j1.1", **more}}


DOWN = {"unreachable": True, "msg": "No route to host"}
BROKEN = {"failed": True, "msg": "MODULE FAILURE"}


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([job("running"), DOWN, DOWN, DOWN, DOWN, DOWN, DOWN, job("running"), job("done", rc=0)], 0),
        ([DOWN, job("failed", rc=3)], 1),
        ([DOWN, job("dead")], 4),
        ([job("lost")], 4),
        ([job("killed", signal=9)], 4),
        ([job("timed_out")], 5),
        ([BROKEN, BROKEN, job("done")], 0),
        ([BROKEN], 3),
    ],
)
def test_wait_asks_again_while_a_host_cannot_answer_and_never_takes_that_for_a_failed_job(
    folder, capsys, answering, answers, code
):
    answering(*answers)
    assert call("wait", "rebuild", "--host", "web1", "--store", folder, capsys=capsys)[0] == code


def test_wait_says_that_it_cannot_tell_when_its_time_is_up(folder, capsys, answering):
    for answer, word in ((DOWN, "unreachable"), (job("running"), "running")):
        answering(answer)
        code, _, err = call("wait", "rebuild", "--host", "web1", "--store", folder, "--timeout", "0", capsys=capsys)
        assert code == 3
        assert f"still {word} after 0 s" in err


def test_wait_asks_again_while_its_store_cannot_be_read(folder, capsys, answering, monkeypatch):
    answering(job("done"))
    real, failing = jobs.JobRegistry.jobs, iter([True, True])

    def fails_twice(self, *args, **more):
        if next(failing, False):
            raise StoreError("the jobs could not be reached.")
        return real(self, *args, **more)

    monkeypatch.setattr(jobs.JobRegistry, "jobs", fails_twice)
    code, _, err = call("wait", "rebuild", "--host", "web1", "--store", folder, capsys=capsys)
    assert code == 0
    assert err.count("could not be reached") == 1


@pytest.mark.parametrize(
    ("state", "code"),
    [("running", 0), ("done", 0), ("failed", 1), ("killed", 1), ("dead", 1), ("lost", 1), ("timed_out", 1)],
)
def test_status_exits_with_1_if_a_job_did_not_end_well(folder, capsys, answering, state, code):
    answering(job(state))
    assert call("status", "--store", folder, capsys=capsys)[0] == code


def test_status_of_a_job_that_is_not_there_is_an_error(folder, capsys, answering):
    answering(job("done"))
    code, _, err = call("status", "nothing", "--store", folder, capsys=capsys)
    assert code == 1
    assert "there is no job 'nothing'" in err


def test_cleanup_removes_what_is_left_of_jobs_that_were_forgotten_a_day_ago(tmp_path, capsys, answering):
    answering({})
    long_ago = jobs.JobRegistry(jobs.open_store(f"file:{tmp_path}/state"), clock=lambda: 1_000_000_000.0)
    long_ago.save(Key("web1", "old"), "j1.1")
    long_ago.forget(long_ago.find(Key("web1", "old")))
    assert call("cleanup", "--store", f"file:{tmp_path}/state", capsys=capsys)[0] == 0
    assert [path for path in (tmp_path / "state").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(("state", "code"), [("unknown", 1), ("running", 0), ("failed", 0), ("claimed", 0)])
def test_cleanup_exits_with_1_if_it_cannot_tell_what_has_become_of_a_job(folder, capsys, answering, state, code):
    kept = {"host": "web1", "job_name": "rebuild", "state": state, "why": "Permission denied"}
    answering({"removed": [], "kept": [kept]})
    assert call("cleanup", "--store", folder, capsys=capsys)[0] == code


def test_cleanup_goes_on_after_a_record_that_cannot_be_read_and_exits_with_1(folder, capsys, answering):
    with open(folder.removeprefix("file:") + "/web1/b.json", "w") as file:
        file.write("[]")
    answering({"removed": [{"host": "web1", "job_name": "rebuild", "state": "done"}], "kept": []})
    code, out, err = call("cleanup", "--host", "web1", "--store", folder, capsys=capsys)
    assert code == 1
    assert "b.json cannot be understood" in err
    assert [line.split()[1:] for line in out.splitlines()[1:]][0] == ["rebuild", "done", "removed"]


def test_output_is_followed_in_the_file_that_was_found_when_the_processes_have_ended(folder, capsys, answering):
    asked = answering(
        job("running") | {"output": "one\n", "source": "/var/log/x", "offset": 4, "size": 4},
        job("done") | {"output": "two \ud800\n", "source": "/var/log/x", "offset": 10, "size": 10},
    )
    code, out, _ = call("output", "rebuild", "--host", "web1", "--store", folder, "-f", capsys=capsys)
    assert (code, out) == (0, "one\ntwo ?\n")
    assert [(one["path"], one["offset"]) for one in asked] == [("", 0), ("/var/log/x", 4)]


def test_logs_survive_a_host_that_cannot_be_reached_and_say_so_once(folder, capsys, answering):
    asked = answering(
        job("running") | {"output": "one\n", "source": "/var/log/x", "offset": 4, "size": 4},
        DOWN,
        DOWN,
        job("done") | {"output": "two\n", "source": "/var/log/x", "offset": 8, "size": 8},
    )
    code, out, err = call("logs", "rebuild", "--host", "web1", "--store", folder, "-f", "--tail", "1", capsys=capsys)
    assert (code, out) == (0, "one\ntwo\n")
    assert err == "forkless jobs: No route to host\nforkless jobs: web1 answers again.\n"
    assert [one["offset"] for one in asked] == [0, 4, 4, 4]
    assert [one.get("tail") for one in asked] == [1, None, None, None]
    answering(DOWN)
    assert call("logs", "rebuild", "--host", "web1", "--store", folder, capsys=capsys)[0] == 3


def test_following_ends_when_the_name_has_got_another_job(folder, capsys, answering, monkeypatch):
    answering(job("running") | {"output": "one\n", "source": "/var/log/x", "offset": 4, "size": 4})
    registry = jobs.JobRegistry(jobs.open_store(folder))
    monkeypatch.setattr(time, "sleep", lambda seconds: registry.save(Key("web1", "rebuild"), "j9.9"))
    code, out, err = call("logs", "rebuild", "--host", "web1", "--store", folder, "-f", capsys=capsys)
    assert (code, out) == (1, "one\n")
    assert "'rebuild' was started anew meanwhile" in err


def test_wait_for_any_is_not_ended_by_a_job_that_nobody_can_tell_about(folder, capsys, monkeypatch):
    """The answers differ by host: web1 is broken for ever, web2 ends in the end."""
    rounds = []

    def ask(op, items, reach, **arguments):
        rounds.append([item["host"] for item in items])
        left = {"web1": BROKEN, "web2": job("running") if len(rounds) < 8 else job("done", rc=0)}
        return [
            jobs_client.HostAnswer(item["host"], item, left[item["host"]], str(left[item["host"]].get("msg", "")))
            for item in items
        ]

    monkeypatch.setattr(jobs_client, "ask", ask)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    names = ["new\nline", "soon"]
    assert call("wait", *names, "--any", "--store", folder, capsys=capsys)[0] == 0
    assert rounds[:5] == [["web1", "web2"]] * 5
    assert set(map(tuple, rounds[5:])) == {("web2",)}
    rounds.clear()
    assert call("wait", *names, "--store", folder, capsys=capsys)[0] == 3


def test_a_record_that_is_removed_while_it_is_waited_for_is_not_taken_for_a_failed_job(
    folder, capsys, answering, monkeypatch
):
    answering(job("running"), job("done"))
    registry = jobs.JobRegistry(jobs.open_store(folder))
    monkeypatch.setattr(time, "sleep", lambda seconds: registry.forget(registry.find(Key("web1", "rebuild"))))
    code, out, err = call("wait", "rebuild", "new\nline", "--host", "web1", "--store", folder, capsys=capsys)
    assert code == 3
    assert "record of job 'rebuild' was removed" in err
    assert "done" in out


def test_a_claim_whose_controller_is_gone_is_said_so_once(folder, capsys, answering, monkeypatch):
    answering(job("claimed"), job("claimed"), job("done"))
    monkeypatch.setattr(jobs.JobRegistry, "is_over", lambda self, claim: True)
    code, _, err = call("wait", "soon", "--store", folder, capsys=capsys)
    assert code == 0
    assert err == "forkless jobs: the controller that claimed job 'soon' has ended, and started nothing.\n"


def test_a_vault_id_that_would_prompt_at_every_look_is_refused(folder, capsys):
    code, _, err = call("wait", "soon", "--vault-id", "dev@prompt", "--store", folder, capsys=capsys)
    assert code == 2
    assert "use --ask-vault-pass" in err


def test_every_option_that_says_how_to_reach_hosts_is_handed_to_the_play(monkeypatch):
    handed_on = [
        "-u", "me", "-c", "local", "--private-key", "key", "--become-user", "other", "--become-method", "su",
        "--become-password-file", "become", "--connection-password-file", "login", "-e", "a=1", "-e", "b=2",
        "--vault-password-file", "vault", "--vault-password-file", "more", "--vault-id", "dev@file",
    ]  # fmt: skip
    asked = command._parser().parse_args(["status", "-i", "one", "-i", "two", "-b", "-k", "-K", "-J", *handed_on])
    monkeypatch.setattr(jobs_lookup, "_password", lambda prompt: f"<{prompt}>")
    access = jobs_lookup.access(asked)
    assert access.args == tuple(handed_on)
    assert (access.inventory, access.become) == (("one", "two"), True)
    assert access.passwords == {"conn_pass": "<SSH password: >", "become_pass": "<BECOME password: >"}
    assert access.vault_password == "<Vault password: >"


@pytest.mark.parametrize("word", [{"failed": True}, {"exception": "(traceback unavailable)"}, {"unreachable": True}])
def test_a_job_that_its_host_cannot_tell_about_is_told_from_those_beside_it(word):
    """Since ansible-core 2.21 a callback's result of an item that failed has an exception and no word `failed`."""
    items = [{"host": "web1", "job_name": name, "playbook_name": ""} for name in ("odd", "well")]
    results = [{"msg": "a folder is in the way", **word}, {"job": {"state": "done", "rc": 0}}]
    event = SimpleNamespace(event="runner_on_failed", event_data={"host": "web1", "res": {"results": results}})
    answers = jobs_client._collected(SimpleNamespace(events=[event]), {"web1": items})
    assert [answer.trouble for answer in answers] == ["a folder is in the way", ""]
    assert [jobs_lookup.row_of(answer)["state"] for answer in answers] == ["unreachable", "done"]


@pytest.mark.spawns
@pytest.mark.timeout(900)
def test_a_job_is_followed_ended_and_forgotten_from_a_shell(tmp_path):
    with Controller(tmp_path / "stage") as controller:
        begin = []
        for name, argv in (("long", "sleep 650"), ("quick", "echo done at once"), ("bad", "sh -c 'exit 7'")):
            begin += [
                {"forkless.core.async_job": {"op": "load", "job_name": name}, "register": "load"},
                {**start(argv), "vars": {"ansible_async_dir": "{{ load.async_dir }}"}},
                {"forkless.core.async_job": {"op": "save", "job_name": name, "ansible_job_id": "{{ started.ansible_job_id }}",
                                             "async_dir": "{{ load.async_dir }}"}},
            ]  # fmt: skip
        controller.tasks(*begin)

        def shell(*arguments):
            return subprocess.run(
                [sys.executable, "-m", "forkless", "jobs", *arguments, *(["-i", "local.ini"] if arguments[0] != "show" else [])],
                cwd=controller.folder, env=controller.environ(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=600,
            )  # fmt: skip

        def states(done):
            return {row["job_name"]: (row["state"], row.get("rc")) for row in json.loads(done.stdout)}

        until(lambda: len(controller.processes("650")) == 1, what="the long job")
        until(lambda: not controller.processes("exit 7"), what="the end of the others")
        asked = shell("status", "--format", "json")
        assert (asked.returncode, asked.stderr) == (1, "")
        assert states(asked) == {"long": ("running", None), "quick": ("done", 0), "bad": ("failed", 7)}
        waited = shell("wait", "bad")
        assert (waited.returncode, waited.stdout) == (1, "bad on here: failed (rc 7)\n")
        printed = shell("output", "quick")
        assert (printed.returncode, printed.stdout) == (0, "done at once\n")
        late = shell("wait", "long", "--timeout", "1", "--interval", "1")
        assert late.returncode == 3
        assert "still running after 1 s" in late.stderr
        killed = shell("kill", "long")
        assert killed.returncode == 0, killed
        assert "long on here: killed (rc -15; signal 15" in killed.stdout
        # One job that cannot be looked at, first in the list: a folder where its file should be.
        odd = jobs.JobRegistry(jobs.open_store(f"file:{controller.folder}/.ansible_async_state"))
        odd.save(Key("here", "a folder"), "j1.1", async_dir=str(controller.async_dir))
        (controller.async_dir / "j1.1").mkdir(parents=True)
        swept = shell("cleanup", "--state", "done", "--state", "killed", "--format", "json")
        assert (swept.returncode, swept.stderr) == (1, "")
        assert sorted(job["job_name"] for job in json.loads(swept.stdout)["removed"]) == ["long", "quick"]
        kept = {job["job_name"]: (job["state"], job["why"]) for job in json.loads(swept.stdout)["kept"]}
        assert kept["bad"] == ("failed", "it is failed")
        assert kept["a folder"][0] == "unknown"
        # And one whose record cannot be read.
        (controller.folder / ".ansible_async_state/here/b.json").write_text("[]")
        asked = shell("status", "--format", "json")
        assert asked.returncode == 1
        assert {row["job_name"]: row["state"] for row in json.loads(asked.stdout)} == {
            "a folder": "unreachable", "b": "unreadable", "bad": "failed",
        }  # fmt: skip
        left = json.loads(shell("list", "--no-status", "--format", "json").stdout)
        assert [job["job_name"] for job in left] == ["a folder", "bad", "b"]


@pytest.mark.spawns
@pytest.mark.timeout(900)
def test_a_host_that_is_in_no_inventory_or_cannot_be_reached_is_said_so(tmp_path):
    with Controller(tmp_path / "stage") as controller:
        registry = jobs.JobRegistry(jobs.open_store(f"file:{controller.folder}/.ansible_async_state"))
        registry.save(Key("nowhere", "j"), "j1.1")
        registry.save(Key("down", "j"), "j2.2")
        broken = controller.folder / "broken.yml"
        broken.write_text("all: {hosts: [oops\n")
        (controller.folder / "down.ini").write_text(
            "down ansible_connection=ssh ansible_host=127.0.0.1 ansible_port=9 ansible_ssh_retries=0\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "forkless", "jobs", "status", "-i", "down.ini"],
            cwd=controller.folder, env=controller.environ(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 1
        assert "there is no host 'nowhere' in the inventory" in done.stderr
        assert "Connection refused" in done.stderr
        assert [line.split()[:3] for line in done.stdout.splitlines()[1:]] == [
            ["down", "j", "unreachable"], ["nowhere", "j", "unreachable"],
        ]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "forkless", "jobs", "status", "--host", "nowhere", "-i", "broken.yml"],
            cwd=controller.folder, env=controller.environ(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=600,
        )  # fmt: skip
        assert f"no host 'nowhere' in the inventory: Ansible could not parse {broken}." in done.stderr


@pytest.mark.spawns
def test_a_name_that_the_output_cannot_encode_hides_no_other_job(folder, tmp_path):
    jobs.JobRegistry(jobs.open_store(folder)).save(Key("web1", "nightly \N{CRESCENT MOON}"), "j4.4")
    controller = Controller(tmp_path / "stage")
    done = subprocess.run(
        [sys.executable, "-m", "forkless", "jobs", "list", "--no-status", "--store", folder], capture_output=True,
        cwd=controller.folder, env=controller.environ(PYTHONIOENCODING="latin-1"), check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.decode("latin-1")
    assert "nightly \\U0001f319" in said
    assert said.count("rebuild") == 2
