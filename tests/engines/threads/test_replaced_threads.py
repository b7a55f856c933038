# SPDX-License-Identifier: GPL-3.0-or-later
"""A program whose debugger or tracer replaced parts of `threading` that raise: its runs end, with an error that says so."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).parents[3] / "src"

PROGRAM = """
import sys, threading
import forkless

which, way = int(sys.argv[1]), sys.argv[2]
seen, originals = [], (threading.Thread.run, threading.Thread.start)

def chosen():
    seen.append(1)
    return len(seen) > which

def run(thread):
    if chosen():
        raise ValueError("run")
    originals[0](thread)

def start(thread):
    if chosen():
        raise ValueError("start")
    originals[1](thread)

def start_first(thread):
    originals[1](thread)
    if thread.name.startswith("forkless-") and chosen():  # not ansible-core's own, with which stock fails
        raise RuntimeError("start")

def trace(frame, event, argument):
    if frame.f_code is originals[0].__code__ and chosen():
        raise ValueError("trace")

{
    "run": lambda: setattr(threading.Thread, "run", run),
    "start": lambda: setattr(threading.Thread, "start", start),
    "start first": lambda: setattr(threading.Thread, "start", start_first),
    "settrace": lambda: threading.settrace(trace),
    "setprofile": lambda: threading.setprofile(trace),
}[way]()
threading.excepthook = lambda *_: 1 / 0
try:
    result = forkless.run("play.yml", inventory="hosts", engine="threads")
    print("rc", result.rc)
except forkless.ForklessError as err:
    print(type(err).__name__, err)
"""


def program(tmp_path, which, way):
    """`which`: the threads before it are unharmed: those of the run, of ansible-core's command, of its workers."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "hosts").write_text(f"a ansible_connection=local ansible_python_interpreter={sys.executable}\n")
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n  - debug:\n  - ping:\n  - ping:\n"
    )
    return subprocess.run(
        [sys.executable, "program.py", str(which), way], cwd=tmp_path, env={"PYTHONPATH": str(SOURCE), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.spawns
@pytest.mark.parametrize(
    ("way", "which"), [("run", 0), ("run", 1), ("run", 2), ("start", 0), ("settrace", 1), ("setprofile", 2)]
)
def test_a_run_whose_threads_end_before_they_begin_ends_as_well(tmp_path, way, which):
    done = program(tmp_path, which, way)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("SpawnError", "rc ")), done.stdout + done.stderr
    if not which:
        assert done.stdout.startswith("SpawnError could not start a run: "), done.stdout


@pytest.mark.spawns
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_run_goes_on_whose_threads_have_begun_although_their_start_raised(tmp_path, which):
    """Otherwise the program would be told that there is no run, and its tasks would be carried out nevertheless."""
    done = program(tmp_path, which, "start first")
    assert done.stdout == "rc 0\n", done.stdout + done.stderr
