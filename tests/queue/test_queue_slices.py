# SPDX-License-Identifier: GPL-3.0-or-later
"""A run in slices: the hosts after the limit in parts, one stream, one recap, one result; refused where it would change the meaning."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

import forkless
import forkless.queue
from forkless.cli import main, sliced_playbook
from forkless.queue import preview
from forkless.runs import slices
from queue_support import launch, lines, playbook, wait_until

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


# A playbook on its own for each: what stands against slices of the first must not hide what stands against the next.
_AGAINST = {
    "throttle": ("- command: 'true'\n  throttle: 1", "throttle would count"),
    "throttle of a block": ("- block:\n    - debug:\n  throttle: 2", "throttle would count"),
    "throttle by a template": ("- debug:\n  throttle: '{{ 2 }}'", "throttle would count"),
    "end_play of some hosts": ("- meta: end_play\n  when: inventory_hostname == 'web1'", "end_play would be for"),
    "end_batch of some hosts": ("- ansible.builtin.meta: end_batch\n  when: x is defined", "end_batch would be for"),
    "clear_facts of some hosts": ("- meta: clear_facts\n  when: x is defined", "clear_facts would be for"),
    "end_play in a conditional block": ("- block:\n    - meta: end_play\n  when: x is defined", "end_play would be for"),
    "end_play after a failure": ("- block:\n    - fail:\n  rescue:\n    - meta: end_play", "end_play would be for"),
    "end_play before a rescue": ("- block:\n    - meta: end_play\n  rescue:\n    - debug:", "end_play would be for"),
    "clear_host_errors": ("- meta: clear_host_errors", "clear_host_errors would not reach"),
    "refresh_inventory": ("- meta: refresh_inventory", "refresh_inventory may find"),
    "group_by": ("- group_by: key=x", "group_by makes"),
    "set_stats": ("- set_stats: data={}", "set_stats would count"),
    "delegate_facts": ("- setup:\n  delegate_to: web1\n  delegate_facts: true", "delegate_facts would set"),
    "debugger": ("- debug:\n  debugger: on_failed", "debugger would ask"),
    "registered": ("- command: id\n  register: r\n- debug: msg={{ hostvars['web1'].r.stdout }}", "hostvars would lack r "),
    "set_fact": ("- set_fact: {token: 1}\n- debug: msg={{ hostvars[groups.all[0]]['token'] }}", "hostvars would lack token "),
    "facts": ("- debug: msg={{ groups.all | map('extract', hostvars, 'ansible_default_ipv4') }}", "ansible_default_ipv4"),
}  # fmt: skip
_FOR = {
    "end_play for all": "- meta: end_play",
    "end_host": "- meta: end_host\n  when: inventory_hostname == 'web1'",
    "flush_handlers": "- meta: flush_handlers\n  when: x is defined",
    "reset_connection": "- meta: reset_connection",
    "no throttle": "- debug:\n  throttle: 0",
    "own variables": "- command: id\n  register: r\n- debug: msg={{ hostvars[inventory_hostname].r }}",
    "variables of the inventory": "- debug: msg={{ hostvars['web1'].ansible_host }} {{ hostvars.web1.ansible_connection }}",
    "delegated": "- debug:\n  delegate_to: web2",
}  # fmt: skip


def test_what_looks_across_hosts_is_refused_with_file_and_line_and_nothing_else_is(five_hosts):
    named = {what: f"against{number}.yml" for number, what in enumerate(_AGAINST)}
    for what, (task, _) in _AGAINST.items():
        playbook(five_hosts, named[what], tasks=[task])
    for number, task in enumerate(_FOR.values()):
        playbook(five_hosts, f"for{number}.yml", tasks=[task])
    harmless = [f"for{number}.yml" for number in range(len(_FOR))]
    found = _examined(five_hosts, harmless)
    assert found["against"] == []
    against = {where: why for where, why in _examined(five_hosts, named.values())["against"]}
    for what, (task, reason) in _AGAINST.items():
        # The line of the task that looks across hosts: the last one of the text that begins a task.
        last = max(at for at, line in enumerate(task.splitlines()) if line.lstrip().startswith("- "))
        last = 1 if what == "end_play before a rescue" else last
        where = f"{five_hosts}/{named[what]}:{4 + last}"
        assert reason in against.get(where, ""), (what, where, against)
    assert len(against) == len(_AGAINST)


def _examined(folder, playbooks, *arguments, **environ):
    """What the process that reads a playbook for slices answers."""
    done = subprocess.run(
        [sys.executable, "-m", "forkless.engines.threads.slicing"],
        input=json.dumps({"cwd": str(folder), "argv": [*playbooks, "-i", "hosts.ini", *arguments]}),
        capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **environ},
    )  # fmt: skip
    return json.loads(done.stdout)


def test_templates_and_variables_that_look_across_hosts_are_refused_with_file_and_line(five_hosts):
    files = {
        "roles/r/tasks/main.yml": "- template: src=a.j2 dest=/nowhere\n",
        "roles/r/templates/a.j2": "# hosts\n{% for host in groups.all %}\n{{ hostvars[host].ansible_facts.fqdn }}\n{% endfor %}\n",
        "roles/r/vars/main.yml": "first: '{{ ansible_play_hosts_all[0] }}'\n",
        "group_vars/all.yml": "a: 1\nb: '{{ ansible_play_batch }}'\n",
        "host_vars/web1/main.yml": "c: '{{ play_hosts }}'\n",
        "more.yml": "d: '{{ ansible_play_hosts }}'\n",
        "templates/harmless.j2": "{{ hostvars[inventory_hostname].ansible_facts.fqdn }} {{ groups.all }}\n",
        "site.yml": "- hosts: all\n  gather_facts: false\n  vars_files: [more.yml]\n  roles: [r]\n",
    }
    for name, text in files.items():
        (five_hosts / name).parent.mkdir(parents=True, exist_ok=True)
        (five_hosts / name).write_text(text)
    places = {where.removeprefix(f"{five_hosts}/") for where, _ in _examined(five_hosts, ["site.yml"])["against"]}
    assert places == {
        "site.yml:1", "roles/r/templates/a.j2:3", "roles/r/vars/main.yml:1", "group_vars/all.yml:2", "host_vars/web1/main.yml:1",
        "more.yml:1",
    }  # fmt: skip


def test_plays_and_arguments_that_count_hosts_are_refused(five_hosts):
    (five_hosts / "site.yml").write_text(
        "- hosts: all\n  tasks: []\n- hosts: all\n  strategy: debug\n  tasks: []\n"
        "- hosts: all\n  throttle: 1\n  tasks: []\n- hosts: all\n  strategy: free\n  tasks:\n    - meta: end_play\n"
    )
    found = _examined(five_hosts, ["site.yml"], "--start-at-task", "x", "-f", "1", ANSIBLE_RETRY_FILES_ENABLED="1")[
        "against"
    ]
    said = [f"{where.removeprefix(f'{five_hosts}/')}: {why}" for where, why in found]
    for expected in (
        "site.yml:3: strategy debug", "site.yml:6: throttle", "site.yml:12: end_play", "retry_files_enabled: the file", "forks: one host",
        "--start-at-task: a slice",
    ):  # fmt: skip
        assert any(one.startswith(expected) for one in said), (expected, said)
    assert len(said) == 6


_PLAYS_AGAINST = {
    "hosts: all\n  serial: 2": "serial would count the hosts of each slice",
    "hosts: all\n  max_fail_percentage: 10": "max_fail_percentage would count the hosts of each slice",
    "hosts: all\n  vars_prompt: [{name: x}]": "vars_prompt would ask for every slice",
    "hosts: all\n  any_errors_fatal: true": "any_errors_fatal would stop the slice only",
    "hosts: localhost": "a play on localhost would be left out, or run in every slice",
}


def test_a_play_that_counts_hosts_asks_or_runs_on_localhost_is_refused_with_file_and_line(five_hosts):
    for number, play in enumerate(_PLAYS_AGAINST):
        (five_hosts / f"play{number}.yml").write_text(f"- {play}\n  gather_facts: false\n  tasks: []\n")
    found = _examined(five_hosts, [f"play{number}.yml" for number in range(len(_PLAYS_AGAINST))])["against"]
    expected = {f"{five_hosts}/play{number}.yml:1": why for number, why in enumerate(_PLAYS_AGAINST.values())}
    assert dict(found) == expected


@pytest.mark.parametrize(
    ("plays", "refused"),
    [
        # The hosts of each play, and which plays are refused. In the first two a slice that stops has no hosts left.
        (["all", "web1:web2", "web2"], []),
        (["nobody", "all", "all"], []),
        (["web1", "web2"], [2]),
        (["web1:web2", "all", "web1"], [2]),
        (["all", "web1", "web1:web2"], [3]),
    ],
)
def test_a_play_that_another_one_decides_about_is_refused(five_hosts, plays, refused):
    """Ansible begins no later play if all hosts of a play have failed: on hosts of other slices, too."""
    for place, hosts in enumerate(plays, 1):
        (five_hosts / f"play{place}.yml").write_text(f"- hosts: {hosts}\n  tasks: []\n")
    names = [f"play{place}.yml" for place in range(1, len(plays) + 1)]
    (five_hosts / "site.yml").write_text("".join(f"- import_playbook: {name}\n" for name in names))
    found = _examined(five_hosts, ["site.yml"])["against"]
    assert [os.path.basename(where) for where, _ in found] == [f"play{place}.yml:1" for place in refused]
    assert all("Ansible does not begin it if all hosts of that one have failed" in why for _, why in found)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("- raw: echo x >> {acts}\n  run_once: true", "run_once would run once in every slice"),
        ("- raw: echo x >> {acts}\n  any_errors_fatal: true", "any_errors_fatal would stop the slice only"),
        ("- raw: echo x >> {acts}\n  throttle: 1", "throttle would count the hosts of each slice"),
        ("- pause: seconds=0", "pause would run once in every slice"),
        ("- add_host: name=new", "add_host would run once in every slice"),
        (
            "- raw: echo {{{{ ansible_play_hosts }}}} >> {acts}",
            "ansible_play_hosts would have the hosts of the slice only",
        ),
        # Only the hosts of the include come to it, and it would end the play of all others.
        ("- meta: end_play", "end_play would be for the hosts of its slice only"),
        ("- meta: clear_host_errors", "clear_host_errors would not reach hosts"),
        (
            "- raw: echo {{{{ hostvars.web2.first.rc }}}} >> {acts}",
            "hostvars would lack first of hosts in other slices",
        ),
    ],
)
def test_an_include_that_cannot_be_split_ends_its_slice_before_any_host_runs_it(five_hosts, tmp_path, task, reason):
    acts = tmp_path / "acts"
    (five_hosts / "late.yml").write_text(task.format(acts=acts) + "\n")
    playbook(
        five_hosts,
        tasks=[
            "- raw: echo x\n  register: first",
            "- include_tasks: \"{{ 'late' }}.yml\"\n  when: inventory_hostname == 'web1'",
            f"- raw: echo {{{{ inventory_hostname }}}} >> {acts}",
        ],
    )
    result = _slice(five_hosts)
    assert result.status == "failed"
    assert f"late.yml:1: {reason}" in result.stdout + result.sentence
    assert lines(acts) == []


def _slice(folder):
    return forkless.run(
        playbook="site.yml", inventory="hosts.ini", limit="web1:web3", cwd=folder, env={"FORKLESS_SLICED": "refuse"}
    )


def test_with_slices_anyway_each_slice_does_what_would_be_refused(url, database, workers, five_hosts, tmp_path):
    acts = tmp_path / "acts"
    (five_hosts / "late.yml").write_text(f"- raw: echo late >> {acts}\n  run_once: true\n")
    playbook(
        five_hosts,
        tasks=[f"- raw: echo here >> {acts}\n  run_once: true", "- include_tasks: \"{{ 'late' }}.yml\""],
    )
    with pytest.raises(forkless.SpecError, match="site.yml:4: run_once"):
        launch(url, five_hosts, slices=2)
    assert database.one("SELECT count(*) FROM forkless.run") == 0
    workers.start()
    number = launch(url, five_hosts, slices=2, slices_anyway=True)
    assert database.wait_for(number, "failed", "successful") == "successful"
    assert sorted(lines(acts)) == ["here", "here", "late", "late"]


def test_a_role_and_a_handler_of_an_include_are_looked_at_as_well(five_hosts, tmp_path):
    acts = tmp_path / "acts"
    for name, text in {
        "roles/r/tasks/main.yml": f"- raw: echo x >> {acts}\n",
        "roles/r/templates/a.j2": "{{ ansible_play_hosts }}\n",
        "roles/h/tasks/main.yml": "- raw: echo x\n  notify: late\n",
        "roles/h/handlers/main.yml": f"- name: late\n  raw: echo x >> {acts}\n  throttle: 1\n",
    }.items():
        (five_hosts / name).parent.mkdir(parents=True, exist_ok=True)
        (five_hosts / name).write_text(text)
    for role, expected in (("r", "templates/a.j2:1: ansible_play_hosts"), ("h", "handlers/main.yml:1: throttle")):
        playbook(five_hosts, tasks=[f"- include_role: name={role}"])
        result = _slice(five_hosts)
        assert f"roles/{role}/{expected}" in result.stdout + result.sentence
        assert result.status == "failed"
    assert lines(acts) == []


def test_a_slice_of_the_queue_refuses_what_an_include_brings(url, database, workers, five_hosts, tmp_path):
    acts = tmp_path / "acts"
    (five_hosts / "late.yml").write_text(f"- meta: end_play\n- raw: echo x >> {acts}\n")
    playbook(five_hosts, tasks=["- include_tasks: \"{{ 'late' }}.yml\""])
    workers.start()
    number = launch(url, five_hosts, slices=2)
    assert database.wait_for(number, "failed", "successful") == "failed"
    sentence = database.one("SELECT sentence FROM forkless.run WHERE id = %s", number)
    assert "late.yml:1: end_play would be for the hosts of its slice only" in sentence
    assert lines(acts) == []


WITHOUT_RESULTS = """
import io, types
from ansible.executor import task_queue_manager
from ansible.executor.task_queue_manager import TaskQueueManager
from forkless.cli import slice_process, slice_records

