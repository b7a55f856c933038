# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task prints is seen while it runs: masked, bounded, and without a change of its result."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import types
import zipfile

import pytest

import forkless
from forkless.core import bulk
from forkless.engines.runner.engine import RunnerEngine
from forkless.engines.threads import output_queue
from forkless.engines.threads.patches import callbacks
from forkless.engines.threads.workers import result_queue
from forkless.modules import TaskOutput
from forkless.modules.live_output import TimedOutput
from forkless.modules.warm.remote import child, live_output, main
from forkless.runs import artifacts

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600)]

MODULE = """#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"word": {"no_log": True}, "script": {}})
rc, out, err = module.run_command(["sh", "-c", module.params["script"]])
module.exit_json(length=len(out))
"""


def started(folder, tasks, *, inventory="web1,", **options):
    library = folder / "library"
    library.mkdir(exist_ok=True)
    (library / "secretly.py").write_text(MODULE)
    book = folder / "play.yml"
    book.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    options = {"live_output": True, "timeout": 120, **options}
    return forkless.start(str(book), inventory=inventory, extra_vars=variables, **options)


def outputs(events):
    return [event for event in events if event.event == "runner_on_output"]


def texts(events):
    return [event.event_data["text"] for event in outputs(events)]


@pytest.mark.parametrize("mode", ["auto", "in-process"])
def test_lines_come_while_the_task_runs(tmp_path, mode):
    gate = tmp_path / "gate"
    script = f"echo first; echo second >&2; while [ ! -e {gate} ]; do sleep 0.05; done; printf last"
    run = started(tmp_path, [{"name": "Wait", "shell": script}], modules=mode)
    seen = []
    for event in run.events():
        seen.append(event)
        if set(texts(seen)) == {"first", "second"}:
            gate.touch()  # without its output the task would wait for this until the run's time is over
    assert run.wait().rc == 0
    found = {(one.event_data["stream"], one.event_data["text"]) for one in outputs(seen)}
    assert found == {("stdout", "first"), ("stderr", "second"), ("stdout", "last")}
    first = outputs(seen)[0]
    assert (first.host, first.task, first.event_data["line"], first.event_data["dropped"]) == ("web1", "Wait", 1, 0)
    start = next(one for one in seen if one.event == "runner_on_start")
    assert first.event_data["task_uuid"] == start.event_data["task_uuid"] == first.parent_uuid
    assert [one.event for one in seen].index("runner_on_ok") > max(seen.index(one) for one in outputs(seen))


@pytest.mark.parametrize("mode", ["auto", "in-process"])
def test_a_progress_bar_is_seen_while_it_is_drawn(tmp_path, mode):
    for action in ("shell", "raw"):
        gate = tmp_path / action
        script = f"printf 'begin\\n\\r10%%'; while [ ! -e {gate} ]; do sleep 0.05; done; printf '\\r100%%\\n'"
        run = started(tmp_path, [{action: script}], modules=mode)
        seen = []
        for event in run.events():
            seen.append(event)
            if "10%" in "\n".join(texts(seen)):
                gate.touch()  # without its output the task would wait for this until the run's time is over
        assert run.wait().rc == 0
        assert "\n".join(texts(seen)).split("\n") == ["begin", "10%", "100%"]


def waiting_task(how, gate):
    """A task that prints, waits until the gate is open, and prints again."""
    script = f"echo first; while [ ! -e {gate} ]; do sleep 0.05; done; printf last"
    if how == "async":
        where = {"ansible_async_dir": f"{gate}-jobs"}  # its usual place is not always below $HOME
        return {"name": "Wait", "shell": script, "async": 300, "poll": 1, "vars": where}
    answers = {"command": f"sh -c {json.dumps(script)}", "responses": {"never": "x"}, "timeout": 300}
    return {"name": "Wait", "expect": answers}


