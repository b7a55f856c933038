# SPDX-License-Identifier: GPL-3.0-or-later
"""A run in slices: the hosts after the limit in parts, one stream, one recap, one result; refused where it would change the meaning."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

import forkless
import forkless.queue
from forkless.cli import main, sliced_playbook
from forkless.queue import preview
from forkless.runs import slices
from queue_support import launch, lines, playbook

pytestmark = pytest.mark.spawns


@pytest.fixture
def five_hosts(project):
    names = "".join(f"web{k}\n" for k in range(1, 6))
    (project / "hosts.ini").write_text(
        f"{names}[all:vars]\nansible_connection=local\nansible_python_interpreter={sys.executable}\n"
    )
    return project


def test_slices_have_all_hosts_once_and_never_an_empty_part():
    hosts = [f"h{k}" for k in range(7)]
    for many in range(1, 12):
        parts = slices.divide(hosts, many)
        assert sorted(host for part in parts for host in part) == hosts
        assert len(parts) == min(many, 7)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_sliced_run_is_one_run_to_its_reader(url, database, workers, five_hosts, tmp_path, monkeypatch, capsys):
    acts = tmp_path / "acts"
    playbook(
        five_hosts,
        tasks=[
            f"- raw: echo {{{{ inventory_hostname }}}} {{{{ hostvars.web1.inventory_hostname }}}} >> {acts}",
            "- fail: msg=no\n  when: inventory_hostname == 'web3'",
        ],
    )
    workers.start(name="a")
    workers.start(name="b")

    async def go():
        async with forkless.queue.connect(url) as queue:
            spec = forkless.RunSpec(playbook="site.yml", inventory="hosts.ini", limit="all:!web5", cwd=five_hosts)
            run = await queue.launch(spec, slices=3)
            result = await run.wait()
            record = await run.record()
            parts = await queue.runs(parent=run.number)
            events = [event.counter async for event in queue.follow(run.number)]
            again = await queue.relaunch(run.number, failed=True)
            await again.wait()
            return result, record, parts, events, (await again.record()).hosts

    result, record, parts, events, failed_hosts = asyncio.run(go())
    assert [part.hosts for part in parts] == [["web1", "web4"], ["web2"], ["web3"]]
    assert {part.status for part in parts} == {"successful", "failed"}
    assert record.status == "failed"
    assert record.rc == 2
    assert "slice 3: failed on web3" in record.sentence
    assert events == list(range(1, record.counter + 1))  # one stream, without a gap
    assert sum(event.event == "playbook_on_stats" for event in result.events) == 1
    assert {host: counts["failures"] for host, counts in result.hosts.items()} == {
        "web1": 0,
        "web2": 0,
        "web3": 1,
        "web4": 0,
    }
    assert failed_hosts == ["web3"]
    monkeypatch.setenv("FORKLESS_DATABASE", url)
    assert main(["runs", "follow", str(record.id)]) == 2
    printed = capsys.readouterr().out
    assert printed.count("PLAY RECAP") == 1
    recap = printed.partition("PLAY RECAP")[2].splitlines()[1:5]
    assert [line.split()[0] for line in recap] == ["web1", "web2", "web3", "web4"]
    # Each host once, plus web3 again; hostvars of hosts in other slices are readable.
    assert sorted(lines(acts)) == ["web1 web1", "web2 web1", "web3 web1", "web3 web1", "web4 web1"]


def test_the_lock_is_held_until_the_last_slice_has_ended(url, database, five_hosts):
    playbook(five_hosts, tasks=["- debug:"])
    first, second = launch(url, five_hosts, slices=2), launch(url, five_hosts)
    children = [
        row[0] for row in database.all("SELECT id FROM forkless.run WHERE parent_id = %s ORDER BY slice", first)
    ]
    for place, child in enumerate(children):
        assert database.one("SELECT queue_job IS NULL FROM forkless.run WHERE id = %s", second)
        job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", child)
        database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 5)", child, job)
        database.one("SELECT forkless.finish(%s, 1, 'successful', 0, '', '{}')", child)
        assert database.status(first) == ("running" if place == 0 else "successful")
    assert not database.one("SELECT queue_job IS NULL FROM forkless.run WHERE id = %s", second)


def test_what_cannot_be_split_is_refused_with_file_and_line(url, database, five_hosts):
    (five_hosts / "roles/r/handlers").mkdir(parents=True)
    (five_hosts / "roles/r/handlers/main.yml").write_text("- name: h\n  debug:\n  run_once: true\n")
    (five_hosts / "site.yml").write_text(
        """\
