# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a project travels: all that a run needs, or the launch is refused; and nothing arrives as something else than it was."""

from __future__ import annotations

import asyncio
import os
import stat

import pytest

import forkless
import forkless.queue
from forkless.queue import project as projects
from forkless.queue import requests
from forkless.queue.errors import QueueRequestError
from queue_support import launch, lines, playbook

pytestmark = pytest.mark.spawns


def prepare(folder, **fields):
    spec = {"playbook": "site.yml", "inventory": "hosts.ini", "cwd": folder} | fields
    return requests.prepare(forkless.RunSpec(**spec), requests.LaunchOptions())


@pytest.fixture
def full(project):
    """A project with everything that Ansible reads beside a playbook and an inventory."""
    playbook(project, tasks=["- debug:"])
    for name in (
        "inventory/hosts.ini", "inventory/group_vars/all.yml", "group_vars/all/main.yml", "host_vars/web1.yml", "roles/r/tasks/main.yml",
        "roles/r/molecule/x.yml", "collections/ansible_collections/a/b/MANIFEST.json", "library/m.py", "vars/more.yml", "lib/plugins/f.py",
        "elsewhere/roles/s/tasks/main.yml", ".ansible/roles/t/tasks/main.yml", "secret/real.ini",
    ):  # fmt: skip
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (project / "linked.ini").symlink_to("secret/real.ini")
    (project / "ansible.cfg").write_text(
        "[defaults]\nroles_path = elsewhere/roles:/etc/ansible/roles\nfilter_plugins = lib/plugins\n"
    )
    return project


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("hosts.ini", "inventory hosts.ini would not reach the workers: hosts.ini is left out by .gitignore"),
        ("*.ini", "inventory hosts.ini"),
        ("site.yml", "playbook site.yml"),
        ("ansible.cfg", "the configuration ansible.cfg"),
        ("group_vars/", "the folder group_vars "),
        (
            "group_vars/all/main.yml",
            "the folder group_vars would not reach the workers: group_vars/all/main.yml is left out",
        ),
        ("host_vars/*", "the folder host_vars "),
        ("/roles/*", "the folder roles would not reach the workers: roles/r is left out"),
        ("collections/", "the folder collections "),
        ("/elsewhere/", "roles_path of ansible.cfg, elsewhere/roles "),
        ("/lib/", "filter_plugins of ansible.cfg, lib/plugins "),
    ],
)
def test_a_launch_whose_files_would_stay_behind_is_refused(full, pattern, named):
    (full / ".gitignore").write_text(f"{pattern}\n")
    with pytest.raises(QueueRequestError) as refused:
        prepare(full)
    assert named in str(refused.value)
    # The sentence says what helps.
    line = str(refused.value).partition("with a line ")[2].partition(" in .forklessignore")[0]
    (full / ".forklessignore").write_text(f"{line}\n")
    assert prepare(full).bundle is not None


def test_files_that_arguments_and_links_name_must_travel_as_well(full):
    assert (
        prepare(full, args=["-e", "@vars/more.yml"], inventory=["linked.ini", "inventory", "web1,"]).bundle is not None
    )
    (full / ".gitignore").write_text("/vars/\nsecret/\n/inventory/group_vars/\n")
    for fields, named in (
        ({"args": ["-e", "@vars/more.yml"]}, "the variables file vars/more.yml"),
        ({"args": ["--extra-vars=@vars/more.yml"]}, "the variables file vars/more.yml"),
        ({"inventory": "linked.ini"}, "inventory linked.ini would not reach the workers: secret is left out"),
        (
            {"inventory": "inventory"},
            "inventory inventory would not reach the workers: inventory/group_vars is left out",
        ),
        ({"inventory": "inventory/hosts.ini"}, "the folder inventory/group_vars "),
    ):
        with pytest.raises(QueueRequestError) as refused:
            prepare(full, **fields)
        assert named in str(refused.value)


def test_what_no_run_names_may_stay_behind(full):
    (full / ".gitignore").write_text("molecule/\n*.log\n/vars/\nsecret/\nlinked.ini\n")
    (full / ".forklessignore").write_text("/roles/\nhost_vars/\n")  # a choice for the workers, not for git
    (full / "group_vars/all.pyc").write_text("")
    target = full.parent / "there"
    bundle = prepare(full).bundle
    projects.unpack(bundle.content, bundle.sha256, str(target))
    assert not {"roles", "host_vars", "vars", "secret", "linked.ini"} & set(os.listdir(target))
    # What never travels does when ansible.cfg names it, or the launch is refused.
    (full / "ansible.cfg").write_text("[defaults]\nroles_path = .ansible/roles\n")
    with pytest.raises(
        QueueRequestError, match=r"roles_path of ansible.cfg, .ansible/roles would .* left out by the list"
    ):
        prepare(full)