@pytest.mark.parametrize("how", ["async", "async, and the interpreter is replaced", "expect"])
def test_lines_of_async_tasks_and_of_expect_come_while_they_run(tmp_path, how):
    gate, home = tmp_path / "gate", tmp_path / "home"
    home.mkdir()
    run = started(tmp_path, [waiting_task(how.partition(",")[0], gate)], env={"HOME": str(home)})
    seen = []
    for event in run.events():
        seen.append(event)
        if event.event == "runner_on_output" and event.event_data["text"] == "first":
            if "replaced" in how:  # a login would read this file, so the next module gets a new interpreter
                (home / ".profile").touch()
            else:
                gate.touch()  # without its output the task would wait for this until the run's time is over
        elif event.event == "runner_on_async_poll":
            gate.touch()
    assert run.wait().rc == 0, run.wait().stdout
    assert texts(seen) == ["first", "last"]
    assert {one.task for one in outputs(seen)} == {"Wait"}
    end = next(one for one in seen if one.event == "runner_on_ok")
    assert end.event_data["res"]["stdout_lines"] == ["first", "last"]
    assert seen.index(end) > max(seen.index(one) for one in outputs(seen))


def test_async_tasks_are_masked_or_silent_and_say_nothing_after_their_end(tmp_path):
    tasks = [
        {"name": "Masked", "secretly": {"word": "xyzzy", "script": "echo the xyzzy"}, "async": 100, "poll": 1},
        {"name": "Secret", "shell": "echo hidden", "async": 100, "poll": 1, "no_log": True},
        {"name": "Left", "shell": "echo alone", "async": 100, "poll": 0},
        {"name": "Late", "shell": "while :; do echo late; sleep 0.1; done", "async": 1, "poll": 1, "ignore_errors": True},
        {"name": "After", "shell": "sleep 1.5; echo after"},  # for about 5 seconds the job of the task before prints on
    ]  # fmt: skip
    for task in tasks:
        task["vars"] = {"ansible_async_dir": str(tmp_path / "jobs")}  # its usual place is not always below $HOME
    result = started(tmp_path, tasks).wait()
    assert result.rc == 0, result.stdout
    events = list(result.events)
    end = next(at for at, one in enumerate(events) if one.event == "runner_on_failed")
    said = [(one.task, one.event_data["text"]) for one in outputs(events[:end]) if one.task != "Late"]
    assert said == [("Masked", "the ********")]
    assert [(one.task, one.event_data["text"]) for one in outputs(events[end:])] == [("After", "after")]


def test_other_events_and_results_are_as_without(tmp_path):
    tasks = [{"name": "Say", "shell": "echo {{ item }}; echo x >&2", "loop": ["a", "b"]}, {"command": "true"}]
    kept = []
    for live in (False, True):
        result = started(tmp_path, tasks, live_output=live).wait()
        own = [one for one in result.events if one.event != "runner_on_output"]
        volatile = {"start", "end", "delta", "uuid", "task_uuid", "play_uuid", "playbook_uuid", "duration"}

        def plain(value):
            if isinstance(value, dict):
                return {key: plain(one) for key, one in value.items() if key not in volatile}  # noqa: B023
            return [plain(one) for one in value] if isinstance(value, list) else value

        kept.append([(one.event, plain(dict(one.event_data)), one.stdout) for one in own])
        said = [(one.event_data.get("item"), one.event_data["text"]) for one in outputs(result.events)]
        assert sorted(said) == ([("a", "a"), ("a", "x"), ("b", "b"), ("b", "x")] if live else [])
    assert kept[0] == kept[1]


@pytest.mark.parametrize("mode", ["auto", "in-process"])
def test_the_result_is_stocks(tmp_path, mode):
    script = r"printf 'one\ntwo\r\n\303\251\n\n'; printf 'half é' >&2; exit 3"
    tasks = [
        {"name": "Shell", "shell": script, "ignore_errors": True},
        {"name": "Loop", "command": "echo {{ item }}", "loop": ["a", "b"]},
        {"name": "Module", "secretly": {"word": "xyzzy", "script": "echo the xyzzy"}},
        {"name": "Raw", "raw": script, "ignore_errors": True},
    ]

    def results(**options):
        done = started(tmp_path, tasks, **options).wait()
        ends = [one for one in done.events if one.event in ("runner_on_ok", "runner_on_failed")]
        text = json.dumps([(one.task, one.event_data["res"]) for one in ends])
        return re.sub(r'"(start|end|delta)": "[^"]*"', r'"\1": "T"', text), outputs(done.events)

    stock, _ = results(engine=RunnerEngine("ansible"), live_output=False)
    ours, told = results(modules=mode)
    assert json.loads(ours) == json.loads(stock)
    assert {one.task for one in told} == {"Shell", "Loop", "Module", "Raw"}


