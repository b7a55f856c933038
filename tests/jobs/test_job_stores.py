# SPDX-License-Identifier: GPL-3.0-or-later
"""One contract, every store: a folder, a real S3 server, a real ARA server, and ARA with its claims in a folder."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys

import pytest

from forkless import ConflictError, SpecError, StoreError, UnknownStoreError, jobs
from jobs_controller import SOURCE

pytestmark = pytest.mark.timeout(180)


def body(text, revision=1):
    return json.dumps({"job_name": "j", "host": "h", "text": text, "write": text, "revision": revision}).encode()


def text_of(head):
    return json.loads(head.body)["text"]


def test_what_was_never_written_is_not_there(store):
    assert store.head("h/j") is None
    assert store.revisions() == {}


def test_the_newest_revision_is_what_is_read(store):
    for number in range(1, 8):
        store.append("h/j", number, body(f'text {number} ü "quoted"', number))
    head = store.head("h/j")
    assert head.revision == 7
    assert text_of(head) == 'text 7 ü "quoted"'


def test_who_comes_second_is_told(store):
    store.append("h/j", 1, body("first"))
    with pytest.raises(ConflictError, match="another controller"):
        store.append("h/j", 1, body("second"))
    assert text_of(store.head("h/j")) == "first"


def test_writing_the_same_again_after_a_lost_answer_is_no_conflict(store):
    store.append("h/j", 1, body("mine"))
    store.append("h/j", 1, body("mine"))
    assert text_of(store.head("h/j")) == "mine"


def test_who_slept_while_others_wrote_and_tidied_up_does_not_win(store):
    for number in range(1, 9):
        store.append("h/j", number, body(f"text {number}", number))
    with pytest.raises(ConflictError):
        store.append("h/j", 2, body("from long ago", 2))
    assert text_of(store.head("h/j")) == "text 8"


def test_who_slept_while_the_log_was_purged_and_begun_anew_does_not_win(store):
    for number in range(1, 4):
        store.append("h/j", number, body(f"text {number}", number), keep=1)
    store.purge("h/j", 2)
    assert store.head("h/j").revision == 3
    store.purge("h/j", 3)
    assert store.head("h/j") is None or store.head("h/j").revision == 0  # a view that people read may stay
    for number in range(1, 3):
        store.append("h/j", number, body(f"anew {number}", number))
    with pytest.raises(ConflictError, match="begun anew"):
        store.append("h/j", 4, body("from long ago", 4))
    assert text_of(store.head("h/j")) == "anew 2"


def test_jobs_are_listed_by_host(store):
    for stem in ("h1/a", "h1/book/a", "h2/%2E%2E%2Fx", "h10/a"):
        store.append(stem, 1, body(stem))
    assert list(store.revisions()) == ["h1/a", "h1/book/a", "h10/a", "h2/%2E%2E%2Fx"]
    assert list(store.revisions("h1")) == ["h1/a", "h1/book/a"]


def test_a_playbook_and_a_job_of_the_same_name_do_not_meet(store):
    store.append("h/x", 1, body("the job"))
    store.append("h/x/y", 1, body("another job"))
    assert text_of(store.head("h/x")) == "the job"
    assert text_of(store.head("h/x/y")) == "another job"


def test_the_longest_names_fit(store):
    long = jobs.Key("h" * 300, "j" * 300, "ü" * 300)
    book = jobs.JobRegistry(store)
    book.save(long, "j1.1", metadata={"n": 1})
    assert book.find(long).ansible_job_id == "j1.1"
    assert [record.key for record in book.jobs()] == [long]


def test_of_forty_racing_claims_exactly_one_wins(store_url):
    stores = [jobs.open_store(store_url) for _ in range(40)]
    for store in stores if store_url.startswith("s3:") else ():
        # boto3 makes a client in 0.2 s of CPU time, one after another: with forty of them few claims would meet. Threads may share one.
        store._lazy = stores[0]._client()

    def claim(store):
        try:
            return jobs.JobRegistry(store).claim(jobs.Key("h", "race"), wait=0).claim["token"]
        except ConflictError:
            return None

    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        tokens = [token for token in pool.map(claim, stores) if token]
    for store in stores:
        store.close()
    assert len(tokens) == 1
    store = jobs.open_store(store_url)
    assert jobs.JobRegistry(store).newest(jobs.Key("h", "race")).claim["token"] == tokens[0]
    store.close()


CLAIMANT = """
import sys
from forkless import ConflictError, jobs
url, claimant, *names = sys.argv[1:]
first, second = (jobs.Key("web1", name) for name in names)
registry = jobs.JobRegistry(jobs.open_store(url))
registry.claim(first, lease=3000, claimant=claimant)
print("held", flush=True)
sys.stdin.readline()
try:
    registry.claim(second, lease=3000, claimant=claimant)
    for key in (first, second):
        registry.save(key, "j1.1", slot=jobs.slot_of("/", key, registry.newest(key).claim["token"]))
    print("went on", flush=True)
except ConflictError as error:
    print("gave way:", error, flush=True)
registry.store.close()
"""


@pytest.mark.spawns
def test_of_two_processes_that_wait_for_each_other_one_gives_way_and_the_other_goes_on(kind, store_url):
    environ = os.environ | {"PYTHONPATH": str(SOURCE)}
    if kind[0] == "queue":
        environ["FORKLESS_DATABASE"] = kind[1].url
    both = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMANT, store_url, f"web1/{play}", *names], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ,
        )
        for play, names in (("play a", ["dump", "rebuild"]), ("play b", ["rebuild", "dump"]))
    ]  # fmt: skip
    try:
        for one in both:
            assert one.stdout.readline() == "held\n"
        for one in both:
            one.stdin.write("go\n")
            one.stdin.flush()
        said = [one.communicate(timeout=200)[0] for one in both]
    finally:
        for one in both:
            one.kill()
            one.wait()
    assert said[0] == "went on\n"
    assert said[1].startswith("gave way: ")
    assert "which waits for job 'rebuild' on web1, which is claimed here" in said[1]


def test_an_unknown_store_is_refused_by_name():
    with pytest.raises(UnknownStoreError, match="no store goes by 'redis:'"):
        jobs.open_store("redis://there")


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "s3://key:secret@bucket/x",
        "s3://bucket/x?colour=red",
        "ara+http://",
        "ara+http://h?playbook=x",
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url):
    with pytest.raises(SpecError):
        jobs.open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://jobs/x?endpoint=http://127.0.0.1:9&region=us-east-1",
        "ara+http://127.0.0.1:9",
        "file:/proc/version/x",
    ],
)
def test_a_store_that_cannot_be_reached_is_an_error_and_never_not_found(url, credentials):
    store = jobs.open_store(url)
    book = jobs.JobRegistry(store)
    with pytest.raises(StoreError):
        book.save(jobs.Key("h", "j"), "j1.1")
    if not url.startswith("file:"):
        with pytest.raises(StoreError):
            book.find(jobs.Key("h", "j"))
        with pytest.raises(StoreError):
            book.jobs()
    store.close()