def test_a_program_arrives_as_a_program_and_a_private_file_as_a_private_one(project):
    playbook(project, tasks=["- debug:"])
    for name, mode in (("hosts.ini", 0o654), ("key", 0o600), ("tool", 0o700), ("plain", 0o664)):
        (project / name).touch()
        (project / name).chmod(mode)
    bundle = prepare(project).bundle
    target = project.parent / "there"
    projects.unpack(bundle.content, bundle.sha256, str(target))
    modes = {name: stat.S_IMODE(os.stat(target / name).st_mode) for name in ("hosts.ini", "key", "tool", "plain")}
    assert modes == {"hosts.ini": 0o755, "key": 0o600, "tool": 0o700, "plain": 0o644}


def test_names_of_255_bytes_and_names_that_are_no_text_arrive_as_they_are(project):
    playbook(project, tasks=["- debug:"])
    names = [b"a" * 255, b"\xfc\xff\n'\"", "ü".encode() * 127, b"-e", b"{{ x }}"]
    for name in names:
        with open(os.path.join(os.fsencode(project), name), "wb") as file:
            file.write(name)
    os.symlink(b"a" * 255, os.path.join(os.fsencode(project), b"b" * 255))
    (project / ".gitignore").write_bytes(b"\xe4*\n")
    with open(os.path.join(os.fsencode(project), b"\xe4-left-out"), "wb"):
        pass
    bundle = prepare(project).bundle
    target = project.parent / "there"
    projects.unpack(bundle.content, bundle.sha256, str(target))
    there = set(os.listdir(os.fsencode(target)))
    assert there == {*names, b"b" * 255, b"site.yml", b"hosts.ini", b".gitignore"}
    assert os.readlink(os.path.join(os.fsencode(target), b"b" * 255)) == b"a" * 255
    for name in names:
        with open(os.path.join(os.fsencode(target), name), "rb") as file:
            assert file.read() == name


def test_a_link_whose_name_is_no_text_is_named_in_a_sentence_that_can_be_printed(project):
    playbook(project, tasks=["- debug:"])
    os.symlink(b"/etc/\xff", os.path.join(os.fsencode(project), b"\xfe"))
    with pytest.raises(QueueRequestError) as refused:
        prepare(project)
    assert r"\xfe is a link to /etc/\xff" in str(refused.value).encode().decode()


def test_an_inventory_that_the_worker_cannot_read_fails_the_run(project):
    playbook(project, tasks=["- debug:"])
    (project / "hosts.ini").write_text("#!/bin/sh\nexit 1\n")
    (project / "hosts.ini").chmod(0o755)
    plain = {"playbook": ["site.yml"], "inventory": ["hosts.ini"]}

    def run(**literal):
        spec = requests.rebuild(plain, {}, literal, cwd=str(project), limit=None, ident="run-1-1", more_env={})
        return forkless.run(spec=spec)

    assert run().status == "failed"
    # Who asked for it has Ansible's own behaviour.
    assert run(env={"ANSIBLE_INVENTORY_UNPARSED_FAILED": "false"}).status == "successful"


def test_a_shared_folder_is_used_where_it_is_and_as_it_is(url, database, workers, project):
    """Nothing of it is stored: workers see the same folder, and a relaunch finds what it has become."""
    playbook(project, tasks=["- raw: echo {{ playbook_dir }} >> {{ playbook_dir }}/acts"])
    number = launch(url, project, shared_folder=True)
    workers.start()
    assert database.wait_for(number, "successful", "failed") == "successful"
    playbook(project, tasks=["- raw: echo changed >> {{ playbook_dir }}/acts"])

    async def relaunch():
        async with forkless.queue.connect(url) as queue:
            return (await queue.relaunch(number)).number

    assert database.wait_for(asyncio.run(relaunch()), "successful", "failed") == "successful"
    assert lines(project / "acts") == [str(project), "changed"]
    assert database.one("SELECT count(*) FROM forkless.bundle") == 0


def test_a_relaunch_has_the_files_of_its_launch_and_equal_files_are_stored_once(
    url, database, workers, project, tmp_path
):
    acts = tmp_path / "acts"

    def write(text):
        playbook(project, tasks=[f"- raw: echo {text} >> {acts}"])

    async def relaunch(number):
        async with forkless.queue.connect(url) as queue:
            return (await queue.relaunch(number)).number

    write("before")
    first, second = launch(url, project), launch(url, project)
    assert database.one("SELECT count(*) FROM forkless.bundle") == 1
    write("after")
    third = launch(url, project)
    assert database.one("SELECT count(*) FROM forkless.bundle") == 2
    workers.start()
    for number in (first, second, third):
        assert database.wait_for(number, "successful", "failed") == "successful"
    assert database.wait_for(asyncio.run(relaunch(first)), "successful", "failed") == "successful"
    assert lines(acts) == ["before", "before", "after", "before"]
    assert database.one("SELECT count(*) FROM forkless.bundle") == 2
