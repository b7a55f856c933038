# SPDX-License-Identifier: GPL-3.0-or-later
"""Run: follow, wait, cancel, limits, artifacts; whichever engine carries it out."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time

import pytest

import forkless
from forkless import SpecError, Status
from forkless.core.result import Outcome
from forkless.runs import artifacts as artifacts_module
from forkless.runs import spool as spool_module
from forkless.runs.limits import RUN_LIMIT
from pretend import Pretend, event, some, until_stopped


def start(play=None, **fields):
    fields = {"engine": Pretend(play)} | fields
    return forkless.start("site.yml", **fields)


def test_every_event_comes_in_order_to_every_follower():
    run = start(some(1000))
    followers = [[], [], []]
    threads = [threading.Thread(target=lambda seen=seen: seen.extend(run.events())) for seen in followers]
    for thread in threads:
        thread.start()
    result = run.wait()
    for thread in threads:
        thread.join()
    for seen in [*followers, list(run.events()), list(result.events)]:
        assert [one.counter for one in seen] == list(range(1, 1002))
        assert seen[-1].event == "playbook_on_stats"


def test_a_listener_is_told_of_events_and_text_as_they_happen():
    class Told(list):
        def event(self, event):
            self.append(event.counter)

        def text(self, text):
            self.append(text)

    told = Told()

    def play(deliver, write, stop):
        write("one\n")
        assert told == ["one\n"]
        deliver(event(1))
        assert told == ["one\n", 1]

    run = start(play, listener=told)
    assert run.wait().ok, run.wait().sentence
    assert told == ["one\n", 1]


def test_only_some_engines_can_run_at_a_terminal():
    run = forkless.Run(forkless.RunSpec.from_argv("ansible-playbook", ["site.yml"]), Pretend())
    with pytest.raises(forkless.UnsupportedError, match="'pretend' cannot carry out a run at a terminal"):
        run.carry_out_at_terminal(object())
    assert run.status is Status.ERROR


def test_a_run_tells_how_it_stands():
    go, going = threading.Event(), threading.Event()

    def play(deliver, write, stop):
        deliver(event(1))
        going.set()
        go.wait()

    run = start(play)
    going.wait()
    assert run.status is Status.RUNNING
    with pytest.raises(TimeoutError, match="goes on"):
        run.wait(0.01)
    go.set()
    assert run.wait().ok
    assert run.status is Status.SUCCESSFUL
    assert "successful" in repr(run)


def test_what_nobody_reads_goes_to_disk_and_comes_back_the_same(monkeypatch):
    monkeypatch.setattr(spool_module, "IN_MEMORY", 64 << 10)
    events = spool_module.Events(in_memory=64 << 10)
    sent = [event(n, stdout=f"{n} " * 50) for n in range(1, 2001)]
    for one in sent:
        events.append(one)
    assert events._lines.spilled
    assert len(events._lines._recent) <= 64 << 10
    assert events._whole is None
    assert list(events) == sent
    assert events[0] == sent[0]
    assert events[-1] == sent[-1]
    assert list(events[10:13]) == sent[10:13]
    assert list(events[::-1]) == sent[::-1]
    assert list(reversed(events)) == sent[::-1]
    assert pickle.loads(pickle.dumps(events)) == tuple(sent)
    with pytest.raises(IndexError):
        events[2000]


def test_what_json_cannot_hold_does_not_end_the_run():
    circle = {}
    circle["self"] = circle
    odd = [{("a", 1): 2}, circle, {"set": {1}}, {"bytes": b"x"}]

    def play(deliver, write, stop):
        for n, fields in enumerate(odd, 1):
            deliver(forkless.Event(event="runner_on_ok", uuid=str(n), counter=n, event_data=fields))

    result = start(play).wait()
    assert result.ok
    assert [one.counter for one in result.events] == [1, 2, 3, 4]
    assert all(json.loads(line) for line in result.events.lines(0, 4))


def test_memory_stays_bounded_when_nobody_reads():
    run = start(some(3000, size=10_000))
    result = run.wait()
    assert len(run._events._lines._recent) <= spool_module.IN_MEMORY + 20_000
    assert len(run._text._recent) <= spool_module.IN_MEMORY + 20_000
    assert run._events._whole is None
    assert len(result.events) == 3001
    assert len(result.stdout) == 3000 * 10_001


def test_what_finds_no_room_on_the_disk_gives_back_the_room_it_took(tmp_path, monkeypatch):
    write = os.pwrite

    def nearly_full(fd, piece, at):
        if at >= 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, piece[:4], at)

    monkeypatch.setattr(os, "pwrite", nearly_full)
    spool = spool_module.Spool(str(tmp_path), in_memory=10)
    spool.append(b"x" * 20)
    assert spool._fd is not None
    assert os.fstat(spool._fd).st_size == 0
    assert spool.read() == b"x" * 20


def test_a_disk_that_is_full_costs_memory_but_no_event(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    events = spool_module.Events(in_memory=1000)
    monkeypatch.setattr(os, "pwrite", full)
    sent = [event(n) for n in range(1, 101)]
    for one in sent:
        events.append(one)
    assert list(events) == sent


def test_a_result_survives_pickling_inside_its_error():
    result = start(lambda deliver, write, stop: write("said\n") or Outcome(Status.FAILED, 2)).wait()
    with pytest.raises(forkless.RunFailed) as caught:
        result.raise_for_failures()
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.result.stdout == "said\n"
    assert again.result.rc == 2


def test_ten_thousand_events_at_once_neither_stall_nor_get_lost():
    result = start(some(10_000), timeout=100, idle_timeout=90).wait()
    assert [one.counter for one in result.events] == list(range(1, 10_002))


def test_a_slow_follower_never_stalls_the_play():
    done = threading.Event()

    def play(deliver, write, stop):
        some(500)(deliver, write, stop)
        done.set()

    run = start(play)
    follower = run.events()
    next(follower)
    # The play ends while this one has read a single event.
    assert done.wait(240)
    assert run.wait().ok
    assert len(list(follower)) == 500


def test_cancelling_ends_the_run_as_cancelled():
    run = start(until_stopped)
    next(run.events())
    run.cancel()
    result = run.wait()
    assert result.status is Status.CANCELED
    with pytest.raises(forkless.RunCancelled):
        result.raise_for_failures()


def test_a_run_has_a_time_limit():
    result = start(until_stopped, timeout=0.05).wait()
    assert result.status is Status.TIMEOUT
    assert result.sentence == "the run exceeded its time limit of 0.05 s and was stopped"


def test_a_run_that_is_silent_for_too_long_is_stopped_and_one_that_talks_is_not():
    def talk(deliver, write, stop):
        for n in range(1, 9):
            if stop.wait(0.1):
                return
            deliver(event(n))

    assert start(talk, idle_timeout=20).wait().ok
    result = start(until_stopped, idle_timeout=0.1).wait()
    assert result.status is Status.TIMEOUT
    assert "silent for 0.1 s" in result.sentence


@pytest.mark.parametrize("field", ["timeout", "idle_timeout"])
@pytest.mark.parametrize("value", [0, -1, "soon", True, float("nan")])
def test_a_bad_time_limit_is_refused_before_anything_starts(field, value):
    with pytest.raises(SpecError, match=field):
        start(**{field: value})


def test_an_error_of_the_engine_is_raised_to_who_waits():
    def play(deliver, write, stop):
        raise forkless.SpawnError("ansible-playbook", "no such file")

    run = start(play)
    with pytest.raises(forkless.SpawnError, match="no such file"):
        run.wait()
    assert run.status is Status.ERROR
    assert list(run.events()) == []


def test_an_unknown_engine_is_refused():
    with pytest.raises(SpecError, match="no engine 'steam'"):
        forkless.run("site.yml", engine="steam")


def test_an_inventory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"nowhere\.ini does not exist"):
        start(inventory=tmp_path / "nowhere.ini")
    assert start(inventory="web1,web2").wait().ok
    assert start(inventory=str(tmp_path)).wait().ok


def test_a_folder_to_run_in_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"cwd .*nowhere is not a folder"):
        start(cwd=tmp_path / "nowhere")


def test_a_ready_spec_and_other_fields_do_not_mix():
    with pytest.raises(SpecError, match="whole request"):
        forkless.start(spec=forkless.RunSpec(playbook="a.yml"), engine=Pretend(), check=True)


def test_the_event_callback_is_called_with_each_event_and_may_end_the_run():
    seen = []
    forkless.run("site.yml", engine=Pretend(some(5)), on_event=seen.append)
    assert [one.counter for one in seen] == [1, 2, 3, 4, 5, 6]
    engine = Pretend(until_stopped)
    with pytest.raises(ZeroDivisionError):
        forkless.run("site.yml", engine=engine, on_event=lambda _: 1 / 0)
    assert engine.at_once == 0


@pytest.mark.spawns
def test_ctrl_c_stops_the_run_is_raised_and_works_again_afterwards(tmp_path):
    code = (
        "import os, signal, sys, threading\n"
        f"sys.path[:0] = [{str(pathlib.Path(__file__).parents[1])!r}]\n"
        "import forkless\n"
        "from pretend import Pretend, until_stopped\n"
        "engine = Pretend(until_stopped)\n"
        "for _ in range(2):\n"
        "    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()\n"
        "    try:\n"
        "        forkless.run('site.yml', engine=engine)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', engine.at_once)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    assert done.stdout == "interrupted 0\n" * 2, done.stderr


@pytest.mark.spawns
def test_a_program_that_ends_during_a_run_ends_the_run():
    code = (
        "import sys, threading\n"
        f"sys.path[:0] = [{str(pathlib.Path(__file__).parents[1])!r}]\n"
        "import forkless\n"
        "from pretend import Pretend, event\n"
        "def play(deliver, write, stop):\n"
        "    deliver(event(1))\n"
        "    stop.wait()\n"
        "    print('stopped', stop.urgent, flush=True)\n"
        "run = forkless.start('site.yml', engine=Pretend(play))\n"
        "next(run.events())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    assert done.stdout.startswith("stopped"), done.stderr


LATE = f"""
import atexit, sys, threading
sys.path[:0] = [{str(pathlib.Path(__file__).parents[1])!r}]
import forkless
from pretend import Pretend, event
def play(deliver, write, stop):
    threading.main_thread().join()
    stop.wait(0.2)
    print('asked to stop' if stop.requested else 'left alone', flush=True)
