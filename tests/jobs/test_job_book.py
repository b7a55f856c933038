# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of the book: what is found, who may write, who may start."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from forkless import (
    ConflictError,
    JobChangedError,
    JobError,
    JobLostError,
    SpecError,
    StoreError,
    UnsupportedError,
    jobs,
)
from forkless.jobs import Key, _owner

KEY = Key("web1", "rebuild")
ODD = ['a"b', "../../x", "ü", "n" * 300, "..", ".hidden", "a/b", "a\\b", "%2E", "new\nline", "-rf", "CON", "it's; $(x)"]


class Clock:
    """Time that passes only when the test says so, or when someone waits."""

    def __init__(self, now=1_800_000_000.0):
        self.wall = now
        self.steady = 0.0

    def pass_(self, seconds):
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def book(tmp_path, clock):
    return make_book(tmp_path, clock)


def make_book(folder, clock):
    store = jobs.open_store(f"file:{folder}/state")
    return jobs.JobBook(store, clock=lambda: clock.wall, pause=clock.pass_, steady=lambda: clock.steady)


@pytest.fixture
def stranger(monkeypatch):
    """Makes the next claims those of a controller on another machine, whose fate cannot be known from here."""
    mine = _owner.me()

    def become(name):
        monkeypatch.setattr(_owner, "me", lambda: mine | ({"machine": name} if name else {}))

    return become


def test_what_was_saved_is_found_as_it_was(book):
    book.save(KEY, "j123.45", metadata={"n": [1, {"ü": None}]}, async_dir="/a", process={"boot": "x"})
    record = book.find(KEY)
    assert (record.ansible_job_id, record.metadata, record.async_dir) == ("j123.45", {"n": [1, {"ü": None}]}, "/a")
    assert record.process == {"boot": "x"}
    assert record.save_time == "2027-01-15T08:00:00Z"


def test_the_record_has_the_names_that_hand_written_roles_use(book, tmp_path):
    book.save(KEY, "j1.2", metadata={"a": 1})
    path = tmp_path / "state" / "web1" / "rebuild.json"
    what = json.loads(path.read_text())
    assert {name: what[name] for name in ("job_name", "host", "ansible_job_id", "save_time", "metadata")} == {
        "job_name": "rebuild",
        "host": "web1",
        "ansible_job_id": "j1.2",
        "save_time": "2027-01-15T08:00:00Z",
        "metadata": {"a": 1},
    }