def test_lines_of_a_package_module_come(tmp_path):
    about = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    with zipfile.ZipFile(tmp_path / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny-1.0.dist-info/METADATA", about)
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    flags = f"--no-index --no-deps --disable-pip-version-check --target {tmp_path / 'made'}"
    install = {"name": str(tmp_path / "tiny-1.0-py3-none-any.whl"), "extra_args": flags}
    result = started(tmp_path, [{"name": "Install", "pip": install}]).wait()
    assert result.rc == 0, result.stdout
    assert "Successfully installed tiny-1.0" in "\n".join(texts(result.events)).split("\n")


@pytest.mark.matrix
def test_it_is_on_unless_it_is_switched_off(tmp_path):
    for off, said in (("", ["x"]), ("live-output", [])):
        result = started(tmp_path, [{"command": "echo x"}], env={"FORKLESS_DISABLE": off}).wait()
        assert result.rc == 0, result.stdout
        assert texts(result.events) == said


def test_cold_modules_and_those_with_no_log_say_nothing(tmp_path):
    tasks = [
        {"command": "echo hidden", "no_log": True},
        {"command": "echo {{ item }}", "loop": ["hidden", "seen"], "no_log": "{{ item == 'hidden' }}"},
    ]
    assert texts(started(tmp_path, tasks).wait().events) == ["seen"]
    assert not texts(started(tmp_path, [{"command": "echo x"}], modules="cold").wait().events)


@pytest.mark.parametrize("mode", ["auto", "in-process"])
def test_values_of_no_log_parameters_are_masked_where_output_is_divided(tmp_path, mode):
    script = "printf 'the xyz'; sleep 0.3; printf 'zy-plugh\nand xyz'; sleep 0.3; printf 'zy-plugh!\n'; echo plain"
    run = started(tmp_path, [{"secretly": {"word": "xyzzy-plugh", "script": script}}], modules=mode)
    result = run.wait()
    assert result.rc == 0
    assert "\n".join(texts(result.events)) == "the ********\nand ********!\nplain"


@pytest.mark.parametrize("mode", ["auto", "in-process"])
def test_lines_of_a_secret_are_masked_however_they_are_printed(tmp_path, mode):
    key = "BEGIN KEY\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\nEND KEY\n"
    begin, first, second, end = key.splitlines()
    script = f"""
        printf '{begin}\\r\\n{first}\\r\\n{second}\\r\\n{end}\\r\\n'
        sleep 0.3; printf 'key: |\\n    {begin}\\n    {first[:5]}'; sleep 0.3; printf '{first[5:]}\\n'
        sleep 0.3; echo '2: {second}'; echo '{end}' >&2
    """
    result = started(tmp_path, [{"secretly": {"word": key, "script": script}}], modules=mode).wait()
    assert result.rc == 0, result.stdout
    said = "\n".join(texts(result.events))
    assert sorted(said.split("\n")) == ["    ********"] * 2 + ["********"] * 2 + ["2: ********", "key: |"]


ASKS = """#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.locale import get_best_parsable_locale
module = AnsibleModule({})
get_best_parsable_locale(module)
rc, out, err = module.run_command(["echo", "own"])
module.exit_json(out=out)
"""


@pytest.mark.parametrize("mode", ["auto", "in-process"])
def test_programs_that_ansible_asks_for_facts_and_locales_are_not_told(tmp_path, mode):
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "asks.py").write_text(ASKS)
    tasks = [{"setup": {"gather_subset": ["!all", "network"]}}, {"asks": {}}]
    result = started(tmp_path, tasks, modules=mode).wait()
    assert result.rc == 0, result.stdout
    assert texts(result.events) == ["own"]


OWN = """#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
from ansible.module_utils.basic import *
module = AnsibleModule({"word": {"no_log": True}})
program = subprocess.Popen(["sh", "-c", "echo one; echo two " + module.params["word"]], stdout=subprocess.PIPE, text=True)
module.exit_json(lines=len([line for line in program.stdout]), rc=program.wait())
"""


