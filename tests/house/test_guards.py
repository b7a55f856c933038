# SPDX-License-Identifier: GPL-3.0-or-later
"""A guard that cannot bite is no guard. Each of these breaks one rule in an inner pytest, and looks for the bite."""

from __future__ import annotations

import contextlib
import pathlib
import re
import textwrap
import time

import pytest

# The inner pytest runs in a process of its own: what these tests leave behind must not stay with us.
pytestmark = pytest.mark.spawns

HERE = pathlib.Path(__file__).parent.parent

BREACHES = {
    "os.fork": ("fork guard: os.fork", "import os\npid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)"),
    "os.forkpty": (
        "fork guard: os.forkpty",
        "import os\npid, fd = os.forkpty()\nif not pid: os._exit(0)\nos.close(fd)\nos.waitpid(pid, 0)",
    ),
    "subprocess": ("fork guard: subprocess.Popen", "import subprocess\nsubprocess.run(['true'])"),
    "threads": (
        "leak guard: threads",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    ),
    "descriptors": ("leak guard: descriptors", "import os\nos.open('/dev/null', os.O_RDONLY)"),
    "children": ("children: process", "import os\nos.posix_spawn('/bin/sleep', ['sleep', '60'], {})"),
    "names": ("leak guard: names: os:getpid", "import os\nreal = os.getpid\nos.getpid = lambda: real()"),
    "cwd": ("leak guard: cwd", "import os\nos.chdir('/')"),
    "environ": ("leak guard: environ: LEFT", "import os\nos.environ['LEFT'] = '1'"),
    "umask": ("leak guard: umask", "import os\nos.umask(0o077 if os.umask(0) != 0o077 else 0o022)"),
    "signals": ("leak guard: signals: SIGUSR1", "import signal\nsignal.signal(signal.SIGUSR1, lambda *a: None)"),
    "collector": ("leak guard: collector", "import gc\ngc.set_threshold(gc.get_threshold()[0] + 1)"),
    # The last one: no thread can be started after it.
    "code": (
        "leak guard: names: threading:Thread.start",
        "import threading\ndef start(self):\n    pass\nthreading.Thread.start.__code__ = start.__code__",
    ),
}


def run_inside(pytester, **bodies):
    """An inner pytest with one test for each body, in their order."""
    pytester.makeconftest((HERE / "conftest.py").read_text().replace('pytest_plugins = ["pytester"]', ""))
    pytester.makepyfile(guards=(HERE / "guards.py").read_text().replace("GRACE = 30.0", "GRACE = 0.2"))
    pytester.makeini("[pytest]\nmarkers =\n    spawns: x\n    leaves(what): x\n")
    tests = [f"def test_{name}():\n{textwrap.indent(body, '    ')}\n" for name, body in bodies.items()]
    pytester.makepyfile(test_inner="\n".join(tests))
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:schemathesis", "-W", "ignore")


def test_the_guards_bite(pytester):
    """All in one inner pytest, as starting one takes a second: each test must find what it has left itself, and nothing else."""
    outcome = run_inside(pytester, **{name.replace(".", "_"): body for name, (_, body) in BREACHES.items()})
    outcome.assert_outcomes(passed=len(BREACHES), errors=len(BREACHES))
    found = dict(
        re.findall(
            r"^_+ ERROR at teardown of test_(\w+) _+$(.*?)(?=^_{3,} |^={3,} )",
            outcome.stdout.str(),
            re.MULTILINE | re.DOTALL,
        )
    )
    for name, (sentence, _) in BREACHES.items():
        assert sentence in found[name.replace(".", "_")], name


def test_a_process_that_outlives_the_tests_is_named_and_ended(pytester):
    away = "import os\nos.posix_spawn('/bin/sh', ['sh', '-c', 'sleep 61 & echo $! > pid'], os.environ)\nos.wait()"
    outcome = run_inside(pytester, inner=away)
    outcome.assert_outcomes(passed=1, errors=1)
    assert "processes that outlived the tests" in outcome.stdout.str()
    pid = (pytester.path / "pid").read_text().strip()
    assert pid in outcome.stdout.str()
    with contextlib.suppress(FileNotFoundError):  # killed; whether somebody has reaped it is not our concern
        assert pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_process_of_tests_that_are_ended_on_the_spot_ends_too(pytester):
    """As a time limit ends them. It is in a session of its own, and nobody's child."""
    away = (
        "import os\nos.posix_spawn('/bin/sh', ['sh', '-c', 'setsid sleep 600 & echo $! > pid'], os.environ)\nos.wait()\n"
        "os._exit(1)"
    )
    assert run_inside(pytester, inner=away).ret == 1
    pid = (pytester.path / "pid").read_text().strip()
    while True:  # until the time limit
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                break
        except (FileNotFoundError, ProcessLookupError):
            break
        time.sleep(0.05)


def test_a_clean_test_passes(pytester):
    run_inside(pytester, inner="assert True").assert_outcomes(passed=1)


def test_a_test_that_hangs_ends_with_every_stack(pytester):
    pytester.makepyfile("import threading\ndef test_inner():\n    threading.Event().wait()\n")
    outcome = pytester.runpytest_subprocess(
        "-p", "timeout", "--timeout=1", "--timeout-method=thread", "-p", "no:cacheprovider"
    )
    assert outcome.ret != 0
    text = outcome.stdout.str() + outcome.stderr.str()
    assert "Timeout" in text
    assert "threading.Event().wait()" in text
