# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of the book: what is found, who may write, who may start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

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
from forkless.jobs import Key, owner, play_claims, waits

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
def registry(tmp_path, clock):
    return make_book(tmp_path, clock)


def make_book(folder, clock):
    store = jobs.open_store(f"file:{folder}/state")
    return jobs.JobRegistry(store, clock=lambda: clock.wall, pause=clock.pass_, steady=lambda: clock.steady)


@pytest.fixture
def stranger(monkeypatch):
    """Makes the next claims those of a controller on another machine, whose fate cannot be known from here."""
    mine = owner.me()

    def become(name):
        monkeypatch.setattr(owner, "me", lambda: mine | ({"machine": name} if name else {}))

    return become


def test_what_was_saved_is_found_as_it_was(registry):
    registry.save(KEY, "j123.45", metadata={"n": [1, {"ü": None}]}, async_dir="/a", process={"boot": "x"})
    record = registry.find(KEY)
    assert (record.ansible_job_id, record.metadata, record.async_dir) == ("j123.45", {"n": [1, {"ü": None}]}, "/a")
    assert record.process == {"boot": "x"}
    assert record.save_time == "2027-01-15T08:00:00Z"


def test_the_record_has_the_names_that_hand_written_roles_use(registry, tmp_path):
    registry.save(KEY, "j1.2", metadata={"a": 1})
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
        "jobs.JobRegistry(jobs.open_store('file:' + sys.argv[1])).save(jobs.Key('h', 'j', 'p'), 'j1.1')"
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
def test_any_name_is_kept_inside_its_folder_and_told_from_the_others(registry, tmp_path, name):
    for number, other in enumerate(ODD):
        registry.save(Key("h", other), f"j{number}.1")
    assert registry.find(Key("h", name)).ansible_job_id == f"j{ODD.index(name)}.1"
    assert sorted(record.key.job_name for record in registry.jobs()) == sorted(ODD)
    assert os.listdir(tmp_path) == ["state"]
    assert os.listdir(tmp_path / "state") == ["h"]


