# SPDX-License-Identifier: GPL-3.0-or-later
"""A name that a play claimed and started nothing for is free for the next play and the next run of the same program."""

from __future__ import annotations

import json
import sys
import threading

import pytest

import forkless
from engines_support import messages
from forkless import jobs
from forkless.core import run_context
from forkless.jobs import Key, claims, owner

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(240)]

# Longer than any test: nobody gets a name because a lease ends.
LEASE = 100_000


def load(name="once", wait=0.5):
    """Claim a name. Who has to wait for another's claim fails after half a second; who has not does not wait at all."""
    asked = {"op": "load", "job_name": name, "claim": True, "claim_lease": LEASE, "claim_wait": wait}
    return {"name": "load", "forkless.core.async_job": asked, "register": "load"}


FAIL = {"name": "fail", "ansible.builtin.fail": {"msg": "nothing is started"}}
TELL = {"name": "tell", "ansible.builtin.debug": {"msg": "{{ load.claimed }} {{ load.async_dir | basename }}"}}


def play(*tasks, hosts="all", **more):
    return {"hosts": hosts, "gather_facts": False, "tasks": list(tasks), **more}


def project(folder, *plays, hosts=1):
    (folder / "site.yml").write_text(json.dumps(plays))
    (folder / "hosts.ini").write_text(
        "".join(
            f"h{number} ansible_connection=local ansible_python_interpreter={sys.executable} "
            f"ansible_async_dir={folder}/async\n"
            for number in range(hosts)
        )
    )
    return {"playbook": "site.yml", "inventory": "hosts.ini", "cwd": folder, "engine": "threads"}


@pytest.mark.parametrize(
    ("hosts", "unused"),
    [
        (1, play(load(), {**FAIL, "when": False})),
        (2, play({"block": [load(), FAIL], "rescue": [{"ansible.builtin.meta": "clear_host_errors"}]})),
        (2, play(load(), {"ansible.builtin.meta": "end_play"})),
    ],
    ids=["skipped", "failed", "ended"],
)
def test_a_name_that_a_play_claimed_and_left_is_claimed_by_the_next_play_at_once(tmp_path, unused, hosts):
    result = forkless.run(**project(tmp_path, unused, play(load(), TELL), hosts=hosts))
    assert result.rc == 0, result.stdout
    said = messages(result, "tell")
    assert sorted(said) == [f"h{number}" for number in range(hosts)]
    for number, host in enumerate(sorted(said)):
        claimed, folder = said[host].split()
        assert claimed == "True"
        # The claim is another one, and where a job of the old one would have been started there is a fence.
        record = json.loads((tmp_path / f".ansible_async_state/h{number}/once.json").read_text())
        assert folder == f"c-{record['claim']['token']}"
        [fence] = record["claim"]["fences"]
        [path] = (tmp_path / "async").rglob(f"c-{fence}")
        assert path.is_file()


def test_a_name_that_a_run_claimed_and_left_is_claimed_by_the_next_run_of_the_program_at_once(tmp_path):
    options = project(tmp_path, play(load(), TELL), hosts=2)
    for _ in range(2):
        result = forkless.run(**options)
        assert result.rc == 0, result.stdout
        assert {text.split()[0] for text in messages(result, "tell").values()} == {"True"}


def test_a_claim_of_an_earlier_play_is_cleaned_up_by_a_later_one(tmp_path):
    cleanup = {"name": "clean", "forkless.core.async_job": {"op": "cleanup"}, "register": "cleaned"}
    tell = {"name": "tell", "ansible.builtin.debug": {"msg": "{{ cleaned.removed | length }} {{ cleaned.kept }}"}}
    result = forkless.run(**project(tmp_path, play(load(), cleanup, tell), play(cleanup, {**tell, "name": "then"})))
    assert "a controller is about to start it" in messages(result, "tell")["h0"], "the play itself may still start it"
    assert messages(result, "then") == {"h0": "1 []"}, result.stdout


def test_a_name_that_a_play_of_stock_ansible_claimed_and_left_is_claimed_by_its_next_play(controller):
    controller.play([play(load()), play(load())], engine="stock")


def claim_in_a_run(registry, play_id, key, **more):
    hosts = frozenset({"web1", "web2"})
    return registry.claim(
        key,
        claimant=f"{key.host}/{play_id}",
        lease=LEASE,
        play=jobs.Play(play_id, hosts, run=jobs.current_run()),
        **more,
    )


def test_a_run_that_is_active_keeps_its_claim_from_the_other_runs_of_the_program(tmp_path):
    """Two runs of one name: they are told apart all the same, and neither takes the other's play for over."""
    registry = jobs.JobRegistry(jobs.open_store(f"file:{tmp_path}/state"))
    one, two = (run_context.BareRun("name", run_number=run_context.new_number()) for _ in range(2))
    web1, web2 = Key("web1", "once"), Key("web2", "once")
    with run_context.while_active(one.run_number), run_context.while_active(two.run_number):
        with run_context.entered(one):
            first = claim_in_a_run(registry, "play 1", web1)
        with run_context.entered(two):
            for key in (web1, web2):
                with pytest.raises(forkless.ConflictError, match="is being started by another controller"):
                    claim_in_a_run(registry, "play 2", key, wait=0.1)
        assert not registry.is_over(first)
    assert registry.is_over(first)
    with run_context.while_active(two.run_number), run_context.entered(two):
        assert claim_in_a_run(registry, "play 2", web2).state == jobs.CLAIMED
        assert claim_in_a_run(registry, "play 2", web1).claim["fences"] == [first.claim["token"]]


def test_nothing_is_known_about_the_end_of_a_run_in_another_process():
    number = run_context.new_number()
    assert owner.run_has_ended(owner.me(), str(number))
    assert not owner.run_has_ended(owner.me() | {"pid": 1}, str(number))
    for run in (None, "", "process", 7):
        assert not owner.run_has_ended(owner.me(), run)
    with run_context.while_active(number):
        assert not owner.run_has_ended(owner.me(), str(number))


def test_of_many_runs_of_a_program_that_find_an_ended_claim_one_gets_it(tmp_path):
    url = f"file:{tmp_path}/state"
    number = run_context.new_number()
    key = Key("web1", "once")
    with run_context.while_active(number), run_context.entered(run_context.BareRun("old", run_number=number)):
        claim_in_a_run(jobs.JobRegistry(jobs.open_store(url)), "play", key)
    barrier, winners = threading.Barrier(8), []

    def work(count):
        mine = run_context.new_number()
        scope = run_context.BareRun("new", run_number=mine)
        with run_context.while_active(mine), run_context.entered(scope):
            registry = jobs.JobRegistry(jobs.open_store(url))
            barrier.wait(200)
            try:
                winners.append(claim_in_a_run(registry, f"play {count}", key, wait=0))
            except forkless.ConflictError:
                pass
            barrier.wait(200)  # a run that ends frees its claim for those that come later

    threads = [threading.Thread(target=work, args=(count,)) for count in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert claims.left(winners[0].claim, jobs.now) > 0