@pytest.mark.spawns
def test_folders_are_for_their_owner_alone_and_so_are_files_whatever_the_umask(tmp_path):
    code = (
        "import os, sys; os.umask(0); from forkless import jobs\n"
        "jobs.JobBook(jobs.open_store('file:' + sys.argv[1])).save(jobs.Key('h', 'j', 'p'), 'j1.1')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "state")], check=True, env=source())
    seen = set()
    for folder, _, files in os.walk(tmp_path / "state"):
        assert os.stat(folder).st_mode & 0o777 == 0o700, folder
        for name in files:
            assert os.stat(os.path.join(folder, name)).st_mode & 0o777 == 0o600, name
            seen.add(name)
    assert seen == {"j.json", "00000001.json", "00000001.shown"}


def source():
    import pathlib

    return os.environ | {"PYTHONPATH": str(pathlib.Path(jobs.__file__).parents[2])}


@pytest.mark.parametrize("name", ODD)
def test_any_name_is_kept_inside_its_folder_and_told_from_the_others(book, tmp_path, name):
    for number, other in enumerate(ODD):
        book.save(Key("h", other), f"j{number}.1")
    assert book.find(Key("h", name)).ansible_job_id == f"j{ODD.index(name)}.1"
    assert sorted(record.key.job_name for record in book.jobs()) == sorted(ODD)
    assert os.listdir(tmp_path) == ["state"]
    assert os.listdir(tmp_path / "state") == ["h"]


@pytest.mark.parametrize("host", ["[::1]", "a:22", "../up", "with space", "UPPER", "ü.example"])
def test_any_host_is_kept_and_found(book, tmp_path, host):
    book.save(Key(host, "j"), "j1.1")
    assert [record.key.host for record in book.jobs(host)] == [host]
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("name", ["", "  ", "a\0b"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(SpecError):
        Key("h", name)


def test_a_job_without_an_id_is_not_saved(book):
    with pytest.raises(SpecError, match="no job id"):
        book.save(KEY, "")


# -- layouts


def write(tmp_path, path, **what):
    file = tmp_path / "state" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(what))
    return file


def test_a_record_of_a_hand_written_role_is_read(book, tmp_path):
    write(tmp_path, "web1/rebuild.json", job_name="rebuild", host="web1", ansible_job_id="j7.8", metadata={"a": 1})
    assert book.find(KEY).ansible_job_id == "j7.8"
    assert [record.ansible_job_id for record in book.jobs()] == ["j7.8"]


def test_a_record_without_names_gets_them_from_its_place(book, tmp_path):
    write(tmp_path, "web1/rebuild.json", ansible_job_id="j7.8")
    assert book.jobs()[0].key == KEY


def test_a_hand_written_record_under_an_odd_name_is_read(book, tmp_path):
    write(tmp_path, "web1/ü b.json", job_name="ü b", host="web1", ansible_job_id="j7.8")
    assert book.find(Key("web1", "ü b")).ansible_job_id == "j7.8"


def test_with_a_playbook_name_the_record_without_is_read_too(book):
    book.save(KEY, "j1.1")
    assert book.find(Key("web1", "rebuild", "site")).ansible_job_id == "j1.1"
    book.save(Key("web1", "rebuild", "site"), "j2.2")
    assert book.find(Key("web1", "rebuild", "site")).ansible_job_id == "j2.2"
    assert book.find(KEY).ansible_job_id == "j1.1"


def test_without_a_playbook_name_the_only_one_is_found_and_two_are_an_error(book):
    book.save(Key("web1", "rebuild", "site"), "j2.2")
    assert book.find(KEY).ansible_job_id == "j2.2"
    book.save(Key("web1", "rebuild", "other"), "j3.3")
    with pytest.raises(JobError, match="several playbooks .other, site."):
        book.find(KEY)


@pytest.mark.parametrize(
    ("written", "read"), [("123e4.5", '"123e4.5"'), ("1234567890.50", "1234567890.50"), ("7", "7")]
)
def test_a_job_id_stays_text_whatever_it_looks_like(book, tmp_path, written, read):
    file = write(tmp_path, "web1/rebuild.json", job_name="rebuild", host="web1", ansible_job_id="?")
    file.write_text(file.read_text().replace('"?"', read))
    assert book.find(KEY).ansible_job_id == written
    book.save(KEY, written)
    assert json.loads(file.read_text())["ansible_job_id"] == written


# -- people's hands


def test_a_record_removed_by_hand_frees_the_name_and_its_job_is_not_taken_for_a_lost_one(book, tmp_path):
    book.save(KEY, "j1.1")
    (tmp_path / "state/web1/rebuild.json").unlink()
    assert book.find(KEY) is None
    assert book.jobs() == []
    assert book.newest(KEY).known_ids() == ["j1.1"]
    assert book.claim(KEY).state == jobs.CLAIMED


def test_a_record_changed_by_hand_is_what_holds(book, tmp_path):
    book.save(KEY, "j1.1")
    path = tmp_path / "state/web1/rebuild.json"
    path.write_text(path.read_text().replace("j1.1", "j9.9"))
    assert book.find(KEY).ansible_job_id == "j9.9"


def test_a_folder_copied_without_its_hidden_part_is_read(book, tmp_path):
    import shutil

    book.save(KEY, "j1.1")
    book.save(KEY, "j2.2")
    shutil.rmtree(tmp_path / "state/web1/.rebuild.log")
    assert book.find(KEY).ansible_job_id == "j2.2"
    book.save(KEY, "j3.3")
    assert book.find(KEY).ansible_job_id == "j3.3"


@pytest.mark.parametrize("garbage", [b"", b"{", b"[1]", b'{"job_name": 3}', b"\xff\xfe"])
def test_a_hand_written_record_that_is_damaged_is_named_and_never_written_over(book, tmp_path, garbage):
    path = tmp_path / "state/web1/rebuild.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(garbage)
    for attempt in (lambda: book.find(KEY), lambda: book.claim(KEY), lambda: book.save(KEY, "j1.1"), book.jobs):
        with pytest.raises(StoreError, match="rebuild.json cannot be understood"):
            attempt()
    assert path.read_bytes() == garbage
    problems = []
    book.save(Key("web1", "healthy"), "j1.1")
    assert [record.key.job_name for record in book.jobs(problems=problems)] == ["healthy"]
    assert len(problems) == 1


def test_a_damaged_view_is_kept_aside_and_restored_from_the_log(book, tmp_path):
    book.save(KEY, "j1.1")
    folder = tmp_path / "state/web1"
    (folder / "rebuild.json").write_bytes(b'{"job_na')
    assert book.find(KEY).ansible_job_id == "j1.1"
    aside = [name for name in os.listdir(folder) if "unreadable" in name]
    assert [(folder / name).read_bytes() for name in aside] == [b'{"job_na']
    assert json.loads((folder / "rebuild.json").read_text())["ansible_job_id"] == "j1.1"


def test_a_damaged_log_is_named_and_kept(book, tmp_path):
    book.save(KEY, "j1.1")
    (tmp_path / "state/web1/.rebuild.log/00000001.json").write_bytes(b"{")
    (tmp_path / "state/web1/rebuild.json").unlink()
    with pytest.raises(StoreError, match="cannot be understood"):
        book.find(KEY)
    assert (tmp_path / "state/web1/.rebuild.log/00000001.json").read_bytes() == b"{"


def test_names_that_differ_only_in_capitals_do_not_share_a_record_unnoticed(book, tmp_path):
    book.save(Key("web1", "Rebuild"), "j1.1")
    for name in (".Rebuild.log", "Rebuild.json"):  # what a file system that does not tell them apart would show
        os.rename(tmp_path / "state/web1" / name, tmp_path / "state/web1" / name.lower())
    with pytest.raises(StoreError, match="differ only in capitals"):
        book.find(KEY)


# -- claims


def test_the_second_to_claim_finds_the_job_of_the_first(book):
    claim = book.claim(KEY)
    assert claim.state == jobs.CLAIMED
    assert book.find(KEY) is None
    slot = jobs.slot_of("/base", KEY, claim.claim["token"])
    book.save(KEY, "j1.1", slot=slot)
    found = book.claim(KEY)
    assert (found.state, found.ansible_job_id, found.async_dir) == (jobs.SAVED, "j1.1", slot)


def test_a_claim_of_someone_else_is_waited_for_and_then_an_error(book, clock, stranger):
    stranger("elsewhere")
    book.claim(KEY, lease=100)
    stranger("")
    with pytest.raises(ConflictError, match=r"being started by another controller \(process \d+ on elsewhere"):
        book.claim(KEY, wait=50)
    assert clock.steady >= 50


def test_a_claim_is_taken_over_when_its_lease_has_ended_and_its_folder_is_to_be_fenced(book, clock, stranger):
    stranger("elsewhere")
    old = book.claim(KEY, lease=100)
    stranger("")
    new = book.claim(KEY)
    assert 100 <= clock.steady < 102
    assert new.claim["fences"] == [old.claim["token"]]


def test_fences_of_all_who_died_are_handed_on(book, clock, stranger):
    tokens = []
    for name in ("one", "two", "three"):
        stranger(name)
        tokens.append(book.claim(KEY, lease=10).claim["token"])
        clock.pass_(20)
    stranger("")
    assert book.claim(KEY).claim["fences"] == tokens


@pytest.mark.spawns
def test_a_claim_whose_owner_is_known_to_be_dead_is_taken_over_at_once(book, clock, monkeypatch):
    mine = _owner.me()
    gone = subprocess_that_ended()
    monkeypatch.setattr(_owner, "me", lambda: mine | {"pid": gone, "start": "1"})
    book.claim(KEY, lease=1000)
    monkeypatch.setattr(_owner, "me", lambda: mine)
    book.claim(KEY)
    assert clock.steady == 0


def subprocess_that_ended():
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({}, False),
        ({"start": "1"}, True),  # the pid was given to another process
        ({"boot": "other"}, True),  # the machine was started anew
        ({"machine": "other", "boot": "other"}, False),
        ({"pids": "another container", "pid": 99999999}, False),
        ({"start": ""}, False),  # a system that does not tell
    ],
)
def test_an_owner_is_gone_only_if_that_can_be_known(change, gone):
    assert _owner.is_gone(_owner.me() | change) is gone


