# SPDX-License-Identifier: GPL-3.0-or-later
"""A real playbook against real hosts in a process that the kernel lets start no other; and none is even tried."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
STARTS = re.compile(r"\b(fork|vfork|clone|execve|execveat)\(")


def sealed(*command, trace, env=None):
    """Runs `python sealing.py command` under strace, which writes down every call that starts or becomes a process."""
    strace = shutil.which("strace")
    if not strace:
        pytest.fail("the sealed run counts system calls with strace; install Debian's strace to run it", pytrace=False)
    return subprocess.run(
        [strace, "-f", "-qq", "-e", "trace=fork,vfork,clone,execve,execveat", "-o", str(trace), sys.executable,
         str(HERE.parent / "sealing.py"), *command],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "ANSIBLE_NOCOLOR": "1", **(env or {})},
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def attempts(trace):
    """Every try to start a process or to become another program, but for the start of Python itself."""
    calls = [line for line in trace.read_text().splitlines() if STARTS.search(line) and "CLONE_THREAD" not in line]
    assert "execve(" in calls[0], "the first call is the start of Python"
    return calls[1:]


@pytest.mark.spawns
def test_the_seal_holds(tmp_path):
    script = tmp_path / "try.py"
    script.write_text(
        "import ctypes, os, threading\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.fork() == -1 and ctypes.get_errno() == 1\n"
        "assert not hasattr(os, 'fork')\n"
        "t = threading.Thread(target=print, args=('a thread',)); t.start(); t.join()\n"
    )
    done = sealed(str(script), trace=tmp_path / "trace")
    assert done.stdout == "sealed\na thread\n", done.stderr
    assert len(attempts(tmp_path / "trace")) == 1  # so that the count below is worth something


@pytest.mark.spawns
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("sshd")
@pytest.mark.matrix_newest
def test_a_sealed_process_runs_a_real_playbook_and_tries_to_start_nothing(one_python_for_each_minor, sshds, tmp_path):
    sshds = dataclasses.replace(sshds, hosts=sshds.hosts[:2])  # two, so that connections are made at the same time
    inventory = tmp_path / "hosts.ini"
    inventory.write_text(sshds.inventory())
    out = tmp_path / "out"
    out.mkdir()
    before = [target.log().count("Accepted publickey") for target in sshds.hosts]
    done = sealed(
        "-m", "forkless", "playbook", "-i", str(inventory), str(HERE / "sealed" / "site.yml"), "--vault-password-file",
        str(HERE / "sealed" / "vault-password"), "-e", f"out={out}", trace=tmp_path / "trace",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert attempts(tmp_path / "trace") == []
    for target in sshds.hosts:
        assert (out / f"{target.name}.txt").read_text() == f"Ave, this is {target.name}. The word is xyzzy.\n"
        if sshds.root:
            assert (target.folder / "root" / "sealed").read_text() == f"{target.name}\n"
            assert (target.folder / "home" / "told").read_text() == "told"
    assert (out / "local" / "list").read_text().endswith("the last line\n")
    # One connection for the whole run, and one more after the reset.
    assert [t.log().count("Accepted publickey") - b for t, b in zip(sshds.hosts, before, strict=True)] == [2] * len(
        before
    )
    assert "xyzzy" not in done.stdout + done.stderr