# Nobody may copy a result.
try:
    from ansible.executor.task_result import _RawTaskResult as Result
    Result.as_callback_task_result = None
except ImportError:  # since ansible-core 2.21
    from ansible.executor.task_queue_manager import HostTaskResult as Result
    task_queue_manager.CallbackTaskResult = None
stream = io.StringIO()
records = slice_records.SliceRecords(stream)
callback = slice_process._make_callback(records)
queue = object.__new__(TaskQueueManager)
queue._callback_plugins, queue._callback_lock = [callback], __import__("threading").Lock()
queue._callback_dispatch_error_handler = types.SimpleNamespace(handle=lambda _: __import__("contextlib").nullcontext())
for text, method, *given in (
    ("TASK [one]", "v2_playbook_on_task_start", None, False), ("ok: [h1]", "v2_runner_on_ok", object.__new__(Result)),
    ("item", "v2_runner_item_on_failed", object.__new__(Result)), ("PLAY [two]", "v2_playbook_on_play_start", None),
):
    records.write(text)
    queue.send_callback(method, *given)
print(stream.getvalue(), end="")
"""


def test_no_result_is_copied_for_the_records_of_a_slice():
    """Copies took a twentieth of a slice's processor time."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RESULTS], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.stdout.splitlines() == [
        '["header", "TASK [one]"]', '["text", "ok: [h1]"]', '["text", "item"]', '["header", "PLAY [two]"]',
    ], done.stderr  # fmt: skip