@pytest.mark.parametrize("host", ["[::1]", "a:22", "../up", "with space", "UPPER", "ü.example"])
def test_any_host_is_kept_and_found(registry, tmp_path, host):
    registry.save(Key(host, "j"), "j1.1")
    assert [record.key.host for record in registry.jobs(host)] == [host]
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("name", ["", "  ", "a\0b"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(SpecError):
        Key("h", name)


def test_a_job_without_an_id_is_not_saved(registry):
    with pytest.raises(SpecError, match="no job id"):
        registry.save(KEY, "")


# -- layouts


def write(tmp_path, path, **what):
    file = tmp_path / "state" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(what))
    return file


def test_a_record_of_a_hand_written_role_is_read(registry, tmp_path):
    write(tmp_path, "web1/rebuild.json", job_name="rebuild", host="web1", ansible_job_id="j7.8", metadata={"a": 1})
    assert registry.find(KEY).ansible_job_id == "j7.8"
    assert [record.ansible_job_id for record in registry.jobs()] == ["j7.8"]


def test_a_record_without_names_gets_them_from_its_place(registry, tmp_path):
    write(tmp_path, "web1/rebuild.json", ansible_job_id="j7.8")
    assert registry.jobs()[0].key == KEY


def test_a_hand_written_record_under_an_odd_name_is_read(registry, tmp_path):
    write(tmp_path, "web1/ü b.json", job_name="ü b", host="web1", ansible_job_id="j7.8")
    assert registry.find(Key("web1", "ü b")).ansible_job_id == "j7.8"


def test_with_a_playbook_name_the_record_without_is_read_too(registry):
    registry.save(KEY, "j1.1")
    assert registry.find(Key("web1", "rebuild", "site")).ansible_job_id == "j1.1"
    registry.save(Key("web1", "rebuild", "site"), "j2.2")
    assert registry.find(Key("web1", "rebuild", "site")).ansible_job_id == "j2.2"
    assert registry.find(KEY).ansible_job_id == "j1.1"


def test_without_a_playbook_name_the_only_one_is_found_and_two_are_an_error(registry):
    registry.save(Key("web1", "rebuild", "site"), "j2.2")
    assert registry.find(KEY).ansible_job_id == "j2.2"
    registry.save(Key("web1", "rebuild", "other"), "j3.3")
    with pytest.raises(JobError, match="several playbooks .other, site."):
        registry.find(KEY)


@pytest.mark.parametrize(
    ("written", "read"), [("123e4.5", '"123e4.5"'), ("1234567890.50", "1234567890.50"), ("7", "7")]
)
def test_a_job_id_stays_text_whatever_it_looks_like(registry, tmp_path, written, read):
    file = write(tmp_path, "web1/rebuild.json", job_name="rebuild", host="web1", ansible_job_id="?")
    file.write_text(file.read_text().replace('"?"', read))
    assert registry.find(KEY).ansible_job_id == written
    registry.save(KEY, written)
    assert json.loads(file.read_text())["ansible_job_id"] == written


# -- people's hands


def test_a_record_removed_by_hand_frees_the_name_and_its_job_is_not_taken_for_a_lost_one(registry, tmp_path):
    registry.save(KEY, "j1.1")
    (tmp_path / "state/web1/rebuild.json").unlink()
    assert registry.find(KEY) is None
    assert registry.jobs() == []
    assert registry.newest(KEY).known_ids() == ["j1.1"]
    assert registry.claim(KEY).state == jobs.CLAIMED


def test_a_record_changed_by_hand_is_what_holds(registry, tmp_path):
    registry.save(KEY, "j1.1")
    path = tmp_path / "state/web1/rebuild.json"
    path.write_text(path.read_text().replace("j1.1", "j9.9"))
    assert registry.find(KEY).ansible_job_id == "j9.9"


def test_a_folder_copied_without_its_hidden_part_is_read(registry, tmp_path):
    import shutil

    registry.save(KEY, "j1.1")
    registry.save(KEY, "j2.2")
    shutil.rmtree(tmp_path / "state/web1/.rebuild.log")
    assert registry.find(KEY).ansible_job_id == "j2.2"
    registry.save(KEY, "j3.3")
    assert registry.find(KEY).ansible_job_id == "j3.3"


@pytest.mark.parametrize("garbage", [b"", b"{", b"[1]", b'{"job_name": 3}', b"\xff\xfe"])
def test_a_hand_written_record_that_is_damaged_is_named_and_never_written_over(registry, tmp_path, garbage):
    path = tmp_path / "state/web1/rebuild.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(garbage)
    for attempt in (
        lambda: registry.find(KEY),
        lambda: registry.claim(KEY),
        lambda: registry.save(KEY, "j1.1"),
        registry.jobs,
    ):
        with pytest.raises(StoreError, match="rebuild.json cannot be understood"):
            attempt()
    assert path.read_bytes() == garbage
    problems = []
    registry.save(Key("web1", "healthy"), "j1.1")
    assert [record.key.job_name for record in registry.jobs(problems=problems)] == ["healthy"]
    assert [(problem.host, problem.job_name, problem.place) for problem in problems] == [("web1", "rebuild", str(path))]


DEEP = b'{"metadata": ' + b"[" * 5000 + b"]" * 5000 + b"}"
ODD_FILES = [
    b"[]",
    b"null",
    DEEP,
    b'{"metadata": ' * 150 + b"1" + b"}" * 150,
    rb'{"metadata": {"a": "\ud800"}}',
    b'{"host": [1]}',
]


@pytest.mark.parametrize("odd", ODD_FILES, ids=range(len(ODD_FILES)))
def test_one_odd_record_hides_no_other_and_is_shown_with_its_path(registry, tmp_path, odd):
    for name in ("a", "z"):
        registry.save(Key("web1", name), "j1.1")
    path = tmp_path / "state/web1/m.json"
    path.write_bytes(odd)
    problems = []
    assert [record.key.job_name for record in registry.jobs(problems=problems)] == ["a", "z"]
    assert [problem.place for problem in problems] == [str(path)]
    assert str(path) in str(problems[0])
    assert path.read_bytes() == odd


def test_a_folder_a_pipe_and_a_name_that_is_no_text_in_the_place_of_a_record_hide_no_other(registry, tmp_path):
    registry.save(Key("web1", "a"), "j1.1")
    folder = os.fsencode(tmp_path / "state/web1") + b"/"
    os.mkdir(folder + b"folder.json")
    os.mkfifo(folder + b"pipe.json")
    with open(folder + b"\xff.json", "wb") as file:
        file.write(b"{}")
    problems = []
    assert [record.key.job_name for record in registry.jobs(problems=problems)] == ["a"]
    assert [problem.job_name for problem in problems] == ["folder", "pipe", "\\udcff"]
    for problem in problems:
        str(problem).encode()


def test_metadata_that_no_reader_would_take_is_refused_when_it_is_saved(registry):
    deep = {}
    for _ in range(200):
        deep = {"a": deep}
    for odd in (deep, {"a": "\ud800"}):
        with pytest.raises(SpecError, match="cannot be saved with this metadata"):
            registry.save(KEY, "j1.1", metadata=odd)
    assert registry.find(KEY) is None


def test_a_record_has_a_format_and_one_of_a_newer_version_is_refused_with_what_to_do(registry, tmp_path):
    registry.save(KEY, "j1.1")
    path = tmp_path / "state/web1/rebuild.json"
    what = json.loads(path.read_text())
    assert what["format"] == 1
    path.write_text(json.dumps(what | {"format": 2}))
    for attempt in (lambda: registry.find(KEY), lambda: registry.claim(KEY), lambda: registry.save(KEY, "j2.2")):
        with pytest.raises(StoreError, match=r"newer version of forkless \(format 2, .* Update forkless"):
            attempt()
    del what["format"]
    path.write_text(json.dumps(what))
    assert registry.find(KEY).ansible_job_id == "j1.1"


def test_a_damaged_view_is_kept_aside_and_restored_from_the_log(registry, tmp_path):
    registry.save(KEY, "j1.1")
    folder = tmp_path / "state/web1"
    (folder / "rebuild.json").write_bytes(b'{"job_na')
    assert registry.find(KEY).ansible_job_id == "j1.1"
    aside = [name for name in os.listdir(folder) if "unreadable" in name]
    assert [(folder / name).read_bytes() for name in aside] == [b'{"job_na']
    assert json.loads((folder / "rebuild.json").read_text())["ansible_job_id"] == "j1.1"


def test_a_damaged_log_is_named_and_kept(registry, tmp_path):
    registry.save(KEY, "j1.1")
    (tmp_path / "state/web1/.rebuild.log/00000001.json").write_bytes(b"{")
    (tmp_path / "state/web1/rebuild.json").unlink()
    with pytest.raises(StoreError, match="cannot be understood"):
        registry.find(KEY)
    assert (tmp_path / "state/web1/.rebuild.log/00000001.json").read_bytes() == b"{"


def test_names_that_differ_only_in_capitals_do_not_share_a_record_unnoticed(registry, tmp_path):
    registry.save(Key("web1", "Rebuild"), "j1.1")
    for name in (".Rebuild.log", "Rebuild.json"):  # what a file system that does not tell them apart would show
        os.rename(tmp_path / "state/web1" / name, tmp_path / "state/web1" / name.lower())
    with pytest.raises(StoreError, match="differ only in capitals"):
        registry.find(KEY)


def test_playbooks_that_differ_only_in_capitals_do_not_share_a_record_unnoticed(registry, tmp_path):
    registry.save(Key("web1", "rebuild", "Site"), "j1.1")
    os.symlink(tmp_path / "state/web1/Site", tmp_path / "state/web1/site")
    assert registry.find(Key("web1", "rebuild", "Site")).ansible_job_id == "j1.1"
    with pytest.raises(StoreError, match="differ only in capitals"):
        registry.find(Key("web1", "rebuild", "site"))


@pytest.mark.parametrize("names", [("web1", "\ud800"), ("web\udcff1", "j"), ("web1", "j", "\ud800")])
def test_a_name_that_is_not_unicode_is_refused(names):
    with pytest.raises(SpecError, match="is not valid Unicode"):
        Key(*names)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_lacks_is_refused_before_anything_is_written(registry, number):
    with pytest.raises(SpecError, match="cannot be saved with this metadata"):
        registry.save(KEY, "j1.1", metadata={"deep": [number]})
    assert registry.find(KEY) is None


@pytest.mark.parametrize("link", ["mount", "mount/state", "mount/state/web1"])
def test_a_link_that_leads_nowhere_is_an_error_and_never_no_jobs(tmp_path, link):
    """What a store on a file system that is not mounted looks like."""
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "not mounted")
    registry = jobs.JobRegistry(jobs.open_store(f"file:{tmp_path}/mount/state"))
    for read in (lambda: registry.find(Key("web1", "rebuild")), lambda: registry.jobs("web1")):
        with pytest.raises(StoreError, match="not mounted, which does not exist"):
            read()
    assert not (tmp_path / "not mounted").exists()
    (tmp_path / "not mounted").mkdir()
    registry.save(Key("web1", "rebuild"), "j1.1")
    assert registry.find(Key("web1", "rebuild")).ansible_job_id == "j1.1"