def go():
    try:
        print(forkless.run('site.yml', engine=Pretend(play)).status)
    except forkless.SpawnError as err:
        print('refused:', err)
"""


@pytest.mark.spawns
@pytest.mark.parametrize("begins", ["before", "after"])
def test_a_run_that_a_thread_of_the_program_waits_for_outlives_the_main_thread(begins):
    wait = "" if begins == "before" else "threading.main_thread().join(); "
    code = LATE + f"def late(): {wait}go()\nthreading.Thread(target=late).start()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    if sys.version_info[:2] == (3, 12):  # it starts no thread once the main one has ended
        refused = "refused: could not start a run: can't create new thread at interpreter shutdown\n"
        assert done.stdout in (refused, "left alone\nsuccessful\n"), done.stdout + done.stderr
        return
    assert done.stdout == "left alone\nsuccessful\n", done.stdout + done.stderr


@pytest.mark.spawns
@pytest.mark.matrix_ends
def test_a_run_that_begins_as_the_program_ends_works_or_is_refused_in_a_sentence():
    code = LATE.replace("    threading.main_thread().join()\n", "") + "atexit.register(go)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    assert done.stdout == "left alone\nsuccessful\n" or done.stdout.startswith("refused: could not start a run:"), (
        done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.spawns
def test_a_run_for_which_there_was_no_thread_is_not_looked_for_as_the_program_ends():
    code = LATE + (
        'def refuse(*_): raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = refuse\n"
        "try:\n"
        "    forkless.run('site.yml', engine=Pretend(play))\n"
        "except forkless.SpawnError as err:\n"
        "    kept = err\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.spawns
def test_a_program_whose_folder_was_removed_is_told_to_name_one(tmp_path):
    (tmp_path / "site.yml").touch()
    code = (
        "import os, sys\n"
        f"sys.path[:0] = [{str(pathlib.Path(__file__).parents[1])!r}]\n"
        "import forkless\n"
        "from pretend import Pretend\n"
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        "for options in ({}, {'cwd': 'below'}, {'cwd': sys.argv[1]}):\n"
        "    try:\n"
        "        print(forkless.run('site.yml', engine=Pretend(), **options).status)\n"
        "    except forkless.SpecError as err:\n"
        "        print(err)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    sentence = "the working directory of this process cannot be used (No such file or directory); give cwd= as an absolute path"
    assert done.stdout.splitlines() == [sentence, sentence, "successful"], done.stderr


def test_a_run_that_finds_no_file_descriptor_says_which_limit_was_reached():
    def play(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/some/file")

    with pytest.raises(
        forkless.SpawnError, match=r"could not start a run: Too many open files \(ulimit -n\), as /some/file"
    ):
        forkless.run("site.yml", engine=Pretend(play))


@pytest.mark.parametrize("field", ["timeout", "idle_timeout"])
@pytest.mark.parametrize("limit", [float("inf"), 1e300, 1e12, threading.TIMEOUT_MAX, pytest.param(10**400, id="huge")])
def test_a_time_limit_may_be_longer_than_any_clock_runs(field, limit, monkeypatch):
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    waiting = forkless.start("site.yml", engine=Pretend(some(2)), **{field: limit})
    assert waiting.wait(limit).ok
    assert not raised


# ---- limits


def test_a_limit_queues_the_rest_in_order():
    engine = Pretend(lambda deliver, write, stop: stop.wait(0.02))
    with forkless.limit(3):
        runs = [forkless.start("site.yml", engine=engine) for _ in range(20)]
        assert all(run.wait().ok for run in runs)
    assert engine.most <= 3
    assert RUN_LIMIT.most is None


def test_a_run_that_waits_its_turn_can_be_cancelled_and_never_starts():
    with forkless.limit(1):
        first, second = start(until_stopped), start(until_stopped)
        next(first.events())
        assert second.status is Status.UNSTARTED
        second.cancel()
        result = second.wait()
        assert (result.status, len(result.events)) == (Status.CANCELED, 0)
        third = start()
        first.cancel()
        assert third.wait().ok
        first.wait()


def test_a_limit_that_is_lifted_lets_the_rest_in():
    with forkless.limit(1):
        first, second = start(until_stopped), start()
        next(first.events())
        forkless.limit(None)
        assert second.wait().ok
        first.cancel()
        first.wait()


def test_who_will_not_wait_is_told_that_it_is_busy():
    with forkless.limit(1):
        first = start(until_stopped)
        next(first.events())
        with pytest.raises(forkless.EngineBusyError, match="1 is the limit"):
            start(wait=False).wait()
        first.cancel()
        first.wait()


@pytest.mark.parametrize("n", [0, -1, 2.5, "many", True])
def test_a_limit_is_a_whole_number(n):
    with pytest.raises(SpecError, match="limit"):
        forkless.limit(n)


def test_the_time_limit_does_not_count_the_time_in_the_queue():
    with forkless.limit(1):
        first = start(until_stopped)
        next(first.events())
        second = start(some(1), timeout=60, idle_timeout=60)
        assert second.status is Status.UNSTARTED
        assert second._clock.ident is None
        first.cancel()
        assert second.wait().ok
        assert second._clock.ident is not None
        first.wait()


# ---- artifacts


def test_artifacts_are_the_folder_that_ansible_runner_writes(tmp_path):
    result = start(
        some(3), artifacts=tmp_path / "a", ident="one", env={"TOKEN": "hush"}, extra_vars={"password": "hush"}
    ).wait()
    folder = tmp_path / "a" / "one"
    assert sorted(os.listdir(folder)) == ["command", "job_events", "rc", "status", "stderr", "stdout"]
    assert (folder / "rc").read_text() == "0"
    assert (folder / "status").read_text() == "successful"
    assert (folder / "stdout").read_text() == result.stdout
    names = os.listdir(folder / "job_events")
    assert sorted(names) == sorted(f"{one.counter}-{one.uuid}.json" for one in result.events)
    for one in result.events:
        assert json.loads((folder / "job_events" / f"{one.counter}-{one.uuid}.json").read_text()) == one.as_dict()
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"hush" not in everything
    assert json.loads((folder / "command").read_text())["env"] == {}
    for path in [folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_module_arguments_are_not_written_down(tmp_path):
    forkless.start(
        module="uri", module_args="password=hush", hosts="all", engine=Pretend(), artifacts=tmp_path, ident="x"
    ).wait()
    assert "hush" not in (tmp_path / "x" / "command").read_text()


def test_without_artifacts_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert start(some(3)).wait().ok
    assert os.listdir(tmp_path) == []


def test_two_runs_with_one_ident_do_not_mix(tmp_path):
    first = start(until_stopped, artifacts=tmp_path, ident="same")
    with pytest.raises(SpecError, match="'same'"):
        start(artifacts=tmp_path, ident="same")
    first.cancel()
    first.wait()
    # Without artifacts they share nothing, and both may be.
    assert start(ident="same").wait().ok


def test_old_artifacts_go_but_never_those_of_a_run_under_way(tmp_path):
    (tmp_path / "not-a-run").mkdir()
    live = start(until_stopped, artifacts=tmp_path, ident="live")
    next(live.events())
    os.utime(tmp_path / "live", (1, 1))
    for n in range(5):
        start(some(1), artifacts=tmp_path, ident=f"run{n}", keep=2).wait()
        os.utime(tmp_path / f"run{n}", (n + 2, n + 2))
    start(some(1), artifacts=tmp_path, ident="last", keep=2).wait()
    assert sorted(os.listdir(tmp_path)) == ["last", "live", "not-a-run", "run4"]
    live.cancel()
    live.wait()


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="artifacts cannot be written"):
        start(artifacts=tmp_path / "file" / "deeper")
    with pytest.raises(SpecError, match="artifacts cannot be written to .*: Not a directory"):
        start(artifacts=tmp_path / "file")


def test_a_full_disk_for_artifacts_never_stops_the_run(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = start(until_stopped, artifacts=tmp_path, ident="x")
    next(run.events())
    monkeypatch.setattr(artifacts_module, "_open", full)
    run._deliver(event(2))
    run.cancel()
    result = run.wait()
    assert result.status is Status.CANCELED
    assert "incomplete: No space left on device" in result.sentence
    assert len(result.events) == 2


@pytest.mark.spawns
def test_a_kernel_that_refuses_to_write_never_stops_the_run(tmp_path):
    code = (
        "import resource, sys\n"
        f"sys.path[:0] = [{str(pathlib.Path(__file__).parents[1])!r}]\n"
        "import forkless\n"
        "from pretend import Pretend, some\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "result = forkless.run('site.yml', engine=Pretend(some(3, size=20000)), artifacts=sys.argv[1], ident='x')\n"
        "print(result.status, len(result.events), result.sentence)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.startswith("successful 4 the artifacts in"), done.stderr
    assert "incomplete: File too large" in done.stdout


@pytest.mark.spawns
@pytest.mark.parametrize("engine", ["pretend", "threads", "runner"])
def test_on_a_disk_that_is_really_full_the_run_ends_well_and_says_what_is_missing(engine, tmp_path):
    """A file system of 128 kB in a mount namespace of its own; only root may make one."""
    if os.geteuid() != 0:
        # Nothing is left out in silence: the tests around this one say the same without a mount.
        pytest.skip("a tmpfs can only be mounted by root")
    mounted = tmp_path / "small"
    mounted.mkdir()
    (tmp_path / "site.yml").write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n"
        "  - debug: msg={{ 'x' * 30000 }}{{ item }}\n    loop: [1, 2, 3, 4, 5, 6, 7, 8]\n"
    )
    script = tmp_path / "full.py"
    script.write_text(
        "import os, shutil, sys\n"
        f"sys.path[:0] = [{str(pathlib.Path(__file__).parents[1])!r}]\n"
        "import forkless\n"
        "from pretend import Pretend, some\n"
        "name, folder = sys.argv[1:]\n"
        "engine = Pretend(some(600, size=20000)) if name == 'pretend' else name\n"
        "result = forkless.run('site.yml', engine=engine, artifacts=folder, ident='x')\n"
        "lost = result.sentence.startswith('the artifacts in ') and 'No space left on device' in result.sentence\n"
        "print(result.status, result.events[-1].event, lost or result.sentence)\n"
        "written = [name for name in os.listdir(folder + '/x/job_events') if name.endswith('.json')]\n"
        "print(len(written) < len(result.events))\n"
        "print([name for name in os.listdir(folder + '/x/job_events') if not name.endswith('.json')])\n"
        "shutil.rmtree(folder + '/x')\n"
        "again = forkless.run('site.yml', engine=Pretend(some(1)), artifacts=folder, ident='y')\n"
        "print(again.ok, repr(again.sentence))\n"
    )
    shell = f'mount -t tmpfs -o size=128k none "{mounted}" && exec "{sys.executable}" "{script}" {engine} "{mounted}"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", shell],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.splitlines() == ["successful playbook_on_stats True", "True", "[]", "True ''"], done.stderr


def test_a_folder_that_vanishes_during_the_run_never_stops_it(tmp_path):
    run = start(until_stopped, artifacts=tmp_path / "a", ident="x", keep=1)
    next(run.events())
    (tmp_path / "a").rename(tmp_path / "elsewhere")  # at once: a file may be written to it in this moment
    run._deliver(event(2))
    run.cancel()
    result = run.wait(240)
    assert result.status is Status.CANCELED
    assert "incomplete: No such file or directory" in result.sentence


def test_a_run_for_which_there_is_no_thread_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    def none_left(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        with pytest.raises(forkless.SpawnError, match="can't start new thread"):
            start(artifacts=tmp_path, ident="x")
    assert (tmp_path / "x" / "status").read_text() == "error"


def test_an_engine_that_fails_leaves_its_status_on_disk(tmp_path):
    def play(deliver, write, stop):
        raise forkless.SpawnError("ansible-playbook", "no such file")

    with pytest.raises(forkless.SpawnError):
        start(play, artifacts=tmp_path, ident="x").wait()
    assert (tmp_path / "x" / "status").read_text() == "error"


def test_a_slow_disk_keeps_nobody_waiting_but_the_end(tmp_path, monkeypatch):
    release, ended = threading.Event(), threading.Event()
    write_event = artifacts_module.Artifacts.write_event

    def slowly(self, line):
        release.wait(240)
        write_event(self, line)

    monkeypatch.setattr(artifacts_module.Artifacts, "write_event", slowly)

    def play(deliver, write, stop):
        some(100)(deliver, write, stop)
        ended.set()

    run = start(play, artifacts=tmp_path, ident="x")
    assert ended.wait(240)
    release.set()
    assert run.wait().ok
    assert len(os.listdir(tmp_path / "x" / "job_events")) == 101


def test_time_of_a_run_without_anyone_looking_is_small():
    # Not a benchmark: a busy wait anywhere would show here as processor time.
    run = start(until_stopped, timeout=60, idle_timeout=60)
    next(run.events())
    before = time.process_time()
    threading.Event().wait(0.5)
    assert time.process_time() - before < 0.25
    run.cancel()
    run.wait()
