# SPDX-License-Identifier: GPL-3.0-or-later
"""The runner engine: a run in a child process, the same events whichever child, and a clear end whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import forkless
from forkless import RunSpec, SpecError, Status
from forkless.core.events import without_environment
from forkless.core.process_tree import ProcessTree
from forkless.core.stop import Stop
from forkless.engines.runner import engine as engine_module
from forkless.engines.runner.engine import RunnerEngine
from pretend import SHORTEST

pytestmark = pytest.mark.spawns

SHORT_RUNS = int(os.environ.get("FORKLESS_SHORT_RUNS", "100"))

HELLO = """
- hosts: localhost
  gather_facts: false
  tasks:
  - debug: msg="{{ greeting | default('hello') }}"
  - debug: msg={{ item }}
    loop: [1, 2, 3]
  - fail: msg=oh
    ignore_errors: true
"""


@pytest.fixture
def book(tmp_path):
    def write(text):
        path = tmp_path / "play.yml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def instead(tmp_path, monkeypatch):
    """An engine whose ansible-playbook is a script of the test's: for what no playbook does on demand."""

    def make(script):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "ansible-playbook"
        program.write_text(f"#!{sys.executable}\n" + textwrap.dedent(script))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(RunnerEngine, "_command", lambda self, spec, number: ("ansible", [str(program)]))
        return RunnerEngine("ansible")

    return make


def gone(pid):
    with contextlib.suppress(OSError):
        return "State:\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text()
    return True


def shape(result):
    return [
        (one.event, one.host, one.task, one.counter, one.start_line, one.end_line, one.stdout) for one in result.events
    ]


@pytest.mark.matrix_ends
def test_both_children_tell_the_same_events(book):
    path = book(HELLO)
    told = {
        child: forkless.run(path, engine=RunnerEngine(child), extra_vars={"greeting": "good day"})
        for child in ("ansible", "threads")
    }
    assert all(result.ok for result in told.values()), told
    assert shape(told["ansible"]) == shape(told["threads"])
    for result in told.values():
        names = [one.event for one in result.events]
        assert names[-1] == "playbook_on_stats"
        assert names.count("runner_item_on_ok") == 3
        assert "good day" in result.stdout
        assert result.stats["ok"] == {"localhost": 3}
        assert result.hosts["localhost"]["ignored"] == 1
        assert {one.runner_ident for one in result.events} == {result.ident}


def test_the_default_child_is_ours_where_it_is_there(monkeypatch):
    spec = RunSpec(playbook="x.yml")
    for number in (None, signal.SIGINT):
        child, command = RunnerEngine()._command(spec, number)
        assert (child, command[-1]) == ("threads", "playbook")
    monkeypatch.setattr(engine_module, "_threads_work", lambda: False)
    for number in (None, signal.SIGINT):
        child, command = RunnerEngine()._command(spec, number)
        assert child == "ansible"
        assert command[-1].endswith("/ansible-playbook")
        assert (len(command) == 1) is (number is None)
    with pytest.raises(SpecError, match="steam"):
        RunnerEngine("steam")


def test_a_file_beside_the_playbook_is_not_imported_by_the_child(book, tmp_path):
    (tmp_path / "yaml.py").write_text("raise SystemExit('the wrong yaml')")
    assert forkless.run(book(HELLO), engine=RunnerEngine("threads"), cwd=tmp_path).ok


def test_another_forkless_in_the_way_is_not_taken_for_this_one(book, tmp_path, monkeypatch):
    (tmp_path / "other" / "forkless").mkdir(parents=True)
    (tmp_path / "other" / "forkless" / "__init__.py").write_text("raise SystemExit('the wrong forkless')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"))
    result = forkless.run(book(HELLO), engine=RunnerEngine("threads"))
    assert result.ok, result.stdout


def test_a_module_runs_without_a_playbook():
    told = [
        forkless.run(
            module="ansible.builtin.debug", module_args="msg=hi", hosts="localhost", engine=RunnerEngine(child)
        )
        for child in ("ansible", "threads")
    ]
    assert shape(told[0]) == shape(told[1])
    assert told[0].ok
    assert '"msg": "hi"' in told[0].stdout
    assert "runner_on_ok" in [one.event for one in told[0].events]


def test_a_failed_host_fails_the_run(book):
    result = forkless.run(
        book("- hosts: localhost\n  gather_facts: false\n  tasks:\n  - fail: msg=no\n"), engine="runner"
    )
    assert (result.status, result.rc) == (Status.FAILED, 2)
    with pytest.raises(forkless.RunFailed, match="on localhost"):
        result.raise_for_failures()