def test_a_header_is_printed_once_and_again_only_above_what_is_said_elsewhere(capsys):
    """Slices are not at the same task at the same moment; two tasks of a play may have the same name."""
    output = sliced_playbook.SlicedOutput()
    play, one, two = "\nPLAY [all] ***\n", "\nTASK [one] ***\n", "\nTASK [two] ***\n"

    def says(number, *texts):
        for text in texts:
            kind = "header" if text in (play, one, two) else "text"
            output.line(json.dumps([kind, text]) + "\n", number)

    says(2, play, one, "ok: [h2]\n")
    says(1, play, one, "ok: [h1]\n")
    says(2, one, "ok: [h2]\n")  # another task of that name
    says(1, one, "ok: [h1]\n", two)  # it is shown while no host has a result
    says(2, two, "ok: [h2]\n", play, one)
    says(1, "ok: [h1]\n", play, one, "ok: [h1]\n")
    says(2, "ok: [h2]\n")
    assert capsys.readouterr().out == "".join(
        [
            *(play, one, "ok: [h2]\n", "ok: [h1]\n"),
            *(one, "ok: [h2]\n", "ok: [h1]\n"),
            *(two, "ok: [h2]\n", play, one),
            *(play, two, "ok: [h1]\n", play, one, "ok: [h1]\n", "ok: [h2]\n"),
        ]
    )


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
    assert one.answer() == ""
    one.begin("@hosts")
    assert one.wait() == 128 + signal.SIGKILL