def test_a_file_in_the_place_of_the_folder_is_an_error_and_never_no_jobs(tmp_path):
    tmp_path.joinpath("state").write_text("")
    registry = jobs.JobRegistry(jobs.open_store(f"file:{tmp_path}/state"))
    with pytest.raises(StoreError, match="it is not a folder"):
        registry.jobs()


# -- claims


def test_the_second_to_claim_finds_the_job_of_the_first(registry):
    claim = registry.claim(KEY)
    assert claim.state == jobs.CLAIMED
    assert registry.find(KEY) is None
    slot = jobs.slot_of("/base", KEY, claim.claim["token"])
    registry.save(KEY, "j1.1", slot=slot)
    found = registry.claim(KEY)
    assert (found.state, found.ansible_job_id, found.async_dir) == (jobs.SAVED, "j1.1", slot)


@pytest.mark.parametrize("hosts", [["web1"], ["web1", "web2"]])
def test_a_claim_that_the_store_refuses_for_ever_is_an_error_in_one_sentence(registry, monkeypatch, hosts):
    """Nobody else writes: a full disk has left something in the place of the next revision."""
    asked = []

    def refuse(stem, revision, body):
        asked.append(revision)
        assert len(asked) < 1000, "it is tried again for ever"
        raise ConflictError("somebody was first")

    monkeypatch.setattr(registry.store, "append", refuse)
    play = jobs.Play("this", frozenset(hosts)) if len(hosts) > 1 else None
    with pytest.raises(StoreError, match=r"could not be claimed: the store refused .* See whether its disk is full"):
        registry.claim(KEY, claimant="one", play=play)