def test_a_playbook_that_is_not_there_is_told_in_a_sentence(tmp_path):
    result = forkless.run(tmp_path / "nowhere.yml", engine=RunnerEngine("ansible"))
    assert (result.status, result.rc) == (Status.FAILED, 1)
    assert "nowhere.yml could not be found" in result.sentence


def test_secrets_interrupt_the_child_and_nobody_else(book, tmp_path):
    # The child tells what everyone could see of it: its arguments, and the modes of its files.
    path = book(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n"
        "  - command: cat /proc/{{ lookup('pipe', 'echo $PPID') }}/cmdline\n    register: seen\n"
        "  - assert:\n      that:\n      - seen.stdout is not search('hush')\n      - token == 'hush-' ~ 'extra'\n"
        "  - find: {paths: \"{{ lookup('env', 'AWX_ISOLATED_DATA_DIR') }}\", patterns: 'extra-vars*,*_pass', hidden: true}\n"
        "    register: left\n"
        "  - assert: {that: left.matched == 0}\n"
        "  - debug: msg={{ token }}\n    no_log: true\n"
        "  - debug: msg={{ item }}\n    loop: ['{{ token }}']\n    no_log: true\n"
        "  - ansible.builtin.setup: gather_subset=env\n"
    )
    result = forkless.run(
        path,
        engine="runner",
        extra_vars={"token": "hush-extra"},
        env={"SECRET_OF_MINE": "hush-env"},
        passwords={"become_pass": "hush-become", "conn_pass": "hush-conn"},
        artifacts=tmp_path / "a",
        verbosity=0,
    )
    assert result.ok, result.stdout
    lines = json.dumps([one.as_dict() for one in result.events])
    on_disk = "".join(one.read_text() for one in (tmp_path / "a").rglob("*") if one.is_file())
    for what in ("hush-extra", "hush-env", "hush-become", "hush-conn"):
        assert what not in lines
        assert what not in on_disk
        assert what not in result.stdout


def test_a_vault_password_opens_the_vault(book, tmp_path):
    from ansible.parsing.vault import VaultLib, VaultSecret

    sealed = VaultLib([("default", VaultSecret(b"open sesame"))]).encrypt("inside: treasure")
    (tmp_path / "vars.yml").write_bytes(sealed)
    path = book(
        "- hosts: localhost\n  gather_facts: false\n  vars_files: [vars.yml]\n  tasks:\n"
        "  - assert: {that: inside == 'treasure'}\n"
    )
    for child in ("ansible", "threads"):
        result = forkless.run(path, engine=RunnerEngine(child), vault_password="open sesame")
        assert result.ok, result.stdout
        assert "open sesame" not in json.dumps([one.as_dict() for one in result.events])


def test_a_run_sees_its_own_folder_and_environment_and_we_keep_ours(book, tmp_path):
    path = book(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n"
        "  - debug: msg=\"{{ lookup('env', 'COLOUR') }} {{ lookup('pipe', 'pwd') }}\"\n"
    )
    before = os.getcwd()
    result = forkless.run(path, engine="runner", env={"COLOUR": "green"}, cwd=tmp_path)
    assert f"green {tmp_path}" in result.stdout
    assert os.getcwd() == before
    assert "COLOUR" not in os.environ


def test_cancelling_stops_the_play_and_all_its_processes(book, tmp_path):
    for child in ("ansible", "threads"):
        pids = tmp_path / f"pids-{child}"
        path = book(
            "- hosts: localhost\n  gather_facts: false\n  tasks:\n"
            f"  - command: sh -c 'echo $$ > {pids}; exec sleep 300'\n"
        )
        run = forkless.start(path, engine=RunnerEngine(child))
        while not pids.exists() or not pids.read_text():
            time.sleep(0.02)
        run.cancel()
        result = run.wait()
        assert (result.status, result.rc) == (Status.CANCELED, 254)
        assert gone(int(pids.read_text()))


def test_time_limits_hold(instead):
    engine = instead("import time\nprint('up', flush=True)\ntime.sleep(300)\n")
    result = forkless.run("x.yml", engine=engine, timeout=1)
    assert result.status is Status.TIMEOUT
    result = forkless.run("x.yml", engine=engine, idle_timeout=1)
    assert result.status is Status.TIMEOUT
    assert "silent for 1 s" in result.sentence