@pytest.mark.parametrize("hosts", ["@hosts", ""])
def test_a_slice_that_fails_before_it_knows_its_hosts_says_why_if_it_has_some(tmp_path, monkeypatch, capfd, hosts):
    monkeypatch.chdir(tmp_path)
    one = sliced_playbook._Slice(2, ["none.yml"], sliced_playbook.SlicedOutput())
    one.begin(hosts)
    assert one.wait() == 1
    assert capfd.readouterr().err == ("[ERROR]: the playbook: none.yml could not be found\n" if hosts else "")


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["-kK"], {}),
        (["--vault-id", "x@prompt"], {}),
        ([], {"ANSIBLE_ASK_PASS": "1"}),
        ([], {"ANSIBLE_VAULT_IDENTITY_LIST": "x@prompt"}),
    ],
)
def test_slices_that_would_each_ask_for_a_password_are_refused(five_hosts, monkeypatch, capfd, words, variables):
    playbook(five_hosts, tasks=["- debug:"])
    monkeypatch.chdir(five_hosts)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["playbook", "--slices=2", "--slices-anyway", "site.yml", "-i", "hosts.ini", *words]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert "a password would be asked for in every slice" in err


def test_a_signal_while_slices_are_started_ends_those_that_come_after_it(five_hosts, monkeypatch, capfd):
    class Slice(sliced_playbook._Slice):
        def __init__(self, number, *more):
            super().__init__(number, *more)
            if number == 2:  # the first has told the hosts
                os.kill(os.getpid(), signal.SIGTERM)

    playbook(five_hosts, tasks=[f"- raw: touch {five_hosts}/{{{{ inventory_hostname }}}}"])
    monkeypatch.chdir(five_hosts)
    monkeypatch.setattr(sliced_playbook, "_Slice", Slice)
    monkeypatch.setattr(sliced_playbook.platform, "cores", lambda: 1)
    code = main(["playbook", "--slices=2", "--slices-anyway", "site.yml", "-i", "hosts.ini"])
    assert (code, capfd.readouterr().out) == (128 + signal.SIGTERM, "")
    assert not list(five_hosts.glob("web*"))


INVENTORY = """\
#!/bin/sh
if grep -qzx -e -1 /proc/$PPID/cmdline; then  # any slice but the first
    echo $$ >pid
    exec sleep 240
fi
read pid <pid
echo "$pid" >seen
exit 1
"""


def test_a_slice_that_is_ended_ends_its_inventory_script(project, monkeypatch, capfd):
    playbook(project, tasks=["- debug:"])
    script = project / "hosts.sh"
    script.write_text(INVENTORY)
    script.chmod(0o755)
    os.mkfifo(project / "pid")
    monkeypatch.chdir(project)
    monkeypatch.setenv("ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED", "1")
    monkeypatch.setattr(sliced_playbook.platform, "cores", lambda: 2)
    assert main(["playbook", "--slices=2", "--slices-anyway", "site.yml", "-i", "hosts.sh"]) == 1
    assert "hosts.sh" in capfd.readouterr().err
    pid = int((project / "seen").read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the end of the script")
