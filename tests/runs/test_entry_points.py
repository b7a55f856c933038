# SPDX-License-Identifier: GPL-3.0-or-later
"""One contract, every engine: the four doors give the same answers, whoever carries out the run."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import time

import pytest

import forkless
from forkless import Status

pytestmark = pytest.mark.spawns

BOOK = """
- hosts: web
  gather_facts: false
  tasks:
  - name: greet
    debug: msg="{{ greeting }} from {{ inventory_hostname }}"
  - name: each
    debug: msg={{ item }}
    loop: [1, 2]
  - name: doubt
    fail: msg=no
    when: inventory_hostname == 'web2'
    ignore_errors: true
"""


@pytest.fixture(params=["threads", "runner"])
def engine(request):
    return request.param


@pytest.fixture
def place(tmp_path):
    (tmp_path / "site.yml").write_text(BOOK)
    (tmp_path / "hosts.ini").write_text("[web]\nweb1 ansible_connection=local\nweb2 ansible_connection=local\n")
    return {"cwd": tmp_path, "inventory": "hosts.ini", "extra_vars": {"greeting": "good day"}}


def names(events):
    """What happened, without the warnings that only a command line prints."""
    return sorted((one.event, one.host, one.task) for one in events if one.event not in ("verbose", "warning"))


def check(result, events):
    assert result.ok, result.stdout
    assert result.hosts == {
        name: {"ok": ok, "changed": 0, "dark": 0, "failures": 0, "ignored": ignored, "rescued": 0, "skipped": skipped}
        for name, ok, ignored, skipped in (("web1", 2, 0, 1), ("web2", 3, 1, 0))
    }
    assert "good day from web1" in result.stdout
    assert [one.counter for one in events] == list(range(1, len(events) + 1))
    assert events[-1].event == "playbook_on_stats"
    assert list(result.events) == events


def test_every_door_leads_to_the_same_run(place, engine, tmp_path):
    result = forkless.run("site.yml", engine=engine, artifacts="a", ident="one", **place)
    check(result, list(result.events))
    assert (tmp_path / "a" / "one" / "status").read_text() == "successful"
    first = names(result.events)

    run = forkless.start("site.yml", engine=engine, **place)
    events = list(run.events())
    check(run.wait(), events)
    assert names(events) == first

    async def main():
        async with forkless.open_run("site.yml", engine=engine, **place) as run:
            events = [one async for one in run.events()]
            check(await run.wait(), events)
        assert names(events) == first
        again = await forkless.run_async("site.yml", engine=engine, **place)
        assert names(again.events) == first

    asyncio.run(main())

    argv = ["-i", "hosts.ini", "-e", "greeting='good day'", "site.yml"]
    given = forkless.run(spec=forkless.RunSpec.from_argv("ansible-playbook", argv, cwd=tmp_path), engine=engine)
    check(given, list(given.events))
    assert names(given.events) == first


@pytest.mark.matrix_ends
def test_both_engines_tell_the_same_story(place):
    told = [forkless.run("site.yml", engine=engine, **place) for engine in ("threads", "runner")]
    assert names(told[0].events) == names(told[1].events)
    assert told[0].stats == told[1].stats


def test_cancelling_the_task_ends_what_runs(engine, tmp_path):
    pid = tmp_path / "pid"
    (tmp_path / "site.yml").write_text(
        f"- hosts: localhost\n  gather_facts: false\n  tasks:\n  - command: sh -c 'echo $$ > {pid}; exec sleep 300'\n"
    )

    async def main():
        task = asyncio.create_task(forkless.run_async("site.yml", engine=engine, cwd=tmp_path))
        deadline = time.monotonic() + 240
        while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:  # noqa: ASYNC110  # a file
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with contextlib.suppress(FileNotFoundError):
        assert "State:\tZ" in pathlib.Path(f"/proc/{int(pid.read_text())}/status").read_text()


def test_a_time_limit_ends_what_runs(engine, tmp_path):
    (tmp_path / "site.yml").write_text("- hosts: localhost\n  gather_facts: false\n  tasks:\n  - command: sleep 300\n")
    result = forkless.run("site.yml", engine=engine, cwd=tmp_path, timeout=3)
    assert result.status is Status.TIMEOUT
    with pytest.raises(forkless.RunTimeout, match="time limit of 3 s"):
        result.raise_for_failures()