- hosts: all
  gather_facts: false
  serial: 2
  max_fail_percentage: 10
  vars_prompt: [{name: x}]
  roles: [r]
  tasks:
    - debug: msg=first
      when: inventory_hostname == ansible_play_hosts[0]
    - block:
        - pause: seconds=1
      any_errors_fatal: true
    - add_host: name=new
    - debug:
      run_once: "{{ true }}"
- hosts: localhost
  tasks:
    - debug:
"""
    )
    with pytest.raises(forkless.SpecError) as refused:
        slices.hosts_of(["site.yml", "-i", "hosts.ini"], str(five_hosts), {"PATH": "/usr/bin:/bin", "COLUMNS": "80"})
    said = str(refused.value)
    assert "site.yml:1: serial" in said
    with pytest.raises(forkless.SpecError, match="site.yml:1: serial"):
        launch(url, five_hosts, slices=2)
    assert database.one("SELECT count(*) FROM forkless.run") == 0
    assert launch(url, five_hosts, slices=2, slices_anyway=True)


def test_a_localhost_that_is_in_no_inventory_is_seen_before_a_launch_and_is_in_no_slice(five_hosts):
    (five_hosts / "site.yml").write_text("- hosts: web1\n  tasks: []\n- hosts: localhost\n  tasks: []\n")
    (five_hosts / "local.yml").write_text("- hosts: localhost\n  tasks: []\n")
    found = {
        path: preview.hosts_of(forkless.RunSpec(playbook=path, inventory="hosts.ini", cwd=five_hosts))
        for path in ("site.yml", "local.yml")
    }
    assert found == {"site.yml": ["web1", "localhost"], "local.yml": ["localhost"]}
    place = str(five_hosts), {"PATH": "/usr/bin:/bin"}
    assert slices.hosts_of(["site.yml", "-i", "hosts.ini"], *place, anyway=True) == ["web1"]
    with pytest.raises(forkless.SpecError, match="no host is left to split"):
        slices.hosts_of(["local.yml", "-i", "hosts.ini"], *place, anyway=True)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("- debug:\n  run_once: true", "site.yml:4: run_once"),
        ("- debug:\n  run_once: '{{ 1 == 1 }}'", "site.yml:4: run_once"),
        ("- pause: seconds=1", "site.yml:4: pause"),
        ("- add_host: name=x", "site.yml:4: add_host"),
        ("- debug:\n  when: inventory_hostname == play_hosts[0]", "site.yml:4: play_hosts"),
        ("- debug:\n  any_errors_fatal: true", "site.yml:4: any_errors_fatal"),
        ("- block:\n    - debug:\n  when: ansible_play_hosts[0] == 'web1'", "site.yml:5: ansible_play_hosts"),
        ("- block:\n    - debug: var=x\n  vars: {x: '{{ ansible_play_batch }}'}", "site.yml:5: ansible_play_batch"),
    ],
)
def test_each_reason_is_named(five_hosts, task, reason):
    playbook(five_hosts, tasks=[task])
    with pytest.raises(forkless.SpecError, match=reason):
        slices.hosts_of(["site.yml", "-i", "hosts.ini"], str(five_hosts), {"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize(
    ("keyword", "reason"),
    [
        ("run_once", "run_once would run once in every slice"),
        ("any_errors_fatal", "any_errors_fatal would stop the slice only"),
    ],
)
def test_an_include_that_cannot_be_split_ends_its_slice_before_any_host_runs_it(
    url, database, workers, five_hosts, tmp_path, keyword, reason
):
    acts = tmp_path / "acts"
    (five_hosts / "late.yml").write_text(f"- raw: echo x >> {acts}\n  {keyword}: true\n")
    playbook(five_hosts, tasks=["- include_tasks: \"{{ 'late' }}.yml\""])
    workers.start()
    number = launch(url, five_hosts, slices=2)
    assert database.wait_for(number, "failed", "successful") == "failed"
    assert f"late.yml:1: {reason}" in database.one("SELECT sentence FROM forkless.run WHERE id = %s", number)
    assert lines(acts) == []


def test_a_line_that_is_no_record_is_printed_as_it_is(capsys):
    output = sliced_playbook.SlicedOutput()
    said = ['{"a": 1, "b": 2}\n', "[1, 2]\n", "a plugin printed this\n"]
    for line in said:
        output.line(line)
    assert capsys.readouterr().out == "".join(said)


def test_a_slice_that_has_ended_before_it_is_told_its_hosts_is_known_by_its_exit_code():
    one = sliced_playbook._Slice(1, ["site.yml"], sliced_playbook.SlicedOutput())
    one.signal(signal.SIGKILL)
    one._process.wait(120)
    one.begin("@hosts")
    assert one.wait() == 128 + signal.SIGKILL
