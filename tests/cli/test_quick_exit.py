# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a command's process: what can be noticed of Python's own end happens, the rest is left to the kernel."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(300)]

# What `python -v` says when it takes modules apart.
_TAKEN_APART = "# cleanup["


def _end(code: str, more: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    script = f"import os, sys\nfrom forkless.cli.quick_exit import end_process\n{code}\nend_process({more or 0})"
    return subprocess.run(
        [sys.executable, "-v", "-c", script], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": "", **environ},
    )  # fmt: skip


def test_objects_are_left_to_the_kernel():
    done = _end("print('said')", "7")
    assert (done.returncode, done.stdout, _TAKEN_APART in done.stderr) == (7, "said\n", False)


def test_python_ends_the_process_if_that_is_asked_for():
    done = _end("", "3", FORKLESS_DISABLE="quick-exit")
    assert (done.returncode, _TAKEN_APART in done.stderr) == (3, True)


def test_a_file_that_was_not_closed_has_what_was_written(tmp_path):
    _end(
        f"text = open({str(tmp_path / 'text')!r}, 'w'); text.write('some')\n"
        f"raw = open({str(tmp_path / 'raw')!r}, 'wb'); raw.write(b'thing')\n"
        f"both = open({str(tmp_path / 'both')!r}, 'w+b'); both.write(b'else')"
    )
    assert [(tmp_path / name).read_text() for name in ("text", "raw", "both")] == ["some", "thing", "else"]


def test_exit_functions_of_python_and_of_c_are_called_after_the_last_thread():
    done = _end(
        "import atexit, ctypes, threading, time\n"
        "atexit.register(os.write, 1, b'python ')\n"
        "end = ctypes.CFUNCTYPE(None)(lambda: os.write(1, b'c '))\n"
        "ctypes.CDLL(None).atexit(end) if hasattr(ctypes.CDLL(None), 'atexit') else ctypes.CDLL(None).__cxa_atexit(end, None, None)\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), os.write(1, b'thread '))).start()"
    )
    assert done.stdout == "thread python c "


@pytest.mark.parametrize(
    "code",
    [
        # A class of a file, as those of plugins are.
        ("import types, warnings\nexec(compile('class Last:\\n    def __del__(self): os.write(1, b\"last \")', 'x', 'exec'), "
        "{'os': os, '__name__': 'warnings'}, globals())\nlast = Last()"),
        "def some():\n    try: yield\n    finally: os.write(1, b'last ')\nlast = some(); next(last)",
        ("import gzip, io\nclass Shown(io.BytesIO):\n    def close(self): super().close() if self.closed else (os.write(1, b'last '), super().close())\n"
        "last = gzip.GzipFile(fileobj=Shown(), mode='w'); last.myfileobj = last.fileobj"),
    ],
    ids=["del", "finally", "a file of another kind"],
)  # fmt: skip
def test_an_object_whose_end_can_be_noticed_has_it(code):
    assert "last " in _end(code).stdout


def test_a_database_that_is_open_is_closed_by_python():
    assert _TAKEN_APART in _end("import sqlite3; last = sqlite3.connect(':memory:')").stderr


def test_another_thread_that_still_runs_leaves_the_end_to_python():
    done = _end("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "5")
    assert (done.returncode, _TAKEN_APART in done.stderr) == (5, True)


def test_what_cannot_be_flushed_is_told_as_python_tells_it():
    script = "import sys\nfrom forkless.cli.quick_exit import end_process\nsys.stdout.write('x')\nend_process(0)"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    assert done.returncode == 120
    assert "No space left" in done.stderr


@pytest.mark.parametrize("command", ["playbook", "adhoc"])
def test_a_play_says_the_same_and_ends_with_the_same_code(command, tmp_path):
    (tmp_path / "play.yml").write_text("- hosts: localhost\n  gather_facts: false\n  tasks: [{fail: {msg: no}}]\n")
    words = {"playbook": ["play.yml"], "adhoc": ["localhost", "-m", "fail"]}[command]
    ends = [
        subprocess.run(
            [sys.executable, "-m", "forkless", command, *words], cwd=tmp_path, capture_output=True, text=True, check=False,
            timeout=120, env={**os.environ, "FORKLESS_DISABLE": disabled},
        )
        for disabled in ("", "quick-exit")
    ]  # fmt: skip
    assert ends[0].returncode == ends[1].returncode == 2
    assert ends[0].stdout == ends[1].stdout


@pytest.mark.matrix
def test_a_play_leaves_its_objects_to_the_kernel(tmp_path):
    done = subprocess.run(
        [sys.executable, "-v", "-m", "forkless", "adhoc", "localhost", "-m", "debug"], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=120, env={**os.environ, "FORKLESS_DISABLE": ""},
    )  # fmt: skip
    assert (done.returncode, _TAKEN_APART in done.stderr) == (0, False)
