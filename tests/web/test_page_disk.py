# SPDX-License-Identifier: GPL-3.0-or-later
"""The disk is full: the page says so, refuses with a sentence, and goes on by itself when there is room."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import psycopg
import pytest

from forkless.queue import DatabaseFullError, database
from forkless.web.disk_room import DiskRoom
from queue_support import wait_until

from .conftest import Served
from .test_page_api import finished, start

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("web")]
ROUNDS = int(os.environ.get("FORKLESS_ROUNDS", "1"))


def test_a_disk_without_room_is_named_and_one_with_room_is_not(tmp_path, monkeypatch):
    found = os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize
    monkeypatch.setattr("forkless.web.disk_room._LOOK_EVERY", -1.0)
    monkeypatch.setattr("forkless.web.disk_room._LEAST", free // 2)
    room = DiskRoom({"the database": str(tmp_path), "nobody": str(tmp_path / "none")})
    assert room.trouble == ""
    monkeypatch.setattr("forkless.web.disk_room._LEAST", free * 2)
    assert room.trouble.startswith("the disk of the database is full (")
    assert str(tmp_path) not in room.trouble


def test_postgresql_that_has_no_room_is_known_by_its_code():
    with pytest.raises(DatabaseFullError, match="the disk of the database at db1 is full: no room"):
        with database.translated("postgresql://me@db1/runs"):
            raise psycopg.errors.DiskFull("no room\nHINT: buy one")


def may_mount():
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True).returncode == 0  # fmt: skip


@pytest.mark.skipif(ROUNDS == 1, reason="a database of its own on a small disk: `make faults` runs it")
def test_with_a_full_disk_the_page_says_so_and_it_goes_on_when_there_is_room(project):
    if not may_mount():
        pytest.skip("mounting needs root on Linux")
    folder = pathlib.Path("/mnt")  # of the server only, in a mount namespace of its own
    mounted = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=256m,mode=711 none /mnt && exec "$@"', "sh"]
    served = Served("--project", str(project), before=mounted, XDG_STATE_HOME=str(folder), FORKLESS_DATABASE="")
    inside = pathlib.Path(f"/proc/{served.process.pid}/root/mnt")
    filler = inside / "filler"
    try:
        client = served.program()
        finished(client, start(client, "hello.yml"))
        fill(filler)
        postmaster = inside / "forkless" / "postgres" / "data" / "postmaster.pid"
        answer = wait_until(lambda: told(client.get("/api/runs")), "the header")
        assert "the disk of the database is full" in answer.headers["x-forkless-trouble"]
        # PostgreSQL ends itself when there is no room for its log; killed it has nothing to start again with, either.
        os.kill(int(postmaster.read_text().split()[0]), signal.SIGKILL)
        refused = wait_until(lambda: is_away(client.get("/api/runs")), "an answer that says that the database is away")
        assert "the disk of the database is full" in refused.json()["error"]
        wait_until(lambda: "trying again" in served.log(), "a start that fails for lack of room")
        filler.unlink()
        wait_until(lambda: client.get("/api/runs").status_code == 200, "the database")
        wait_until(lambda: not told(client.get("/api/runs")), "the end of the warning")
        finished(client, start(client, "hello.yml"))
        assert "was started again" in served.log()
    finally:
        filler.unlink(missing_ok=True)
        served.close()


def fill(path):
    with path.open("wb") as file:
        block = bytes(1 << 20)
        while len(block) > 512:
            try:
                os.write(file.fileno(), block)
            except OSError:
                block = block[: len(block) // 2]


def told(answer):
    return answer if "x-forkless-trouble" in answer.headers else None


def is_away(answer):
    return answer if answer.status_code == 503 else None
