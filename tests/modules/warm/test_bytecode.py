# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytecode for hosts that have another Python is what that Python makes of the text, and is made for many hosts only."""

from __future__ import annotations

import subprocess
import sys
import zlib

import pytest

from forkless.modules.warm import bytecode, payload
from forkless.modules.warm.bytecode import HostBytecode
from forkless.modules.warm.remote import importer

pytestmark = [pytest.mark.spawns, pytest.mark.matrix]

TEXTS = {
    "ansible/modules/one.py": b"import sys\nassert sys\n\n\ndef run(*, value: int = 1) -> list:\n    return [lambda: value for _ in 'ab']\n",
    "ansible/modules/broken.py": b"def (\n",
    "ansible/modules/data.json": b"{}",
}


def pieces(*paths):
    return [payload.Piece(f"{path}-key", path, zlib.compress(TEXTS[path])) for path in paths or TEXTS]


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Bytecode version and name of a Python that is found on this machine, which here is the test's own; and the calls of it."""
    there = tmp_path / "python9.9"
    calls = tmp_path / "calls"
    there.write_text(f'#!/bin/sh\necho >> {calls}\nexec {sys.executable} "$@"\n')
    there.chmod(0o755)
    calls.touch()
    monkeypatch.setattr(bytecode, "FOLDERS", (str(tmp_path),))
    return payload.MAGIC, "9.9", lambda: len(calls.read_text())


def test_it_is_what_that_python_compiles(other, monkeypatch):
    monkeypatch.setattr(bytecode, "ENOUGH", 1)
    magic, version, calls = other
    made = HostBytecode()
    found = made.of(magic, version, pieces(), greeting=True)
    assert list(found) == ["ansible/modules/one.py-key"], "what cannot be compiled is sent as text"
    path = "ansible/modules/one.py"
    dump = "import marshal, sys; sys.stdout.buffer.write(marshal.dumps(compile(sys.stdin.buffer.read(), sys.argv[1], 'exec')))"
    theirs = subprocess.run(
        [sys.executable, "-c", dump, f"{importer.ROOT}/{path}"], input=TEXTS[path], capture_output=True, check=True
    )
    assert zlib.decompress(found[f"{path}-key"]) == theirs.stdout
    assert made.of(magic, version, pieces(path), greeting=False) == found
    assert calls() == 1, "what was compiled is kept"


def test_few_hosts_compile_for_themselves(other):
    magic, version, calls = other
    made = HostBytecode()
    for _ in range(bytecode.ENOUGH - 1):
        assert made.of(magic, version, pieces(), greeting=True) == {}
        assert made.of(magic, version, pieces(), greeting=False) == {}
    assert calls() == 0
    assert made.of(magic, version, pieces(), greeting=True)


@pytest.mark.parametrize(("magic", "version"), [("00000d0a", "9.9"), (payload.MAGIC, "9.8"), ("", "9.9")])
def test_a_python_that_is_another_or_missing_is_asked_once(other, monkeypatch, magic, version):
    monkeypatch.setattr(bytecode, "ENOUGH", 1)
    made = HostBytecode()
    for _ in range(2):
        assert made.of(magic, version, pieces(), greeting=True) == {}
    assert other[2]() <= 1


@pytest.mark.parametrize("version", ["9.9-config", "/../python9.9", "9.9\n"])
def test_a_host_does_not_choose_which_program_of_this_machine_runs(other, tmp_path, monkeypatch, version):
    monkeypatch.setattr(bytecode, "ENOUGH", 1)
    there = tmp_path / "python9.9"
    for name in ("python9.9-config", "python9.9\n"):
        (tmp_path / name).symlink_to(there)
    (tmp_path / "python").mkdir()
    monkeypatch.chdir(tmp_path)
    assert HostBytecode().of(payload.MAGIC, version, pieces(), greeting=True) == {}
    assert other[2]() == 0


def test_it_can_be_switched_off(other, monkeypatch):
    monkeypatch.setattr(bytecode, "ENOUGH", 1)
    monkeypatch.setenv("FORKLESS_DISABLE", "host-bytecode")
    magic, version, calls = other
    assert HostBytecode().of(magic, version, pieces(), greeting=True) == {}
    assert calls() == 0


def test_it_does_not_grow_without_end(other, monkeypatch):
    monkeypatch.setattr(bytecode, "ENOUGH", 1)
    monkeypatch.setattr(bytecode, "MOST", 2)
    made = HostBytecode()
    for number in range(4):
        one = payload.Piece(f"key {number}", f"n{number}.py", zlib.compress(b"pass\n"))
        assert list(made.of(other[0], other[1], [one], greeting=True)) == [one.key]
    assert len(made._codes) == 2
