# SPDX-License-Identifier: GPL-3.0-or-later
"""Where there is nothing to build on: no _multiprocessing, no fork, no exec, no /dev/shm."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spawns

SEAL = pathlib.Path(
    os.environ.get("FORKLESS_YARDSTICKS", pathlib.Path(__file__).parents[3] / "shared" / "yardsticks"), "mp", "seal.py"
)

# What a build of CPython for a platform without processes lacks.
BARE = """
import os, sys
for name in ("_multiprocessing", "_posixshmem"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve"):
    if hasattr(os, name):
        delattr(os, name)
"""

PROGRAM = """
import forkless.multiprocessing
forkless.multiprocessing.install()
import multiprocessing, multiprocessing.synchronize, threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.queues import Queue, SimpleQueue
from multiprocessing.shared_memory import SharedMemory

class FinalQueue(SimpleQueue):
    def __init__(self, ctx):
        super().__init__(ctx=ctx)

class WorkerQueue(Queue):
    def __init__(self, ctx):
        super().__init__(ctx=ctx)

def work(questions, answers, lock, total):
    for question in iter(questions.get, None):
        with lock:
            total.value += question
        answers.put((multiprocessing.current_process().name, question))

def main():
    for method in ("fork", "spawn", "forkserver", "thread"):
        ctx = multiprocessing.get_context(method)
        questions, answers, lock, total = WorkerQueue(ctx), FinalQueue(ctx), ctx.Lock(), ctx.Value("i", 0)
        child = ctx.Process(target=work, args=(questions, answers, lock, total), name="child")
        child.start()
        for question in range(5):
            questions.put(question)
        questions.put(None)
        assert [answers.get() for _ in range(5)] == [("child", n) for n in range(5)]
        child.join()
        assert (child.exitcode, total.value) == (0, 10)
        with ctx.Pool(2) as pool:
            assert pool.map(abs, range(-3, 0)) == [3, 2, 1]
        with ProcessPoolExecutor(2, mp_context=ctx) as pool:
            assert list(pool.map(abs, range(-3, 0))) == [3, 2, 1]
        with ctx.Manager() as manager:
            shared = manager.list([1])
            shared.append(2)
            assert list(shared) == [1, 2]
        barrier = ctx.Barrier(2)
        other = ctx.Process(target=barrier.wait)
        other.start()
        barrier.wait(240)
        other.join()
        array = ctx.Array("d", [1.0, 2.0])
        assert array[:] == [1.0, 2.0]
        block = SharedMemory(create=True, size=10)
        assert SharedMemory(block.name).size == block.size >= 10
        block.close()
        block.unlink()
    print("all of it works")

if __name__ == "__main__":
    main()
"""


def test_it_works_on_a_build_without_processes(python):
    assert python(BARE + PROGRAM).stdout == "all of it works\n"


def test_it_works_where_the_kernel_forbids_processes(tmp_path):
    if not SEAL.exists():
        pytest.skip(f"NOT TESTED under the kernel's seal: there is no {SEAL} (set FORKLESS_YARDSTICKS)")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environ = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2] / "src")}
    run = {"capture_output": True, "text": True, "timeout": 90, "env": environ}
    probe = subprocess.run([sys.executable, str(SEAL), "--probe"], check=False, **run)
    if "'kernel': True" not in probe.stdout:
        pytest.skip("NOT TESTED under the kernel's seal, which this kernel refuses: " + probe.stdout.split("\n")[0])
    done = subprocess.run([sys.executable, "-B", str(SEAL), str(program)], check=False, **run)
    assert done.stdout == "all of it works\n", done.stderr


def test_it_works_where_the_path_of_the_temporary_folder_is_too_long_for_a_socket(python, tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    assert python(PROGRAM, TMPDIR=str(folder)).stdout == "all of it works\n"


NO_DEV_SHM = {
    "read-only": "mount -t tmpfs -o ro,size=1m none /dev/shm",
    "absent": "mount -t tmpfs -o size=1m none /dev",
}


@pytest.mark.parametrize("case", NO_DEV_SHM)
def test_it_works_where_dev_shm_is(python, case):
    private = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    if shutil.which("unshare") is None:
        pytest.skip("NOT TESTED without /dev/shm: there is no program called unshare")
    if (refused := subprocess.run([*private, "true"], capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"NOT TESTED without /dev/shm: this machine has no private mounts for us: {refused.stderr.strip()}")
    check = """
import _multiprocessing
try:
    _multiprocessing.SemLock(1, 1, 1, "/forkless-test", False)
except OSError:
    pass
else:
    raise SystemExit("sem_open works here, so this tests nothing")
"""
    prefix = [*private, "sh", "-c", f'{NO_DEV_SHM[case]} && exec "$@"', "sh"]
    assert python(check + PROGRAM, *prefix).stdout == "all of it works\n"
