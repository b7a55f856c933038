# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytecode that is kept on disk: found by the text it was made of, and only where nobody else can have put it."""

from __future__ import annotations

import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import zlib

import pytest

import forkless
from forkless.modules.warm import bytecode, bytecode_file, payload
from forkless.modules.warm import interpreter as warm_interpreter
from forkless.modules.warm.bytecode import HostBytecode

pytestmark = pytest.mark.spawns

MAGIC = "0123abcd"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "home" / "forkless"


def test_what_was_written_is_read_and_added_to(folder):
    bytecode_file.write(str(folder), MAGIC, {"a": b"1\n", "b": b""})
    bytecode_file.write(str(folder), MAGIC, {"c": b"333", "a": b"11"})
    assert bytecode_file.read(str(folder), MAGIC) == {"a": b"11", "b": b"", "c": b"333"}
    assert bytecode_file.read(str(folder), "ffffffff") == {}
    assert [one.name for one in folder.iterdir()] == [f"bytecode-{MAGIC}"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / f"bytecode-{MAGIC}").stat().st_mode & 0o777 == 0o600


KILLED = """
import os, signal, sys
from forkless.modules.warm import bytecode_file
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
bytecode_file.write(sys.argv[1], sys.argv[2], {"longer": b"1" * 1000})
"""


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_that_the_next_one_does_not_take(folder):
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", KILLED, str(folder), MAGIC], check=False)
        assert done.returncode == -signal.SIGKILL
        assert len(list(folder.iterdir())) == 1
    bytecode_file.write(str(folder), MAGIC, {"a": b"1"})
    assert bytecode_file.read(str(folder), MAGIC) == {"a": b"1"}
    assert [one.name for one in folder.iterdir()] == [f"bytecode-{MAGIC}"]


def test_of_two_writers_at_once_one_leaves_the_file_alone(folder):
    bytecode_file.write(str(folder), MAGIC, {"a": b"1"})
    with (folder / f"bytecode-{MAGIC}.new").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        bytecode_file.write(str(folder), MAGIC, {"b": b"2"})
        assert bytecode_file.read(str(folder), MAGIC) == {"a": b"1"}
    bytecode_file.write(str(folder), MAGIC, {"b": b"2"})
    assert bytecode_file.read(str(folder), MAGIC) == {"a": b"1", "b": b"2"}


def loose_folder(folder):
    folder.chmod(0o750)


def loose_file(folder):
    (folder / f"bytecode-{MAGIC}").chmod(0o644)


def linked_file(folder):
    file = folder / f"bytecode-{MAGIC}"
    file.rename(folder / "other")
    file.symlink_to("other")


def linked_folder(folder):
    folder.rename(folder.parent / "other")
    folder.symlink_to("other")


def damaged(folder):
    file = folder / f"bytecode-{MAGIC}"
    file.write_bytes(file.read_bytes()[:-1] + b"2")


def another_user(folder):
    os.chown(folder / f"bytecode-{MAGIC}", 65534, 65534)


@pytest.mark.parametrize("spoil", [loose_folder, loose_file, linked_file, linked_folder, damaged, another_user])
def test_a_file_that_somebody_else_may_have_written_is_not_read(folder, spoil):
    if spoil is another_user and os.geteuid():
        pytest.skip("needs root, to give a file away")
    bytecode_file.write(str(folder), MAGIC, {"a": b"1"})
    assert bytecode_file.read(str(folder), MAGIC) == {"a": b"1"}
    spoil(folder)
    assert bytecode_file.read(str(folder), MAGIC) == {}


@pytest.mark.parametrize("magic", ["x/../etc", "", "0123ABCD", "0123abcd\n"])
def test_a_host_does_not_choose_the_name_of_the_file(folder, magic):
    bytecode_file.write(str(folder), magic, {"a": b"1"})
    assert not folder.exists()
    bytecode_file.write(str(folder), MAGIC, {"a": b"1"})
    named = pathlib.Path(bytecode_file._path(str(folder), magic))
    named.parent.mkdir(parents=True, exist_ok=True)
    (folder / f"bytecode-{MAGIC}").rename(named)
    assert bytecode_file.read(str(folder), magic) == {}


def test_a_home_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    bytecode_file.write(str(tmp_path / "file" / "forkless"), MAGIC, {"a": b"1"})
    assert bytecode_file.read(str(tmp_path / "file" / "forkless"), MAGIC) == {}


def test_it_does_not_grow_without_end(folder, monkeypatch):
    monkeypatch.setattr(bytecode_file, "LARGEST", 300)
    bytecode_file.write(str(folder), MAGIC, {"a": b"1" * 200})
    bytecode_file.write(str(folder), MAGIC, {"b": b"2" * 200})
    assert bytecode_file.read(str(folder), MAGIC) == {"b": b"2" * 200}


def pieces(text):
    return [payload.Piece(f"{len(text)}:one.py", "one.py", zlib.compress(text))]


def test_the_next_process_needs_no_compiler_and_no_number_of_hosts(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(bytecode, "FOLDERS", (str(tmp_path),))
    (tmp_path / "python9.9").symlink_to(sys.executable)
    monkeypatch.setattr(bytecode, "ENOUGH", 1)
    made = HostBytecode(lambda: str(folder)).of(payload.MAGIC, "9.9", pieces(b"one = 1\n"), greeting=True)
    assert made
    (tmp_path / "python9.9").unlink()
    monkeypatch.setattr(bytecode, "ENOUGH", 4)
    later = HostBytecode(lambda: str(folder))
    assert later.of(payload.MAGIC, "9.9", pieces(b"one = 1\n"), greeting=True) == made
    assert later.of(payload.MAGIC, "9.9", pieces(b"another = 1\n"), greeting=False) == {}
    assert later.of("ffffffff", "9.9", pieces(b"one = 1\n"), greeting=True) == {}
    monkeypatch.setenv("FORKLESS_DISABLE", "host-bytecode")
    assert later.of(payload.MAGIC, "9.9", pieces(b"one = 1\n"), greeting=True) == {}


def test_it_is_kept_in_the_home_of_the_run(tmp_path, monkeypatch):
    other = next((one for one in ("/usr/bin/python3.11", "/usr/bin/python3") if os.path.exists(one)), None)
    if other is None:
        pytest.skip("there is no second Python here")
    monkeypatch.setattr(bytecode, "ENOUGH", 1)
    monkeypatch.setattr(warm_interpreter, "COMPILER", HostBytecode(bytecode._in_ansible_home))
    monkeypatch.setattr(warm_interpreter, "MAGIC", "as if this Python were another")
    monkeypatch.setenv("ANSIBLE_HOME", str(tmp_path / "home"))
    (tmp_path / "hosts").write_text(f"there ansible_connection=local ansible_python_interpreter={other}\n")
    (tmp_path / "play.yml").write_text("- hosts: all\n  gather_facts: false\n  tasks: [ping: {}]\n")
    forkless.run(playbook="play.yml", inventory="hosts", engine="threads", cwd=tmp_path).raise_for_failures()
    [file] = pathlib.Path(tmp_path / "home/forkless").iterdir()
    keys = bytecode_file.read(str(file.parent), file.name.removeprefix("bytecode-"))
    paths = {key.partition(":")[2] for key in keys}
    assert {"server.py", "ansible/module_utils/basic.py", "ansible/modules/ping.py"} <= paths