@pytest.mark.parametrize("mode", ["auto", "in-process"])
def test_programs_that_a_module_starts_itself_are_left_alone(tmp_path, mode):
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "starts.py").write_text(OWN)
    result = started(tmp_path, [{"starts": {"word": "xyzzy-plugh"}}], modules=mode).wait()
    assert result.rc == 0, result.stdout
    assert texts(result.events) == []


def test_a_task_that_prints_a_lot_is_bounded_and_its_result_is_whole(tmp_path):
    result = started(tmp_path, [{"shell": "seq 1 300000"}]).wait()
    found = outputs(result.events)
    assert len(found) < 200
    assert max(one.event_data["text"].count("\n") for one in found) < live_output.MOST_LINES
    assert sum(one.event_data["dropped"] for one in found) > 200_000
    assert "300000" in "\n".join(texts(found)).split("\n")
    end = next(one for one in result.events if one.event == "runner_on_ok")
    assert len(end.event_data["res"]["stdout_lines"]) == 300_000


@pytest.mark.matrix
def test_large_output_is_not_copied_on_its_way_to_the_strategy(tmp_path, monkeypatch):
    texts_of, pickled = {"sent": [], "received": []}, bulk.pickled

    def texts_in(results):
        """By id: the object is what counts."""
        return [id(one["stdout"]) for one in results if one and len(one.get("stdout", "")) == 100_000]

    def spy(value, *results):
        copy = pickled(value, *results)

        def load():
            made = copy()
            texts_of["sent"] += texts_in(results)
            texts_of["received"] += texts_in(result_queue._results(made))
            return made

        return load

    monkeypatch.setattr(bulk, "pickled", spy)
    result = started(tmp_path, [{"raw": "head -c 100000 /dev/zero | tr '\\0' x"}]).wait()
    ended = next(one for one in result.events if one.event == "runner_on_ok").event_data["res"]
    assert ended["stdout"] == "x" * 100_000
    assert texts_of["sent"] == texts_of["received"] != []


def test_bytes_that_are_no_text_and_divided_characters_do_no_harm(tmp_path):
    script = r"printf '\303'; sleep 0.2; printf '\251\377\000\n\342\202'; sleep 0.2; printf '\254\n\342'"
    assert "\n".join(texts(started(tmp_path, [{"shell": script}]).wait().events)) == "é\ufffd\0\n€\n\ufffd"


def test_artifacts_keep_it_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(artifacts, "MOST_OUTPUTS", 1)
    where = tmp_path / "artifacts"
    tasks = [{"shell": "echo one; sleep 0.5; echo two"}]
    result = started(tmp_path, tasks, artifacts=str(where), ident="it").wait()
    assert texts(result.events) == ["one", "two"]
    written = [json.loads(path.read_text()) for path in (where / "it" / "job_events").iterdir()]
    assert [one["event_data"]["text"] for one in written if one["event"] == "runner_on_output"] == ["one"]


# -- the parts ----------------------------------------------------------------------------------------------------


def test_a_secret_is_masked_wherever_it_is_divided():
    secrets = [b"xyzzy", b"zzyx", b"two\nlines", b"x"]
    text = b"a xyzzyx b two\nlines c xyz two\nlin"
    whole = live_output.Masker(secrets).feed(text, end=True)
    assert whole == b"a ******** b ******** c ********yz two\nlin"
    for at in range(len(text)):
        for to in range(at, len(text)):
            masker = live_output.Masker(secrets)
            assert masker.feed(text[:at]) + masker.feed(text[at:to]) + masker.feed(text[to:], end=True) == whole


def test_every_line_of_a_secret_is_masked_wherever_it_is_divided():
    secret = "first line\n  second\nab\n"
    forms = live_output.secret_forms([secret, "one\n"])
    cases = {
        "x first line\n  second\nab y": b"x ******** y",
        "x first line\r\n  second\r\nab y": b"x ******** y",
        "\tfirst line\r\n\t\tsecond\r\n": b"\t********\r\n\t\t********\r\n",
        "1 second 2 one 3": b"1 ******** 2 ******** 3",
    }
    for text, wanted in cases.items():
        data = text.encode()
        for at in range(len(data)):
            for to in range(at, len(data)):
                masker = live_output.Masker(forms)
                assert masker.feed(data[:at]) + masker.feed(data[at:to]) + masker.feed(data[to:], end=True) == wanted