def test_a_claim_of_someone_else_is_waited_for_and_then_an_error(registry, clock, stranger):
    stranger("elsewhere")
    registry.claim(KEY, lease=100)
    stranger("")
    with pytest.raises(ConflictError, match=r"being started by another controller \(process \d+ on elsewhere"):
        registry.claim(KEY, wait=50)
    assert clock.steady >= 50


def test_a_claim_is_taken_over_when_its_lease_has_ended_and_its_folder_is_to_be_fenced(registry, clock, stranger):
    stranger("elsewhere")
    old = registry.claim(KEY, lease=100)
    stranger("")
    new = registry.claim(KEY)
    assert 100 <= clock.steady < 102
    assert new.claim["fences"] == [old.claim["token"]]


def test_fences_of_all_who_died_are_handed_on(registry, clock, stranger):
    tokens = []
    for name in ("one", "two", "three"):
        stranger(name)
        tokens.append(registry.claim(KEY, lease=10).claim["token"])
        clock.pass_(20)
    stranger("")
    assert registry.claim(KEY).claim["fences"] == tokens


@pytest.mark.spawns
def test_a_claim_whose_owner_is_known_to_be_dead_is_taken_over_at_once(registry, clock, monkeypatch):
    mine = owner.me()
    gone = subprocess_that_ended()
    monkeypatch.setattr(owner, "me", lambda: mine | {"pid": gone, "start": "1"})
    registry.claim(KEY, lease=1000)
    monkeypatch.setattr(owner, "me", lambda: mine)
    registry.claim(KEY)
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
        ({"boot": "other"}, False),  # another machine made from the same image, or this one before it was started anew
        ({"boot": "other", "start": "1"}, False),  # its process is not to be found here, and need not be
        ({"machine": "other", "start": "1"}, False),
        ({"pids": "another container", "start": "1"}, False),
        ({"machine": "other", "boot": "other"}, False),
        ({"pids": "another container", "pid": 99999999}, False),
        ({"start": ""}, False),  # a system that does not tell
    ],
)
def test_an_owner_is_gone_only_if_that_can_be_known(change, gone):
    assert owner.is_gone(owner.me() | change) is gone