def test_a_child_that_does_not_listen_is_killed_with_its_own(instead, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "_GRACE", 0.3)
    engine = instead(
        """
        import signal, subprocess
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        other = subprocess.Popen(["sleep", "300"], start_new_session=True)
        print(other.pid, flush=True)
        other.wait()
        """
    )
    run = forkless.start("x.yml", engine=engine)
    pid = int(next(run.events()).stdout)
    run.cancel()
    assert run.wait().status is Status.CANCELED
    assert gone(pid)


def test_a_child_that_is_killed_is_told_as_such_and_leaves_nobody(instead):
    engine = instead(
        """
        import os, signal, subprocess
        other = subprocess.Popen(["sleep", "300"], start_new_session=True)
        print(other.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    result = forkless.run("x.yml", engine=engine)
    assert (result.status, result.rc) == (Status.FAILED, 128 + signal.SIGKILL)
    assert result.sentence == "ansible-playbook was killed by SIGKILL"
    assert gone(int(result.events[0].stdout))


def test_a_real_play_killed_in_its_middle_leaves_no_worker(book, tmp_path):
    pids = tmp_path / "pids"
    path = book(
        f"- hosts: localhost\n  gather_facts: false\n  tasks:\n  - command: sh -c 'echo $$ > {pids}; exec sleep 300'\n"
    )
    run = forkless.start(path, engine=RunnerEngine("ansible"))
    while not pids.exists() or not pids.read_text():
        time.sleep(0.02)
    children = pathlib.Path("/proc/self/task")
    mine = {int(pid) for task in children.iterdir() for pid in (task / "children").read_text().split()}
    (main,) = [pid for pid in mine if b"play.yml" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(main, signal.SIGKILL)
    result = run.wait()
    assert result.status is Status.FAILED
    assert "SIGKILL" in result.sentence
    assert gone(int(pids.read_text()))


def test_twenty_megabytes_pass_through_without_staying(instead):
    engine = instead(
        """
        import sys
        line = "x" * 999 + "\\n"
        for _ in range(200):
            sys.stdout.write(line * 100)
        print("END")
        """
    )
    run = forkless.start("x.yml", engine=engine)
    result = run.wait(240)
    assert result.ok
    assert len(run._text) == 20_000_004
    assert run._text.read(len(run._text) - 4) == b"END\n"
    assert len(run._text._recent) < 8 << 20
    assert len(result.events) == 20_001


def test_bytes_that_are_no_utf8_are_replaced_to_the_last(instead):
    engine = instead("import os\nos.write(1, b'a\\xffb\\nend\\xc3')\n")
    result = forkless.run("x.yml", engine=engine)
    assert [one.stdout for one in result.events] == ["a\ufffdb", "end\ufffd"]


def test_output_held_open_by_a_stranger_does_not_hold_the_end(instead):
    engine = instead(
        """
        import subprocess, sys
        print(subprocess.Popen(["sleep", "300"], start_new_session=True).pid, flush=True)
        """
    )
    before = time.monotonic()
    result = forkless.run("x.yml", engine=engine)
    assert time.monotonic() - before < 150
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(result.stdout), signal.SIGKILL)


def test_a_child_that_closes_its_output_and_runs_on_is_waited_for_and_can_be_stopped(instead):
    engine = instead("import os, time\nos.close(1); os.close(2)\ntime.sleep(1)\nos._exit(3)\n")
    assert forkless.run("x.yml", engine=engine).rc == 3
    engine = instead("import os, time\nos.close(1); os.close(2)\ntime.sleep(300)\n")
    before = time.process_time()
    assert forkless.run("x.yml", engine=engine, timeout=2).status is Status.TIMEOUT
    assert time.process_time() - before < 1.5


def test_the_recap_of_the_shortest_run_is_never_lost(tmp_path, monkeypatch):
    program = tmp_path / "shortest"
    program.write_text(SHORTEST)
    program.chmod(0o755)
    monkeypatch.setattr(RunnerEngine, "_command", lambda self, spec, number: ("ansible", [str(program)]))
    results = [forkless.run("x.yml", engine=RunnerEngine("ansible")) for _ in range(SHORT_RUNS)]
    assert [[one.event for one in result.events] for result in results] == [["playbook_on_stats"]] * SHORT_RUNS
    assert all(result.stats["ok"] == {"a": 1} for result in results)


def test_ten_thousand_events_come_whole_and_in_order(instead):
    """Events as the callback plugin prints them, as fast as they can be printed."""
    engine = instead(
        """
        import base64, json, os, sys, uuid
        folder = os.path.join(os.environ["AWX_ISOLATED_DATA_DIR"], "job_events")
        os.makedirs(folder)
        def mark(what):
            text = base64.b64encode(json.dumps(what).encode()).decode()
            return "\\x1b[K" + text + f"\\x1b[{len(text)}D\\x1b[K"
        for n in range(10_000):
            name = str(uuid.uuid4())
            with open(os.path.join(folder, name + "-partial.json"), "w") as file:
                json.dump({"uuid": name, "event": "runner_on_ok", "event_data": {"host": "a", "n": n}}, file)
            sys.stdout.write(mark({"uuid": name}) + f"ok {n}\\n" + mark({}))
        """
    )
    result = forkless.run("x.yml", engine=engine)
    assert [one.event_data["n"] for one in result.events] == list(range(10_000))
    assert [one.counter for one in result.events] == list(range(1, 10_001))


def test_an_exit_status_that_someone_else_took_is_no_success(instead):
    engine = instead("raise SystemExit(0)\n")
    taken = threading.Event()
    real = os.waitid

    def steal(kind, pid, options):
        seen = real(kind, pid, options)
        if seen is not None and not taken.is_set():
            os.waitpid(pid, 0)
            taken.set()
        return seen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "waitid", steal)
        result = forkless.run("x.yml", engine=engine)
    assert result.status is Status.FAILED
    assert "taken by other code" in result.sentence


NO_STANDARD_STREAMS = """
import os, sys
import forkless
from forkless.engines.runner.engine import RunnerEngine
more = {"answers": {"What?": "spoken"}, "live_output": True} if sys.argv[1] == "threads" else {"extra_vars": {"word": "spoken"}}
for fd in range(3):
    os.close(fd)
try:
    result = forkless.run("play.yml", engine=RunnerEngine(sys.argv[1]), vault_password="word", timeout=100, **more)
    said = f"{result.status}\\n{result.stdout}"
except Exception as error:
    said = repr(error)
with open("said", "w") as file:
    file.write(said)
"""


@pytest.mark.parametrize("child", ["ansible", "threads"])
def test_a_program_that_has_closed_its_standard_streams_hands_over_its_secrets(book, tmp_path, child):
    """The numbers 0, 1 and 2 go to what the program opens next; in the child they are something else."""
    book("""
- hosts: localhost
  gather_facts: false
  vars_files: [secret.yml]
  vars_prompt: [{name: word, prompt: What?}]
  tasks:
  - debug: msg="{{ secret }} {{ word }}"
""")
    from ansible.parsing.vault import VaultLib, VaultSecret

    sealed = VaultLib([("default", VaultSecret(b"word"))]).encrypt("secret: treasure")
    (tmp_path / "secret.yml").write_bytes(sealed)
    subprocess.run([sys.executable, "-c", NO_STANDARD_STREAMS, child], cwd=tmp_path, check=False, timeout=200)
    said = (tmp_path / "said").read_text()
    assert said.startswith("successful"), said
    assert "treasure spoken" in said


SIGNALS_OF_ITS_OWN = """
import signal, sys
import forkless
from forkless.engines.runner.engine import RunnerEngine
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
result = forkless.run(sys.argv[1], engine=RunnerEngine(sys.argv[2]))
for event in result.events:
    if event.event in ("runner_on_ok", "runner_on_failed"):
        res = event.event_data["res"]
        print(event.event, res.get("rc", res["msg"].strip()))
print(result.sentence)
"""


@pytest.mark.parametrize("child", ["ansible", "threads"])
def test_signals_that_the_program_blocks_or_ignores_are_not_so_in_the_run(book, child):
    """A blocked SIGINT would keep a run from being stopped; with SIGCHLD ignored every command would have succeeded."""
    play = """
        - hosts: localhost
          gather_facts: false
          tasks:
          - debug: msg="{{ lookup('file', '/proc/self/status') | regex_search('SigBlk.*') | split | last }}"
          - command: "false"
    """
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS_OF_ITS_OWN, book(textwrap.dedent(play)), child], capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    *told, sentence = done.stdout.splitlines()
    assert told == ["runner_on_ok 0000000000000000", "runner_on_failed 1"], done
    # Of its own child the program can know nothing.
    assert "taken by other code in this program" in sentence


def test_a_command_that_is_not_there_is_a_spawn_error(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(forkless.SpawnError, match="ansible-playbook"):
        forkless.run("x.yml", engine=RunnerEngine("ansible"), env={"PATH": str(tmp_path)})


def test_a_folder_that_is_gone_when_its_turn_comes_is_a_spawn_error(tmp_path, monkeypatch):
    monkeypatch.setattr(forkless.runs.run, "_check_places", lambda spec: None)  # it was there when this was asked
    with pytest.raises(forkless.SpawnError, match="nowhere"):
        forkless.run("x.yml", engine=RunnerEngine("ansible"), cwd=tmp_path / "nowhere")


def test_an_argument_that_no_command_can_have_is_a_spawn_error():
    with pytest.raises(forkless.SpawnError, match="null byte"):
        forkless.run("x.yml", limit="x\0y", engine=RunnerEngine("ansible"))


def test_no_room_for_temporary_files_is_told(monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engine_module.tempfile, "mkdtemp", full)
    with pytest.raises(SpecError, match="temporary files"):
        forkless.run("x.yml", engine="runner")


def test_the_private_folder_is_private_and_goes_with_the_run(instead):
    engine = instead(
        "import os\nprint(os.environ['AWX_ISOLATED_DATA_DIR'])\nprint(oct(os.stat(os.environ['AWX_ISOLATED_DATA_DIR']).st_mode))\n"
    )
    folder, mode = forkless.run("x.yml", engine=engine, extra_vars={"a": 1}).stdout.split()
    assert mode.endswith("700")
    assert not os.path.exists(folder)


def test_environment_is_taken_out_of_facts_wherever_they_are():
    line = {
        "res": {
            "ansible_facts": {"ansible_env": {"A": "1"}, "x": 1},
            "results": [{"ansible_facts": {"env": {"A": "1"}}}],
        }
    }
    without_environment(line)
    assert line == {"res": {"ansible_facts": {"x": 1}, "results": [{"ansible_facts": {}}]}}


def test_fifty_runs_from_one_loop_each_in_a_folder_of_its_own(instead):
    engine = instead(
        """
        import os, time
        print(os.environ["AWX_ISOLATED_DATA_DIR"], flush=True)
        time.sleep(0.2)
        """
    )

    async def main():
        with forkless.limit(10):
            return await asyncio.gather(*(forkless.run_async("x.yml", engine=engine) for _ in range(50)))

    results = asyncio.run(main())
    assert all(result.ok for result in results)
    assert len({result.stdout for result in results}) == 50


def test_stop_before_the_start_is_honoured(instead):
    engine = instead("import time\ntime.sleep(300)\n")
    stop = Stop()
    stop.request()
    outcome = engine.carry_out(RunSpec(playbook="x.yml"), ident="x", deliver=print, write=print, stop=stop)
    assert outcome.status is Status.CANCELED


def test_an_event_that_cannot_be_delivered_leaves_no_process(instead, tmp_path):
    pid = tmp_path / "pid"
    engine = instead(
        f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\nprint('x', flush=True)\ntime.sleep(300)\n"
    )

    def fail(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        engine.carry_out(RunSpec(playbook="x.yml"), ident="x", deliver=fail, write=print, stop=Stop())
    assert ProcessTree(int(pid.read_text())).alive() == []


def test_what_a_task_prints_is_told_while_it_runs_and_before_its_result(book, tmp_path):
    gate = tmp_path / "gate"
    text = f"""
- hosts: localhost
  gather_facts: false
  tasks:
  - name: Wait
    shell: echo first; while [ ! -e {gate} ]; do sleep 0.05; done; echo last
  - raw: echo once
"""
    path = book(text)
    run = forkless.start(path, engine="runner", live_output=True, timeout=240)
    seen = []
    for event in run.events():
        seen.append(event)
        if event.event_data.get("text") == "first":
            gate.touch()  # without its output the task would wait for this until the run's time is over
    assert run.wait().rc == 0, run.wait().stdout
    silent = forkless.run(path, engine="runner")
    assert [one.counter for one in seen] == list(range(1, len(seen) + 1))
    told = [one for one in seen if one.event == "runner_on_output"]
    assert [(one.task, one.event_data["text"]) for one in told] == [
        ("Wait", "first"),
        ("Wait", "last"),
        ("raw", "once"),
    ]
    assert [one.event for one in seen if one not in told] == [one.event for one in silent.events]
    names = [one.event for one in seen]
    assert names.index("runner_on_ok") > seen.index(told[1])
    begun = seen[names.index("playbook_on_start")]
    assert {one.event_data["playbook_uuid"] for one in told} == {begun.event_data["playbook_uuid"]}
    start = next(one for one in seen if one.event == "playbook_on_task_start")
    assert told[0].event_data["task_uuid"] == start.event_data["task_uuid"]