def test_the_beginning_of_a_secret_at_the_end_of_a_line_that_was_cut_is_masked():
    masker = live_output.Masker([b"open-sesame"])
    assert masker.feed_cut(b"the word open-ses") == b"the word ********"
    assert masker.feed_cut(b"the open word") == b"the open word"


def test_nothing_is_held_back_that_no_secret_begins_with():
    masker = live_output.Masker([b"a long secret"])
    assert masker.feed(b"plain line\n") == b"plain line\n"
    assert masker.feed(b"then a lo") == b"then "
    assert masker.feed(b"t") == b"a lot"


@pytest.mark.parametrize("chunk", [1, 7, 1000, 1 << 20])
def test_lines_that_are_dropped_are_counted(chunk):
    data = b"".join(b"%d\n" % number for number in range(1000)) + b"end"
    lines = live_output.OutputLines()
    for at in range(0, len(data), chunk):
        lines.feed(b"o", data[at : at + chunk])
    lines.end(b"o")
    ((stream, dropped, text),) = lines.take(0.0)
    shown = text.split(b"\n")
    assert (stream, shown[-2:]) == (b"o", [b"999", b"end"])
    assert len(shown) <= live_output.MOST_LINES
    assert dropped + len(shown) == 1001


def test_a_line_without_an_end_takes_bounded_room():
    lines = live_output.OutputLines()
    for _ in range(1000):
        lines.feed(b"e", b"x" * 1000)
        assert len(lines._partial[b"e"]) <= live_output.LONGEST
    lines.feed(b"e", b"\nnext\n")
    ((_, dropped, text),) = lines.take(0.0)
    assert [len(one) for one in text.split(b"\n")] == [live_output.LONGEST + len("…".encode()), 4]
    assert dropped == 0
    assert text.endswith(b"next")


def test_a_progress_bar_is_told_once_a_second_and_not_again_by_its_end():
    lines = live_output.OutputLines()
    lines.feed(b"o", b"\r10%")
    assert lines.due == 0.0
    assert lines.take(100.0) == [(b"o", 0, b"10%")]
    assert lines.due is None
    lines.feed(b"o", b"\r20%\r30%")
    assert lines.due == 101.0
    lines.feed(b"e", b"a line\n")  # does not wait for the bar
    assert lines.due == 100.1
    assert lines.take(100.5) == [(b"e", 0, b"a line")]
    assert lines.take(101.0) == [(b"o", 0, b"30%")]
    lines.feed(b"o", b"\n\r40%\r50%\n")  # the end of the bar that was told, and another one as a whole
    assert lines.take(103.0) == [(b"o", 0, b"\r40%\r50%")]
    lines.feed(b"o", b"reading 5%\r")
    assert lines.take(105.0) == [(b"o", 0, b"reading 5%")]
    lines.feed(b"o", b"reading 9%\r")
    lines.end(b"o")
    assert lines.take(106.0) == [(b"o", 0, b"reading 9%")]
    lines.feed(b"o", b"divided\r")  # it may also be the end of a line of a terminal
    assert lines.take(108.0) == [(b"o", 0, b"divided")]
    lines.feed(b"o", b"\nnext\r\n")
    assert lines.take(110.0) == [(b"o", 0, b"next\r")]


def test_a_line_does_not_wait_for_the_time_of_a_bar():
    told = []
    timed = TimedOutput(types.SimpleNamespace(tell=lambda stream, text, dropped: told.append(text)))
    timed.write(b"o", b"\r1%")
    timed.write(b"o", b"\r2%")
    timed.write(b"e", b"a line\n")
    try:
        assert b"a line" in told or timed._timer.interval <= live_output.EVERY
    finally:
        for stream in (b"o", b"e"):
            timed.end(stream)
    assert told == [b"1%", b"2%", b"a line"] or told == [b"1%", b"a line", b"2%"]