def test_a_clock_that_jumps_back_cannot_keep_a_dead_claim_for_ever(registry, clock, stranger):
    stranger("elsewhere")
    registry.claim(KEY, lease=100)
    stranger("")
    clock.wall -= 1_000_000
    assert registry.claim(KEY, wait=500).state == jobs.CLAIMED
    assert clock.steady <= 102


def test_a_clock_that_jumps_ahead_takes_over_and_the_fence_makes_it_harmless(registry, clock, stranger):
    stranger("elsewhere")
    old = registry.claim(KEY, lease=100)
    stranger("")
    clock.wall += 1_000_000
    new = registry.claim(KEY)
    assert new.claim["fences"] == [old.claim["token"]]
    # The first one was only slow. Its job cannot have been started; saving it is refused, the winner's record stands.
    with pytest.raises(ConflictError, match="taken over by another controller"):
        registry.save(KEY, "j1.1", slot=jobs.slot_of("/b", KEY, old.claim["token"]))
    registry.save(KEY, "j2.2", slot=jobs.slot_of("/b", KEY, new.claim["token"]))
    with pytest.raises(ConflictError, match="taken over by another controller"):
        registry.save(KEY, "j1.1", slot=jobs.slot_of("/b", KEY, old.claim["token"]))
    assert registry.find(KEY).ansible_job_id == "j2.2"


def test_who_claims_its_own_name_again_has_the_same_claim_and_another_one_in_the_process_has_not(registry, clock):
    first = registry.claim(KEY, lease=100, claimant="web1 in play 1")
    clock.pass_(90)
    again = registry.claim(KEY, lease=100, claimant="web1 in play 1")
    assert clock.steady == 90
    assert again.claim["token"] == first.claim["token"]
    assert again.claim["fences"] == []
    for claimant in ("", "web2 in play 1", "web1 in play 2"):
        with pytest.raises(ConflictError, match="being started by another controller"):
            registry.claim(KEY, wait=50, claimant=claimant)
        registry.claim(KEY, lease=100, claimant="web1 in play 1")
    registry.save(KEY, "j1.1", slot=jobs.slot_of("/b", KEY, first.claim["token"]))
    assert registry.find(KEY).ansible_job_id == "j1.1"


def test_of_those_who_saw_the_same_job_end_one_starts_it_anew_and_the_others_find_that(registry):
    registry.save(KEY, "j1.1")
    over = registry.find(KEY)
    claim = registry.claim(KEY, instead_of=over)
    assert (claim.state, claim.known_ids()) == (jobs.CLAIMED, ["j1.1"])
    with pytest.raises(ConflictError):
        registry.claim(KEY, wait=0, instead_of=over)
    registry.save(KEY, "j2.2", slot=jobs.slot_of("/b", KEY, claim.claim["token"]))
    assert registry.claim(KEY, wait=0, instead_of=over).ansible_job_id == "j2.2"


def test_a_job_that_was_not_over_after_all_takes_its_place_again(registry):
    registry.save(KEY, "j1.1", metadata={"a": 1}, async_dir="/there")
    claim = registry.claim(KEY, instead_of=registry.find(KEY))
    slot = jobs.slot_of("/", KEY, claim.claim["token"])
    registry.save(KEY, "j1.1", metadata={"a": 1}, async_dir="/there", slot=slot)
    found = registry.find(KEY)
    assert (found.ansible_job_id, found.metadata, found.async_dir) == ("j1.1", {"a": 1}, "/there")