def test_a_clock_that_jumps_back_cannot_keep_a_dead_claim_for_ever(book, clock, stranger):
    stranger("elsewhere")
    book.claim(KEY, lease=100)
    stranger("")
    clock.wall -= 1_000_000
    assert book.claim(KEY, wait=500).state == jobs.CLAIMED
    assert clock.steady <= 102


def test_a_clock_that_jumps_ahead_takes_over_and_the_fence_makes_it_harmless(book, clock, stranger):
    stranger("elsewhere")
    old = book.claim(KEY, lease=100)
    stranger("")
    clock.wall += 1_000_000
    new = book.claim(KEY)
    assert new.claim["fences"] == [old.claim["token"]]
    # The first one was only slow. Its job cannot have been started; saving it is refused, the winner's record stands.
    with pytest.raises(ConflictError, match="taken over by another controller"):
        book.save(KEY, "j1.1", slot=jobs.slot_of("/b", KEY, old.claim["token"]))
    book.save(KEY, "j2.2", slot=jobs.slot_of("/b", KEY, new.claim["token"]))
    with pytest.raises(ConflictError, match="taken over by another controller"):
        book.save(KEY, "j1.1", slot=jobs.slot_of("/b", KEY, old.claim["token"]))
    assert book.find(KEY).ansible_job_id == "j2.2"