def test_a_bar_that_waits_is_told_though_a_line_was_told_meanwhile():
    told = []
    timed = TimedOutput(types.SimpleNamespace(tell=lambda stream, text, dropped: told.append(text)))
    timed.write(b"o", b"\r1%")
    timed.write(b"o", b"\r2%")
    timed.write(b"e", b"a line\n")
    timed._on_time()
    try:
        assert b"a line" in told
        assert b"2%" in told or timed._timer is not None
    finally:
        for stream in (b"o", b"e"):
            timed.end(stream)
    assert timed._timer is None


@pytest.mark.parametrize("size", [7, 1000, 100_000])
def test_a_bar_that_is_drawn_often_is_told_as_it_is_in_the_end(size):
    lines = live_output.OutputLines()
    text = b"".join(b"\r[%d] progress" % number for number in range(2000)) + b"\nafter\n"
    for at in range(0, len(text), size):
        lines.feed(b"o", text[at : at + size])
        assert len(lines._partial[b"o"]) <= live_output.LONGEST
    ((_, dropped, told),) = lines.take(1.0)
    bar, after = told.split(b"\n")
    assert (bar.rpartition(b"\r")[2], after, dropped) == (b"[1999] progress", b"after", 0)


def test_the_parts_of_one_long_line_that_are_lost_are_not_counted_as_lines():
    lines = live_output.OutputLines()
    lines.feed(b"o", b"x" * 5000)
    lines.feed(b"o", b"xx", lost=1)
    lines.feed(b"o", b"xx", lost=1)
    lines.feed(b"o", b"x\ndone\n", lost=1)
    assert lines.take(1.0) == [(b"o", 0, b"x" * 4096 + live_output.CUT + b"\ndone")]
    lines.feed(b"o", b"half", lost=0)
    lines.feed(b"o", b"of a later line\nlast\n", lost=3)  # the half line, a whole one, and the one whose end is here
    assert lines.take(2.0) == [(b"o", 3, b"last")]


def test_lines_that_wait_are_bounded_however_they_end():
    lines = live_output.OutputLines()
    for number in range(1000):
        lines.feed(b"o", b"x" * 5000)  # is cut before its end comes
        lines.feed(b"o", b"\n")
        lines.feed(b"e", b"last %d" % number)  # one of many programs that end without a newline
        lines.end(b"e")
        assert max(map(len, lines._lines.values())) <= live_output.MOST_LINES
    (_, cut, first), (_, dropped, second) = lines.take(0.0)
    assert cut + first.count(b"\n") + 1 == dropped + second.count(b"\n") + 1 == 1000
    assert second.endswith(b"last 999")


def test_there_are_few_messages_about_a_task_however_small_the_pieces_that_it_prints():
    """By a clock of the test's own: a line comes every millisecond, in two pieces, for half a minute."""
    lines, count = live_output.OutputLines(), 30_000
    messages = []
    for number in range(count):
        now = number / 1000
        for piece in (b"%d" % number, b"\n"):
            lines.feed(b"o", piece)
            if lines.due is not None and lines.due <= now:
                messages.append((now, *lines.take(now)))
    lines.end(b"o")
    if lines.due is not None:
        messages.append((count / 1000, *lines.take(count / 1000)))
    told = [(now, dropped, text.count(b"\n") + 1) for now, (_, dropped, text) in messages]
    assert sum(dropped + shown for _, dropped, shown in told) == count
    first = [one for one in told if one[0] < 10]
    # A task that prints a lot is told of less often, and in shorter messages.
    later = [one for one in told if one[0] >= 11]
    assert 90 <= len(first) <= 10 / live_output.EVERY + 1
    assert 18 <= len(later) <= 19 / live_output.EVERY_OF_MANY + 1
    assert max(shown for _, _, shown in later) <= live_output.MOST_LINES_OF_MANY


def test_what_did_not_fit_is_told_when_a_program_prints_nothing_more():
    reading, writing = os.pipe()
    reader, pipe = live_output.OutputReader(reading), live_output.OutputPipe(writing)
    try:
        for number in range(100):
            pipe.write(b"o", b"".join(b"%d\n" % (number * 1000 + one) for one in range(1000)))
        while reader.read():
            pass
        assert b"99999" not in reader.lines._lines[b"o"]  # else the pipe was never full
        pipe.tell_waiting()
        while reader.read():
            pass
        ((_, dropped, text),) = reader.lines.take(0.0)
    finally:
        reader.close()
        os.close(writing)
    assert text.split(b"\n")[-1] == b"99999"
    assert dropped + text.count(b"\n") + 1 == 100_000