def test_what_is_left_of_a_forgotten_job_is_little_and_is_purged_after_a_day(registry, clock, tmp_path):
    for number in range(30):
        registry.save(Key("web1", f"job {number}"), "j1.1")
        registry.save(Key("web1", f"job {number}"), "j2.2")
        registry.forget(registry.find(Key("web1", f"job {number}")))
    assert len([path for path in (tmp_path / "state").rglob("*") if path.is_file()]) == 60
    registry.save(KEY, "j1.1")
    assert registry.purge() == 0
    clock.pass_(90_000)
    assert registry.purge("web1") == 30
    left = sorted(path.name for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert left == ["00000001.json", "00000001.shown", "rebuild.json"]
    assert [record.key for record in registry.jobs()] == [KEY]


def test_who_does_not_claim_may_not_write_over_a_claim_that_lives(registry, stranger):
    stranger("elsewhere")
    registry.claim(KEY)
    stranger("")
    with pytest.raises(ConflictError):
        registry.save(KEY, "j1.1")


def test_who_does_not_claim_writes_over_an_old_record_which_stays_known(registry):
    registry.save(KEY, "j1.1")
    registry.save(KEY, "j2.2")
    record = registry.find(KEY)
    assert record.known_ids() == ["j2.2", "j1.1"]


def test_an_adopted_job_may_be_saved_by_the_one_who_started_it_after_all(registry, clock, stranger):
    stranger("elsewhere")
    old = registry.claim(KEY, lease=10)
    stranger("")
    clock.pass_(20)
    new = registry.claim(KEY)
    slot = jobs.slot_of("/b", KEY, old.claim["token"])
    assert registry.adopt(new, KEY, "j1.1", slot, {}).adopted
    registry.save(KEY, "j1.1", slot=slot, metadata={"late": True})
    assert registry.find(KEY).metadata == {"late": True}


def test_who_takes_over_the_claim_of_a_retry_goes_on_counting_and_a_forgotten_job_begins_afresh(
    registry, clock, stranger
):
    failed = registry.save(KEY, "j1.1")
    stranger("elsewhere")
    registry.claim(KEY, lease=10, instead_of=failed, attempts=[{"ansible_job_id": "j1.1", "state": "failed"}])
    stranger("")
    clock.pass_(20)
    token = registry.claim(KEY).claim["token"]
    again = registry.save(KEY, "j2.2", slot=jobs.slot_of("/b", KEY, token))
    assert [one["ansible_job_id"] for one in again.attempts] == ["j1.1"]
    assert again.shown()["attempts"] == again.attempts
    assert registry.claim(KEY, instead_of=again).attempts == []
    registry.save(KEY, "j3.3")
    registry.forget(registry.find(KEY))
    assert registry.claim(KEY).attempts == []


def test_a_forgotten_job_is_gone_its_id_stays_known_and_the_name_is_free(registry, tmp_path):
    registry.save(KEY, "j1.1")
    registry.forget(registry.find(KEY))
    assert registry.find(KEY) is None
    assert not (tmp_path / "state/web1/rebuild.json").exists()
    assert registry.newest(KEY).known_ids() == ["j1.1"]
    registry.save(KEY, "j2.2")
    assert registry.find(KEY).ansible_job_id == "j2.2"


def test_a_job_that_must_be_known_and_is_not_is_named_with_its_store(registry):
    with pytest.raises(JobLostError, match=r"no record of .*rebuild.* in file:"):
        registry.known(KEY)
    registry.save(KEY, "j1.1")
    assert registry.known(KEY).ansible_job_id == "j1.1"


def test_who_tidies_up_does_not_take_away_what_was_started_meanwhile(registry):
    registry.save(KEY, "j1.1")
    seen = registry.find(KEY)
    registry.save(KEY, "j2.2")
    with pytest.raises(JobChangedError, match="nothing was removed"):
        registry.forget(seen)
    assert registry.find(KEY).ansible_job_id == "j2.2"


def test_a_hand_written_record_can_be_forgotten(registry, tmp_path):
    path = write(tmp_path, "web1/ü.json", job_name="ü", host="web1", ansible_job_id="j7.8")
    registry.forget(registry.find(Key("web1", "ü")))
    assert registry.find(Key("web1", "ü")) is None
    assert not path.exists()


def test_a_hand_written_record_does_not_come_to_light_again_when_its_successor_is_forgotten(registry, tmp_path):
    key = Key("web1", "ü")
    write(tmp_path, "web1/ü.json", job_name="ü", host="web1", ansible_job_id="j7.8")
    registry.save(key, "j9.9")
    assert registry.find(key).ansible_job_id == "j9.9"
    registry.forget(registry.find(key))
    assert registry.find(key) is None


def test_forgetting_a_hand_written_record_does_not_touch_a_claim_of_the_same_name(registry, tmp_path):
    key = Key("web1", "ü")
    claim = registry.claim(key)
    write(tmp_path, "web1/ü.json", job_name="ü", host="web1", ansible_job_id="j7.8")
    registry.forget(registry.find(key))
    assert registry.newest(key).claim["token"] == claim.claim["token"]


def test_ara_alone_takes_no_claims_and_says_what_to_do():
    registry = jobs.JobRegistry(jobs.open_store("ara+http://127.0.0.1:9"))
    with pytest.raises(UnsupportedError, match=r"\?claims=file:/path"):
        registry.claim(KEY)


# -- several hosts in one play


HOSTS = frozenset({"web1", "web2"})
OTHER = Key("web2", "rebuild")
ONE, TWO = jobs.Play("play 1", HOSTS), jobs.Play("play 2", HOSTS)


def test_a_play_claims_nothing_while_another_one_is_about_to_start_the_job_on_one_of_its_hosts(registry, clock):
    registry.claim(KEY, play=ONE)
    with pytest.raises(ConflictError, match=r"job 'rebuild' on web1 is being started by another controller"):
        registry.claim(OTHER, wait=50, play=TWO)
    assert registry.newest(OTHER) is None
    # Who has claimed the first host is not kept from the second one.
    assert registry.claim(OTHER, play=ONE).state == jobs.CLAIMED


def test_a_play_that_waited_for_another_one_finds_or_claims_what_is_left(registry, clock, monkeypatch):
    registry.claim(KEY, play=ONE)

    def pause(seconds):
        clock.pass_(seconds)
        if registry.newest(KEY).state == jobs.CLAIMED:
            registry.save(KEY, "j1.1")

    monkeypatch.setattr(registry, "_pause", pause)
    assert registry.claim(OTHER, wait=50, play=TWO).state == jobs.CLAIMED
    assert registry.claim(KEY, wait=50, play=TWO).ansible_job_id == "j1.1"


def test_a_job_that_is_over_counts_as_one_that_is_about_to_be_started_anew(registry, clock):
    registry.save(KEY, "j1.1")
    over = registry.find(KEY)
    # As a controller that has written down its play, and not yet its claim.
    entry = play_claims.with_host(None, KEY, ONE, over.write, lease=120, now=clock.wall, is_over=bool)
    registry._append(entry, None)
    with pytest.raises(ConflictError):
        registry.claim(OTHER, wait=50, play=TWO)


@pytest.mark.parametrize(
    ("name", "play"),
    [
        ("rebuild", jobs.Play("play 2", frozenset({"web2", "web3"}))),  # none of its hosts
        ("dump", TWO),  # another job
    ],
)
def test_plays_that_cannot_wait_for_each_other_do_not_wait(registry, name, play):
    registry.claim(KEY, play=ONE)
    assert registry.claim(Key("web2", name), wait=0.1, play=play).state == jobs.CLAIMED


def test_a_play_of_a_controller_that_has_ended_keeps_nobody_waiting(registry, clock, stranger):
    stranger("far away")
    registry.claim(KEY, lease=100, play=ONE)
    stranger("")
    clock.pass_(99)
    with pytest.raises(ConflictError):
        registry.claim(OTHER, wait=0.5, play=TWO)
    clock.pass_(2)
    assert registry.claim(OTHER, wait=0.5, play=TWO).state == jobs.CLAIMED


def test_what_plays_write_down_is_no_job(registry, clock):
    registry.claim(KEY, play=ONE)
    assert [record.key for record in registry.jobs()] == [KEY]
    registry.save(KEY, "j1.1")
    clock.pass_(90000)
    assert registry.purge() == 1
    assert [record.key for record in registry.jobs()] == [KEY]


# -- who waits for whom


DUMP, REBUILD, INDEX = Key("web1", "dump"), Key("web1", "rebuild"), Key("web1", "index")


def test_a_play_whose_clock_is_in_the_future_keeps_nobody_waiting_for_ever(registry, clock, stranger):
    stranger("far away")
    clock.wall += 1_000_000
    registry.claim(KEY, lease=100, play=ONE)
    clock.wall -= 1_000_000
    stranger("")
    assert registry.claim(OTHER, lease=100, play=TWO).state == jobs.CLAIMED
    assert clock.steady <= 101


def claim_in_order(tmp_path, orders):
    """Claimants in threads, one for each order of names: what each got for its last claim, after all had the others."""
    barrier = threading.Barrier(len(orders))
    got = {}

    def work(claimant, keys):
        registry = jobs.JobRegistry(jobs.open_store(f"file:{tmp_path}/state"))
        for key in keys[:-1]:
            registry.claim(key, lease=3000, claimant=claimant)
        barrier.wait(240)
        try:
            got[claimant] = registry.claim(keys[-1], lease=3000, claimant=claimant)
            for key in keys:
                registry.save(key, "j1.1", slot=jobs.slot_of("/", key, registry.newest(key).claim["token"]))
        except ConflictError as error:
            got[claimant] = error

    threads = [threading.Thread(target=work, args=order) for order in orders.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "they wait for each other"
    return got


@pytest.mark.parametrize(
    "orders",
    [
        {"web1/play a": [DUMP, REBUILD], "web1/play b": [REBUILD, DUMP]},
        {"web1/play a": [DUMP, REBUILD], "web1/play b": [REBUILD, INDEX], "web1/play c": [INDEX, DUMP]},
    ],
    ids=["two", "three"],
)
def test_of_claimants_that_wait_for_each_other_one_gives_way_and_the_others_go_on(tmp_path, orders):
    got = claim_in_order(tmp_path, orders)
    *others, last = sorted(got)
    assert isinstance(got[last], ConflictError)
    first_of_last = orders[last][0]
    assert f"which waits for {first_of_last}, which is claimed here" in str(got[last]) or len(orders) == 3
    assert all(isinstance(got[one], jobs.Record) for one in others), got
    # What was given back can only be taken over with a fence in its place.
    taken = next(got[one] for one in others if orders[one][-1] == first_of_last)
    assert taken.state == jobs.CLAIMED
    assert len(taken.claim["fences"]) == 1
    registry = jobs.JobRegistry(jobs.open_store(f"file:{tmp_path}/state"))
    assert not registry.store.revisions("forkless%3Awaits"), "a wait is left"


def test_a_play_that_gives_way_keeps_nobody_waiting_for_its_host(registry, clock):
    registry.claim(KEY, play=ONE, claimant="web1/play 1")
    registry.claim(OTHER, play=ONE, claimant="web2/play 1")
    record = registry.newest(play_claims.record_key(KEY))
    [entry] = play_claims.without_host(record, KEY, "play 1").claim["plays"]
    assert list(entry["hosts"]) == ["web2"]
    assert play_claims.without_host(record, KEY, "play 2").claim["plays"] == record.claim["plays"]


def test_what_a_wait_of_a_dead_controller_has_left_is_purged_with_any_host(registry, clock):
    registry.claim(KEY, claimant="web1/play 1")
    left = waits.Wait(
        KEY, "web1/play 2", store=registry.store, newest=registry.newest, append=registry._append,
        clock=registry._clock, steady=registry._steady, pause=registry._pause, deadline=1e9,
    )  # fmt: skip
    for _ in range(2):
        left.pause(registry.newest(KEY).claim, registry.newest(KEY), KEY)
    registry.claim(OTHER, play=ONE)
    assert [record.key for record in registry.jobs()] == [KEY, OTHER]
    clock.pass_(90_000)
    assert registry.purge("web1") == 2