def test_who_does_not_claim_may_not_write_over_a_claim_that_lives(book, stranger):
    stranger("elsewhere")
    book.claim(KEY)
    stranger("")
    with pytest.raises(ConflictError):
        book.save(KEY, "j1.1")


def test_who_does_not_claim_writes_over_an_old_record_which_stays_known(book):
    book.save(KEY, "j1.1")
    book.save(KEY, "j2.2")
    record = book.find(KEY)
    assert record.known_ids() == ["j2.2", "j1.1"]


def test_an_adopted_job_may_be_saved_by_the_one_who_started_it_after_all(book, clock, stranger):
    stranger("elsewhere")
    old = book.claim(KEY, lease=10)
    stranger("")
    clock.pass_(20)
    new = book.claim(KEY)
    slot = jobs.slot_of("/b", KEY, old.claim["token"])
    assert book.adopt(new, KEY, "j1.1", slot, {}).adopted
    book.save(KEY, "j1.1", slot=slot, metadata={"late": True})
    assert book.find(KEY).metadata == {"late": True}


def test_a_forgotten_job_is_gone_its_id_stays_known_and_the_name_is_free(book, tmp_path):
    book.save(KEY, "j1.1")
    book.forget(book.find(KEY))
    assert book.find(KEY) is None
    assert not (tmp_path / "state/web1/rebuild.json").exists()
    assert book.newest(KEY).known_ids() == ["j1.1"]
    book.save(KEY, "j2.2")
    assert book.find(KEY).ansible_job_id == "j2.2"


def test_a_job_that_must_be_known_and_is_not_is_named_with_its_store(book):
    with pytest.raises(JobLostError, match=r"no record of .*rebuild.* in file:"):
        book.known(KEY)
    book.save(KEY, "j1.1")
    assert book.known(KEY).ansible_job_id == "j1.1"


def test_who_tidies_up_does_not_take_away_what_was_started_meanwhile(book):
    book.save(KEY, "j1.1")
    seen = book.find(KEY)
    book.save(KEY, "j2.2")
    with pytest.raises(JobChangedError, match="nothing was removed"):
        book.forget(seen)
    assert book.find(KEY).ansible_job_id == "j2.2"


def test_a_hand_written_record_can_be_forgotten(book, tmp_path):
    path = write(tmp_path, "web1/ü.json", job_name="ü", host="web1", ansible_job_id="j7.8")
    book.forget(book.find(Key("web1", "ü")))
    assert book.find(Key("web1", "ü")) is None
    assert not path.exists()


def test_a_hand_written_record_does_not_come_to_light_again_when_its_successor_is_forgotten(book, tmp_path):
    key = Key("web1", "ü")
    write(tmp_path, "web1/ü.json", job_name="ü", host="web1", ansible_job_id="j7.8")
    book.save(key, "j9.9")
    assert book.find(key).ansible_job_id == "j9.9"
    book.forget(book.find(key))
    assert book.find(key) is None


def test_forgetting_a_hand_written_record_does_not_touch_a_claim_of_the_same_name(book, tmp_path):
    key = Key("web1", "ü")
    claim = book.claim(key)
    write(tmp_path, "web1/ü.json", job_name="ü", host="web1", ansible_job_id="j7.8")
    book.forget(book.find(key))
    assert book.newest(key).claim["token"] == claim.claim["token"]


def test_ara_alone_takes_no_claims_and_says_what_to_do():
    book = jobs.JobBook(jobs.open_store("ara+http://127.0.0.1:9"))
    with pytest.raises(UnsupportedError, match=r"\?claims=file:/path"):
        book.claim(KEY)