def test_run_command_is_what_notices_that_a_program_prints_nothing(monkeypatch):
    """It asks once a second whether a silent program has ended."""
    told = types.SimpleNamespace(calls=0)

    def tell_waiting():
        told.calls += 1

    pipe = types.SimpleNamespace(tell_waiting=tell_waiting, write=lambda *_: None, end=lambda _: None)
    monkeypatch.setattr(child.LIVE, "tell", pipe)
    program = child.QuickPopen(["true"], stdout=subprocess.PIPE)
    program.wait()
    program.stdout.close()
    assert program.poll() == 0
    assert told.calls == 0  # not one that the module started itself
    monkeypatch.setattr(child.LIVE, "running", 1)
    assert program.poll() == 0
    assert told.calls == 1


def test_a_module_never_waits_for_the_pipe():
    reading, writing = os.pipe()
    try:
        pipe = live_output.OutputPipe(writing)
        for _ in range(100):
            pipe.write(b"o", b"line\n" * 1000)  # blocks for ever if it waits: nobody reads
        os.set_blocking(reading, False)
        assert len(os.read(reading, 1 << 20)) <= 1 << 20
        pipe.write(b"o", b"after\n")
        rest = os.read(reading, 1 << 20)
        at = rest.index(b"after") - live_output.PART.size
        assert live_output.PART.unpack_from(rest, at)[1] > 10_000  # it says how many lines are missing
    finally:
        os.close(reading)
        os.close(writing)


def test_whatever_is_printed_takes_bounded_room_and_every_line_is_accounted_for():
    """The path of a task that prints a lot, in small, with a reader that sleeps most of the time."""
    reading, writing = os.pipe()
    line, count = b"a line that has the word xyzzy in it\n", 200_000
    pipe, lines, heard = live_output.OutputPipe(writing), live_output.OutputLines(), bytearray()

    def hear():
        while len(heard) >= live_output.PART.size:
            stream, lost, length = live_output.PART.unpack_from(heard)
            end = live_output.PART.size + length
            if len(heard) < end:
                return
            if length:
                lines.feed(stream, bytes(heard[live_output.PART.size : end]), lost)
            else:
                lines.end(stream)
            assert len(lines._lines[stream]) <= live_output.MOST_LINES
            del heard[:end]

    def read_to_the_end():
        while chunk := os.read(reading, 1 << 20):
            heard.extend(chunk)

    with open(os.devnull, "rb") as nothing:
        file = live_output.TappedFile(nothing, b"o", pipe, [b"xyzzy", b"plugh"])
        for number in range(count // 1000):
            file.heard(line * 1000)
            assert len(pipe._unsent) + len(pipe._tail[b"o"]) <= 1 << 17
            if number % 10 == 0:
                heard += os.read(reading, 1 << 20)
                hear()
        rest = threading.Thread(target=read_to_the_end)
        rest.start()
        file.close()
        os.close(writing)
        rest.join()
    os.close(reading)
    hear()
    ((_, dropped, text),) = lines.take(0.0)
    assert text.endswith(b"the word ******** in it")
    assert b"xyzzy" not in text
    assert dropped + text.count(b"\n") + 1 == count


def test_the_last_lines_of_a_job_are_told_before_the_end_of_telling_is_confirmed():
    (answers, out), (reading, writing) = os.pipe(), os.pipe()
    pipe = live_output.OutputPipe(writing)
    pipe.write(b"o", b"in a line\nand the rest")
    try:
        server = main.RemoteServer(answers, out, False)
        server.live[7] = live_output.OutputReader(reading)
        server.poll.register(reading)
        server.hear(b"C", 9, b'{"end_live": 7}')
        said, frames = os.read(answers, 1 << 16), []
        while said:
            length, number, kind = main.HEAD.unpack_from(said)
            frames.append((kind, number, said[main.HEAD.size : main.HEAD.size + length]))
            said = said[main.HEAD.size + length :]
    finally:
        for fd in (answers, out, writing):
            os.close(fd)
    assert [(kind, number) for kind, number, _ in frames] == [(b"V", 7), (b"X", 9)]
    assert frames[0][2].endswith(b"in a line\nand the rest")
    assert not server.live


def test_what_a_task_printed_is_delivered_before_its_result_if_no_thread_was_in_time(monkeypatch):
    monkeypatch.setattr(output_queue.OutputQueue, "_work", lambda queue: None)
    seen = []
    listener = callbacks.Listener("run", seen.append)
    task = types.SimpleNamespace(
        _uuid="1", name="Say", action="shell", no_log=False, _role=None, get_path=lambda: "play.yml:1"
    )
    for number in (1, 2):
        listener.live_output("web1", TaskOutput(task, None, "stdout", str(number), number, 0))
    listener.emit("runner_on_ok", {"host": "web1"})
    listener.live_output("web1", TaskOutput(task, None, "stdout", "3", 3, 0))
    listener.last_words()
    assert [(one.event, one.event_data.get("text")) for one in seen] == [
        ("runner_on_output", "1"), ("runner_on_output", "2"), ("runner_on_ok", None), ("runner_on_output", "3"),
    ]  # fmt: skip
    assert [one.counter for one in seen] == [1, 2, 3, 4]


def test_the_text_that_ansible_printed_stays_with_ansibles_own_events():
    seen = []
    transcript = callbacks.Transcript(lambda _text: None)
    listener = callbacks.Listener("run", seen.append, transcript)
    task = types.SimpleNamespace(
        _uuid="1", name="Say", action="shell", no_log=False, _role=None, get_path=lambda: "play.yml:1"
    )
    transcript.write("TASK [Say]\n")
    listener.live_output("web1", TaskOutput(task, None, "stdout", "live", 1, 0))
    listener.deliver_waiting_output()
    listener.emit("runner_on_ok", {"host": "web1"})
    listener.last_words()
    said = [(one.event, one.stdout, one.start_line, one.end_line) for one in seen]
    assert said == [("runner_on_output", "", 0, 0), ("runner_on_ok", "TASK [Say]", 0, 1)]


def test_a_slow_reader_stalls_nobody():
    entered, free, seen = threading.Event(), threading.Event(), []

    def deliver(host, output, dropped):
        entered.set()
        assert free.wait(240)
        seen.append((output.text, dropped))

    queue = output_queue.OutputQueue("ident", deliver, threading.Lock())
    task = types.SimpleNamespace(_uuid="1")
    for number in range(2000):
        queue.put("web1", TaskOutput(task, None, "stdout", str(number), number, 0))
        assert number or entered.wait(240)
    free.set()
    queue.close()
    assert seen[-1][0] == "1999"
    assert len(seen) <= output_queue.MOST + 1
    assert len(seen) + sum(dropped for _, dropped in seen) == 2000


def test_lines_that_a_slow_reader_missed_are_told_of_also_if_their_task_prints_nothing_more():
    entered, free, seen = threading.Event(), threading.Event(), []

    def deliver(host, output, dropped):
        entered.set()
        assert free.wait(240)
        seen.append((host, output.text, output.line, dropped))

    queue = output_queue.OutputQueue("ident", deliver, threading.Lock())
    queue.put("web0", TaskOutput(types.SimpleNamespace(_uuid="0"), None, "stdout", "first", 1, 0))
    assert entered.wait(240)
    for number in range(1000):  # of many tasks, each on its own host: two lines, with one that was dropped before them
        task = types.SimpleNamespace(_uuid=str(number % 10))
        queue.put(f"web{number % 10 + 1}", TaskOutput(task, None, "stdout", "a\nb", number // 10 * 3 + 2, 1))
    for number in range(300):
        queue.put("last", TaskOutput(types.SimpleNamespace(_uuid="last"), None, "stdout", "x", number + 1, 0))
    free.set()
    queue.close()
    for host in (f"web{number + 1}" for number in range(10)):
        mine = [(text, line, dropped) for where, text, line, dropped in seen if where == host]
        assert mine == [("b", 300, 299)]
    assert sum(dropped + 1 for where, _, _, dropped in seen if where == "last") == 300
    assert not queue._dropped
